"""The user's own loop: micro-batches for the present operating point, and the gradients of their losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from wattune.errors import InputError
from wattune.loop.batch_source import Fetched
from wattune.loop.division import PARTS, DivisionCheck, Trial
from wattune.loop.interrupts import Shield
from wattune.loop.loop_run import LoopRun, NextStep
from wattune.loop.micro_batching import Batch, even, moved, shapes, split
from wattune.loop.optimizer_step import OptimizerStepper
from wattune.loop.rate_watch import RateWatch
from wattune.loop.request import Request
from wattune.point import BatchShape


class UserLoop:
    """Passes over the data set, in which each sample is used once at any sizes of the steps.

    ``position``: samples of the present pass that were trained on. ``pending`` is the batch that the user's loop has
    not yet called ``backward`` for. ``random`` is the random state after the last step, if checkpoints are saved.
    ``shield`` is entered with the session, and defers signals during a step of the optimizer.
    """

    def __init__(
        self,
        run: LoopRun,
        asked: Request,
        stepper: OptimizerStepper,
        watch: RateWatch | None,
        division: DivisionCheck | None,
        shield: Shield,
    ):
        self._watch = watch
        self.is_end: Callable[[bool, int], bool] = lambda has_batch, steps: not has_batch
        """Called with each batch, or none, and the number of those before it; True ends the pass."""
        self.division = division
        """Proofs that batches may be divided; None if the run has one shape alone."""
        self._trial: Trial | None = None
        self._latest: tuple[Any, int] | None = None
        self.position = 0
        self.pending: Batch | None = None
        self.random: list[Tensor] = []
        self.shield = shield
        self._remembers = asked.checkpoint is not None
        self._run = run
        assert asked.batch_source is not None
        self._batch_source = asked.batch_source
        self._micro: dict[int, int] = {}  # batch size -> micro-batch size of its last row
        self._stepper = stepper
        self._recipe, self._sample_model, self._sync = asked.recipe, asked.sample_model, asked.sync
        device = next(run.model.parameters()).device
        self._device = None if device.type == "cpu" else device
        self.order = 0
        """Checksum of the samples of this pass that were trained on, in their order."""
        self._samples = self._drawn = 0
        self._norms, self._is_usual = False, True

    def batches(self) -> Iterator[Batch]:
        """The rest of the pass that the batch source has begun. Raises: like ``Session.batches``."""
        try:
            for steps in itertools.count():
                yield from self._prove_later()
                step, fetched = self._fetch()
                if self.is_end(fetched is not None, steps) or fetched is None:
                    break
                yield from self._step(fetched, self._row(fetched.batch_size, step), is_timed=step.measuring)
            self._recipe.stepped(self.position, is_end=True)
        finally:
            self._batch_source.stop()
            self._run.drop()

    def remember(self) -> None:
        """Store the present random state."""
        self.random = [torch.get_rng_state()]
        if self._run.on_cuda:
            self.random.append(torch.cuda.get_rng_state())

    def backward(self, loss: Tensor) -> None:
        """See ``Session.backward``."""
        batch = self.pending
        if batch is None:
            raise InputError("session.backward(loss) must be called once for each batch of session.batches()")
        if not isinstance(loss, Tensor):
            raise InputError("session.backward(loss)", value=type(loss).__name__, allowed="the loss as a tensor")
        if self._trial is not None:
            self.pending = None
            self._trial.add(loss, batch.share)
            return
        if batch.last:
            self._sync.check_averages()
        self._stepper.add(loss, batch.samples, batch.share, norms=self._norms)
        self._sync.passed()
        if self._watch is not None:
            with self._run.counter.uncounted():
                self._watch.add(loss, batch.share)
        self.pending = None
        if not batch.last:
            return
        self.shield.hold()  # checkpoints are of complete steps
        try:
            stepped = self._stepper.step(self._samples)
            self.position, self.order = self.position + self._samples, self._drawn
            self._recipe.stepped(self.position)  # also after a skipped step, as in the plain loop
            if self._remembers:
                self.remember()
            self._run.end(stepped=stepped, usual=self._is_usual)
        finally:
            self.shield.release()
        if self._watch is not None:
            self._watch.end_step()
        if self._run.steps == 1 and self._sample_model.wants(1) and self._run.may_halve:
            # The gradients of two halves give the gradient noise, if the model runs with them.
            self._run.fits(BatchShape(self._samples, -(-self._samples // 2)))
        if self._stepper.is_new:
            self._run.relative(self._sample_model.relative)

    def _fetch(self) -> tuple[NextStep, Fetched | None]:
        """The step that comes next and its batch, None at the end of the pass. Workers that fetch ahead may have
        fetched that batch at another size."""
        run = self._run
        step = run.next_step()
        self._batch_source.size = step.wanted.batch
        self._micro.setdefault(*step.wanted)  # workers fetch it now, and it may come after another row
        begun_s = run.device.now_s()
        fetched = self._batch_source.fetch()
        if fetched is not None:
            run.times.waiting_s += run.device.now_s() - begun_s
        return step, fetched

    def _row(self, size: int, step: NextStep) -> BatchShape:
        """The row to train a batch of this size with: the wanted one if it has the size, else the last one that had."""
        for row in (step.wanted, step.current):
            if row.batch == size:
                self._micro[size] = row.micro
                return row
        largest = max(self._run.fit_check.known, default=size)
        return BatchShape(size, min(size, self._micro.get(size, largest)))

    def _step(self, fetched: Fetched, row: BatchShape, *, is_timed: bool) -> Iterator[Batch]:
        data, samples, _, self._drawn = fetched
        run = self._run
        self._recipe.check()
        sizes = run.parts(samples, row.micro)
        if len(sizes) > 1 or not run.checked:
            run.check_parts(data, samples, row)
        if (division := self.division) is not None and division.at_once:
            yield from self._prove(division, data, samples, min(row.micro, samples))
        self._latest = data, samples
        self._norms = run.compares_gradients and self._sample_model.wants(run.steps) and not is_timed
        half = -(-samples // 2)
        may_halve = run.may_halve and (division is None or not division.is_due(half, 0))
        if self._norms and len(sizes) == 1 < samples and half in run.fit_check.known and may_halve:
            sizes = even(samples, half)
        self._is_usual = not self._norms or len(sizes) == len(run.parts(samples, row.micro))
        parts = split(data, samples, sizes) if len(sizes) > 1 else (data,)
        self._stepper.begin()
        self._samples = samples
        run.begin(row, samples, (tuple(sizes), shapes(data)) if run.counter.counts else None, data)
        if samples < row.batch:  # the rest of a pass: no smaller than in the user's own loop
            self._recipe.use(max(samples, min(row.batch, self._recipe.batch_size)))
        last = len(parts) - 1
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            batch = Batch(self._placed(part), size, last=index == last, share=size / samples)
            run.fit_check.samples = size
            yield from self._given(batch)

    def _given(self, batch: Batch) -> Iterator[Batch]:
        self.pending = batch
        with self._sync.micro_batch(last=batch.last):
            yield batch
        if self.pending is not None:
            raise InputError("session.backward(loss) was not called for a batch", hint="call it once for each batch")

    def _prove_later(self) -> Iterator[Batch]:
        """Prove the division with the latest batch if the next step is the first that needs it: another batch size or
        smaller parts are wanted, or two halves for the gradient noise."""
        run, division = self._run, self.division
        if division is None or division.at_once or self._latest is None:
            return
        data, samples = self._latest
        wanted = run.row.micro if run.row != run.start else None
        if wanted is None and run.may_halve and run.compares_gradients and self._sample_model.wants(run.steps):
            wanted = -(-samples // 2)
        if wanted is not None:
            yield from self._prove(division, data, samples, wanted)

    def _prove(self, division: DivisionCheck, data: Any, samples: int, micro: int) -> Iterator[Batch]:
        """Run a batch whole and in parts, no more of it than is known to fit, if parts of ``micro`` samples have to be
        proved."""
        run = self._run
        if not run.can_split or not division.is_due(micro, run.steps):
            return
        whole = min(samples, run.start.micro)
        smallest = min(-(-whole // PARTS), micro)
        if whole == 1 or not (division.at_once or run.fits(BatchShape(whole, smallest))):
            return
        some = data if whole == samples else split(data, samples, [whole, samples - whole])[0]
        with run.evaluation(), division.trying(run.steps) as trial:
            self._trial = trial
            try:
                for sizes in trial.plan((whole,), even(whole, smallest), division.tolerance):
                    parts = split(some, whole, sizes) if len(sizes) > 1 else [some]
                    for part, size in zip(parts, sizes, strict=True):
                        batch = Batch(self._placed(part), size, last=False, share=size / whole, is_check=True)
                        yield from self._given(batch)
            finally:
                self._trial = None
        verdict = trial.verdict
        if float(self._sync.mean(torch.tensor(float(verdict.is_equal), device=self._device))) < verdict.is_equal:
            verdict = verdict._replace(result="unequal")  # on another rank
        run.judge_division(division.conclude(verdict, smallest))

    def _placed(self, part: Any) -> Any:
        if self._device is None:
            return part
        begun_s = self._run.device.now_s()
        part = moved(part, self._device)
        self._run.times.copying_s += self._run.device.now_s() - begun_s
        return part
