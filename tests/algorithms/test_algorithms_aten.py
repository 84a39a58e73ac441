"""Recurrent layers against cells that are written out by hand; lookups by hand arithmetic."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.algorithm_examples import Example, texts
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms.counting.counter import Counter, Place, StagedCopy, Tally
from wattune.algorithms.counting.step_counting import count

LENGTH, INPUTS, WIDTH, CHARACTERS = 6, 24, 40, 30


class HandLstm(nn.Module):
    """torch.nn.LSTM's equations, one step after the other."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.w_x, self.w_h = nn.Parameter(torch.randn(4 * width, inputs)), nn.Parameter(torch.randn(4 * width, width))
        self.b_x, self.b_h = nn.Parameter(torch.randn(4 * width)), nn.Parameter(torch.randn(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), self.w_h.shape[1])
        hidden = []
        for at in range(x.shape[1]):
            both = F.linear(x[:, at], self.w_x, self.b_x) + F.linear(h, self.w_h, self.b_h)
            i, f, g, o = both.chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            hidden.append(h)
        return torch.stack(hidden, 1)


class FusedLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(INPUTS, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Reader(nn.Module):
    """Characters, a recurrent layer, and the next characters."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.token, self.layer, self.fc = nn.Embedding(CHARACTERS, INPUTS), layer, nn.Linear(WIDTH, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer(self.token(x)))


def reader(make: Callable[[], nn.Module], data_type: str) -> Example:
    return Example(lambda: Reader(make()), texts(LENGTH, CHARACTERS), data_type=data_type)


def counted(trainable: Example, place: Place, samples: int = 8) -> Tally:
    model = trainable.model(0)
    stage = StagedCopy(place, trainable, model, trainable.optimizer(model, samples))
    return count(stage, "first", samples, trainable).tally


def sums(tally: Tally, phase: str, kinds: tuple[str, ...] = ()) -> tuple[float, float]:
    amounts_of_phase = [amounts for key, amounts in tally.items() if key[0] == phase and (not kinds or key[1] in kinds)]
    return sum(flops for flops, _, _ in amounts_of_phase), sum(moved for _, moved, _ in amounts_of_phase)


# ------------------------------------------------------------------------------------------------------- recurrences


def test_the_cell_by_hand_is_pytorchs() -> None:
    fused, mine = nn.LSTM(INPUTS, WIDTH, batch_first=True), HandLstm(INPUTS, WIDTH)
    with torch.no_grad():
        for own, theirs in zip(mine.parameters(), fused.parameters(), strict=True):
            own.copy_(theirs)
        x = torch.randn(3, LENGTH, INPUTS)
        assert torch.allclose(mine(x), fused(x)[0], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "data_type"), [("meta", "fp32"), ("cpu", "fp32"), ("fake", "bf16"), ("fake", "fp16")]
)
def test_a_recurrent_layer_is_counted_as_its_cell_written_out(place: Place, data_type: str) -> None:
    fused = counted(reader(FusedLstm, data_type), place)
    wanted = counted(reader(lambda: HandLstm(INPUTS, WIDTH), data_type), place)
    products = 2 * 8 * LENGTH * (4 * WIDTH * (INPUTS + WIDTH) + WIDTH * CHARACTERS)
    assert sums(fused, "forward", ("matmul",))[0] == products
    for phase in ("forward", "backward"):
        (flops, moved), (wanted_flops, wanted_moved) = sums(fused, phase), sums(wanted, phase)
        assert flops == pytest.approx(wanted_flops, rel=0.03), phase
        # PyTorch copies some gates; and on the CPU it multiplies the inputs of all steps by their weights at once.
        assert moved == pytest.approx(wanted_moved, rel=0.12 if place == "meta" else 0.25), phase


def test_the_cpus_fused_kernel_is_used_again_after_counting() -> None:
    before = torch._C._get_mkldnn_enabled()
    counted(reader(FusedLstm, "bf16"), "fake")
    assert torch._C._get_mkldnn_enabled() == before


def test_splitting_the_gates_launches_nothing() -> None:
    with Counter("forward") as counter:
        torch.empty(8, 12, device="meta").unsafe_chunk(3, 1)
    assert counter.tally == {}


# ----------------------------------------------------------------------------------------------------------- lookups


def ran(attempt: Callable[[], object]) -> tuple[float, float]:
    with Counter("forward") as counter:
        attempt()
    assert {kind for _, kind in counter.tally} == {"other"}
    return sums(counter.tally, "forward")


sizes = st.tuples(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9))


@given(sizes)
def test_scattered_reads_match_hand_counts(drawn: tuple[int, int, int]) -> None:
    rows, picked, width = drawn
    table = torch.empty(rows, width, device="meta")
    index = torch.empty(picked, dtype=torch.int64, device="meta")
    wide = torch.empty(picked, width, dtype=torch.int64, device="meta")
    expected = 2 * 4 * picked * width  # read and written
    assert ran(lambda: table.index_select(0, index)) == (0, expected + 8 * picked)
    assert ran(lambda: table[index]) == (0, expected + 8 * picked)
    assert ran(lambda: F.embedding(index, table)) == (0, expected + 8 * picked)
    assert ran(lambda: table.gather(0, wide)) == (0, expected + 8 * picked * width)


def test_the_gradient_of_an_embedding_adds_once_for_each_place() -> None:
    trainable = Example(lambda: nn.Sequential(nn.Embedding(1000, 4), nn.Linear(4, 1000)), texts(5, 1000))
    flops, moved = sums(counted(trainable, "meta", 2), "backward", ("other",))
    assert flops == 2 * 5 * 4
    assert moved == 4 * 1000 * 4 + 4 * 2 * 5 * 4 + 8 * 2 * 5  # the table, the gradient, the characters
