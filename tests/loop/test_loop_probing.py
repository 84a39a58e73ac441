"""Trial steps choose the batch shape before training, and leave no trace."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.sessions import Numbered, board, perceptron
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from wattune.errors import OutOfDeviceMemory
from wattune.loop import capped
from wattune.loop.probing import SHARE, probe, without_trace
from wattune.loop.rng_state import undrawn
from wattune.point import BatchShape
from wattune.records import ProfileCell

OWN = BatchShape(32, 4)


def make(model, **options):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    usual = {"device": board(), "cap_w": 4.5, "batch_size": OWN.batch, "micro_batch_size": OWN.micro}
    return capped(model=model, optimizer=optimizer, keep_recipe=True, **{**usual, **options})


def passes_of(model, *, weight=None, fails_above=1000):
    """Mean losses of the parts of one batch; ``weight``: of the classes, with which they cannot be divided."""
    data = Numbered(OWN.batch)
    sizes = []

    def passes(shape):
        if shape.micro > fails_above:
            raise RuntimeError("no such size")
        sizes.append(shape.micro)
        model.train()
        parts = range(0, shape.batch, shape.micro)
        for begin in parts:
            part = slice(begin, begin + shape.micro)
            loss = functional.cross_entropy(model(data.x[part]), data.y[part], weight=weight)
            (loss / len(parts)).backward()

    return passes, sizes


def values(model, optimizer):
    states = [v.clone() for state in optimizer.state.values() for v in state.values()]
    return [p.detach().clone() for p in (*model.parameters(), *model.buffers())] + states


@pytest.mark.parametrize("steps_before", [0, 3])
def test_trial_passes_leave_no_trace(steps_before):
    model = perceptron(norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    passes, _ = passes_of(model)
    for _ in range(steps_before):
        passes(OWN)
        optimizer.step()
    model.eval()
    before = values(model, optimizer)
    gradients = [copy.deepcopy(p.grad) for p in model.parameters()]
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with without_trace(model, optimizer):
        for _ in range(3):
            passes(OWN)
            optimizer.step()
        optimizer.param_groups[0]["lr"] = 1.0
        torch.randn(3), random.random(), np.random.random()
    after = values(model, optimizer)
    assert len(before) == len(after)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad is None) if gradient is None else torch.equal(parameter.grad, gradient)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn[1:]
    assert not model.training
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_trial_passes_leave_no_trace_in_parameters_that_the_step_itself_moves():
    student, teacher = perceptron(), perceptron()
    teacher.requires_grad_(False)
    model = torch.nn.ModuleList([student, teacher])
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    passes, _ = passes_of(student)
    before = [p.clone() for p in teacher.parameters()]
    with without_trace(model, optimizer):
        passes(OWN)
        optimizer.step()
        for one, other in zip(teacher.parameters(), student.parameters(), strict=True):
            one.data.mul_(0.9).add_(other.data, alpha=0.1)
    assert all(torch.equal(p, value) for p, value in zip(teacher.parameters(), before, strict=True))
    assert not any(p.requires_grad for p in teacher.parameters())


class Noisy:
    """Draws from generators of its own, one of which is made when it is first used, as a collator's in Transformers."""

    def __init__(self):
        self.parts = [np.random.default_rng(0), random.Random(0)]
        self.old = [np.random.RandomState(0), np.random.RandomState(np.random.PCG64(0))]
        self.torch = torch.Generator().manual_seed(0)
        self.late = None

    def draw(self, *_):
        if self.late is None:
            self.late = torch.Generator().manual_seed(0)
        drawn = [part.random() for part in self.parts] + [part.rand() for part in self.old]
        return drawn + [float(torch.rand(1, generator=one)) for one in (self.torch, self.late)]


@pytest.mark.parametrize("wrap", [lambda noisy: noisy, lambda noisy: noisy.draw, lambda noisy: lambda: noisy])
def test_generators_of_the_users_own_draw_the_same_after_trials(wrap):
    noisy = Noisy()
    with undrawn(Subset(TensorDataset(torch.ones(1)), [0]), wrap(noisy)):
        noisy.draw()
    assert noisy.late is None
    assert noisy.draw() == Noisy().draw()


class OfAnotherForm(random.Random):
    """Its state is not the state of Python's generators."""

    def getstate(self):
        return "another form", super().getstate()


def test_a_generator_whose_state_has_another_form_is_left_alone():
    owner = SimpleNamespace(generator=OfAnotherForm(0))
    with undrawn(owner):
        owner.generator.random()
    assert owner.generator.random() != random.Random(0).random()


class NoisyData(Numbered):
    """A data set with random samples."""

    def __init__(self, samples):
        super().__init__(samples)
        self.noisy = Noisy()


def test_trials_do_not_draw_from_the_generators_of_the_data_set():
    model, data = perceptron(width=512), NoisyData(OWN.batch)
    passes, _ = passes_of(model)

    def drawing(shape):
        data.noisy.draw()
        passes(shape)

    with make(model) as session:
        session.asked.loader = DataLoader(Subset(data, range(8)))
        probe(session, drawing, steps=1_000_000)
    assert data.noisy.draw() == Noisy().draw()


def test_the_fastest_shape_is_kept_while_steps_choose_the_clock():
    model = perceptron(width=512)
    before = [p.detach().clone() for p in model.parameters()]
    passes, sizes = passes_of(model)
    with make(model) as session:
        shape = probe(session, passes, steps=1_000_000)
        assert shape.batch == OWN.batch
        assert shape.micro > OWN.micro  # fewer passes
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        assert (session.samples, session.run.steps) == (0, 0)
        probed_s = session.run.capped.meter.elapsed_s
        assert 0 < probed_s < 5  # a point or two of a search
        count = len(sizes)
        for _ in range(300):
            assert session.row == shape
            session.begin_step()
            passes(shape)
            session.optimizer.step()
            session.optimizer.zero_grad()
            session.end_step()
    assert set(sizes[count:]) == {shape.micro}
    record = session.record
    assert record.samples == 300 * OWN.batch
    assert record.time_s > probed_s
    assert record.point.shape == shape
    assert record.readings_above_cap == 0
    assert (record.own_point.shape, record.gain_from) == (OWN, "forecast")


def test_probing_takes_no_more_than_its_share_of_the_training():
    taken_s, tried = {}, {}
    for steps in (300, 5000):
        model = perceptron(width=512)
        passes, sizes = passes_of(model)
        with make(model) as session:
            probe(session, passes, steps=steps)
            taken_s[steps], tried[steps] = session.run.capped.meter.elapsed_s, set(sizes)
    assert tried[300] == {OWN.micro}  # in two steps
    assert tried[5000] > tried[300]
    assert taken_s[5000] <= SHARE * 5000 * taken_s[300] / 2


def test_a_short_training_keeps_its_shape_without_a_step():
    model = perceptron()
    passes, sizes = passes_of(model)
    with make(model) as session:
        assert probe(session, passes, steps=80) == OWN
        assert session.row == OWN
    assert not sizes


def test_a_wrong_division_is_not_used():
    model = perceptron()
    passes, _ = passes_of(model, weight=torch.tensor([1.0, 20.0]))
    with make(model) as session:
        assert probe(session, passes, steps=1_000_000) == OWN
        notes = list(session.run.notes)
    assert any("the gradient of a batch in other parts is off by" in note for note in notes)


def test_a_shape_that_fails_is_left_out():
    model = perceptron(width=512)
    passes, _ = passes_of(model, fails_above=8)
    with make(model) as session:
        assert probe(session, passes, steps=1_000_000) == BatchShape(32, 8)
        assert any("no such size" in note for note in session.run.notes)


def test_the_users_own_shape_may_not_fail():
    model = perceptron()

    def passes(shape):
        raise MemoryError

    with make(model) as session, pytest.raises(OutOfDeviceMemory):
        probe(session, passes, steps=1_000_000)


def test_known_points_are_used_without_a_trial():
    model = perceptron(width=512)
    known = [
        ProfileCell(
            batch_size=32, micro_batch_size=micro, clock_mhz=76.8, step_s=step_s, power_mean_w=4, power_peak_w=4
        )
        for micro, step_s in ((4, 0.3), (16, 0.1), (8, 0.2))
    ]
    with make(model) as session:
        passes, sizes = passes_of(model)
        assert probe(session, passes, steps=1_000_000, known=known) == session.row == BatchShape(32, 16)
        assert not session.run.explorer.cells
    assert sizes == [4, 16]  # the proof: the user's own parts, and these
