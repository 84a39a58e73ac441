"""The user's own loop: batches out of the batch_source, cut to the point in force, and gradients back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from wattune.errors import InputError
from wattune.online.batch_source import Fetched
from wattune.online.interrupts import Shield
from wattune.online.micro_batching import Batch, even, moved, shapes, split
from wattune.online.optimizer_step import OptimizerStepper
from wattune.online.prefetch import Prefetcher
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel
from wattune.online.session_run import SessionRun
from wattune.search.search import Row


class UserLoop:
    """One pass after the other: each sample of the data set once, whatever the sizes of the steps do.

    ``position``: samples of the present pass that were trained on. ``pending`` is the batch that the user has and did
    not give back. ``random`` are the random numbers after the last step, where ``remembers``. ``shield``, entered by
    whoever enters the session, keeps interrupts out of the optimizer's step.
    """

    def __init__(
        self, run: SessionRun, fetcher: Prefetcher, stepper: OptimizerStepper, recipe: Recipe, sample_model: SampleModel
    ):
        self.position = 0
        self.pending: Batch | None = None
        self.random: list[Tensor] = []
        self.remembers = False
        self.shield = Shield()
        self._run = run
        self._fetcher = fetcher
        self._stepper = stepper
        self._recipe = recipe
        self._sample_model = sample_model
        device = next(run.model.parameters()).device
        self._device = None if device.type == "cpu" else device
        self.order = 0
        """Checksum of the samples of this pass that were trained on, in their order."""
        self._samples = self._drawn = 0
        self._norms, self._is_usual = False, True

    def batches(self) -> Iterator[Batch]:
        """The rest of the pass that the batch_source has begun. Raises: as ``Session.batches``."""
        try:
            while (fetched := self._fetcher.fetch()) is not None:
                yield from self._step(fetched)
            self._recipe.stepped(self.position, is_end=True)
        finally:
            self._fetcher.clear()
            self._run.drop()

    def remember(self) -> None:
        """Keep the random numbers of now."""
        self.random = [torch.get_rng_state()]
        if self._run.on_cuda:
            self.random.append(torch.cuda.get_rng_state())

    def backward(self, loss: Tensor) -> None:
        """See ``Session.backward``."""
        batch = self.pending
        if batch is None:
            raise InputError("session.backward(loss) belongs to a batch of session.batches(), once for each")
        self._stepper.add(loss, batch.samples, batch.share, norms=self._norms)
        self.pending = None
        if not batch.last:
            return
        self.shield.hold()  # a checkpoint is of whole steps
        try:
            stepped = self._stepper.step(self._samples)
            self.position, self.order = self.position + self._samples, self._drawn
            if stepped:
                self._recipe.stepped(self.position)
            if self.remembers:
                self.remember()
        finally:
            self.shield.release()
        self._run.end(stepped=stepped, usual=self._is_usual)
        if self._run.steps == 1 and self._sample_model.wants(1) and self._run.may_halve:
            # Two halves tell the noise of the gradients, if the model runs with them.
            self._run.fits(Row(self._samples, -(-self._samples // 2)))
        if self._stepper.told:
            self._run.relative(self._sample_model.relative)

    def _step(self, fetched: Fetched) -> Iterator[Batch]:
        data, samples, _, self._drawn = fetched
        run, row = self._run, self._fetcher.row(fetched)
        self._recipe.check()
        sizes = even(samples, row.micro_batch_size)
        if len(sizes) > 1 or not run.checked:
            run.check_parts(data, samples, row)
        self._norms = self._sample_model.wants(run.steps) and not run.explorer.is_measuring
        half = -(-samples // 2)
        if self._norms and len(sizes) == 1 < samples and half in run.fit_check.known and run.may_halve:
            sizes = even(samples, half)
        self._is_usual = not self._norms or len(sizes) == len(even(samples, row.micro_batch_size))
        parts = split(data, samples, sizes) if len(sizes) > 1 else (data,)
        self._stepper.begin()
        self._samples = samples
        run.begin(row, samples, (tuple(sizes), shapes(data)) if run.counter.counts else None, data)
        if samples < row.batch_size:  # the rest of a pass: what the user's own loop would do is the least
            self._recipe.use(max(samples, min(row.batch_size, self._recipe.batch_size)))
        last = len(parts) - 1
        for index, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            batch = Batch(self._placed(part), size, last=index == last, share=size / samples)
            self.pending = batch
            run.fit_check.samples = size
            yield batch
            if self.pending is not None:
                raise InputError("a batch was left without session.backward(loss)", hint="call it once for each batch")

    def _placed(self, part: Any) -> Any:
        if self._device is None:
            return part
        begun_s = self._run.device.now_s()
        part = moved(part, self._device)
        self._run.times.copying_s += self._run.device.now_s() - begun_s
        return part
