"""The parts of a session by themselves: batches, sizes, and what is known of batch sizes."""

import math
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sessions import board, loss_of, perceptron, trained
from torch import nn
from torch.utils.checkpoint import checkpoint

from wattune.errors import DeviceError, InputError
from wattune.loop.batch_shapes import batch_sizes, rows
from wattune.loop.fit_check import FitCheck
from wattune.loop.micro_batching import can_split, even, moved, samples_of, shapes, split
from wattune.loop.sample_model import SampleModel
from wattune.point import BatchShape
from wattune.records import SampleEfficiency

Pair = namedtuple("Pair", "x y")


@given(st.integers(1, 500), st.integers(1, 500))
def test_parts_are_as_few_and_as_equal_as_can_be(samples, largest):
    sizes = even(samples, largest)
    assert sum(sizes) == samples
    assert max(sizes) <= largest
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-samples // largest)
    assert min(even(samples, largest, 2)) >= min(samples, 2)
    assert sum(even(samples, largest, 2)) == samples


@pytest.mark.parametrize(
    "data",
    [
        torch.arange(10).reshape(5, 2),
        [torch.arange(5), torch.arange(10).reshape(5, 2)],
        (torch.arange(5), ["a", "b", "c", "d", "e"]),
        {"x": torch.arange(5), "names": list("abcde"), "scale": 2.0, "more": {"y": torch.arange(5)}},
        Pair(torch.arange(5), torch.arange(5)),
        [[f"sample {i}" for i in range(5)], ["a", "b", "c", "d", "e"]],
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_batch_is_cut_by_samples_whatever_it_is_made_of(data):
    assert can_split(data, 5)
    first, second = split(data, 5, [3, 2])
    assert type(first) is type(data)
    assert (samples_of(first), samples_of(second)) in ((3, 2), (2, 2))
    if isinstance(data, dict):
        assert first["scale"] == second["scale"] == 2.0
        assert first["names"] == ["a", "b", "c"]
        assert torch.equal(second["more"]["y"], torch.tensor([3, 4]))
    assert split(data, 5, [5]) == [data]
    assert type(moved(data, torch.device("cpu"))) is type(data)
    assert shapes(data) == shapes(data)


def test_what_has_no_entry_for_each_sample_cannot_be_cut():
    assert not can_split(SimpleNamespace(x=torch.zeros(5)), 5)
    assert not can_split(torch.zeros(4), 5)
    with pytest.raises(InputError, match="the number of samples"):
        samples_of(SimpleNamespace())


def test_batch_sizes_are_octaves_around_the_users_own():
    assert batch_sizes(32, None, None, keep=False, samples=None) == (4, 8, 16, 32, 64, 128, 256)
    assert batch_sizes(32, None, None, keep=False, samples=400) == (4, 8, 16, 32, 64)
    assert batch_sizes(3, None, None, keep=False, samples=None) == (1, 3, 6, 12, 24)
    assert batch_sizes(32, [16, 128], None, keep=False, samples=None) == (16, 32, 128)
    assert batch_sizes(32, None, None, keep=True, samples=None) == (32,)
    points = [{"batch_size": size, "relative_samples": size / 64} for size in (8, 64)]
    curve = SampleEfficiency(workload="w", reference_batch_size=64, points=points)
    assert batch_sizes(32, None, curve, keep=False, samples=None) == (8, 32, 64)


def test_rows_are_batches_cut_in_parts():
    found = rows((8, 32), BatchShape(32, 12))
    assert BatchShape(32, 12) in found
    assert {row.micro for row in found if row.batch == 32} == {2, 4, 8, 12, 16, 32}
    assert {row.micro for row in found if row.batch == 8} == {1, 2, 4, 8}


def test_a_curve_is_read_between_its_points():
    points = [
        {"batch_size": 16, "relative_samples": 0.25},
        {"batch_size": 64, "relative_samples": 1.0, "low": 0.8, "high": 1.25},
    ]
    curve = SampleEfficiency(workload="w", reference_batch_size=64, points=points)
    known = SampleModel(32, (8, 16, 32, 64), curve=curve).relative
    assert known[32][0] == pytest.approx(0.5)
    # Halfway between the points, the own batch size shares half of the error of either.
    assert known[8] == known[16] == pytest.approx((0.25, math.hypot(0.1, 0.1357) / 2), abs=1e-3)
    assert known[32][1] == 0.0
    assert known[64][1] == pytest.approx(math.hypot(0.1, 0.1357) / 2, abs=1e-3)


def test_a_curve_is_uncertain_relative_to_the_users_batch_size():
    points = [{"batch_size": size, "relative_samples": size / 64} for size in (16, 32, 64)]
    rows = ((0.04, 0.02, 0.0), (0.02, 0.03, 0.0), (0.0, 0.0, 0.0))
    curve = SampleEfficiency(workload="w", reference_batch_size=64, points=points, covariance=rows)
    known = SampleModel(32, (16, 32, 64), curve=curve).relative
    assert known[64] == pytest.approx((1.0, math.sqrt(0.03)))
    assert known[32] == pytest.approx((0.5, 0.0))
    assert known[16] == pytest.approx((0.25, math.sqrt(0.04 + 0.03 - 2 * 0.02)))


def test_without_a_curve_there_is_a_prior():
    sample_model = SampleModel(32, (16, 32, 64), curve=None)
    assert sample_model.source == "prior"
    assert sample_model.relative[32] == (1.0, 0.0)
    assert sample_model.relative[16][0] < 1 < sample_model.relative[64][0]


def test_bf16_is_seen_and_refused_by_a_chip_that_lacks_it():

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, batch)

    with pytest.raises(InputError, match="cannot compute in: bf16"):
        trained(loss=loss)


def test_it_explains_itself():
    texts = []
    session = trained(on_pass=lambda session: texts.append(session.explain()))
    [text] = texts
    for part in ("under a cap of 4.5 W", "640 samples in 20 steps", "past workloads", "in proportion"):
        assert part in text
    assert "Measuring batch size 32" in text
    assert "save" not in text  # which is not known before a point is measured
    text = session.explain()
    assert "The training run ended before the search (" in text
    assert "usually 30 to 60 s are needed)" in text
    assert "Measuring" not in text


def test_a_device_that_fails_during_a_trial_is_not_the_fault_of_the_size():
    trial = FitCheck(board(), perceptron(), largest=8)

    def lost():
        raise DeviceError("the board is gone")

    with pytest.raises(DeviceError, match="is gone"):
        trial.runs(4, lost)
    assert trial.failures == {}
    assert 4 not in trial.known


class Recomputed(nn.Module):
    """Activations are computed again in the backward pass, in the older of torch's two ways."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(8, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=True)


@pytest.mark.slow
def test_a_model_that_computes_activations_again_is_tried_at_other_sizes(touring):
    session = trained(Recomputed(), passes=10)
    assert not [note for note in session.record.notes if "left out" in note]
    assert len({cell.micro_batch_size for cell in session.record.table.cells}) > 1


def test_a_batch_with_time_as_its_first_axis_is_not_cut():
    """Nobody knows which axis holds the samples."""
    assert not can_split((torch.zeros(7, 32, 3), torch.zeros(32)), 32)
    assert not can_split({"x": torch.zeros(7, 32, 3), "y": torch.zeros(32)}, 32)
    assert can_split((torch.zeros(32, 7, 3), torch.zeros(32), torch.zeros(())), 32)
    assert not can_split((torch.zeros(32), torch.zeros(400), torch.full((32,), 12)), 32)  # labels, values, lengths
    assert can_split([torch.zeros(3, n, n) for n in range(4)], 4)


def test_where_no_size_is_known_to_fit_it_trains_at_the_users_own(monkeypatch):
    """Rather than asking for ever which one to take."""
    monkeypatch.setattr(FitCheck, "fits", lambda self, row, counter: False)
    session = trained()
    assert session.record.steps == 20
    assert {change.point.batch_size for change in session.record.changes} == {32}
