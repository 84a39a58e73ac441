"""``wattune run``: everything in one go, in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wattune.cli.options import (
    ANY_CAP,
    DEVICE,
    MARGIN,
    SEED,
    SEEDS,
    Algorithm,
    CapRange,
    CapWindow,
    CarbonFile,
    Json,
    KnobWords,
    MaxTemp,
    Mode,
    Processes,
    Reference,
    Resume,
    Strategy,
    SysfsRoot,
    TariffFile,
    WorkloadFile,
    any_cap,
    device_spec,
    goal_of,
    made_by,
    power_cap,
    token_in,
)
from wattune.cli.output import Output, failure, resumable, shown
from wattune.errors import InputError, OutputError
from wattune.goal import TIME, Goal


@made_by(goal_of, "goal")
def run(
    workload: WorkloadFile = None,
    device: Annotated[str | None, DEVICE] = None,
    cap: Annotated[str | None, ANY_CAP] = None,
    cap_range: CapRange = None,
    cap_window: CapWindow = None,
    goal: Goal | None = None,
    carbon: CarbonFile = None,
    tariff: TariffFile = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="New or empty folder of the run (default: wattune-run-N)."),
    ] = None,
    resume: Resume = False,
    compare: Annotated[bool, typer.Option("--compare", help="Then also train the picks of simpler rules.")] = False,
    strategy: Strategy = None,
    reference: Reference = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", metavar="FILE", help="Use this profile record (default: profile the device)."),
    ] = None,
    seeds: Annotated[int | None, SEEDS] = None,
    seed: Annotated[int | None, SEED] = None,
    margin: Annotated[str | None, MARGIN] = None,
    algorithm: Algorithm = None,
    max_temp: MaxTemp = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    knobs: KnobWords = None,
    processes: Processes = None,
    server: Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="Train a model of this wattune server, which trains the proxy."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="With --server: name of the model.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="FILE", help="With --server: your data, .npz; it never leaves this machine."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option("--target", metavar="X", help="With --server: target metric (default: the model's)."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="With --server: name of this device (default: the host's name)."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="With --server: file with the token (default: $WATTUNE_TOKEN)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Profile, estimate, plan, train and report, in one folder.

    To resume an interrupted run, give its folder; the other options are remembered. Defaults: 3 seeds
    (with a guided profile as many proxy runs as needed), seed 0, no margin.

    \b
    Example:  wattune run --device sim:jetson-nano --cap 4.5W
              wattune run --device sim:jetson-tx2 --cap 9W --max-slowdown 5%
              wattune run --device sim:jetson-nano --cap caps.csv
              wattune run --device sim:jetson-nano --cap 4.5W --carbon ci.csv --deadline 16h
              wattune run --output wattune-run-1 --resume
              wattune run --server http://host:8484 --model resnet8-digits --device jetson --cap 5W --data my.npz
    """
    spec = None if device is None else device_spec(device, sysfs_root, mode, knobs)
    if spec is None and not (sysfs_root is None and mode is None and knobs is None):
        raise InputError("--sysfs-root, --mode and --knobs need --device")
    if resume and output is None:
        raise OutputError("--resume needs -o DIR, the folder of the run to continue")

    from wattune.job.folder import RunFolder, free_folder

    folder = RunFolder(free_folder() if output is None else output)
    before = folder.arguments if resume else None

    def chosen(name: str, given: Any) -> Any:
        return getattr(before, name, None) if given is None else given

    spec, url = chosen("device", spec), chosen("server", server)
    if spec is None and resume:
        raise OutputError("no run to resume", value=str(folder.path), hint="start it again, without --resume")
    if spec is None:
        raise InputError("--device is missing", hint="see wattune run --help")
    if cap is None and before is None:
        raise InputError("--cap is missing", hint="see wattune run --help")
    form = power_cap(None, margin, max_temp, cap_window, before=None if before is None else before.cap)
    moving = any_cap(chosen("caps", cap), chosen("cap_range", cap_range) if cap is None else cap_range, before=form)
    asked_cap = form if moving is not None else power_cap(cap, before=form)
    work = chosen("workload", None if workload is None else str(workload))
    carbon_file = chosen("carbon", None if carbon is None else str(carbon))
    tariff_file = chosen("tariff", None if tariff is None else str(tariff))
    of_server = {"--model": chosen("model", model), "--data": chosen("data", data)}
    if url is None:
        _refuse_server_options({**of_server, "--target": target, "--name": name, "--token-file": token_file})
    else:
        _refuse_with_server(
            {
                "a forecast of carbon or price": carbon_file or tariff_file,
                "a cap that changes": moving,
                "a workload": work,
            }
        )
        if option := next((option for option, value in of_server.items() if value is None), None):
            raise InputError(f"--server needs {option}")
    token = None if token_file is None else token_in(token_file)
    seeds, seed = chosen("seeds", seeds), chosen("seed", seed) or 0
    strategy, algorithm = chosen("strategy", strategy), chosen("algorithm", algorithm)
    reference, compare = chosen("reference", reference), bool(chosen("compare", compare or None))

    again = ["run", "--output", str(folder.path)]
    if token_file is not None:  # its name is not among the saved arguments
        again += ["--token-file", str(token_file)]
    with resumable(again, folder.arguments_file), shown() as progress:
        if url is None:
            from wattune.job.resumable_run import run as run_job

            record = run_job(
                spec,
                work,
                cap_w=moving or asked_cap,
                goal=chosen("goal", goal) or TIME,
                output=folder.path,
                seeds=seeds,
                seed=seed,
                strategy=strategy,
                reference=reference,
                algorithm=algorithm,
                profile=profile,
                carbon=carbon_file,
                tariff=tariff_file,
                compare=compare,
                resume=resume,
                processes=processes,
                progress=progress,
            )
        else:
            from wattune.job.with_server import run_with_server

            record = run_with_server(
                spec,
                server=url,
                model=of_server["--model"],
                data=of_server["--data"],
                cap_w=asked_cap,
                goal=chosen("goal", goal) or TIME,
                target=chosen("target", target),
                device_name=chosen("device_name", name),
                token=token,
                output=folder.path,
                seeds=seeds,
                seed=seed,
                strategy=strategy,
                reference=reference,
                algorithm=algorithm,
                profile=profile,
                compare=compare,
                resume=resume,
                processes=processes,
                progress=progress,
            )

    from wattune.records import Comparison
    from wattune.reporting import summary

    comparison = folder.load(Comparison) if compare else None
    text = f"{summary(record.plan, record, comparison)}\nreport: {folder.report}"
    Output(folder.path / "training.json", as_json).deliver(record, text, failure(record))


def _refuse_server_options(options: dict[str, Any]) -> None:
    """Check that no option is given that only a run with a server has. Raises: InputError."""
    if option := next((option for option, value in options.items() if value is not None), None):
        raise InputError(f"{option} needs --server")


def _refuse_with_server(given: dict[str, Any]) -> None:
    """Check that nothing is given that cannot be combined with a server. Raises: InputError."""
    for what, value in given.items():
        if value is not None:
            raise InputError(f"{what} and --server cannot be combined", value=str(value))
