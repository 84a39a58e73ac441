"""The wait for a clock to settle after its limits were written."""

from typing import Optional

from wattune_agent.board import Clock
from wattune_agent.errors import AgentError, FileFailed, NotTaken
from wattune_agent.signals import waiting
from wattune_agent.tree import Tree
from wattune_agent.watch import HIGHER

__all__ = ["now_of", "settle"]

SETTLE_S = 2.0
"""Time for a clock to fall to its limits; boards were seen to take half a second."""

RISE_S = 0.5
"""Time for it to rise. An idle or unpowered unit need not rise, so the wait ends there."""

POLL_S = 0.005


def now_of(clock: Clock) -> Optional[float]:
    """The current clock; None if it cannot be read."""
    try:
        return clock.now_mhz()
    except AgentError:
        return None


def settle(tree: Tree, clock: Clock, mhz: float, was_mhz: Optional[float]) -> None:
    """Wait until a clock that was at ``was_mhz`` has reached its limits.

    Raises: NotTaken if it stays higher; FileFailed, Forbidden if it cannot be read.
    """
    begin_s = tree.now_s()
    is_lowered = was_mhz is not None and was_mhz > mhz
    while True:
        failure: Optional[FileFailed] = None
        now_mhz: Optional[float] = None
        try:
            now_mhz = clock.now_mhz()
        except FileFailed as error:
            failure = error
        waited_s = tree.now_s() - begin_s
        is_above = now_mhz is not None and now_mhz > mhz * HIGHER
        is_enough = is_lowered or now_mhz is None or now_mhz >= mhz / HIGHER or waited_s >= RISE_S
        if failure is None and not is_above and is_enough:
            return
        if is_above and clock.is_suspended():
            return
        if waited_s >= SETTLE_S or waiting():
            break
        tree.sleep(POLL_S)
    if failure is not None:
        raise failure
    if is_above:
        raise NotTaken(
            "the limits are at {:g} MHz, but the clock is still at {:g} MHz after {:g} s".format(
                mhz, now_mhz or 0.0, SETTLE_S
            )
        )
