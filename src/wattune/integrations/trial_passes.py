"""Trial passes of a Transformers ``Trainer``: the forward and backward passes of one optimizer step in any division."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Final

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import Trainer

from wattune.loop.batch_shapes import rows
from wattune.loop.rng_state import undisturbed
from wattune.point import BatchShape

SCAN_S: Final = 2.0
"""Longest time that the data set is searched for its longest row."""


class TrialPasses:
    """Passes over rows of the Trainer's own data set, collated and run as its training does it.

    ``own`` is the user's shape.
    """

    def __init__(self, trainer: Any, loader: Any, own: BatchShape):
        self._trainer, self._own = trainer, own
        self._collate, data = loader.collate_fn, loader.dataset
        self.rows = len(data)
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).tolist()
        self._usual = [data[chosen[i % len(chosen)]] for i in range(own.batch)]
        longest, self.varies = _longest(data, chosen, getattr(trainer.model, "main_input_name", "input_ids"))
        """True unless all rows are known to have one length."""
        self._longest = None if longest is None else data[longest]

    @property
    def steps_per_pass(self) -> int:
        """Optimizer steps of one pass."""
        return math.ceil(self.rows / self._own.batch)

    def usual(self, shape: BatchShape) -> None:
        """Run the passes of one step over rows drawn from the data set."""
        self._run(self._usual[: shape.batch], shape.micro)

    def proof(self, shape: BatchShape) -> None:
        """Run the passes that prove a division: a whole step, and the smaller one that ends a pass.

        The longest row of the data set, as often as a micro-batch has rows, runs before: it has to fit too.
        """
        if self._longest is not None:
            self._run([self._longest] * shape.micro, shape.micro)
            self._trainer.model.zero_grad()
        self.usual(shape)
        if tail := self.rows % self._own.batch:
            self._run(self._usual[:tail], shape.micro)

    def _run(self, rows: Sequence[Any], micro: int) -> None:
        trainer = self._trainer
        parts = [self._collate(list(rows[i : i + micro])) for i in range(0, len(rows), micro)]
        batches, items = trainer.get_batch_samples(iter(parts), len(parts), trainer.args.device)
        trainer.current_gradient_accumulation_steps = len(batches)
        for batch in batches:
            with trainer.accelerator.autocast():
                trainer.training_step(trainer.model, batch, items)


@contextmanager
def uncounted(trainer: Any) -> Iterator[None]:
    """Context that restores random state, the optimizer, and what the Trainer counts in plain attributes: numbers,
    texts and containers of them.

    Trainers such as those of TRL add to their metrics in ``compute_loss``.
    """
    saved = {name: deepcopy(value) for name, value in vars(trainer).items() if _is_plain(value)}
    optimizer = trainer.optimizer
    try:
        with undisturbed():
            yield
    finally:
        for name in [name for name, value in vars(trainer).items() if name not in saved and _is_plain(value)]:
            delattr(trainer, name)
        vars(trainer).update(saved)
        trainer.optimizer = optimizer


def no_division(trainer: Any, own: BatchShape) -> str | None:
    """The reason why a step cannot be divided in another way; None if it may be."""
    for name in ("get_train_dataloader", "_get_dataloader", "_get_train_sampler"):
        if getattr(type(trainer), name, None) is not getattr(Trainer, name, None):
            return f"{type(trainer).__name__} makes a loader of its own"
    if isinstance(trainer.train_dataset, IterableDataset) or not isinstance(trainer.train_dataset, Sized):
        return "the rows of a stream cannot be drawn twice"
    if len(trainer.train_dataset) % own.batch and trainer.args.dataloader_drop_last:
        return "the last step of a pass would take other rows"
    return None


def other_shapes(own: BatchShape, model: nn.Module, *, shares_memory: bool) -> tuple[list[BatchShape], str | None]:
    """Other shapes that divide the user's batch evenly, and the reason why some are not among them, if there is one."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        return [], "the model has BatchNorm, whose statistics are those of a micro-batch"
    even = [one for one in rows([own.batch], own) if own.batch % one.micro == 0 and one != own]
    if not shares_memory:
        return even, None
    # A larger one may take the memory that the system needs, and crash the board.
    smaller = [one for one in even if one.micro < own.micro]
    return smaller, f"the board shares its memory with the system: none above {own.micro} is tried"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, deque)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _longest(data: Any, order: Sequence[int], main: str) -> tuple[int | None, bool]:
    """Index of the longest row of tokens among as many as are seen in time, None for a data set of something else; and
    False if all rows have one length."""
    lengths: dict[int, int] = {}
    until_s = time.monotonic() + SCAN_S
    for index in order:
        item = data[index]
        ids = item.get(main) if isinstance(item, Mapping) else None
        if not isinstance(ids, Sized) or getattr(ids, "ndim", 1) != 1:
            return None, True
        lengths[index] = len(ids)
        if time.monotonic() > until_s:
            break
    varies = len(lengths) < len(data) or len(set(lengths.values())) > 1
    return max(lengths, key=lengths.__getitem__), varies
