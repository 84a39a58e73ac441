"""How long a clock is waited for after its limits were written."""

from typing import Optional

from wattune_agent.board import Clock
from wattune_agent.errors import AgentError, FileFailed, NotTaken
from wattune_agent.signals import waiting
from wattune_agent.tree import Tree
from wattune_agent.watch import HIGHER

__all__ = ["now_of", "settle"]

SETTLE_S = 2.0
"""Time in which a clock comes down to what its limits say; half a second is what was seen on boards."""

RISE_S = 0.5
"""Time in which it comes up. One that idles, or that has no power, need not: it is waited for no longer."""

POLL_S = 0.005


def now_of(clock: Clock) -> Optional[float]:
    """The clock of this moment; None where it cannot be read."""
    try:
        return clock.now_mhz()
    except AgentError:
        return None


def settle(tree: Tree, clock: Clock, mhz: float, was_mhz: Optional[float]) -> None:
    """Wait until a clock that was at ``was_mhz`` is where its limits are.

    Raises: NotTaken where it stays higher; FileFailed, Forbidden where it cannot be read.
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
