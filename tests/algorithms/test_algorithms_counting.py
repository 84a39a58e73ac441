"""The counted work of a step against hand arithmetic, PyTorch's own counter, and steps that were really run."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, images, noisy_points, perceptron, points, texts, vectors
from tests.support.calls import calls_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from wattune.algorithms import open_algorithm
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.counter import Counter, Place, StagedCopy, Tally
from wattune.algorithms.counting.step_counting import count
from wattune.errors import WorkloadError
from wattune.records import Operation, StepWork
from wattune.workloads.models import CharacterTransformer, resnet8, resnet18

MATRIX_KINDS = ("matmul", "convolution", "depthwise")


def step(trainable: Example, batch_size: int, micro_batch_size: int | None = None) -> StepWork:
    return open_algorithm("backprop", trainable, batch_size, micro_batch_size=micro_batch_size).work()


def operation(work: StepWork, phase: str, kind: str) -> Operation:
    (operation,) = (o for p in work.phases if p.phase == phase for o in p.operations if o.kind == kind)
    return operation


def matrix_flops(work: StepWork, *phases: str) -> float:
    return sum(o.flops for p in work.phases if p.phase in phases for o in p.operations if o.kind in MATRIX_KINDS)


def of(kind: str, trainable: Example, samples: int, place: Place = "meta") -> Any:
    model = trainable.model(0)
    return count(StagedCopy(place, trainable, model, trainable.optimizer(model, samples)), kind, samples, trainable)  # type: ignore[arg-type]


def classifier(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


# -------------------------------------------------------------------------------------------------- hand arithmetic


def test_perceptron_counts_match_hand_counts() -> None:
    # 12 -> 20 -> ReLU -> 4 with biases, batch 8. The gradient of the input of the first layer is not needed.
    work = step(points(), 8)
    first, last = 2 * 8 * 12 * 20, 2 * 8 * 20 * 4
    assert operation(work, "forward", "matmul").flops == first + last
    assert operation(work, "backward", "matmul").flops == first + 2 * last
    assert operation(work, "forward", "matmul").kernels == 2
    assert operation(work, "backward", "matmul").kernels == 3
    assert operation(work, "forward", "elementwise").flops == 8 * 20  # ReLU; dropout of 0 does nothing
    # addmm reads bias, input and weight and writes its output; each value has 4 bytes.
    forward = (20 + 8 * 12 + 12 * 20 + 8 * 20) + (4 + 8 * 20 + 20 * 4 + 8 * 4)
    assert operation(work, "forward", "matmul").bytes == 4 * forward
    assert operation(work, "forward", "elementwise").bytes == 4 * (8 * 20 + 8 * 20)


def test_adam_counts_match_hand_counts() -> None:
    # For each of 4 weight tensors: lerp, mul, addcmul, sqrt, div, add, addcdiv.
    work = step(points(), 8)
    parameters = 12 * 20 + 20 + 20 * 4 + 4
    optimizer = operation(work, "optimizer", "optimizer")
    assert optimizer.kernels == 7 * 4
    assert optimizer.flops == 7 * parameters
    # Values read and written: 3, 2, 4 (addcmul reads the gradient twice), 2, 2, 2, 4.
    assert optimizer.bytes == 4 * 19 * parameters


@pytest.mark.parametrize("settings", [{"foreach": True}, {"fused": True}, {"foreach": False}])
def test_every_optimizer_goes_tensor_by_tensor(settings: dict[str, bool]) -> None:
    chosen = step(points(optimizer=lambda p: torch.optim.Adam(p, lr=1e-2, **settings)), 8)
    assert operation(chosen, "optimizer", "optimizer") == operation(step(points(), 8), "optimizer", "optimizer")


@pytest.mark.parametrize(
    ("groups", "filters", "kind"),
    [(16, 16, "depthwise"), (16, 32, "depthwise"), (4, 16, "convolution"), (1, 8, "convolution")],
)
def test_grouped_convolutions_by_hand(groups: int, filters: int, kind: str) -> None:
    # A 1x1 convolution before it, so that it has to pass on a gradient: 3 -> 16 channels, then 3x3 with groups on
    # 10x10 images, batch 6.
    def build() -> nn.Module:
        convolution = nn.Conv2d(16, filters, 3, padding=1, groups=groups, bias=False)
        return classifier(nn.Conv2d(3, 16, 1, bias=False), convolution)

    work = step(Example(build, images(10, 8)), 6)
    point = 2 * 6 * 100 * 16 * 3
    grouped = 2 * 6 * 100 * filters * (16 // groups) * 9
    if kind == "depthwise":
        assert operation(work, "forward", "convolution").flops == point
        assert operation(work, "forward", "depthwise").flops == grouped
        assert operation(work, "backward", "depthwise").flops == 2 * grouped
    # The gradient of the images is not needed.
    assert matrix_flops(work, "forward") == point + grouped
    assert matrix_flops(work, "backward") == point + 2 * grouped


def test_attention_counts_match_hand_counts() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(12, 3 * 12, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(x.shape[0], 5, 3, 2, 6).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 5, 12, generator=generator), torch.zeros(n, 5, dtype=torch.long)

    work = step(Example(Attending, draw), 4)
    projections, products = 2 * 4 * 5 * 12 * 36, 2 * (2 * 4 * 2 * 5 * 5 * 6)
    assert matrix_flops(work, "forward") == projections + products
    assert matrix_flops(work, "backward") == projections + 2 * products


def test_memory_of_attention_is_that_of_a_fused_kernel() -> None:
    """Inputs, output and one number for each row are stored, and no matrix of rows and columns."""

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            q = x * self.scale
            return F.scaled_dot_product_attention(q, q, q).sum(1)

    work = step(Example(Attending, lambda n, g: (torch.randn(n, 100, 4, generator=g), torch.zeros(n).long())), 8)
    matrix, row, value = 4 * 8 * 100 * 100, 4 * 8 * 100, 4 * 8 * 100 * 4
    assert work.peak_memory_bytes < 8 * value + row < matrix
    assert operation(work, "backward", "matmul").flops == 2 * operation(work, "forward", "matmul").flops


def test_memory_of_an_lstm_is_that_of_a_fused_kernel() -> None:
    class Recurrent(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(4, 32, layers, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.recurrent(x)[0][:, -1]

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 20, 4, generator=generator), torch.zeros(n, dtype=torch.long)

    one, two = (
        step(Example(lambda n=n: Recurrent(n), draw, optimizer=lambda p: torch.optim.SGD(p)), 64) for n in (1, 2)
    )
    layer, weights = 4 * 20 * 64 * 32, 4 * (4 * 32 * (32 + 32) + 2 * 4 * 32)
    assert two.peak_memory_bytes - one.peak_memory_bytes == pytest.approx(7 * layer + 2 * weights, rel=0.1)


@pytest.mark.parametrize(("kind", "gates"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_networks_by_hand(kind: Callable[..., nn.Module], gates: int) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(10, 8)
            self.recurrent = kind(8, 16, batch_first=True)
            self.fc = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.recurrent(self.token(x))[0])

    work = step(Example(Recurrent, texts(5, 10)), 4)
    head = 2 * 4 * 5 * 16 * 10
    assert matrix_flops(work, "forward") == 2 * 4 * 5 * gates * 16 * (8 + 16) + head
    # No gradient flows into the hidden state before the first character.
    assert matrix_flops(work, "backward") <= 2 * matrix_flops(work, "forward")
    assert matrix_flops(work, "backward") > 1.8 * matrix_flops(work, "forward")


# ---------------------------------------------------------------------------------------------- published figures


def test_resnet18_has_the_published_multiply_adds() -> None:
    # 1.81-1.82 billion multiply-adds for an image of 224x224; published as 1.8 (He et al. 2016, table 1).
    trainable = Example(lambda: resnet18(classes=1000, stem="imagenet"), images(224, 1000))
    work = step(trainable, 8)
    assert 1.81e9 < matrix_flops(work, "forward") / 2 / 8 < 1.82e9
    # Twice the forward pass, but for the gradient of the image (7x7 convolution of 3 to 64 channels at 112x112).
    image = 2 * 8 * 112 * 112 * 64 * 3 * 49
    assert matrix_flops(work, "backward") == 2 * matrix_flops(work, "forward") - image
    assert operation(work, "optimizer", "optimizer").kernels == 7 * 62
    assert operation(work, "forward", "convolution").kernels == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainable",
    [
        Example(lambda: resnet18(), images()),
        Example(lambda: CharacterTransformer(layers=2), texts()),
        Example(perceptron, vectors()),
        Example(
            lambda: classifier(nn.ConvTranspose2d(3, 8, 4, 2, bias=False), nn.ReLU(), nn.Conv2d(8, 10, 3, bias=False)),
            images(9),
        ),
    ],
    ids=["resnet18", "transformer", "perceptron", "transposed"],
)
def test_ungrouped_counts_agree_with_pytorchs(trainable: Example) -> None:
    # Not for grouped convolutions: there PyTorch 2.13 takes the gradient of the weights for that of a full convolution.
    model = trainable.model(0)
    x, y = trainable.example(4)
    with FlopCounterMode(display=False) as counter:
        trainable.loss(model(x), y).backward()
    assert matrix_flops(step(trainable, 4), "forward", "backward") == counter.get_total_flops()


# --------------------------------------------------------------------------------------- against steps that are run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["first", "next", "forward", "optimizer"])
@pytest.mark.parametrize("data_type", ["fp32", "bf16", "fp16"])
def test_counts_agree_with_and_without_values(kind: str, data_type: str) -> None:
    trainable = Example(resnet8, images(), data_type=data_type)
    place: Place = "meta" if data_type == "fp32" else "fake"
    actual, expected = of(kind, trainable, 3, place), of(kind, trainable, 3, "cpu")
    assert actual.tally.keys() == expected.tally.keys()
    # Within 1 %: the kernels of CPUs save a few statistics of batch normalisation in another type, or not at all.
    for key, amounts in expected.tally.items():
        assert actual.tally[key] == pytest.approx(amounts, rel=0.01), key
    assert actual.peak_bytes == pytest.approx(expected.peak_bytes, rel=0.01)
    assert actual.input_bytes == expected.input_bytes


@pytest.mark.parametrize("micro_batch_size", [16, 4])
def test_peak_memory_is_that_of_a_step_that_is_run(micro_batch_size: int) -> None:
    trainable = noisy_points(optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False))
    model = trainable.model(0)
    optimizer = trainable.optimizer(model, 16)
    batch = trainable.example(16)

    def run() -> None:
        optimizer.zero_grad()
        for start in range(0, 16, micro_batch_size):
            x, y = (part[start : start + micro_batch_size] for part in batch)
            trainable.loss(model(x), y).backward()
        optimizer.step()

    run()
    counter = Counter("forward")
    counter.hold([batch, list(model.parameters()), list(model.buffers())])
    counter.hold([[p.grad for p in model.parameters()], list(optimizer.state.values())])
    with counter:
        run()
    assert step(trainable, 16, micro_batch_size).peak_memory_bytes == max(counter.memory_bytes)


# --------------------------------------------------------------------------------------- micro-batches and freezing


@pytest.mark.slow
def test_micro_batches_repeat_forward_and_backward() -> None:
    trainable = Example(resnet8, images())
    whole, parts, one = step(trainable, 32), step(trainable, 32, 8), step(trainable, 8)
    tensors = len(list(trainable.model(0).parameters()))
    assert (parts.samples, parts.micro_batch_size) == (32, 8)
    assert matrix_flops(parts, "forward", "backward") == matrix_flops(whole, "forward", "backward")
    forward, backward, optimizer = parts.phases
    assert (forward.kernels, forward.bytes) == (4 * one.phases[0].kernels, 4 * one.phases[0].bytes)
    # Every further part adds its gradients to those that are there: one more operation for each weight tensor.
    assert backward.kernels == 4 * one.phases[1].kernels + 3 * tensors
    assert optimizer == whole.phases[2]
    assert parts.peak_memory_bytes < 0.5 * whole.peak_memory_bytes


@pytest.mark.slow
def test_an_uneven_last_micro_batch_is_counted() -> None:
    trainable = Example(resnet8, images())
    work = step(trainable, 20, 8)
    assert matrix_flops(work, "forward") == matrix_flops(step(trainable, 20), "forward")
    assert work.phases[0].kernels == 3 * step(trainable, 8).phases[0].kernels


def test_frozen_layers_cost_no_gradients_and_no_updates() -> None:
    def build() -> nn.Module:
        model = resnet8()
        model.requires_grad_(False)
        model.fc.requires_grad_(True)
        return model

    frozen, whole = step(Example(build, images()), 8), step(Example(resnet8, images()), 8)
    assert matrix_flops(frozen, "forward") == matrix_flops(whole, "forward")
    assert matrix_flops(frozen, "backward") == 2 * 8 * 64 * 10  # the gradient of the last weights alone
    assert operation(frozen, "optimizer", "optimizer").kernels == 7 * 2
    assert frozen.peak_memory_bytes < whole.peak_memory_bytes / 2


# -------------------------------------------------------------------------------------------------- lower precision


@pytest.mark.slow
def test_autocast_halves_the_bytes_of_products_and_adds_casts() -> None:
    full, lower = (step(Example(resnet8, images(), data_type=t), 8) for t in ("fp32", "bf16"))
    for phase in ("forward", "backward"):
        whole, half = (operation(work, phase, "convolution") for work in (full, lower))
        assert half.bytes == whole.bytes / 2
        assert (half.flops, half.kernels) == (whole.flops, whole.kernels)
    convolutions = operation(full, "forward", "convolution").kernels
    # Every weight is cast, and the images; activations stay in lower precision from one layer to the next.
    assert operation(lower, "forward", "copy").kernels >= convolutions + 1
    assert lower.phases[0].bytes < 0.75 * full.phases[0].bytes
    assert lower.phases[2] == full.phases[2]
    assert lower.peak_memory_bytes < full.peak_memory_bytes
    assert lower.data_type == "bf16"


def test_fp16_unscales_its_gradients() -> None:
    trainable = points(data_type="fp16")
    parameters = sum(p.numel() for p in trainable.model(0).parameters())
    fp16, bf16 = (operation(step(points(data_type=t), 8), "optimizer", "optimizer") for t in ("fp16", "bf16"))
    assert (fp16.flops - bf16.flops, fp16.bytes - bf16.bytes) == (parameters, 8 * parameters)


def test_tf32_is_counted_as_fp32() -> None:
    tf32 = step(points(data_type="tf32"), 8)
    assert tf32.phases == step(points(), 8).phases
    assert tf32.data_type == "tf32"


# ------------------------------------------------------------------------------------- models that need their values


class Choosy(nn.Module):
    """The work of the perceptron, repeated a number of times that depends on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(torch.isfinite(x).all().item())):
            x = self.layers(x)
        return x


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_a_model_that_depends_on_its_values_is_extrapolated(batch_size: int) -> None:
    work, plain = step(Example(Choosy, vectors()), batch_size), step(points(), batch_size)
    assert matrix_flops(work, "forward", "backward") == pytest.approx(matrix_flops(plain, "forward", "backward"))
    assert operation(work, "optimizer", "optimizer") == operation(plain, "optimizer", "optimizer")
    assert work.kernels >= plain.kernels
    assert work.peak_memory_bytes == pytest.approx(plain.peak_memory_bytes, rel=0.01)


@pytest.mark.parametrize(
    "trainable",
    [
        Example(lambda: nn.Linear(7, 4), vectors(12)),
        Example(lambda: nn.Sequential(nn.Linear(12, 4), nn.Flatten(0)), vectors(12)),
        points(optimizer=lambda p: torch.optim.LBFGS(p)),
        points(optimizer=lambda p: torch.optim.SGD([*p, nn.Parameter(torch.zeros(3))], lr=0.1)),
    ],
    ids=["shapes", "loss", "closure", "foreign parameter"],
)
def test_a_failing_model_is_reported_in_one_line(trainable: Example) -> None:
    with pytest.raises(WorkloadError) as caught:
        step(trainable, 8)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


# -------------------------------------------------------------------------------------------------- how it is counted


def test_counting_changes_neither_model_nor_optimizer() -> None:
    trainable = noisy_points()
    algorithm = open_algorithm("backprop", trainable, 8)
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.work()
    algorithm.evaluation_work(3)
    assert_same(algorithm.state_dict(), before)
    assert all(p.grad is None for p in algorithm.module.parameters())


def test_a_model_is_prepared_once_for_all_batch_sizes() -> None:
    trainable = points()
    works = [step(trainable, b) for b in (4, 8, 8, 16)]
    assert trainable.examples == 1
    assert works[1] == works[2] == step(points(), 8)


def test_counts_are_dropped_with_the_trainable() -> None:
    trainable = points()
    step(trainable, 8)
    assert trainable in step_counting._CACHE
    counted = len(step_counting._CACHE)
    del trainable
    gc.collect()
    assert len(step_counting._CACHE) < counted


def test_another_model_of_the_same_trainable_is_counted_again() -> None:
    trainable = points()
    narrow = step(trainable, 8)
    trainable.build = lambda: perceptron(hidden=40)
    assert step(trainable, 8).flops > narrow.flops
    trainable.data_type = "bf16"
    assert step(trainable, 8).data_type == "bf16"


@pytest.mark.slow
def test_a_batch_size_of_resnet8_takes_few_calls_however_large_it_is() -> None:
    trainable = Example(resnet8, images())
    step(trainable, 4)  # what PyTorch imports on first use
    small, large = (calls_of(lambda size=size: step(trainable, size)) for size in (8, 128))  # type: ignore[misc]
    assert large == pytest.approx(small, rel=0.01)
    assert large < 440_000  # about a fifth of a second


def test_views_and_empty_tensors_are_not_launched() -> None:
    counter = Counter("forward")
    with counter:
        x = torch.empty(4, 6)
        x.view(6, 4).t().unsqueeze(0).expand(3, 4, 6)[1].detach()
    assert counter.tally == {}
    with counter:
        x.t().contiguous()
    expected: Tally = {("forward", "copy"): (0.0, 2 * 4 * 24, 1)}
    assert counter.tally == expected
