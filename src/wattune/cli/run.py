"""``wattune run``: everything in one go, in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wattune.cli.options import (
    Algorithm,
    Json,
    MaxTemp,
    Mode,
    Processes,
    Reference,
    Resume,
    Strategy,
    SysfsRoot,
    WorkloadFile,
    cap_limit,
    device_spec,
    margin_w,
    max_temp_c,
)
from wattune.cli.outcome import failure
from wattune.cli.output import Output, resumable
from wattune.cli.progress import shown
from wattune.errors import InputError, OutputError

Device = Annotated[
    str | None, typer.Option("--device", metavar="DEVICE", help="A name from `wattune devices`, or a board file.")
]
Cap = Annotated[
    str | None,
    typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W, 10W@module or 12W@supply, or none."),
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="A new or empty folder. By default wattune-run-N."),
]
Profile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="A profile record; it is then not measured anew.")
]
Compare = Annotated[bool, typer.Option("--compare", help="Afterwards train the picks of simpler rules as well.")]
Seeds = Annotated[
    int | None, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Trainings per batch size. By default 3.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the training. By default 0.")
]
Margin = Annotated[
    str | None, typer.Option("--margin", metavar="WATTS", help="Stay this much below the limit. By default 0.")
]
Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="A wattune server, in place of WORKLOAD; it trains the proxy."),
]
ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Which of the server's models.")]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="FILE", help="Your own data, .npz, with --server; it never leaves this machine."),
]
Target = Annotated[
    float | None, typer.Option("--target", metavar="X", help="With --server: train to this. By default the model's.")
]
DeviceName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What the server calls this device. By default the machine's name."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the server's token. By default WATTUNE_TOKEN."),
]


def run(
    workload: WorkloadFile = None,
    device: Device = None,
    cap: Cap = None,
    output: Folder = None,
    resume: Resume = False,
    compare: Compare = False,
    strategy: Strategy = None,
    reference: Reference = None,
    profile: Profile = None,
    seeds: Seeds = None,
    seed: Seed = None,
    margin: Margin = None,
    algorithm: Algorithm = None,
    max_temp: MaxTemp = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    processes: Processes = None,
    server: Server = None,
    model: ModelName = None,
    data: Data = None,
    target: Target = None,
    name: DeviceName = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Profile, estimate, plan, train and report. Going on with a run needs its folder only.

    \b
    Example:  wattune run --device sim:jetson-nano --cap 4.5W
              wattune run --output wattune-run-1 --resume
              wattune run --server http://host:8484 --model resnet8-digits --device jetson --cap 5W --data my.npz
    """
    given: dict[str, Any] = {
        "workload": None if workload is None else str(workload),
        "algorithm": algorithm,
        "strategy": strategy,
        "seeds": seeds,
        "seed": seed,
        "reference": reference,
        "compare": compare or None,
        "server": server,
        "model": model,
        "data": data,
        "target": target,
        "device_name": name,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if device is not None:
        given["device"] = device_spec(device, sysfs_root, mode)
    elif sysfs_root is not None or mode is not None:
        raise InputError("--sysfs-root and --mode go with --device")
    if cap is not None:
        given["cap_w"], given["cap_side"] = cap_limit(cap)
    if margin is not None:
        given["margin_w"] = margin_w(margin)
    if max_temp is not None:
        given["max_temp_c"] = max_temp_c(max_temp)

    from wattune.folder import RunFolder, free_folder

    if resume and output is None:
        raise OutputError("--resume", hint="name the folder of the run to go on with by -o DIR")
    folder = RunFolder(free_folder() if output is None else output)
    if resume and folder.begun:
        given = folder.remembered() | given
    for missing, option in (("device", "--device"), ("cap_w", "--cap")):
        if missing not in given:
            raise InputError(f"{option} is missing", hint="see wattune run --help")
    if token_file is not None:
        given["token"] = _token(token_file)

    again = ["run", "--output", str(folder.path)]
    if token_file is not None:  # which the folder does not remember
        again += ["--token-file", str(token_file)]
    with resumable(again, folder.arguments), shown() as progress:
        from wattune import pipeline

        record = pipeline.run(
            **given, profile=profile, output=folder.path, resume=resume, processes=processes, progress=progress
        )

    from wattune.records import Comparison
    from wattune.reporting import summary

    comparison = folder.load(Comparison) if given.get("compare") else None
    text = f"{summary(record.plan, record, comparison)}\nreport: {folder.report}"
    Output(folder.path / "training.json", as_json).deliver(record, text, failure(record))


def _token(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:  # not its content: that is a secret
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError("--token-file cannot be read", value=str(path), hint=why) from error
