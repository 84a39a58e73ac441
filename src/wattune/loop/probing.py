"""Probing: trial steps before training choose the batch shape, which then stays.

A framework takes batch size and micro-batch size once, before its loop begins. So a session in a framework first times
trial passes that leave no trace, for a small share of the training's time. From then on the framework's own steps
choose among the settings of one shape.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.algorithms import memory_errors
from wattune.devices import host_memory
from wattune.devices.real_time import told
from wattune.loop.division import DivisionCheck, Verdict
from wattune.loop.fit_check import unchanged
from wattune.loop.loop_run import OwnShape
from wattune.loop.optimizer_step import trained
from wattune.loop.rate_watch import TrainingCopy
from wattune.loop.rng_state import undrawn
from wattune.loop.session import Session
from wattune.point import BatchShape
from wattune.records import ProfileCell
from wattune.search.search import PASSES
from wattune_agent.tree import Tree

SHARE: Final = 0.02
"""Largest share of the training's expected time that probing may take."""

TRIAL_STEPS: Final = 5
"""Steps that it takes to prove a division and to time it."""

Passes = Callable[[BatchShape], None]
"""Forward and backward passes of one optimizer step, in micro-batches of this shape. They add to the gradients, as
training does before its optimizer steps."""


def is_long_enough(steps: float) -> bool:
    """True if probing may take as many of these optimizer steps as a single point needs."""
    return SHARE * steps >= PASSES


def probe(
    session: Session,
    passes: Passes,
    *,
    steps: float,
    within_s: float = math.inf,
    proof: Passes | None = None,
    known: Sequence[ProfileCell] = (),
) -> BatchShape:
    """Choose the shape that an open session, whose batch size stays, trains with; then it chooses among its settings.

    ``steps``: optimizer steps of the training to come, which ends after ``within_s`` seconds at the latest. Shapes are
    timed at the lowest setting. All of this takes no more than ``SHARE`` of the expected time of the training: in a
    short one the user's own shape stays.
    ``proof``: passes that prove a division, and that it fits, in place of ``passes``. ``known``: points that were
    measured before, whose best shape is taken without a trial.

    Time and energy count in the session's record, samples do not. Raises: SafetyStop, DeviceError, and what ``passes``
    raise at the user's own shape.
    """
    return _Probing(session, passes, passes if proof is None else proof, steps, within_s).choose(known)


@contextmanager
def without_trace(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Context that restores parameters, gradients, buffers, the optimizer, random state and modes of modules.

    A training step may move other parameters than the optimizer's, a teacher's for instance. Their copies are in the
    memory of the computer, since there may be many of them.
    """
    before = TrainingCopy(model, optimizer)
    outside = [(p, p.grad) for p in trained(optimizer)]  # some may not be the model's
    others = [(p, p.detach().to("cpu", copy=True)) for p in _others(model, optimizer)]
    options = [
        {name: copy.deepcopy(v) for name, v in group.items() if name != "params"} for group in optimizer.param_groups
    ]
    try:
        with unchanged(model):
            yield
    finally:
        before.restore()
        with torch.no_grad():
            for parameter, value in others:
                if not torch.equal(parameter, there := value.to(parameter.device)):
                    parameter.copy_(there)  # a write to a weight file's own memory would take as much again
        for own, gradient in outside:
            own.grad = gradient
        for group, values in zip(optimizer.param_groups, options, strict=True):
            group.update(values)


def _others(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """Parameters of the model that the optimizer does not have; no quantized ones, which nothing moves."""
    own = {id(p) for p in trained(optimizer)}
    return [
        p
        for p in model.parameters()
        if id(p) not in own and (p.is_floating_point() or p.is_complex()) and p.element_size() > 1 and not p.is_meta
    ]


class _Probing:
    """One choice of a shape; see ``probe``."""

    def __init__(self, session: Session, passes: Passes, proof: Passes, steps: float, within_s: float):
        self._session, self._run, self._passes, self._proof = session, session.run, passes, proof
        self._steps, self._within_s, self._own = steps, within_s, session.run.start
        self._proved = {self._own}
        self._begun_s = self._run.device.now_s()
        self._step_s = 0.0
        self._verdict = Verdict("unknown", math.nan)
        self._division = DivisionCheck(self._run.model, list(trained(session.optimizer)), at_once=True)

    def choose(self, known: Sequence[ProfileCell]) -> BatchShape:
        """See ``probe``."""
        run = self._run
        run.fit_check.close()  # trial steps say what fits
        shape = self._best_of(known)
        if shape is not None or is_long_enough(self._steps):
            shape = self._tried(shape) if self._has_room() else None
        run.keep_only(shape or self._own)
        return run.start

    def _has_room(self) -> bool:
        """True if there is memory for a copy of what the optimizer does not have; it says so otherwise."""
        free_bytes = told(host_memory.free_bytes, Tree())
        frozen_bytes = sum(p.nbytes for p in _others(self._run.model, self._session.optimizer))
        if not frozen_bytes or free_bytes is None or 2 * frozen_bytes <= free_bytes:
            return True
        self._run.keep_own(f"there is no memory for a copy of {frozen_bytes / 2**20:.0f} MiB of frozen parameters")
        return False

    def _tried(self, shape: BatchShape | None) -> BatchShape:
        """The known shape if it is proved, else the best one by trial steps."""
        loader = self._session.asked.loader
        owners = [getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler", "collate_fn")]
        with undrawn(*owners), without_trace(self._run.model, self._session.optimizer):
            if shape is not None:
                return shape if self._is_proved(shape) else self._own
            return self._fastest()

    def _fastest(self) -> BatchShape:
        """The fastest shape at the lowest setting, as far as there is time: those of fewest passes are tried first."""
        run, times_s = self._run, dict[BatchShape, float]()
        for row in (self._own, *sorted(run.explorer.search.rows, key=lambda row: -row.micro)):
            if times_s and not self._may_take(TRIAL_STEPS * times_s[self._own]):
                break
            if row in times_s or row not in run.explorer.search.rows or not self._is_proved(row):
                continue
            times_s[row] = min(self._step(row) for _ in range(2))  # the first one may prepare what later ones use
            self._step_s = times_s[self._own]
        fastest = min(times_s, key=times_s.__getitem__)
        if fastest != self._own:
            run.own = OwnShape(self._own, times_s[self._own] / times_s[fastest])
        return fastest

    def _best_of(self, known: Sequence[ProfileCell]) -> BatchShape | None:
        goal = self._session.asked.goal
        costs = {}
        for cell in known:
            step_s, power_w, highest_w = cell.step_s, cell.power_mean_w, cell.highest_w
            if step_s is None or power_w is None or highest_w is None or not self._run.limit.allows(highest_w):
                continue
            costs[cell.point] = step_s if goal.is_time else step_s * float(goal.price(power_w, None))
        return min(costs, key=costs.__getitem__).shape if costs else None

    def _may_take(self, seconds: float) -> bool:
        """True if probing may go on for so long.

        Nobody knows yet which setting the cap allows, nor by how much it is faster than the lowest one: the training's
        expected time is the geometric mean of its time at the lowest setting and what the first clock's range makes of
        it at most.
        """
        device = self._run.device
        clocks = [knobs.first for knobs in device.combinations() if knobs.first is not None]
        step_s = self._step_s / math.sqrt(max(clocks) / min(clocks) if clocks else 1.0)
        training_s = min(self._steps * step_s, self._within_s)
        return device.now_s() - self._begun_s + seconds <= SHARE * training_s

    def _step(self, row: BatchShape) -> float:
        """Run one trial step of a proved row. Returns: its seconds, infinite if it fails."""
        session, run = self._session, self._run
        samples, steps, begun_s = run.samples, run.steps, run.device.now_s()
        session.begin_step(row=row, key="trial")
        if not self._runs(row, lambda: self._pass(row)):
            session.drop_step()
            return math.inf
        session.end_step()
        run.samples, run.steps = samples, steps
        fits = row == self._own or row in run.explorer.search.rows  # the device may have left it out
        return run.device.now_s() - begun_s if fits else math.inf

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
        run = self._run
        if row in self._proved:
            return True
        if not self._runs(row, lambda: self._prove(row)):
            return False
        verdict = self._verdict
        if verdict.is_equal:
            self._proved.add(row)
        elif math.isnan(verdict.difference):
            run.keep_own("gradients were zero or not finite, and cannot tell whether a batch may be divided")
        else:
            run.keep_own(f"the gradient of a batch in other parts is off by {100 * verdict.difference:.2g} %")
        return verdict.is_equal

    def _prove(self, row: BatchShape) -> None:
        run = self._run
        what = f"a pass in micro-batches of {row.micro}"
        with memory_errors(what), run.evaluation(), self._division.trying(run.steps) as trial:
            for division in trial.plan(self._own, row, self._division.tolerance):
                trial.measure(partial(self._proof, BatchShape(*division)))
        self._verdict = trial.verdict
