"""A Trainer's optimizer step run as micro-batches of another size, with the same gradient up to rounding.

The Trainer goes on to fetch, count and log as it was set up: so many batches of ``per_device_train_batch_size`` a step.
Only what is between its ``training_step`` and the model changes: a batch is cut into pieces, or several are put
together. How the losses of the parts make up the loss of the whole is the business of the model and of a user's own
``compute_loss``, so it is tried out on the first batch; where nothing fits, the micro-batch stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wattune.integrations.regrouping import Inputs, cut, joined, rows
from wattune.session.randomness import undisturbed

Rule = Literal["sum", "rows", "labels"]
"""The loss of a batch is the sum of those of its parts, or their mean, weighted by their rows or by their labels."""

TOLERANCE, LOW_TOLERANCE = 1e-3, 2e-2
"""How far the two may lie apart, relative: rounding of fp32, and of fp16 and bf16."""


class Passes:
    """The forward and backward passes of a Trainer.

    ``size``: rows of a micro-batch, ``batch`` those of the user's, ``main`` the model's main input.
    """

    def __init__(self, trainer: Any):
        self.batch: int = trainer.args.train_batch_size
        self.size = self.batch
        self.rule: Rule | None = None
        self._trainer = trainer
        self._training_step = trainer.training_step
        self._backward = trainer.accelerator.backward
        self.main: str = getattr(trainer.model, "main_input_name", "input_ids")
        self._pad = _padding_token(trainer)
        self._share = 1.0
        self._pending: list[Inputs] = []
        self._left = 0

    # -------------------------------------------------------------------------------------------- in the Trainer's loop

    def begin(self, batches: int) -> None:
        """A step of so many batches is about to come."""
        self._pending, self._left = [], batches

    def training_step(self, model: nn.Module, inputs: Inputs, *others: Any) -> Tensor:
        """In place of the Trainer's: the loss of what was run in this call, 0 where that waits for a later one."""
        self._pending.append(inputs)
        self._left -= 1
        if self._left > 0 and len(self._pending) < self.size // self.batch:
            return torch.zeros((), device=self._trainer.args.device)
        batches, self._pending = self._pending, []
        if len(batches) == 1 and self.size >= self.batch:
            return self.run(model, inputs, *others)
        losses = [self.run(model, part, *others, share=share) for part, share in self._parts(batches)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def backward(self, loss: Tensor, **options: Any) -> None:
        """In place of the accelerator's."""
        self._backward(loss if self._share == 1.0 else loss * self._share, **options)

    def run(self, model: nn.Module, inputs: Inputs, *others: Any, share: float = 1.0) -> Tensor:
        """One pass forward and backward, and its share of the loss."""
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
            if not any(shares):  # no label at all: what that means is the user's business
                pieces, shares = [batch], [1.0]
            for piece, share in zip(pieces, shares, strict=True):
                if share:  # a piece without any label has no mean
                    yield piece, share

    def _whole(self, batches: list[Inputs]) -> Inputs | None:
        # The Trainer takes the mean over batches, each with the same weight: that of all their rows or labels is
        # another one, unless they have the same number of them.
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

    # ---------------------------------------------------------------------------------------------------- trying it out

    def try_out(self, model: nn.Module, batches: Sequence[Inputs], *others: Any) -> Rule | None:
        """Find out how the losses of parts make up that of the whole; None where they do not.

        Three or four forward passes, in evaluation mode, of the first batch as it is and in two parts.
        """
        self.rule = None
        parts = cut(batches[0], max(1, -(-(rows(batches[0]) or 1) // 2)))
        whole: Inputs | None = batches[0]
        if len(parts) == 1:
            parts = list(batches[:2])
            whole = joined(parts, self.main, self._pad) if len(parts) == 2 else None
        if whole is None:
            return None
        training, tolerance = model.training, LOW_TOLERANCE if self._is_low(model) else TOLERANCE
        try:
            model.eval()
            with torch.no_grad(), undisturbed():
                loss, *losses = (self._loss(model, inputs, *others) for inputs in (whole, *parts))
        finally:
            model.train(training)
        for rule in self._rules(whole):
            shares = self._shares(parts, rule)
            made = sum(share * part for share, part in zip(shares, losses, strict=True) if share)
            if abs(made - loss) <= tolerance * abs(loss):
                self.rule = rule
                break
        return self.rule

    def _rules(self, batch: Inputs) -> tuple[Rule, ...]:
        labels = batch.get("labels")
        # A loss over tokens first: where all rows have as many labels, the first batch does not tell the two apart.
        if isinstance(labels, Tensor) and labels.dim() > 1 and not labels.is_floating_point():
            return "sum", "labels", "rows"
        return "sum", "rows"

    def _loss(self, model: nn.Module, inputs: Inputs, *others: Any) -> float:
        trainer = self._trainer
        # A copy, since compute_loss may take the labels out.
        prepared = trainer._prepare_inputs(type(inputs)(dict(inputs)))  # type: ignore[call-arg]
        options = {"num_items_in_batch": others[0]} if others else {}
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, prepared, **options)
        return float(loss)

    def _is_low(self, model: nn.Module) -> bool:
        low = (torch.float16, torch.bfloat16)
        return self._trainer.args.fp16 or self._trainer.args.bf16 or any(p.dtype in low for p in model.parameters())


def _padding_token(trainer: Any) -> int:
    # `processing_class` since 4.46; a text model without it has its own, or none, and then 0 is as good: it is masked.
    for place in (getattr(trainer, "processing_class", None), getattr(trainer.model, "config", None)):
        token = getattr(place, "pad_token_id", None)
        if isinstance(token, int):
            return token
    return 0
