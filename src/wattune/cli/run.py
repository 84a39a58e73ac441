"""``wattune run``: everything in one go, in a folder of its own."""

from __future__ import annotations

from wattune.cli.options import Json, configured
from wattune.cli.output import Output, failure, resumable, shown
from wattune.job.config import RunConfig

SHOWN = (
    *("workload", "device", "cap", "goal", "max_slowdown", "deadline", "profile", "compare", "seed", "output"),
    *("resume", "server", "model", "data", "target"),
    *("command", "batch_sizes", "metric", "samples", "lower_is_better", "rate", "proxy_data"),
)
ADVANCED = tuple(key for key in RunConfig.model_fields if key not in SHOWN)


@configured(*SHOWN, advanced=ADVANCED, read=RunConfig.of_run)
def run(config: RunConfig, as_json: Json = False) -> None:
    """Profile, estimate, plan, train and report, in one folder.

    The table [run] of the workload file may have any of these arguments. To resume an interrupted run, give its folder;
    the other arguments are remembered.

    \b
    Example:  wattune run --device sim:jetson-nano --cap 4.5W
              wattune run --device sim:jetson-tx2 --cap 9W --max-slowdown 5%
              wattune run --device sim:jetson-nano --cap caps.csv --set seeds=1
              wattune run --device sim:jetson-nano --cap 4.5W --set carbon=ci.csv --deadline 16h
              wattune run --output wattune-run-1 --resume
              wattune run --device jetson --cap 10W --batch-sizes 8,16,32,64 --target 0.9 --rate 0.001@32
                --metric "accuracy ([0-9.]+)" --command "python3 train.py --batch-size {batch_size} --lr {rate}"
              wattune run --server http://host:8484 --model resnet8-digits --device jetson --cap 5W --data my.npz
    """
    from wattune.job.folder import RunFolder
    from wattune.job.run import run_as
    from wattune.reporting import summary

    assert config.output is not None
    folder = RunFolder(config.output)
    again = ["run", "--output", str(folder.path)]
    if config.token_file is not None:  # its name is not among the saved arguments
        again += ["--set", f"token_file={config.token_file.absolute()}"]
    with resumable(again, folder.arguments_file, holds=False), shown() as progress:
        record = run_as(config, progress=progress)
    text = f"{summary(folder.path)}\nreport: {folder.report}"
    Output(folder.path / "training.json", as_json, is_finished=True).deliver(record, text, failure(record))
