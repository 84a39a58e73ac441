"""Training from a battery: the trajectory stays, pauses come with the charge, and a resumed run ends as another one."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made

from wattune.budgets.battery import Battery
from wattune.cap import PowerCap
from wattune.cap_trace import CapTrace
from wattune.errors import InputError, Interrupted
from wattune.planning import plan
from wattune.records import TrainingRecord
from wattune.reporting import summary
from wattune.training import train

WH = 3600.0
PANEL = {"panel_w": 20.0, "at": (52.5, 13.4)}


@pytest.fixture(scope="module")
def planned(table):
    return plan(table, made.efficiency(), cap=PowerCap(4.5))


@pytest.fixture(scope="module")
def constant(workload, planned):
    return train(made.nano(), workload, planned)


def without_wall_clock(record):
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"created_at": None})})


class Charge:
    """A charge that is full but for a stretch of time, at the first look after which somebody may press Ctrl-C."""

    def __init__(self, low_s=(0.0, 0.0), interrupt_s=float("inf")):
        self.low_s, self.interrupt_s = low_s, interrupt_s

    def __call__(self, time_s):
        if time_s >= self.interrupt_s:
            raise KeyboardInterrupt
        return 0.3 if self.low_s[0] <= time_s < self.low_s[1] else 0.99


def test_a_full_battery_changes_nothing_but_the_record(workload, planned, constant):
    record = train(made.nano(), workload, planned, battery=Battery(80 * WH, **PANEL))
    assert made.trajectory(record) == made.trajectory(constant)
    assert {one.setting for one in record.cap_intervals} == {planned.clock_mhz}
    assert {(one.asked_w, one.cap_w) for one in record.cap_intervals} == {(None, 4.5)}
    assert record.paused_s == 0
    assert record.battery.source == "simulated"
    first, last = record.battery.charge[0], record.battery.charge[-1]
    assert (first.time_s, first.share) == (0.0, 1.0)
    # The day begins at sunrise, so that next to nothing charges it.
    assert (first.share - last.share) * 80 * WH == pytest.approx(record.exact.energy_j, rel=0.02)
    assert last.time_s == pytest.approx(record.time_s)
    assert record.battery.under_reserve_s == 0
    assert record.above_cap_s == 0
    assert TrainingRecord.parse(record.dump()) == record
    assert "The simulated battery of 80 Wh went from 100% to 100%" in summary(record.plan, record).replace(" %", "%")


def test_training_pauses_while_the_charge_is_low(workload, planned, constant):
    battery = Battery(80 * WH, charge=Charge(low_s=(0.0, 300.0)), reserve=0.2)
    record = train(made.nano(), workload, planned, battery=battery)
    assert made.trajectory(record) == made.trajectory(constant)
    assert record.paused_s == pytest.approx(300, abs=3)
    pause = record.cap_intervals[0].pause
    assert pause.startswith("30 % charge, of which the reserve and the time without sun need")
    resting = [sample.power_w for sample in record.trace if 5 < sample.time_s < 295]
    assert max(resting) < 1.1 * record.battery.rest_w
    assert record.battery.least == 0.3


@pytest.mark.parametrize("interrupt_s", [60.0, 240.0])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, workload, planned, interrupt_s):
    charge = Charge(low_s=(0.0, 180.0))
    longer = made.workload(target=None, budget_samples=20480, evaluate_every=2048)
    battery = Battery(80 * WH, charge=charge)
    whole = train(made.nano(), longer, planned, battery=battery, checkpoint=tmp_path / "whole")
    charge.interrupt_s = interrupt_s
    if interrupt_s < whole.time_s:
        with pytest.raises(Interrupted):
            train(made.nano(), longer, planned, battery=battery, checkpoint=tmp_path / "c")
        charge.interrupt_s = float("inf")
        resumed = train(made.nano(), longer, planned, battery=battery, checkpoint=tmp_path / "c", resume=True)
        assert without_wall_clock(resumed) == without_wall_clock(whole)
    else:
        pytest.fail(f"the run of {whole.time_s:.0f} s is too short for this test")


def test_a_simulated_battery_is_continued_as_well(tmp_path, workload, planned):
    battery = Battery(80 * WH, **PANEL)
    whole = train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "whole")

    def interrupt(evaluation, readings):
        if evaluation.samples == 1024:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "c", on_evaluation=interrupt)
    resumed = train(made.nano(), workload, planned, battery=battery, checkpoint=tmp_path / "c", resume=True)
    assert without_wall_clock(resumed) == without_wall_clock(whole)


def test_an_efficient_point_below_the_full_battery(workload, table):
    uncapped = plan(table, made.efficiency(), cap=PowerCap())
    charge = 0.9
    battery = Battery(80 * WH, charge=lambda time_s: charge, mode="soon")
    record = train(made.nano(), workload, uncapped, battery=battery)
    granted = {one.setting for one in record.cap_intervals if one.pause is None}
    assert granted
    assert max(granted) <= uncapped.clock_mhz


def test_what_a_battery_cannot_be_combined_with(workload, planned):
    caps = CapTrace(times_s=(0.0, 4.0), caps_w=(6.0, 3.9))
    with pytest.raises(InputError, match="a battery with a cap that changes"):
        train(made.nano(), workload, planned, cap=caps, battery=Battery(80 * WH))
    with pytest.raises(InputError, match="no figures to choose a setting"):
        train(made.nano(), workload, made.plan(cap_w=4.3), battery=Battery(80 * WH))
    with pytest.raises(InputError, match="the battery is too small to train from"):
        train(made.nano(), workload, planned, battery=Battery(20 * WH))
