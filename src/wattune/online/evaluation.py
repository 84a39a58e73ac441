"""Evaluations in the middle of a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wattune.devices import Device
from wattune.online.keeper import Keeper
from wattune.online.step_counter import StepWorkCounter


@contextmanager
def evaluation(device: Device, keeper: Keeper, book: StepWorkCounter, *, on_cuda: bool) -> Iterator[None]:
    """Around an evaluation: the keeper holds it below the cap, and a simulated board takes the time of what ran.

    It may come in the middle of a step. A recording holds training steps only: there an evaluation takes no time.
    Raises: DeviceError.
    """
    keeper.begin_evaluation()
    try:
        with book.aside():
            book.begin("evaluation")
            yield
            work = book.end(1, 1, keep=False) if book.counts else None
        if work is not None and work.flops and device.kind != "replayed":
            with device.step(work):
                pass
        elif on_cuda:
            torch.cuda.synchronize()
    finally:
        keeper.end_evaluation()
