"""The loader that Lightning trains from, in batches of another size, and what Lightning counts in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any

import torch

from wattune.errors import InputError
from wattune.online.batch_source import why_fixed
from wattune.online.micro_batching import samples_of
from wattune.online.rng_state import restore, undisturbed
from wattune.point import BatchShape


class _First:
    """The first samples of a sampler."""

    def __init__(self, sampler: Any, count: int):
        self._sampler, self._count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        return islice(self._sampler, self._count)

    def __len__(self) -> int:
        return self._count


class FitLoader:
    """The training loader of a fit. ``parts``: its batches in one optimizer step of the user's.

    ``start`` is the user's own shape. ``samples`` in a pass, None if the loader's batches stay as they are, for which
    ``fixed`` is the reason. Raises: InputError for several loaders.
    """

    def __init__(self, trainer: Any, parts: int):
        loaders = trainer.fit_loop._combined_loader.flattened
        if len(loaders) > 1:
            raise InputError("several training loaders", value=len(loaders), allowed="one loader")
        self.loader: Any = loaders[0]
        self.batches: float = trainer.num_training_batches
        self._validates_after: float | None = trainer.val_check_batch
        self._ticks = [c.frequency for c in trainer.lr_scheduler_configs if c.interval == "step"]
        self.fixed = self._why_fixed()
        own = getattr(self.loader, "batch_size", None)
        self.is_even = own is not None
        """True if all batches but the last have the same size; otherwise ``start`` has their mean size."""
        self.batch_size: int = own or self._mean_size()
        self.start = BatchShape(self.batch_size * parts, self.batch_size)
        self.samples: int | None = None
        if self.fixed is None:
            self._in_all = len(self.loader.sampler)
            self.samples = int(min(self._in_all, self.batches * self.batch_size))
        self._in_pass = self.samples
        """Samples of the present pass: more than ``samples`` if its rest is trained after a resume."""

    def _why_fixed(self) -> str | None:
        reason = why_fixed(self.loader)
        if reason is not None:
            return f"{reason[0]} {reason[1]}"
        if not isinstance(self.loader.sampler, Sized) or not isinstance(self.loader.dataset, Sized):
            return "the sampler or the data set has no length"
        return "the loader has a position of its own" if hasattr(self.loader, "state_dict") else None

    def _mean_size(self) -> int:
        try:
            return max(1, round(len(self.loader.dataset) / len(self.loader)))
        except (AttributeError, TypeError, NotImplementedError):
            return 1

    def allows(self, shape: BatchShape) -> bool:
        """True if each of Lightning's settings in batches can keep its meaning at this shape."""
        (batch, micro), own, after = shape, self.batch_size, self._validates_after
        if micro == own:
            return True
        if self.samples is None or batch % micro or any(frequency != 1 for frequency in self._ticks):
            return False
        if self.samples % micro == 1 != self.samples % own:
            return False  # a last batch of one sample, which BatchNorm refuses
        is_cut = self.samples < self._in_all or self.loader.drop_last
        is_mixed = own % micro and self.samples % own  # of batches that weigh otherwise
        if is_mixed or (is_cut and self.samples % micro) or self._draws_otherwise(micro, is_cut):
            return False
        if after in (None, math.inf, self.batches):
            return True
        return not (self.samples % own or self.samples % micro or after * own % micro)

    def _draws_otherwise(self, micro: int, is_cut: bool) -> bool:
        """True if a sampler with a generator of its own may begin the next pass from another state.

        RandomSampler draws from it once more when it is asked for a sample after its last one. Workers ask in advance.
        """
        if self.samples is None or getattr(self.loader.sampler, "generator", None) is None:
            return False
        if self.loader.num_workers:
            return is_cut
        return (self.samples % self.batch_size == 0) != (self.samples % micro == 0)

    def resume(self, loop: Any, shape: BatchShape) -> None:
        """Prepare the rest of the pass in which a checkpoint was saved, before ``use``.

        Lightning takes its batches from the first sample on again, so that its last one is whole in the user's size.
        """
        if self.samples is None or not loop.restarting:
            return
        done = (loop.batch_progress.current.completed + loop.restarted_on_train_batch_end) * shape.micro
        whole = -(-self.samples // self.batch_size) * self.batch_size
        if 0 < whole - done <= self._in_all and done:
            self._in_pass = whole
            self.loader.batch_sampler.sampler = _First(self.loader.sampler, whole - done)

    def use(self, trainer: Any, shape: BatchShape, *, before: list[Any] | None) -> None:
        """Train in this shape from the next pass on. ``before``: the random state before the pass was begun, if its
        first batches may have been fetched. Lightning begins later passes itself."""
        trainer.accumulate_grad_batches = shape.batch // shape.micro
        if self._in_pass is None:
            return
        self.loader.batch_sampler.batch_size = shape.micro
        loop, batches, after = trainer.fit_loop, -(-self._in_pass // shape.micro), self._validates_after
        if after == self.batches:
            trainer.val_check_batch = batches
        elif after is not None and after != math.inf:
            trainer.val_check_batch = int(after) * self.batch_size // shape.micro
        loop.max_batches = loop._data_fetcher.length = batches
        loop._combined_loader.limits = [batches]
        if (
            before is not None and self.loader.num_workers and shape.micro != self.batch_size
        ):  # workers have fetched batches of the other size
            restore(self.loader, before)
            # Persistent workers would keep their place, after the batches that they have fetched.
            self.loader._iterator = None
            iter(loop._data_fetcher)

    def reset(self, trainer: Any) -> None:
        """Restore the user's sizes."""
        trainer.accumulate_grad_batches = self.start.batch // self.start.micro
        if self.samples is not None:
            self.loader.batch_sampler.batch_size = self.batch_size
            self.loader.batch_sampler.sampler, self._in_pass = self.loader.sampler, self.samples

    # ------------------------------------------------------------------------------------------------ samples of a step

    def samples_of_step(self, shape: BatchShape, batch_idx: int) -> int:
        """Number of samples in the step that begins with this batch, as far as it is known before the step."""
        return shape.batch if self._in_pass is None else min(shape.batch, self._in_pass - batch_idx * shape.micro)

    def samples_of_batch(self, batch: Any, shape: BatchShape, batch_idx: int) -> int:
        """Number of samples in a batch."""
        if self._in_pass is None:
            return samples_of(batch)
        return min(shape.micro, self._in_pass - batch_idx * shape.micro)

    def factor(self, shape: BatchShape, batch_idx: int) -> float:
        """Factor for the loss of a batch in the last step of a pass, which Lightning divides by the batches of a whole
        step: each sample then counts as in the user's own batches."""
        if self._in_pass is None:
            return 1.0
        begin, last = batch_idx * shape.micro, self._in_pass % self.batch_size
        rest = self._in_pass - begin // shape.batch * shape.batch
        if rest >= shape.batch:
            return 1.0
        size, parts = min(shape.micro, self._in_pass - begin), shape.batch // shape.micro
        own = self.batch_size if begin < self._in_pass - last else last
        return parts * size * self.batch_size / (self.start.batch * own)

    # ----------------------------------------------------------------------------------------------------------- trials

    def draw(self, count: int) -> list[Any]:
        """Random samples of the data set, by their indices, so that the user's sampler draws nothing."""
        generator = torch.Generator().manual_seed(0)
        indices = torch.randint(len(self.loader.dataset), (count,), generator=generator).tolist()
        with undisturbed():
            return [self.loader.dataset[index] for index in indices]
