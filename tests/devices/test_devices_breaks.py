"""Breaks between the micro-batches of a step that passes on a simulated board, and simulated requests in them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.support import training_runs as made

from wattune.algorithms import open_algorithm
from wattune.devices.simulator.requests import SimulatedRequests
from wattune.errors import InputError


@pytest.fixture(scope="module")
def work():
    return open_algorithm("backprop", made.workload(), 32, micro_batch_size=8).work()


def figures(device, work, call=None):
    truth = device.ground_truth(None)
    if call is None:
        with device.step(work):
            pass
    else:
        with device.breaks(call), device.step(work):
            pass
    return truth.figures()


def test_breaks_come_between_micro_batches_and_change_nothing(work):
    alone = figures(made.nano(), work)
    device, times_s = made.nano(), []
    figures_with = figures(device, work, lambda: times_s.append(device.now_s()))
    assert figures_with.time_s == pytest.approx(alone.time_s)
    assert figures_with.energy_j == pytest.approx(alone.energy_j)
    assert times_s == pytest.approx([alone.time_s * part / 4 for part in (1, 2, 3)])


def test_a_step_in_a_break_has_none(work):
    device, calls = made.nano(), []

    def call():
        calls.append(device.now_s())
        with device.step(work):
            pass

    alone = figures(made.nano(), work)
    assert figures(device, work, call).time_s == pytest.approx(4 * alone.time_s)
    assert len(calls) == 3


def test_breaks_end_with_their_context(work):
    device = made.nano()
    with device.breaks(pytest.fail):
        pass
    with device.step(work):
        pass


def test_requests_are_served_in_their_order(work):
    device = made.nano()
    requests = SimulatedRequests(device, work, rate_hz=20.0, seed=1)
    assert requests.waiting() == 0
    device.wait(1.0)
    waiting = requests.waiting()
    assert 10 < waiting < 30
    begun_s = device.now_s()
    requests.rest(device, 0.1)
    step_s = device.now_s() - begun_s
    assert requests.latencies_s[0] > step_s
    assert requests.share_within(2.0) == 1
    assert requests.share_within(step_s) == 0
    assert [r.waiting() for r in (SimulatedRequests(device, work, rate_hz=20.0, seed=1),)] == [0]


def test_rest_without_requests_is_waiting(work):
    device = made.nano()
    SimulatedRequests(device, work, rate_hz=1e-9).rest(device, 0.25)
    assert device.now_s() == pytest.approx(0.25)


@pytest.mark.parametrize("rate_hz", [0, -1, float("nan"), float("inf")])
def test_rates_that_are_none(work, rate_hz):
    with pytest.raises(InputError, match="rate_hz"):
        SimulatedRequests(made.nano(), work, rate_hz=rate_hz)
