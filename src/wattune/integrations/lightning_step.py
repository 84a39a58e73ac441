"""Lightning's optimizer step while it is under way: whether it was one, and what its gradients say."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer

from wattune.integrations.lightning_division import Part
from wattune.session import Session
from wattune.session.optimizing import Overflows, squared_norm, trained


class Step:
    """The step under way, one after the other, from ``begin`` to ``end``; seen through the optimizer until ``close``.

    Lightning runs forward and backward passes within ``optimizer.step``, or before it where gradients are scaled.
    """

    def __init__(self, session: Session, trainer: Trainer, optimizer: Optimizer):
        self.is_under_way = False
        self._session = session
        self._scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        self._overflows = Overflows()
        self._is_stepped = self._is_disturbed = self._is_complete = self._is_backward = False
        self._first: tuple[int, Tensor] | None = None
        self._both: Tensor | None = None
        self._hooks = [optimizer.register_step_post_hook(lambda *_: self._stepped())]
        book = session.governor.book
        if book.counts:
            # After the book's own hook, which takes a step to be nothing but the optimizer's work.
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: book.optimizing(self._is_complete)))

    def close(self) -> None:
        """Leave the optimizer as it was found."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Its first micro-batch is about to be trained on."""
        self.is_under_way = True
        self._is_stepped = self._is_disturbed = self._is_complete = self._is_backward = False
        self._first, self._both = None, None

    def disturb(self) -> None:
        """Something else goes on in the middle of it, so that it is not like others."""
        self._is_disturbed = True

    def backward(self, part: Part, *, wants_norms: bool) -> None:
        """The gradients of a micro-batch are there."""
        self._is_backward = True
        if wants_norms and part.first and not part.last:
            with self._session.governor.book.uncounted():
                square = squared_norm(trained(self._session.optimizer)) / (part.share * self._scale()) ** 2
            self._first = part.samples, square

    def complete(self, optimizer: Optimizer) -> None:
        """The gradients of all its micro-batches are there, unscaled where this optimizer does not do that itself."""
        book = self._session.governor.book
        if self._first is not None:
            scale = self._scale() if getattr(optimizer, "_step_supports_amp_scaling", False) else 1.0
            with book.uncounted():
                self._both = torch.stack([self._first[1], squared_norm(trained(self._session.optimizer)) / scale**2])
        self._is_complete = True
        book.optimizing(True)

    def end(self, samples: int) -> None:
        """It is over, with so many samples. Raises: as ``Session.end_step``; InputError where none is ever taken."""
        session, self.is_under_way = self._session, False
        session.end_step(stepped=self._is_stepped and not self._is_disturbed)
        if self._scaler is not None:
            self._overflows.count(skipped=self._is_backward and not self._is_stepped)
        if self._first is None or self._both is None or not self._is_stepped:
            return
        small, big = self._both.tolist()
        if session.knowledge.add(self._first[0], small, samples, big):
            session.governor.relative(session.knowledge.relative)

    def _stepped(self) -> None:
        self._is_stepped = True

    def _scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
