"""Slices of time at two neighbouring clocks: where they are worth it, and how a switch between the two is measured."""

import json
import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from wattune_agent.cap_level import LEAST_GAIN, WINDOW_S
from wattune_agent.errors import AgentError, NotKept
from wattune_agent.folders import write_whole
from wattune_agent.tree import Tree

MODES = ("auto", "off")
"""The modes of ``--slices``: where they are worth it, or never."""

FILE = "/etc/wattune/switch.json"
"""Figures of switches on this machine, by the board's name."""

SLICE_S = 0.05
"""Time between two looks at the slices."""

SHOWS_S = 0.02
"""Longest time until a switch shows in the clock: slices last 0.1 s and more."""

TAKES_S = 0.005
"""Longest time that the writes of a switch may take, during which a unit may stand still."""

AVERAGES_S = 0.5
"""Longest averaging time and period of a sensor that can follow slices within a second."""

LAGS_S = 0.3
"""Lag from which it cannot."""

LONG_S = 10.0
"""Window of the cap from which any sensor can."""

SWITCHES = 8
"""Switches that are measured."""


def gains_of(clocks_mhz: Sequence[float]) -> List[float]:
    """The share by which each clock is faster than the clock below, at most."""
    return [clocks_mhz[i] / clocks_mhz[i - 1] - 1 for i in range(1, len(clocks_mhz))]


def gains_for(board: Dict[str, Any], ladder: Sequence[float], window_s: Optional[float]) -> Optional[List[float]]:
    """The gains between the clocks of a board, as a controller describes it; None if slices are not worth it there.

    They are where the mean over a window counts, where the sensor can follow them, and where a switch of the clock was
    seen to be quick (``measure_switch``).
    """
    switch_s, gains = board.get("switch_s"), gains_of(ladder)
    if switch_s is None or switch_s[0] > SHOWS_S or switch_s[1] > TAKES_S:
        return None
    # A sensor that does not tell its averaging time is not known well enough.
    is_quick = 0 < board["window_s"] <= AVERAGES_S and board["period_s"] <= AVERAGES_S and board["lag_s"] < LAGS_S
    if window_s is None or window_s < (WINDOW_S if is_quick else LONG_S):
        return None
    return gains if max(gains, default=0.0) >= LEAST_GAIN else None


def measure_switch(controller: Any, now_s: Callable[[], float]) -> Optional[Tuple[float, float]]:
    """Switch between the two highest clocks ``SWITCHES`` times; returns the longest time until a switch showed in the
    clock, and the longest time that its writes took. None without two clocks, or if a switch did not show.

    The board stays pinned. Raises: as ``Controller.pin`` and ``Controller.read``.
    """
    pair = controller.describe()["settings_mhz"][-2:]
    if len(pair) < 2:
        return None
    for mhz in pair:  # only what a pin has verified can be switched to quickly
        controller.pin(mhz)
    shows_s = takes_s = 0.0
    for number in range(SWITCHES):
        mhz, other_mhz, begin_s = pair[number % 2], pair[1 - number % 2], now_s()
        controller.slice(mhz)
        takes_s = max(takes_s, now_s() - begin_s)
        while not _is_at(controller.read()["clock_mhz"], mhz, other_mhz):
            if now_s() - begin_s > LAGS_S:
                return None
        shows_s = max(shows_s, now_s() - begin_s)
    return shows_s, takes_s


def _is_at(now_mhz: Optional[float], mhz: float, other_mhz: float) -> bool:
    """True if the clock is nearer to one than to the other: a CPU's is measured over a short time."""
    return now_mhz is not None and abs(now_mhz - mhz) < abs(now_mhz - other_mhz)


def load_switch(tree: Tree, board_name: str) -> Optional[List[float]]:
    """The figures of ``measure_switch`` for this board; None if there are none that can be used."""
    try:
        entry = _saved(tree.inside(FILE))[board_name]
        return [float(entry["shows_s"]), float(entry["takes_s"])]
    except (AgentError, KeyError, TypeError, ValueError, OverflowError):
        return None


def save_switch(tree: Tree, board_name: str, shows_s: float, takes_s: float) -> str:
    """Save the figures of this board and return the file. Raises: NotKept, FileFailed."""
    path = tree.inside(FILE)
    text = json.dumps({**_saved(path), board_name: {"shows_s": shows_s, "takes_s": takes_s}}, indent=2, sort_keys=True)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, text + "\n", 0o644)
    except OSError as error:
        raise NotKept("the figures of the switch cannot be saved: {}".format(error)) from error
    return path


def _saved(path: str) -> Dict[str, Any]:
    """The entries of the file; none if there is no such file, or something else is in it."""
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
