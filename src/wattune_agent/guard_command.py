"""``wattune-agent guard``: any program under a cap, with nothing but Python 3.6."""

import argparse
import json
import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from wattune_agent.cap_level import WINDOW_S
from wattune_agent.errors import AgentError, BadRequest
from wattune_agent.guarded import run_guarded
from wattune_agent.lease import say
from wattune_agent.meter_sensor import MeterSensor
from wattune_agent.outcome import GuardRequest, Report, as_record, in_words
from wattune_agent.quantities import CELSIUS, MHZ, SECONDS, limit, quantity, window
from wattune_agent.settings import nearest
from wattune_agent.slicing import MODES


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``guard``, except the folder of the board's files."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="jetson, cpu, nvidia[:CARD] or agent[:SOCKET]; default: the board that is found",
    )
    add_meter(parser)
    parser.add_argument("--clock", type=quantity(MHZ), metavar="612MHz", help="pin the clock at this frequency")
    parser.add_argument(
        "--cap",
        type=limit,
        default=(None, "module"),
        metavar="10W",
        help="keep the mean power below this by lower clocks; also 5A@5V and 12W@supply",
    )
    parser.add_argument(
        "--cap-window",
        type=window,
        metavar="1s",
        help="time over which the mean power stays under the cap; peak: every single reading "
        "(default: 1s, or the time that the sensor averages over if that is longer)",
    )
    parser.add_argument(
        "--max-temp", type=quantity(CELSIUS), metavar="80C", help="lower the clock above this temperature too"
    )
    parser.add_argument(
        "--slices",
        choices=MODES,
        default=MODES[0],
        help="let two neighbouring clocks share the cap's window, where `wattune doctor --try` found the clock to be "
        "quick (default: auto)",
    )
    parser.add_argument(
        "--stall",
        type=quantity(SECONDS),
        metavar="60s",
        help="tell when the power is near the power at rest for so long: the program may hang",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report as JSON; the program's output goes to stderr"
    )


def add_meter(parser: argparse.ArgumentParser) -> None:
    """Add the option of a meter in place of the board's own sensor."""
    parser.add_argument(
        "--meter",
        metavar="external:...",
        help="read this meter, a URL or a command, in place of the board's own sensor",
    )


def guard(options: Any, controller_of: Callable[[Any], Any]) -> int:
    """Run ``options.program`` and return its exit code. Raises: AgentError."""
    if not options.program:
        raise BadRequest("no program: wattune-agent guard --cap 10W -- COMMAND...")
    report: Optional[Report] = None
    try:
        with controller_of(options) as controller:
            board = controller.describe()
            cap_w, supply_cap_w = _cap(options, board)
            request = GuardRequest(
                options.program,
                None if options.clock is None else nearest(board["settings_mhz"], options.clock),
                cap_w,
                supply_cap_w,
                options.max_temp,
                _window(options, board),
                slices=options.slices == MODES[0],
                stall_s=options.stall,
            )
            with stdout_aside(options.json):
                report = run_guarded(controller, say=say, **request._asdict())
    except AgentError as error:
        if report is None:
            raise
        report = report.not_restored(str(error))
    kind = "measured" if board["real"] else "simulated"
    mode = ", ".join("{} {}".format(*item) for item in board["mode"].items()) or "as it is"
    record = as_record(report, request, device=board["name"], mode=mode, kind=kind)
    if options.json:
        print(json.dumps(record, indent=1))
        return report.exit_code
    for line in in_words(report, request, board, kind):
        say(line)
    return report.exit_code


def _window(options: Any, board: Dict[str, Any]) -> Optional[float]:
    """The cap's window, which the sensor has to resolve; None if every reading counts."""
    window_s: Optional[float] = options.cap_window
    if window_s is None:
        return max(WINDOW_S, float(board["window_s"]))
    if window_s == 0:
        return None
    if window_s < board["window_s"]:
        text = "--cap-window {:g}s: this sensor averages over {:g} s; allowed: that or more, or peak"
        raise BadRequest(text.format(window_s, board["window_s"]))
    return window_s


def _cap(options: Any, board: Dict[str, Any]) -> Tuple[Optional[float], Optional[float]]:
    """The limit at the board's sensor, and the cap at the supply if it applies there."""
    cap_w, side = options.cap
    if cap_w is None or side == "module":
        return cap_w, None
    if board["covers"] == MeterSensor.covers:  # the meter is at the supply
        return cap_w, cap_w
    raise BadRequest(
        "a cap at the supply needs the losses between the supply and the sensor, which are unknown for {}; read it by "
        "a meter at the supply (--meter external:...), or give the cap at the module".format(board["name"])
    )


@contextmanager
def stdout_aside(aside: bool) -> Iterator[None]:
    """Send the program's output to stderr if ``aside`` is true, so that stdout contains one JSON object."""
    if not aside:
        yield
        return
    sys.stdout.flush()
    copy = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(copy, 1)
        os.close(copy)
