"""The time that a rank computes in a step, without waiting for the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class ComputeTimer:
    """Seconds from the begin of a step until its gradients are complete on this rank.

    Backward passes end at the first parameters, so that the first one whose gradient is computed tells when: what
    follows is averaging over the ranks, with its waiting. ``end`` returns the time of the last step that is known; on
    a GPU, which computes asynchronously, that may be an earlier one. ``on_pass`` is called after each backward pass.
    """

    def __init__(self, model: nn.Module, on_pass: Callable[[], None]):
        self._on_pass = on_pass
        self._parameter = next((p for p in model.parameters() if p.requires_grad), None)
        self._on_cuda = self._parameter is not None and self._parameter.device.type == "cuda"
        self._hook: Any = None
        self._begun: Any = None
        self._ready: Any = None
        self._complete: tuple[Any, Any] | None = None
        self._seconds: float | None = None

    def open(self) -> None:
        """Observe the gradients, until ``close``."""
        if self._parameter is not None:
            self._hook = self._parameter.register_post_accumulate_grad_hook(self._passed)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Begin a step."""
        self._begun, self._ready = self._now(), None

    def end(self) -> float | None:
        """End the step. Returns: the seconds of the last one that is known, None if none is."""
        if self._ready is not None and self._on_cuda:
            if self._complete is None:
                self._complete = self._begun, self._ready
            begun, ready = self._complete
            if ready.query():
                self._seconds, self._complete = begun.elapsed_time(ready) / 1e3, None
        elif self._ready is not None:
            self._seconds = self._ready - self._begun
        return self._seconds

    def close(self) -> None:
        """Remove the hook from the model."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _passed(self, parameter: Any) -> None:
        self._on_pass()
        self._ready = self._now()

    def _now(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
