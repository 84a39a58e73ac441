"""The loader that Lightning trains from, in batches of another size."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch
from torch import Tensor

from wattune.errors import InputError
from wattune.online.batch_source import why_fixed
from wattune.online.rng_state import restore, states, undisturbed
from wattune.point import BatchShape


class FitLoader:
    """The training loader of a fit. ``parts``: its batches in one optimizer step of the user's.

    ``start`` is the user's own shape. ``fixed``: the reason why the batches stay as they are, None if they need not.
    Raises: InputError for several loaders.
    """

    def __init__(self, trainer: Any, parts: int):
        loaders = trainer.fit_loop._combined_loader.flattened
        if len(loaders) > 1:
            raise InputError("several training loaders", value=len(loaders), allowed="one loader")
        self.loader: Any = loaders[0]
        own = getattr(self.loader, "batch_size", None)
        self.is_even = own is not None
        """True if all batches but the last have the same size; otherwise ``start`` has their mean size."""
        self.batch_size: int = own or self._mean_size()
        self.start = BatchShape(self.batch_size * parts, self.batch_size)
        self._batches: float = trainer.num_training_batches
        self._validates_after: Any = trainer.val_check_interval
        self.samples: int | None = None
        """Samples of a pass, None if nobody knows."""
        self.fixed = self._why_fixed(trainer)

    def _mean_size(self) -> int:
        try:
            return max(1, round(len(self.loader.dataset) / len(self.loader)))
        except (AttributeError, TypeError, NotImplementedError):
            return 1

    def _why_fixed(self, trainer: Any) -> str | None:
        reason = why_fixed(self.loader)
        if reason is not None:
            return f"{reason[0]} {reason[1]}"
        if not isinstance(self.loader.sampler, Sized) or not isinstance(self.loader.dataset, Sized):
            return "the sampler or the data set has no length"
        if hasattr(self.loader, "state_dict"):
            return "the loader has a position of its own"
        if trainer.reload_dataloaders_every_n_epochs:
            return "Lightning reloads the loader"
        self.samples = int(min(len(self.loader.sampler), self._batches * self.batch_size))
        steps_between = [one.frequency for one in trainer.lr_scheduler_configs if one.interval == "step"]
        counts = {
            "limit_train_batches": self._batches != len(self.loader),
            "val_check_interval": isinstance(self._validates_after, int),
            "the frequency of a scheduler": any(frequency != 1 for frequency in steps_between),
        }
        if (setting := next((name for name, is_set in counts.items() if is_set), None)) is not None:
            return f"{setting} counts them"
        return "the last step of a pass is smaller; use drop_last=True" if self.samples % self.start.batch else None

    def allows(self, shape: BatchShape) -> bool:
        """True if this shape trains on the same samples, and validates after as many."""
        (batch, micro), own, samples = shape, self.batch_size, self.samples
        if micro == own:
            return True
        if self.fixed is not None or samples is None or batch % micro:
            return False
        if self.loader.drop_last and len(self.loader.sampler) - samples >= micro:
            return False
        after = [max(1, int(samples // size * self._validates_after)) * size for size in (own, micro)]
        return after[0] == after[1]

    def samples_from(self, begin: int, size: int) -> int:
        """Number of samples that a pass still has from this one on, ``size`` at most."""
        return size if self.samples is None else min(size, self.samples - begin)

    def use(self, trainer: Any, shape: BatchShape, before: list[Tensor]) -> None:
        """Train in this shape, and let Lightning count its batches again. ``before``: the random state before workers
        may have fetched batches of the user's size."""
        if shape == self.start:
            return
        loop, loader, after = trainer.fit_loop, self.loader, states(self.loader)
        trainer.accumulate_grad_batches = shape.batch // shape.micro
        loader.batch_sampler.batch_size = shape.micro
        if loader.num_workers:
            restore(loader, before)
            loader._iterator = None  # persistent workers would keep their place
        source, loop._data_source.instance = loop._data_source.instance, loop._combined_loader
        loop._combined_loader = None
        loop.setup_data()
        loop._data_source.instance = source
        if not loader.num_workers:
            restore(loader, after)

    def reset(self, trainer: Any) -> None:
        """Restore the user's sizes."""
        trainer.accumulate_grad_batches = self.start.batch // self.start.micro
        if self.fixed is None:
            self.loader.batch_sampler.batch_size = self.batch_size

    def draw(self, count: int) -> list[Any]:
        """Random samples of the data set, by their indices, so that the user's sampler draws nothing."""
        generator = torch.Generator().manual_seed(0)
        indices = torch.randint(len(self.loader.dataset), (count,), generator=generator).tolist()
        with undisturbed():
            return [self.loader.dataset[index] for index in indices]
