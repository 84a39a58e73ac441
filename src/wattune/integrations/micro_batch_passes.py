"""A Trainer's optimizer step run as micro-batches of another size, with the same gradient up to rounding.

The Trainer fetches, counts and logs as configured: ``gradient_accumulation_steps`` batches of
``per_device_train_batch_size`` per step. The change is between its ``training_step`` and the model: a batch is cut into
pieces, or several are joined. The model and a custom ``compute_loss`` determine how the losses of parts combine, so the
rule is found by trial on the first batch; if none fits, the micro-batch size stays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wattune.integrations.row_groups import Inputs, cut, joined, rows
from wattune.online.division import LOW_TOLERANCE, PARTS, DivisionCheck
from wattune.online.ranks.gradient_sync import GradientSync

Rule = Literal["sum", "rows", "labels"]
"""Loss of a batch from those of its parts: their sum, or their mean weighted by rows or by labels."""


class MicroBatchPasses:
    """The forward and backward passes of a Trainer.

    ``size``: rows of a micro-batch, ``batch``: rows of the user's, ``main``: the name of the model's main input.
    ``sync``: the gradients of a step are averaged over the ranks with its last pass.
    """

    def __init__(self, trainer: Any, sync: GradientSync):
        self.batch: int = trainer.args.train_batch_size
        self.size = self.batch
        self.rule: Rule | None = None
        self._trainer, self._sync = trainer, sync
        self._training_step = trainer.training_step
        self._backward = trainer.accelerator.backward
        self.main: str = getattr(trainer.model, "main_input_name", "input_ids")
        self._pad = _padding_token(trainer)
        self._share = 1.0
        self._pending: list[Inputs] = []
        self._batches_left = 0

    # -------------------------------------------------------------------------------------------- in the Trainer's loop

    def begin(self, batches: int) -> None:
        """Begin a step of ``batches`` batches."""
        self._pending, self._batches_left = [], batches

    def training_step(self, model: nn.Module, inputs: Inputs, *others: Any) -> Tensor:
        """Replace the Trainer's ``training_step``: the loss of this call's passes, 0 if they wait for a later call."""
        self._pending.append(inputs)
        self._batches_left -= 1
        if self._batches_left > 0 and len(self._pending) < self.size // self.batch:
            return torch.zeros((), device=self._trainer.args.device)
        batches, self._pending = self._pending, []
        whole = len(batches) == 1 and self.size >= self.batch
        parts = [(inputs, 1.0)] if whole else list(self._parts(batches))
        losses = []
        for number, (part, share) in enumerate(parts, 1):
            with self._sync.micro_batch(last=self._batches_left <= 0 and number == len(parts)):
                losses.append(self.run(model, part, *others, share=share))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Replace the accelerator's ``backward``."""
        self._backward(loss if self._share == 1.0 else loss * self._share, **options)

    def run(self, model: nn.Module, inputs: Inputs, *others: Any, share: float = 1.0) -> Tensor:
        """Run one forward and backward pass; return its share of the loss."""
        loss: Tensor
        if share == 1.0:
            loss = self._training_step(model, inputs, *others)
            return loss
        self._share = share
        try:
            loss = self._training_step(model, inputs, *others)
        finally:
            self._share = 1.0
        return loss * share

    def _parts(self, batches: list[Inputs]) -> Iterator[tuple[Inputs, float]]:
        if self.rule is not None and len(batches) > 1 and (whole := self._whole(batches)) is not None:
            yield whole, 1.0 if self.rule == "sum" else float(len(batches))
            return
        for batch in batches:
            pieces = cut(batch, self.size) if self.rule is not None and self.size < self.batch else [batch]
            shares = self._shares(pieces)
            if not any(shares):  # no labels at all: left to the user's loss
                pieces, shares = [batch], [1.0]
            for piece, share in zip(pieces, shares, strict=True):
                if share:  # the mean over a piece without labels is undefined
                    yield piece, share

    def _whole(self, batches: list[Inputs]) -> Inputs | None:
        # The Trainer takes the mean over batches with equal weights, which differs from the mean over all their rows
        # or labels unless each batch has the same number.
        if self.rule != "sum" and len({self._weight(batch) for batch in batches}) > 1:
            return None
        return joined(batches, self.main, self._pad)

    def _shares(self, pieces: Sequence[Inputs], rule: Rule | None = None) -> list[float]:
        rule = rule or self.rule
        if len(pieces) == 1 or rule == "sum":
            return [1.0] * len(pieces)
        weights = [self._weight(piece, rule) for piece in pieces]
        return [weight / max(1, sum(weights)) for weight in weights]

    def _weight(self, batch: Inputs, rule: Rule | None = None) -> int:
        if (rule or self.rule) == "rows":
            return rows(batch) or 1
        labels = batch["labels"]
        if getattr(self._trainer, "_loss_shifts_labels", labels.dim() == 2) and labels.dim() > 1:
            labels = labels[..., 1:]
        return int((labels != -100).sum())

    # ------------------------------------------------------------------------------------------- finding the loss rule

    def fitting_rules(self, model: nn.Module, batches: Sequence[Inputs], *others: Any) -> tuple[Rule, ...]:
        """Rules by which the losses of parts combine to the loss of the whole batch.

        A rule fits if the gradient of the parts is the gradient of the whole: the losses alone are equal by a wrong
        rule too where every row has the same loss, as at an untrained model. The first batch runs as a whole and in up
        to four parts, in evaluation mode; what the Trainer counts meanwhile is restored.
        """
        parts = cut(batches[0], max(1, -(-(rows(batches[0]) or 1) // PARTS)))
        whole: Inputs | None = batches[0]
        if len(parts) == 1:
            parts = list(batches[:2])
            whole = joined(parts, self.main, self._pad) if len(parts) == 2 else None
        if whole is None:
            return ()
        check = DivisionCheck(model, list(model.parameters()), at_once=True)
        with check.trying(0) as trial, uncounted(self._trainer), torch.enable_grad():
            gradient, *gradients = (trial.gradient(self._loss(model, inputs, *others)) for inputs in (whole, *parts))
        norm = float(gradient.norm())
        tolerance = LOW_TOLERANCE if self._is_low(model) else check.tolerance()

        def fits(rule: Rule) -> bool:
            shares = self._shares(parts, rule)
            total = sum(share * part for share, part in zip(shares, gradients, strict=True) if share)
            return float((total - gradient).norm()) <= tolerance * norm

        return tuple(rule for rule in self._rules(whole) if norm and math.isfinite(norm) and fits(rule))

    def _rules(self, batch: Inputs) -> tuple[Rule, ...]:
        labels = batch.get("labels")
        # A loss over tokens first: if all rows have the same number of labels, both rules fit the first batch.
        if isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            return "sum", "labels", "rows"
        return "sum", "rows"

    def _loss(self, model: nn.Module, inputs: Inputs, *others: Any) -> Tensor:
        trainer = self._trainer
        # A copy, since compute_loss may take the labels out.
        own_inputs = trainer._prepare_inputs(type(inputs)(dict(inputs)))  # type: ignore[call-arg]
        options = {"num_items_in_batch": others[0]} if others else {}
        with trainer.compute_loss_context_manager():
            loss: Tensor = trainer.compute_loss(model, own_inputs, **options)
        return loss

    def _is_low(self, model: nn.Module) -> bool:
        low = (torch.float16, torch.bfloat16)
        return self._trainer.args.fp16 or self._trainer.args.bf16 or any(p.dtype in low for p in model.parameters())


def _padding_token(trainer: Any) -> int:
    # `processing_class` since 4.46; without it the model's own, or 0: padding is masked anyway.
    for place in (getattr(trainer, "processing_class", None), getattr(trainer.model, "config", None)):
        token = getattr(place, "pad_token_id", None)
        if isinstance(token, int):
            return token
    return 0


@contextmanager
def uncounted(trainer: Any) -> Iterator[None]:
    """Context that restores what the Trainer counts: its attributes that are plain numbers, texts and containers.

    Trainers such as those of TRL add to their metrics in ``compute_loss``.
    """
    saved = {name: deepcopy(value) for name, value in vars(trainer).items() if _is_plain(value)}
    try:
        yield
    finally:
        vars(trainer).update(saved)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, deque)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))
