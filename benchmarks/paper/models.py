"""The paper's models as workloads, the work of their steps, and their profiles on the simulated boards.

Nothing is trained here, so no data is needed. Source of batch sizes and optimizers: arXiv 2502.18323, section 5.1.
"""

from __future__ import annotations

from functools import cache, partial

import wattune
from benchmarks.paper.mobile_vision import EfficientViT, MobileNetV2
from benchmarks.paper.published import EFFICIENTVIT, MOBILENET_V2, RESNET18, TRANSFORMER
from wattune.algorithms import open_algorithm
from wattune.errors import WorkloadError
from wattune.records import ProfileCell, ProfileTable, StepWork
from wattune.workloads import Data, Model, OptimizerRule, Workload
from wattune.workloads.models import CharacterTransformer, resnet18

ADAM = OptimizerRule("adam", learning_rate=5e-4, reference_batch_size=128)
ADAMW = OptimizerRule("adamw", learning_rate=1e-3, reference_batch_size=128)
SIZES = (4, 8, 16, 32, 64, 128)
FACTORIES = {RESNET18: resnet18, MOBILENET_V2: MobileNetV2, EFFICIENTVIT: EfficientViT}
SMALL_PIXELS = 32


def no_data() -> Data:
    """Raise WorkloadError: nothing is trained here."""
    raise WorkloadError("this workload is only profiled", hint="give it data to train it")


@cache
def workload(model: str, pixels: int = SMALL_PIXELS) -> Workload:
    """One of the paper's models with its input, batch sizes and optimizer; images of ``pixels`` x ``pixels``."""
    if model == TRANSFORMER:
        return Workload(
            model,
            model=Model(CharacterTransformer),
            data=no_data,
            input_shape=(64,),
            task="language",
            batch_sizes=SIZES,
            optimizer=ADAMW,
            budget_samples=SIZES[-1],
        )
    large = {} if pixels == SMALL_PIXELS else {"stem": "imagenet", "classes": 1000}
    return Workload(
        model,
        model=Model(partial(FACTORIES[model], **large)),
        data=no_data,
        input_shape=(3, pixels, pixels),
        batch_sizes=SIZES,
        optimizer=ADAM,
        budget_samples=SIZES[-1],
    )


@cache
def work(model: str, batch_size: int, pixels: int = SMALL_PIXELS) -> StepWork:
    """The counted work of a step of backprop."""
    return open_algorithm("backprop", workload(model, pixels), batch_size).work()


@cache
def profiled(device: str, model: str) -> ProfileTable:
    """Profile of every clock and batch size on the simulated board, with the reference workloads; cached in memory."""
    return wattune.profile(f"sim:{device}", workload(model), strategy="full", reference=True)


def at(profile: ProfileTable, batch_size: int, clock_mhz: float | None) -> ProfileCell:
    """The measured cell at this batch size and clock."""
    return next(
        cell
        for cell in profile.cells
        if (cell.batch_size, cell.clock_mhz) == (batch_size, clock_mhz) and not cell.out_of_memory
    )
