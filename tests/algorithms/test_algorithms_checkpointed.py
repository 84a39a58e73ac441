from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from tests.algorithms.contract import TrainingAlgorithmContract
from tests.support.algorithm_examples import Example, images, noisy_points, perceptron, points, texts, vectors
from torch import nn

from wattune.algorithms import TrainingAlgorithm, canonical, open_algorithm
from wattune.algorithms.model_parts import parts
from wattune.algorithms.recomputation import cut
from wattune.errors import InputError, WorkloadError
from wattune.workloads.models import CharacterTransformer, resnet8


def trained(
    trainable: Any, spec: str, *, steps: int = 3, batch_size: int = 8, micro: int | None = None
) -> TrainingAlgorithm:
    algorithm = open_algorithm(spec, trainable, batch_size, micro_batch_size=micro)
    list(algorithm.run(islice(trainable.batches(batch_size), steps)))
    return algorithm


def assert_close(actual: nn.Module, wanted: nn.Module) -> None:
    values = wanted.state_dict()
    for name, value in actual.state_dict().items():
        torch.testing.assert_close(value, values[name], rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


class TestContract(TrainingAlgorithmContract):
    spec = "backprop:checkpoint=2"


def deep(layers: int, width: int = 8, *, dropout: float = 0.0) -> Example:
    def build() -> nn.Module:
        sequence: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(layers - 1):
            sequence += [nn.ReLU(), nn.Dropout(dropout), nn.Conv2d(width, width, 3, padding=1)]
        return nn.Sequential(*sequence, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    return Example(build, images(16), optimizer=lambda p: torch.optim.SGD(p, lr=0.05))


@pytest.mark.parametrize("segments", ["2", "3", "auto"])
@pytest.mark.parametrize("micro", [None, 4])
@pytest.mark.parametrize(
    "make",
    [
        noisy_points,  # batch normalisation and dropout
        lambda: Example(lambda: resnet8(width=4), images(16), optimizer=lambda p: torch.optim.SGD(p, lr=0.05)),
        lambda: Example(
            lambda: CharacterTransformer(layers=2, heads=2, width=16, length=16, vocabulary=20),
            texts(16, 20),
            optimizer=lambda p: torch.optim.SGD(p, lr=0.05),
        ),
    ],
    ids=["noisy perceptron", "resnet", "transformer"],
)
def test_it_trains_as_backprop_does_and_statistics_run_once(make, segments, micro):
    trainable = make()
    checkpointed = trained(trainable, f"backprop:checkpoint={segments}", micro=micro)
    assert_close(checkpointed.module, trained(trainable, "backprop", micro=micro).module)


class Halves(nn.Module):
    """A part that changes its input in place, and hands on two tensors."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x *= 2
        return {"x": x, "mask": x > 0}


class Masked(nn.Module):
    def forward(self, both: dict[str, torch.Tensor]) -> torch.Tensor:
        return both["x"] * both["mask"]


def test_auto_trains_parts_that_hand_on_several_tensors_or_change_their_input():
    trainable = Example(lambda: nn.Sequential(nn.Linear(12, 8), Halves(), Masked(), nn.Linear(8, 4)), vectors())
    trained(trainable, "backprop:checkpoint=auto")


@pytest.mark.parametrize("segments", ["2", "3", "auto"])
def test_a_segment_that_begins_in_place_leaves_its_stored_input(segments):
    def build() -> nn.Module:
        relu = partial(nn.ReLU, inplace=True)
        return nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 8), relu(), nn.Linear(8, 8), relu(), nn.Linear(8, 4))

    trainable = Example(build, vectors(), optimizer=lambda p: torch.optim.SGD(p, lr=0.05))
    checkpointed = trained(trainable, f"backprop:checkpoint={segments}")
    assert_close(checkpointed.module, trained(trainable, "backprop").module)


class Counting(nn.Module):
    """A buffer outside normalisation: the output depends on how often the module has run."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x * self.runs


def test_a_recomputation_finds_and_leaves_other_buffers_as_they_were():
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), Counting(), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4))

    trainable = Example(build, vectors(), optimizer=lambda p: torch.optim.SGD(p, lr=0.05))
    checkpointed = trained(trainable, "backprop:checkpoint=3")
    assert_close(checkpointed.module, trained(trainable, "backprop").module)
    assert checkpointed.module[1].runs == 3


def test_buffers_are_put_back_after_a_recomputation_that_fails():
    trainable = noisy_points()
    algorithm = open_algorithm("backprop:checkpoint=2", trainable, 8)
    norm, calls = algorithm.module[1], []

    def fail_the_second_time(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no")

    before = dict(norm.named_buffers())
    norm.register_forward_hook(fail_the_second_time)
    with pytest.raises(RuntimeError, match="no"):
        next(algorithm.run(trainable.batches(8)))
    assert len(calls) == 2
    assert all(buffer is before[name] for name, buffer in norm.named_buffers())
    assert norm.num_batches_tracked == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["meta", "fake", "cpu"])
def test_its_work_counts_what_is_computed_again(place):
    trainable = deep(16)
    if place == "fake":
        trainable.data_type = "bf16"
    if place == "cpu":  # a model that cannot run without values
        build = trainable.build

        class Looking(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x if float(x.sum()) == float(x.sum()) else -x

        trainable.build = lambda: nn.Sequential(Looking(), *build())
    plain, again = (open_algorithm(spec, trainable, 8).work() for spec in ("backprop", "backprop:checkpoint=auto"))
    forward = next(p for p in plain.phases if p.phase == "forward").flops
    more = again.flops - plain.flops
    assert 0.5 * forward < more <= forward  # all but the last segment, and of each all that the backward pass needs
    assert next(p for p in again.phases if p.phase == "forward").flops == pytest.approx(forward)
    assert again.peak_memory_bytes < (0.65 if place != "fake" else 0.8) * plain.peak_memory_bytes


def test_segments_are_as_even_as_can_be():
    model = nn.Sequential(*(nn.Identity() for _ in range(11)))
    assert [len(s) for s in cut(model, 4)] == [3, 3, 3, 2]
    assert [m for s in cut(model, 3) for m in s] == list(model)


def peak_bytes(spec: str, trainable: Example, batch_size: int) -> float:
    return open_algorithm(spec, trainable, batch_size).work().peak_memory_bytes


def normalized() -> nn.Module:
    blocks = [
        part
        for before, width, stride in ((3, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2))
        for part in (nn.Conv2d(before, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU())
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Recurrent(nn.LSTM):
    """From sequences of six steps to sequences."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x.reshape(len(x), 6, -1))[0]


def recurrent() -> nn.Module:
    layers = [Recurrent(before, width, batch_first=True) for before, width in ((8, 16), (16, 16), (16, 16), (16, 64))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 10))


@pytest.mark.parametrize(
    "trainable",
    [
        deep(4),
        Example(resnet8, images(16)),
        Example(normalized, images(16)),
        Example(recurrent, images(4)),
    ],
    ids=["plain", "resnet", "normalized", "recurrent"],
)
def test_auto_takes_no_more_memory_than_any_number_of_segments(trainable):
    numbers = range(2, len(parts(trainable.model(0))) + 1)
    least = min(peak_bytes(f"backprop:checkpoint={segments}", trainable, 8) for segments in numbers)
    assert peak_bytes("backprop:checkpoint=auto", trainable, 8) == least


@pytest.mark.slow
def test_auto_of_a_transformer_counts_what_is_inside_a_part():
    """A part's inside is much larger than its input, so the square root of the number of parts is far from the best."""
    trainable = Example(lambda: CharacterTransformer(width=64), texts(64, 96))
    assert peak_bytes("backprop:checkpoint=auto", trainable, 32) <= 23e6


@pytest.mark.parametrize("text", ["1", "0", "-2", "many", "2.5", ""])
def test_invalid_segments_are_refused(text):
    with pytest.raises(InputError, match="2 or more, or auto"):
        canonical(f"backprop:checkpoint={text}")


def test_a_model_without_parts_is_refused_in_one_line():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    with pytest.raises(WorkloadError, match="cannot be cut into parts"):
        open_algorithm("backprop:checkpoint=2", Example(Whole, vectors()), 8)
    with pytest.raises(InputError, match="2 to 4, the number of the model's parts"):
        open_algorithm("backprop:checkpoint=5", points(), 8)


def test_the_segments_of_auto_are_counted_once_for_each_batch_size() -> None:
    """A profile opens the algorithm for each cell of a row."""
    trainable = points()
    open_algorithm("backprop:checkpoint=auto", trainable, 8)
    counted = trainable.examples
    assert counted > 0
    open_algorithm("backprop:checkpoint=auto", trainable, 8)
    assert trainable.examples == counted
    open_algorithm("backprop:checkpoint=auto", trainable, 16)
    assert trainable.examples > counted
