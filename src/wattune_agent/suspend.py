"""Suspension of the whole machine, until an alarm of its real-time clock wakes it.

An alarm that is not armed would leave the board asleep until someone presses its button, so it is read back, and the
machine only suspended if it is.

Source: Documentation/admin-guide/pm/sleep-states.rst and Documentation/ABI/testing/sysfs-class-rtc of the Linux kernel.
"""

from typing import Any, Dict, Optional

from wattune_agent.errors import AgentError, BadRequest, FileFailed
from wattune_agent.tree import Tree, number, text

__all__ = ["LEAST_S", "MOST_S", "can_suspend", "suspend"]

STATE = "/sys/power/state"
CLOCK = "/sys/class/rtc/rtc0"
ALARM = CLOCK + "/wakealarm"

LEAST_S = 60.0
"""Shortest suspension: an alarm must not go off before the machine is asleep, which takes seconds."""

MOST_S = 24 * 3600.0
"""Longest suspension."""

LATE_S = 2.0
"""Most seconds by which an armed alarm may be off: the real-time clock counts whole seconds."""


def can_suspend(tree: Tree) -> bool:
    """True if this user can suspend the machine, and its real-time clock can wake it."""
    return _state_of(tree) is not None and tree.writable(STATE) and tree.writable(ALARM) and _wakes(tree)


def suspend(tree: Tree, seconds: float) -> Dict[str, Any]:
    """Suspend the machine for ``seconds``; returns when it is awake again, with the seconds that it was ``asleep_s``.

    It may be less: other events wake a machine as well. Raises: BadRequest; Forbidden; FileFailed if the machine cannot
    be suspended, or the alarm cannot be armed.
    """
    if not LEAST_S <= seconds <= MOST_S:
        raise BadRequest("cannot suspend for {:g} s; allowed: {:g} to {:g} s".format(seconds, LEAST_S, MOST_S))
    state = _state_of(tree)
    if state is None:
        raise FileFailed("{}{} offers neither mem nor freeze: this board cannot be suspended".format(tree.root, STATE))
    if not _wakes(tree):
        raise FileFailed("the alarm of {} cannot wake this board: it was not suspended".format(CLOCK))
    _arm(tree, int(seconds))
    try:
        before_s = tree.asleep_s()
        tree.write(STATE, state)
        return {"asleep_s": max(0.0, tree.asleep_s() - before_s)}
    finally:
        try:
            tree.write(ALARM, "0")
        except AgentError:  # it goes off in a machine that is awake, which does nothing
            pass


def _state_of(tree: Tree) -> Optional[str]:
    """The state to write: suspended to memory, or else frozen with the processors idle."""
    states = text(tree, STATE).split()
    return next((state for state in ("mem", "freeze") if state in states), None)


def _wakes(tree: Tree) -> bool:
    return tree.exists(ALARM) and text(tree, CLOCK + "/device/power/wakeup") != "disabled"


def _arm(tree: Tree, seconds: int) -> None:
    """Arm the alarm, in place of any other, and read it back. Raises: Forbidden, FileFailed."""
    tree.write(ALARM, "0")  # an alarm that is armed already would be refused to change
    tree.write(ALARM, "+{}".format(seconds))
    now_s, alarm_s = number(tree, CLOCK + "/since_epoch"), number(tree, ALARM)
    is_armed = now_s is not None and alarm_s is not None and 0 < alarm_s - now_s <= seconds + LATE_S
    if not is_armed:
        tree.write(ALARM, "0")
        raise FileFailed("the alarm of {} did not arm, so the board would not wake: not suspended".format(CLOCK))
