"""Cells that are taken while the board holds itself back."""

from __future__ import annotations

import pytest
from tests.support.profiles import board, workload

from wattune.cap import NO_LIMIT
from wattune.devices import Conditions, SimulatedDevice
from wattune.point import OperatingPoint
from wattune.profiling import profile
from wattune.profiling.board_health import LONGEST_REST_S, REPEATS
from wattune.profiling.cell_probe import CellProbe
from wattune.records import BoardEvent


class Strained(SimulatedDevice):
    """A simulated board that tells of itself what ``tells`` says at each moment."""

    tells = staticmethod(lambda now_s: Conditions())

    def conditions(self):
        return self.tells(self.now_s())


def strained(tells) -> Strained:
    device = Strained(board().board)
    device.tells = tells
    return device


def probe(device, **arguments):
    return CellProbe(device, workload(), "backprop", steps=5, limit=NO_LIMIT, **arguments).measure(
        OperatingPoint.of(32, clock_mhz=307.2)
    )


def test_a_board_that_tells_nothing_is_measured_once():
    cell, cost = probe(board())
    assert (cell.throttled, cell.over_current, cell.swapped_bytes, cell.temperature_c) == ((), None, None, None)
    assert strained(lambda now_s: Conditions()).conditions() == Conditions()
    assert cost.time_s < 5


def test_a_throttled_cell_is_measured_again_after_a_rest():
    device = strained(lambda now_s: Conditions(80.0 + now_s / 100, ("gpu-balanced",) if now_s < 12 else ()))
    plain, plain_cost = probe(board())
    cell, cost = probe(device)
    assert cell.throttled == ()
    assert cell.step_s == pytest.approx(plain.step_s)
    assert 80.1 < cell.temperature_c < 81
    assert cost.time_s == pytest.approx(10 + 2 * plain_cost.time_s, abs=6)  # two rests of five seconds are enough
    assert device.current() == device.combinations()[-1]


def test_one_that_stays_throttled_is_kept_and_marked():
    device = strained(lambda now_s: Conditions(throttled=("a", "b")))
    cell, cost = probe(device)
    assert cell.throttled == ("a", "b")
    assert cell.disturbed
    assert cost.time_s > REPEATS * LONGEST_REST_S
    assert cost.probes == 1


def test_a_clock_at_its_own_power_limit_is_kept_at_once_and_noted():
    device = strained(lambda now_s: Conditions(notices=("power limit",)))
    plain, plain_cost = probe(board())
    cell, cost = probe(device)
    assert cell.notices == ("power limit",)
    assert not cell.disturbed
    assert cell.step_s == pytest.approx(plain.step_s)
    assert cost.time_s == pytest.approx(plain_cost.time_s, rel=0.1)


def test_over_current_and_swapping_are_counted_while_it_is_measured():
    # An event every ten seconds for the first half minute, which a probe without a rest does not see twice.
    device = strained(lambda now_s: Conditions(over_current=7 + min(3, int(now_s)), swapped_bytes=1e6 * now_s))
    cell, _ = probe(device)
    assert cell.over_current == 0  # the first measurement saw two of them, and was repeated
    assert cell.swapped_bytes == pytest.approx(1e6 * cell.steps * cell.step_s, rel=0.2)
    again = strained(lambda now_s: Conditions(over_current=int(10 * now_s)))
    assert probe(again)[0].over_current > 0


def test_the_table_keeps_what_was_told():
    device = strained(lambda now_s: Conditions(temperature_c=41.5, throttled=()))
    told = [BoardEvent(time_s=time_s, kind="clamped", text="to 614 MHz") for time_s in (1.0, 2.0)]
    device.events = lambda: (tuple(told), told.clear())[0]
    found = profile(device, workload(batch_sizes=(8,)), reference=False)
    assert {cell.temperature_c for cell in found.cells} == {41.5}
    assert found.sensor_rail == device.sensor.rail
    assert found.notes == ("clamped while this was measured: to 614 MHz",)
