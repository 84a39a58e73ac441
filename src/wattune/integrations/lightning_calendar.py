"""Lightning's settings in batches or steps, converted to samples while the batch size changes.

A step counts by its samples: an event that is due after the user's tenth batch happens at the end of the first step
that reaches that batch's last sample.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from wattune.integrations.lightning_step import division_state

NEVER = sys.maxsize
"""A number of batches that no run reaches."""


class Calendar:
    """Schedule of a run: when to validate, to tick learning rate schedulers and to end.

    ``batch_size`` is the loader's; ``parts`` of its batches make one step of the user's. ``moves``: the size of a step
    may change. Lightning's own counting is off between ``take_over`` and ``give_back``.
    """

    def __init__(self, trainer: Trainer, batch_size: int, parts: int, *, moves: bool):
        self._batch_size, self.parts, self._moves = batch_size, parts, moves
        self._batches = math.inf
        self._samples: int | None = None
        self._val_every: float | None = None
        self._max_steps = trainer.max_steps
        self._frequencies = [(c, c.frequency) for c in trainer.lr_scheduler_configs if c.interval == "step"]
        self._budget: int | None = None
        """Samples of ``max_steps`` of the user's steps; None if steps are counted as they are."""

    def read(self, trainer: Trainer, batches: float, samples: int | None) -> None:
        """Read Lightning's settings for a loader, before any of them is changed."""
        self._batches, self._samples = batches, samples
        self._val_every = trainer.val_check_batch
        if batches == math.inf and self._val_every is not None and isinstance(trainer.val_check_interval, float):
            self._val_every = math.inf  # a share of an unknown length is the whole pass
        if self._moves and self._max_steps >= 0 and samples is not None and batches != math.inf:
            passes, steps = divmod(self._max_steps, math.ceil(batches / self.parts))
            self._budget = passes * samples + min(samples, steps * self.parts * self._batch_size)
        else:
            self._budget = None

    def take_over(self, trainer: Trainer) -> None:
        """Turn off Lightning's own counting."""
        for config, _ in self._frequencies:
            config.frequency = NEVER
        if self._budget is not None:
            trainer.fit_loop.epoch_loop.max_steps = NEVER

    def give_back(self, trainer: Trainer) -> None:
        """Restore the user's settings."""
        for config, frequency in self._frequencies:
            config.frequency = frequency
        trainer.fit_loop.epoch_loop.max_steps = self._max_steps
        trainer.accumulate_grad_batches = self.parts

    def samples_left(self, trainer: Trainer) -> int | None:
        """Samples until training ends in the pass that begins; None if it does not end in this pass."""
        if self._budget is None or self._samples is None:
            return None
        samples = self._budget - trainer.current_epoch * self._samples
        return max(0, samples) if samples < self._samples else None

    def begin_step(self, trainer: Trainer) -> None:
        """Defer validation to the end of the step, except validation by wall time."""
        if self._val_every is not None:
            trainer.val_check_batch = NEVER

    def end_step(
        self, trainer: Trainer, pl_module: LightningModule, position: int, samples: int, *, is_end: bool
    ) -> None:
        """End a step of ``samples`` samples at ``position`` in the pass; ``is_end``: the pass ends with it."""
        every, due = self._val_every, is_end
        if self._frequencies or every not in (None, math.inf):
            before, now = self._index(position - samples, is_end=False), self._index(position, is_end=is_end)
            self._tick(trainer, pl_module, before, now)
            if every is not None and every != math.inf:
                first = 0.0
                if trainer.check_val_every_n_epoch is None and self._batches != math.inf:
                    first = trainer.current_epoch * self._batches
                due = (first + now) // every > (first + before) // every
        if every is not None:
            trainer.val_check_batch = 1 if due else NEVER
        if self._budget is not None and self._samples is not None:
            is_over = trainer.current_epoch * self._samples + position >= self._budget
            trainer.fit_loop.epoch_loop.max_steps = trainer.global_step if is_over else NEVER

    def _index(self, position: int, *, is_end: bool) -> int:
        """Number of the user's batches before this position."""
        if is_end:
            return int(self._batches) if self._batches != math.inf else -(-position // self._batch_size)
        return position // self._batch_size

    def _tick(self, trainer: Trainer, pl_module: LightningModule, before: int, now: int) -> None:
        for config, frequency in self._frequencies:
            ticks = self._ticks(now, frequency) - self._ticks(before, frequency)
            if config.reduce_on_plateau:  # needs a metric, which Lightning has after validation
                config.frequency = 1 if ticks else NEVER
                continue
            for _ in range(ticks):
                pl_module.lr_scheduler_step(config.scheduler, None)

    def _ticks(self, batches: int, frequency: int) -> int:
        # Lightning ticks with a step whose last batch has a number that the frequency divides.
        ticks = batches // math.lcm(self.parts, frequency)
        is_rest = batches == self._batches and batches % self.parts != 0
        return ticks + (is_rest and batches % frequency == 0)


def trainer_state(trainer: Trainer) -> dict[str, Any]:
    """The state that Lightning reads before the first batch of a resumed run, as JSON values."""
    every, batches = trainer.val_check_batch, trainer.fit_loop.max_batches
    return {
        "val_check_batch": None if every == math.inf else every,
        "max_batches": None if batches == math.inf else batches,
        "division": division_state(trainer.accumulate_grad_batches),
    }
