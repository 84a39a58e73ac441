from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wattune.algorithms.forward.perturbation_scale import Alpha, Schedule
from wattune.errors import InputError


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2))


def scales(alpha: Alpha, net: nn.Sequential, step: int) -> list[float]:
    return [alpha.scale(net[i].weight, step) for i in (0, 2, 3)]


def test_without_a_schedule_every_trained_parameter_is_perturbed_alike():
    net = model()
    net[0].requires_grad_(False)
    assert scales(Alpha(net, 8), net, 0) == [0.0, 1.0, 1.0]


def test_the_schedule_of_the_paper():
    net = model()
    alpha = Alpha(net, 10, Schedule(alpha=0.15, epoch_samples=100, rise_epochs=5))
    assert scales(alpha, net, 0) == [0.0, 0.0, 1.0]
    assert scales(alpha, net, 99) == [0.0, 0.0, 1.0]  # the last step of the tenth epoch
    assert scales(alpha, net, 125) == pytest.approx([0.075, 0.075, 1.0])
    assert scales(alpha, net, 150) == scales(alpha, net, 10_000) == pytest.approx([0.15, 0.15, 1.0])
    assert alpha.rate(net[0].weight, 150) == 1.0


def test_alpha_as_a_learning_rate():
    net = model()
    alpha = Alpha(net, 10, Schedule(alpha=0.15, alpha_mode="learning-rate"))
    assert scales(alpha, net, 0) == [1.0, 1.0, 1.0]
    assert [alpha.rate(net[i].weight, 0) for i in (0, 2, 3)] == [0.15, 0.15, 1.0]


def test_named_layers_get_their_scales():
    net = model()
    assert scales(Alpha(net, 1, Schedule(alpha=0.5, layers="2")), net, 0) == [0.0, 0.5, 1.0]
    assert scales(Alpha(net, 1, Schedule(alpha=0.0, head="0+2")), net, 0) == [1.0, 1.0, 0.0]
    with pytest.raises(InputError, match=r"head of the algorithm: fc; allowed: trained layers: 0, 2, 3"):
        Alpha(net, 1, Schedule(head="fc"))


@given(
    alpha=st.floats(0, 1),
    frozen=st.floats(0, 20),
    rise=st.floats(0, 20),
    samples=st.floats(0, 1e6),
    more=st.floats(0, 1e6),
)
def test_the_scale_rises_monotonically_to_alpha(alpha, frozen, rise, samples, more):
    schedule = Schedule(alpha=alpha, epoch_samples=1000, frozen_epochs=frozen, rise_epochs=rise)
    assert 0 <= schedule.at(samples) <= schedule.at(samples + more) <= alpha
    assert schedule.at(schedule.ramp_samples + 1) == pytest.approx(alpha)
