"""`python -m benchmarks [NAME ...]`: all benchmarks, or the named ones; `readme` fills in README and docs.

`real_images FOLDER`, `contributed FOLDER`, `jetsons FOLDER`, `tx2_calibration FOLDER`, `moving_caps [FOLDER]`,
`beside`, `groups`, `ranks`, `carbon FOLDER`, `federated IMAGES RECORDINGS`,
`split_proxy [FOLDER TARGET ...]`, `report_picture [REPORT [PICTURE]]`, `decisions`,
`asyncfgd` and `paper` (see the README.md of each) need extra data or software, or many minutes, or are of one part
alone, and run only by name.
"""

from __future__ import annotations

import importlib
import sys

from wattune.errors import WattuneError

NAMES = (
    "startup",
    "planning",
    "profiling",
    "metering",
    "boards",
    "agent_cost",
    "session",
    "session_overhead",
    "example",
    "readme",
)


ALONE = {  # these take arguments of their own
    "real_images": "benchmarks.real_images",
    "report_picture": "benchmarks.report_picture",
    "moving_caps": "benchmarks.moving_caps",
    "groups": "benchmarks.groups",
    "ranks": "benchmarks.ranks.command",
    "carbon": "benchmarks.carbon",
    "federated": "benchmarks.federated",
    "split_proxy": "benchmarks.split_proxy",
    "contributed": "benchmarks.contributed",
    "jetsons": "benchmarks.jetsons",
    "tx2_calibration": "benchmarks.tx2_calibration",
    "decisions": "benchmarks.decisions.command",
    "asyncfgd": "benchmarks.asyncfgd.command",
    "paper": "benchmarks.paper.command",
    "fleet": "benchmarks.server.fleet",
    "overlap": "benchmarks.server.overlap",
    "many_devices": "benchmarks.server.many_devices",
}


def main(arguments: list[str]) -> int:
    """Run the benchmarks one after another, never in parallel: they are timed."""
    if arguments and arguments[0] in ALONE:
        try:
            importlib.import_module(ALONE[arguments[0]]).main(arguments[1:])
        except WattuneError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        return 0
    if unknown := [name for name in arguments if name not in NAMES]:
        print(f"unknown benchmark: {', '.join(unknown)}; allowed: {', '.join((*NAMES, *ALONE))}", file=sys.stderr)
        return 2
    for name in arguments or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
