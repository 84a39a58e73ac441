"""Training that is suspended in pauses: the same weights, less charge, and a resumed run ends as another one."""

from __future__ import annotations

import os
import signal

import pytest
from tests.support import training_runs as made
from tests.support.forked import Forked
from tests.training.test_training_battery import WH, Charge, without_wall_clock

from wattune.budgets.battery import Battery
from wattune.cap import PowerCap
from wattune.devices import SimulatedDevice, Suspension
from wattune.devices.base import SUSPENDED
from wattune.errors import DeviceError, InputError, Interrupted
from wattune.planning import plan
from wattune.power.battery_cap import suspended_w
from wattune.records import TrainingRecord
from wattune.reporting import summary
from wattune.training import train

LOW_S = (0.0, 7200.0)


@pytest.fixture(scope="module")
def planned(table):
    return plan(table, made.efficiency(), cap=PowerCap(4.5))


@pytest.fixture(scope="module")
def resting(workload, planned):
    return train(made.nano(), workload, planned, battery=Battery(80 * WH, charge=Charge(low_s=LOW_S)))


@pytest.fixture(scope="module")
def suspending(workload, planned):
    battery = Battery(80 * WH, charge=Charge(low_s=LOW_S), suspend=True)
    return train(made.nano(), workload, planned, battery=battery)


def test_the_weights_are_the_same_and_the_pause_takes_less(resting, suspending):
    assert made.trajectory(suspending) == made.trajectory(resting)
    assert resting.asleep_s is None
    assert suspending.asleep_s == 7 * 900 + 900  # 8 times, of which the last one ends after the charge has risen
    assert suspending.paused_s == pytest.approx(8 * 910, abs=2)
    extra_s = suspending.time_s - resting.time_s
    rest_w = suspending.battery.rest_w
    saved_j = (1 - SUSPENDED) * rest_w * suspending.asleep_s - rest_w * extra_s
    assert resting.exact.energy_j - suspending.exact.energy_j == pytest.approx(saved_j, rel=0.02)
    assert suspending.energy_j == pytest.approx(suspending.exact.energy_j, rel=0.01)
    assert suspending.above_cap_s == 0
    assert suspending.board_events == resting.board_events


def test_the_record_says_that_the_board_was_asleep(suspending):
    reasons = [one.pause for one in suspending.cap_intervals if one.pause]
    assert reasons[0].startswith("30 % charge")
    assert reasons[1].startswith("asleep: 30 % charge")
    assert TrainingRecord.parse(suspending.dump()) == suspending
    assert "with the board suspended for 2 h 00 min." in summary(suspending.plan, suspending)


def test_the_night_budget_is_that_of_a_suspended_board(workload, planned):
    # Two nights at rest need 24 Wh and more of these 30.
    with pytest.raises(InputError, match="the battery is too small to train from"):
        train(made.nano(), workload, planned, battery=Battery(30 * WH))
    record = train(made.nano(), workload, planned, battery=Battery(30 * WH, suspend=True))
    assert record.paused_s == 0
    assert suspended_w(10.0) == pytest.approx(10 * (2 + 8 * 10 / 910) / 10)


@pytest.mark.parametrize("interrupt_s", [100.0, 3000.0])
def test_a_run_that_is_interrupted_asleep_ends_as_an_uninterrupted_one(tmp_path, workload, planned, interrupt_s):
    charge = Charge(low_s=(0.0, 5000.0))
    battery = Battery(80 * WH, charge=charge, suspend=True)
    whole = train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "whole")
    charge.interrupt_s = interrupt_s
    with pytest.raises(Interrupted):
        train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "c")
    charge.interrupt_s = float("inf")
    resumed = train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "c", resume=True)
    assert without_wall_clock(resumed) == without_wall_clock(whole)
    assert whole.asleep_s == 6 * 900


class Killed(Charge):
    """A charge at whose first look after ``interrupt_s`` the process is killed."""

    def __call__(self, time_s):
        if time_s >= self.interrupt_s:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(time_s)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_run_that_is_killed_asleep_resumes(tmp_path, workload, planned):
    def trained(charge, name, **options):
        battery = Battery(80 * WH, charge=charge, suspend=True)
        return train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / name, **options)

    child = Forked(lambda: trained(Killed(LOW_S, interrupt_s=3000.0), "killed") and 0)
    child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL
    resumed, whole = trained(Charge(LOW_S), "killed", resume=True), trained(Charge(LOW_S), "whole")
    assert without_wall_clock(resumed) == without_wall_clock(whole)


class Failing(SimulatedDevice):
    """A board whose driver refuses to be suspended after the first time."""

    times = 0

    def suspend(self, seconds):
        self.times += 1
        if self.times > 1:
            raise DeviceError("/sys/power/state cannot be written: Device or resource busy")
        return super().suspend(seconds)


def test_a_board_that_fails_to_suspend_rests_with_one_event(workload, planned, resting):
    battery = Battery(80 * WH, charge=Charge(low_s=LOW_S), suspend=True)
    device = Failing(made.board())
    record = train(device, workload, planned, battery=battery)
    assert made.trajectory(record) == made.trajectory(resting)
    assert record.asleep_s == 900
    assert device.times == 2
    assert [event.text for event in record.board_events if event.kind == "not suspended"] == [
        "/sys/power/state cannot be written: Device or resource busy; it rests instead"
    ]
    assert record.paused_s == pytest.approx(7200, abs=61)
    assert not any((one.pause or "").startswith("asleep") for one in record.cap_intervals[-2:])


class Unmetered(SimulatedDevice):
    """A board that does not know what it drew while it was suspended, as real ones."""

    def suspend(self, seconds):
        return Suspension(super().suspend(seconds).asleep_s, None)


def test_energy_that_nothing_metered_is_left_out(workload, planned, suspending):
    battery = Battery(80 * WH, charge=Charge(low_s=LOW_S), suspend=True)
    record = train(Unmetered(made.board()), workload, planned, battery=battery)
    asleep_j = SUSPENDED * record.battery.rest_w * record.asleep_s
    assert suspending.energy_j - record.energy_j == pytest.approx(asleep_j, rel=0.03)


class Restless(SimulatedDevice):
    can_suspend = False


def test_a_board_that_cannot_be_suspended_is_refused(workload, planned):
    with pytest.raises(InputError, match=r"--suspend: sim:.* cannot be suspended"):
        train(Restless(made.board()), workload, planned, battery=Battery(80 * WH, suspend=True))
