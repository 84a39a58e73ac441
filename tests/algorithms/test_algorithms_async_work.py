"""The work of a tick of the pipeline, and what the pipeline refuses to train."""

from __future__ import annotations

import pytest
import torch
from tests.support.algorithm_examples import Example, vectors
from tests.support.pipeline_examples import (
    Timed,
    Timer,
    layers,
    noisy_layers,
    opened,
    trained,
)
from torch import Tensor, nn

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward import partition
from wattune.errors import InputError, WorkloadError

# --------------------------------------------------------------------------------------------- what it asks for


def wide(depth: int = 8, width: int = 64) -> Example:
    def build() -> nn.Module:
        inner = [part for _ in range(depth - 1) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(nn.Linear(12, width), *inner, nn.Linear(width, 4))

    return Example(build, vectors(), optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))


def peak(options: str, batch_size: int = 256) -> float:
    return opened(wide(), options, batch_size=batch_size).work().peak_memory_bytes


@pytest.mark.slow
def test_memory_includes_pairs_between_modules() -> None:
    pair = 2 * 256 * 64 * 4
    target = 256 * 8
    one, two, four = (peak(f"modules={k}") for k in (1, 2, 4))
    assert 0 < two - one <= pair + target  # the one pair is the input of the module that is at work
    assert four - two == pytest.approx(2 * (pair + target), rel=0.2)


@pytest.mark.slow
def test_memory_includes_inputs_and_parameters_of_second_passes() -> None:
    # Of four modules 3 + 2 + 1 copies of parameters, and as many inputs: three of them the batch itself.
    kept = opened(wide(), "modules=4,perturb=activities", batch_size=256).pipeline.stages
    sizes = [sum(p.numel() * 4 for p in stage.module.parameters()) for stage in kept]
    copies = sum((3 - k) * size for k, size in enumerate(sizes))
    inputs = 3 * 256 * 12 * 4 + 3 * 256 * 64 * 4
    between = peak("modules=4,perturb=activities") - peak("modules=1,perturb=activities")
    assert between == pytest.approx(copies + inputs + 3 * (2 * 256 * 64 * 4 + 256 * 8), rel=0.1)


def test_a_tick_has_the_work_of_a_plain_step() -> None:
    plain = open_algorithm("forward-gradient", wide(), 256).work()
    tick = opened(wide(), "modules=4", batch_size=256).work()
    assert tick.flops == pytest.approx(plain.flops, rel=0.01)


# --------------------------------------------------------------------------------------------- what is refused


def test_a_model_that_cannot_be_cut_is_refused_in_one_line() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    trainable = Example(Whole, vectors())
    with pytest.raises(WorkloadError, match="a model that cannot be cut into parts: Whole") as found:
        opened(trainable, "modules=2")
    assert "\n" not in str(found.value)
    assert len(trained(trainable, "modules=1", 2)[1]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("modules=8", "number of modules: 8; allowed: 1 to 7"),
        ("modules=3,cuts=2-7", "cuts of async-fgd: 2-7; allowed: 3 ends, the last 7"),
        ("cuts=2-6", "allowed: 2 ends, the last 7"),
        ("cuts=3-2-7", "cuts of the algorithm async-fgd: 3-2-7"),
        ("modules=0", "modules of the algorithm async-fgd: 0"),
        ("backend=processes", "allowed: sequential, threads"),
    ],
)
def test_invalid_cuts_are_refused(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        opened(layers(), options)


def test_micro_batches_and_low_precision_are_refused() -> None:
    with pytest.raises(InputError, match="micro-batch size of async-fgd: 4; allowed: the batch size 8"):
        open_algorithm("async-fgd", layers(), 8, micro_batch_size=4)
    with pytest.raises(InputError, match="allowed: fp32, tf32"):
        opened(layers(data_type="bf16"), "modules=2")


def test_activities_across_a_batch_are_refused() -> None:
    with pytest.raises(InputError, match="batch normalisation"):
        opened(noisy_layers(), "modules=2,perturb=activities")


def test_measured_cuts_follow_the_measured_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timed, "timer", Timer(), raising=False)
    monkeypatch.setattr(partition, "time", Timed.timer)
    trainable = Example(lambda: nn.Sequential(Timed(0.01), Timed(0.0), Timed(0.0), Timed(0.0)), vectors(classes=12))
    algorithm = opened(trainable, "modules=2,cuts=measured")
    assert algorithm.cuts == [1, 4]
    assert algorithm.name == "async-fgd:cuts=measured,modules=2"
