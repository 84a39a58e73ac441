"""The points of a profile whose micro-batches fit the slack of an inference service's latency bound."""

from __future__ import annotations

from typing import NamedTuple

from wattune.cap import SensorLimit
from wattune.errors import NoFeasiblePoint
from wattune.latency import LatencyBound
from wattune.records import Candidate, ProfileCell, ProfileTable
from wattune.search.observation import capped_powers


class MicroBatchFit(NamedTuple):
    """Seconds that one micro-batch takes at a point, and those that it may take there."""

    micro_s: float
    slack_s: float

    @property
    def fits(self) -> bool:
        """True if a request that arrives as the micro-batch begins is still answered in time."""
        return self.micro_s <= self.slack_s


class LatencyFit:
    """A latency bound over the points of a profile.

    Training lets requests go first before each micro-batch and before the update of the parameters, so that a request
    waits for at most one of them. A micro-batch takes no more than its share of the step.
    """

    def __init__(self, profile: ProfileTable, bound: LatencyBound):
        self.profile, self.bound = profile, bound
        # A power limit does not tell how much slower the service is under it.
        points = [(cell.shape, cell.knobs) for cell in (*profile.cells, *profile.aborted)]
        clocks = [{name: value for name, value in knobs.items() if name.endswith("_mhz")} for _, knobs in points]
        names = {name for values in clocks for name in values}
        self._highest = {name: max(values[name] for values in clocks if name in values) for name in names}

    def of(self, cell: ProfileCell) -> MicroBatchFit:
        """The time of a micro-batch of a measured cell, and the slack there."""
        assert cell.step_s is not None
        shares = (cell.knobs[name] / highest for name, highest in self._highest.items() if name in cell.knobs)
        return MicroBatchFit(
            cell.step_s / -(-cell.shape.batch // cell.shape.micro), self.bound.slack_s(min(shares, default=1.0))
        )

    def within(self) -> tuple[ProfileTable, tuple[Candidate, ...]]:
        """The part of the profile that fits the slack, and the rest as infeasible candidates."""
        too_long = [cell for cell in self.profile.measured if not self.of(cell).fits]
        if len(too_long) == len(self.profile.measured):  # nothing stays under the cap either, see ``check``
            return self.profile, ()
        candidates = tuple(
            Candidate(**cell.point.fields(), feasible=False, why_not=self._why_not(cell)) for cell in too_long
        )
        left_out = {cell.point for cell in too_long}
        cells = tuple(cell for cell in self.profile.cells if cell.point not in left_out)
        return self.profile.model_copy(update={"cells": cells}), candidates

    def check(self, limit: SensorLimit) -> None:
        """Check that something under the limit fits. Raises: NoFeasiblePoint with the smallest micro-batch if not."""
        capped_w = capped_powers(self.profile, limit.window_s)
        under = [cell for cell in self.profile.measured if limit.allows(capped_w(cell))]
        if not under or any(self.of(cell).fits for cell in under):  # without any, the cap is the reason
            return
        nearest = min(under, key=lambda cell: (self.of(cell).micro_s - self.of(cell).slack_s, cell.point.order))
        fit = self.of(nearest)
        alone_s = self.bound.within_s - fit.slack_s
        request = f", a request {_ms(alone_s)}" if alone_s else ""
        raise NoFeasiblePoint(
            "no measured micro-batch under the cap fits the latency bound",
            value=_ms(self.bound.within_s),
            allowed=f"at least {_ms(alone_s + fit.micro_s)}, since the shortest, {nearest.point}, "
            f"takes {_ms(fit.micro_s)}{request}",
            hint="profile smaller micro-batches (micro_batch_sizes of the workload), or raise the bound",
        )

    def _why_not(self, cell: ProfileCell) -> str:
        fit = self.of(cell)
        if fit.slack_s <= 0:
            alone_s = self.bound.within_s - fit.slack_s
            return f"a request alone takes {_ms(alone_s)}, the bound is {_ms(self.bound.within_s)}"
        return f"a micro-batch takes {_ms(fit.micro_s)}, beside requests it may take {_ms(fit.slack_s)}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
