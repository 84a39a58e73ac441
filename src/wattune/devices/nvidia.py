"""NVIDIA cards of this computer, by the agent's code in this process: the power limit or the locked graphics clock."""

from __future__ import annotations

from wattune.devices.agent import BoardDevice, usable
from wattune.devices.real_time import mapped
from wattune.devices.spec_options import split_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError
from wattune_agent.controller import Controller
from wattune_agent.nvidia import BEST, FAMILY, find_card
from wattune_agent.tree import Tree

ACTUATORS = {"clock_mhz": "clock_mhz", "power_limit_w": "power_limit_w", "none": ""}
"""Value of the option ``?actuator=`` -> the knob that is set."""


def open_nvidia(rest: str, *, seed: int = 0) -> BoardDevice:
    """Open the card "0", "GPU-UUID" or "" (the first); ``?actuator=`` power_limit_w, clock_mhz or none behind it.

    By default the knob is the power limit, which the card keeps by choosing its clocks itself; on a card whose limit
    cannot be set, the locked clock.

    Raises: InputError, DeviceUnavailable.
    """
    return usable(find_nvidia(rest))


def find_nvidia(rest: str) -> BoardDevice:
    """Find the card of ``open_nvidia``, even if the card cannot be used: its ``problems`` say why."""
    which, options = split_options(rest, "?", {"actuator"}, device=FAMILY)
    actuator = options.get("actuator", BEST)
    if actuator not in (BEST, *ACTUATORS):
        raise InputError("nvidia: no such actuator", value=actuator, allowed=", ".join(ACTUATORS))
    tree = Tree()
    with mapped():
        board = find_card(tree, f"{FAMILY}:{which or 0}", ACTUATORS.get(actuator, BEST))
        if board.clock is None and ACTUATORS.get(actuator):
            others = " or ".join(name for name in ACTUATORS if name != actuator)
            raise InputError(next(text for text in board.problems if "set" in text), hint=f"use ?actuator={others}")
        return BoardDevice(Controller(board), tree)


def nvidia_specs() -> list[str]:
    """A name for each card of this computer; if the driver fails, one name, with which finding a card says why."""
    try:
        with mapped():
            return [f"{FAMILY}:{index}" for index in range(Tree().cards().count())]
    except DeviceUnavailable:  # without a driver
        return []
    except DeviceError:
        return [f"{FAMILY}:0"]
