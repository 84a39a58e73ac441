"""Probing: trial steps before training choose the batch shape, which then stays.

A framework takes batch size and micro-batch size once, before its loop begins. So a session in a framework first runs
trial passes that leave no trace, and measures its points with them for a small share of the training's time. From then
on the framework's own steps choose among the settings of one shape.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wattune.algorithms import memory_errors
from wattune.online.division import DivisionCheck
from wattune.online.explorer import WINDOWS
from wattune.online.fit_check import FitCheck, unchanged
from wattune.online.optimizer_step import trained
from wattune.online.session import Session
from wattune.online.session_run import SessionRun
from wattune.online.step_counter import StepWorkCounter
from wattune.point import BatchShape
from wattune.records import ProfileCell

SHARE: Final = 0.02
"""Largest share of the training's expected time that probing may take."""

Passes = Callable[[BatchShape], None]
"""Forward and backward passes of one optimizer step, in micro-batches of this shape. They add to the gradients, as
training does before its optimizer steps. A shape of a smaller batch takes the first rows of the same batch."""


def probe(
    session: Session, passes: Passes, *, steps: float, proof: Passes | None = None, known: Sequence[ProfileCell] = ()
) -> BatchShape:
    """Choose the shape that an open session trains with; afterwards the session chooses among its settings alone.

    ``steps``: optimizer steps of the training to come. Probing ends when no point is worth measuring, or before it
    takes ``SHARE`` of the time that these steps take at most. If that is too short for a single point, the user's own
    shape stays. ``proof``: the passes that prove a division, where those of ``passes`` are of unusual rows. ``known``:
    points that were measured before, whose best shape is taken without a trial.

    Time and energy count in the session's record, samples do not. Raises: SafetyStop, DeviceError, and what ``passes``
    raise at the user's own shape.
    """
    return _Probing(session, passes, passes if proof is None else proof, steps).choose(known)


@contextmanager
def without_trace(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Context that restores parameters, gradients, buffers, the optimizer, random state and modes of modules."""
    parameters = [(p, p.detach().clone()) for p in trained(optimizer)]
    outside = [(p, p.grad) for p, _ in parameters]  # some may not be the model's
    options = [{name: _copied(v) for name, v in group.items() if name != "params"} for group in optimizer.param_groups]
    states = {p: {name: _copied(v) for name, v in state.items()} for p, state in optimizer.state.items()}
    try:
        with unchanged(model):
            yield
    finally:
        with torch.no_grad():
            for parameter, value in parameters:
                parameter.copy_(value)
        for parameter, gradient in outside:
            parameter.grad = gradient
        for group, values in zip(optimizer.param_groups, options, strict=True):
            group.update(values)
        optimizer.state.clear()
        optimizer.state.update(states)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)


class _Probing:
    """One choice of a shape; see ``probe``."""

    def __init__(self, session: Session, passes: Passes, proof: Passes, steps: float):
        self._session, self._run, self._passes, self._proof = session, session.run, passes, proof
        self._steps, self._own = steps, session.run.start
        self._proved = {self._own}
        self._begun_s = self._run.device.now_s()
        self._step_s = 0.0
        self._division = DivisionCheck(self._run.model, list(trained(session.optimizer)), at_once=True)

    def choose(self, known: Sequence[ProfileCell]) -> BatchShape:
        """See ``probe``."""
        session, run = self._session, self._run
        run.fit_check.close()
        run.fit_check = _TrialCheck(run, session.optimizer)
        shape = self._best_of(known)
        with without_trace(run.model, session.optimizer):
            if shape is None:
                while run.explorer.probing and self._is_affordable:
                    self._step(session.row)
                best = run.explorer.search.best()
                shape = self._own if best is None else best.shape
            elif not self._is_proved(shape):
                shape = self._own
        run.keep_only(shape)
        return shape

    def _best_of(self, known: Sequence[ProfileCell]) -> BatchShape | None:
        goal, samples = self._session.options.goal, self._session.sample_model.relative
        costs = {}
        for cell in known:
            step_s, power_w, highest_w = cell.step_s, cell.power_mean_w, cell.highest_w
            if step_s is None or power_w is None or highest_w is None or not self._run.limit.allows(highest_w):
                continue
            cost = step_s / cell.batch_size * samples[cell.batch_size][0]
            costs[cell.point] = cost if goal.is_time else cost * float(goal.price(power_w, None))
        return min(costs, key=costs.__getitem__).shape if costs else None

    @property
    def _is_affordable(self) -> bool:
        """True while the next point keeps probing within its share of the training's time.

        The training is expected to run at the highest setting, as if its time were proportional to the clock, since
        nobody knows yet which setting the cap allows.
        """
        if not self._step_s:
            return True  # the first step tells how long one takes
        run, explorer = self._run, self._run.explorer
        if explorer.is_measuring:
            return True  # what was begun is worth its end
        sensor = run.device.sensor
        point_s = sensor.settle_s + WINDOWS * explorer.window_s
        spent_s = run.device.now_s() - self._begun_s
        return spent_s + point_s <= SHARE * self._steps * self._step_s

    def _step(self, row: BatchShape) -> None:
        """Run one trial step of this row, if the gradient of its parts is that of the user's own."""
        session, run = self._session, self._run
        if not self._is_proved(row):
            return
        samples, steps, begun_s = run.samples, run.steps, run.device.now_s()
        session.begin_step(row=row, key="trial")
        if not self._runs(row, lambda: self._pass(row)):
            session.drop_step()
            return
        session.end_step()
        run.samples, run.steps = samples, steps
        clocks = [knobs.first for knobs in run.device.combinations() if knobs.first is not None]
        ratio = (run.capped.limiter.knobs.first or 1.0) / max(clocks) if clocks else 1.0
        step_s = (run.device.now_s() - begun_s) * ratio * self._own.batch / row.batch
        self._step_s = min(self._step_s or step_s, step_s)

    def _pass(self, row: BatchShape) -> None:
        optimizer = self._session.optimizer
        with memory_errors(f"a trial step in micro-batches of {row.micro}"):
            self._passes(row)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _runs(self, row: BatchShape, passes: Callable[[], None]) -> bool:
        """Run passes; those of another row than the user's own may fail, and the row is then left out."""
        run = self._run
        if row == self._own:
            passes()
        elif not run.fit_check.runs(row.micro, passes):
            run.explorer.leave_out(row)
            return False
        return True

    def _is_proved(self, row: BatchShape) -> bool:
        """True if parts of this row have the gradient of the user's own parts; otherwise the user's row stays."""
        if row in self._proved:
            return True
        run, batch = self._run, min(row.batch, self._own.batch)
        own, parts = (BatchShape(batch, min(batch, micro)) for micro in (self._own.micro, row.micro))
        with run.evaluation(), self._division.trying(run.steps) as trial:
            for division in trial.plan(own, parts, self._division.tolerance):
                passes = partial(self._proof, BatchShape(*division))
                if not self._runs(row, partial(trial.measure, passes)):
                    return False
        difference = trial.verdict.difference
        if trial.verdict.is_equal:
            self._proved.add(row)
        elif math.isnan(difference):
            run.keep_own("gradients were zero or not finite, and cannot tell whether a batch may be divided")
        else:
            run.keep_own(f"the gradient of a batch in other parts is off by {100 * difference:.2g} %")
        return trial.verdict.is_equal


class _TrialCheck(FitCheck):
    """Every row may be tried, by trial steps: they need the memory of training."""

    def __init__(self, run: SessionRun, optimizer: Optimizer):
        super().__init__(run.device, run.model, run.start.micro, optimizer)

    def is_known(self, row: BatchShape) -> bool:
        """True: no pass is needed before the trial step."""
        return True

    def fits(self, row: BatchShape, counter: StepWorkCounter) -> bool:
        """False once a trial step has failed."""
        return row.micro not in self.failures and row not in self.too_large
