"""Training under a cap that changes: the setting follows, the trajectory does not, and pauses survive interruptions."""

from __future__ import annotations

import math
import threading

import pytest
from tests.support import training_runs as made
from tests.support.real_time_device import RealTimeDevice

from wattune.algorithms import load_checkpoint
from wattune.cap import PowerCap
from wattune.cap_source import CalledCap, CapTrace, WatchedCap
from wattune.devices import Fault
from wattune.errors import InputError, Interrupted
from wattune.goal import Goal
from wattune.planning import plan
from wattune.power.cap_follower import lead_s
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency, TrainingRecord
from wattune.training import train

CAPS = CapTrace(times_s=(0.0, 4.0, 6.0, 9.0, 12.0, 13.0), caps_w=(6.0, 3.9, 0.0, 4.4, 1.5, 4.6))
LEAD_S = lead_s(made.nano().sensor, 1.0)


@pytest.fixture(scope="module")
def planned(table):
    return plan(table, made.efficiency(), cap=CAPS)


@pytest.fixture(scope="module")
def followed(workload, planned):
    return train(made.nano(), workload, planned, cap=CAPS)


def without_wall_clock(record):
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"created_at": None})})


def test_the_trajectory_is_that_of_a_constant_cap(tmp_path, workload, table, planned, followed):
    constant = plan(table, made.efficiency(), cap=PowerCap(6.0), batch_size=planned.batch_size)
    other = train(made.nano(), workload, constant, weights=tmp_path / "constant")
    assert made.trajectory(followed) == made.trajectory(other)
    train(made.nano(), workload, planned, cap=CAPS, weights=tmp_path / "moving")
    assert (tmp_path / "moving").read_bytes() == (tmp_path / "constant").read_bytes()
    assert followed.time_s > other.time_s + followed.paused_s


def test_announced_caps_are_never_exceeded(followed, planned):
    assert followed.above_cap_s == followed.exact.above_cap_s == 0
    assert followed.guard == ()
    assert not followed.exceeds_cap
    assert followed.plan == planned


def test_announced_caps_hold_while_other_work_goes_first(workload, planned, followed):
    device = made.nano()
    record = train(device, workload, planned, cap=CAPS, yield_to=lambda: device.now_s() % 1.0 < 0.3)
    assert made.trajectory(record) == made.trajectory(followed)
    assert record.above_cap_s == record.exact.above_cap_s == 0
    assert record.guard == ()
    assert record.paused_s > followed.paused_s + 1.0


def test_settings_come_before_a_lower_cap_and_at_a_rise(followed, planned):
    by_cap = {one.asked_w: one.clock_mhz for one in planned.caps}
    intervals = followed.cap_intervals
    assert next(one.asked_w for one in intervals if one.pause is None) == 6.0
    lowered = next(one for one in intervals if one.setting == by_cap[3.9])
    assert lowered.asked_w == 6.0
    assert 4.0 - LEAD_S - 0.1 <= lowered.time_s <= 4.0 - LEAD_S + 0.1
    raised = next(one for one in intervals if one.setting == by_cap[4.6])
    assert 13.0 <= raised.time_s <= 13.1
    pauses = [one for one in intervals if one.pause is not None]
    assert {"the cap is 0 W", "no measured setting stays under 1.5 W"} <= {one.pause for one in pauses}
    assert {one.setting for one in pauses} == {76.8}
    paused_s = (9.0 - 6.0) + (13.0 - 12.0)
    assert paused_s < followed.paused_s < paused_s + 2 * LEAD_S + 0.5
    assert TrainingRecord.parse(followed.dump()) == followed


def test_nothing_runs_in_a_pause(workload, planned, followed):
    rest_w = min(sample.power_w for sample in followed.trace)
    asleep = [sample for sample in followed.trace if 6.5 < sample.time_s < 9.0]
    assert asleep
    assert all(sample.power_w < 1.1 * rest_w for sample in asleep)


def test_an_unannounced_lowering_costs_one_window_at_most(workload, planned):
    cap = CalledCap(cap_w=lambda time_s: 6.0 if time_s < 4 or time_s > 8 else 3.9)
    record = train(made.nano(), workload, planned, cap=cap)
    assert 0 < record.exact.above_cap_s <= 1.0
    assert record.guard == ()
    *resting, kept = [one for one in record.cap_intervals if one.asked_w == 3.9]
    assert {one.setting for one in resting} == {76.8}  # until the window holds nothing from before
    assert resting[-1].pause == "the cap fell without notice"
    assert (kept.setting > 76.8, kept.pause) == (True, None)
    assert kept.time_s - resting[0].time_s == pytest.approx(LEAD_S, abs=0.1)
    assert record.above_cap_s == pytest.approx(sum(one.above_cap_s for one in record.cap_intervals))


def test_a_spike_is_answered_under_the_cap_of_its_time(workload, planned):
    spike = Fault(kind="power", time_s=5.5, duration_s=2.0, gain=1.3)
    cap = CapTrace(times_s=(0.0, 4.0), caps_w=(6.0, 4.2))
    record = train(made.nano(faults=[spike]), workload, planned, cap=cap)
    assert record.guard[0].action == "down"
    assert all(event.power_w > 4.2 for event in record.guard if event.action == "down")
    assert train(made.nano(faults=[spike]), workload, planned, cap=CapTrace(caps_w=(9.0,))).guard == ()


class InterruptedCap(CapTrace):
    """A trace during which somebody presses Ctrl-C."""

    at_s = float("inf")

    def watts(self, time_s):
        if time_s >= InterruptedCap.at_s:
            InterruptedCap.at_s = float("inf")
            raise KeyboardInterrupt
        return super().watts(time_s)


@pytest.mark.parametrize("moment_s", [1.0, 7.5, 12.6])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, workload, planned, moment_s):
    cap = InterruptedCap(times_s=CAPS.times_s, caps_w=CAPS.caps_w)
    whole = train(made.nano(), workload, planned, cap=cap, checkpoint=tmp_path / "whole")
    InterruptedCap.at_s = moment_s
    with pytest.raises(Interrupted):
        train(made.nano(), workload, planned, cap=cap, checkpoint=tmp_path / "c")
    if moment_s > 6:  # in a pause, at the beginning of which everything was saved
        saved = load_checkpoint(tmp_path / "c")[1]["so_far"]
        assert saved["cap"]["is_holding"]
        assert moment_s - 4 < saved["meter"]["elapsed_s"] < moment_s
    resumed = train(made.nano(), workload, planned, cap=cap, checkpoint=tmp_path / "c", resume=True)
    assert without_wall_clock(resumed) == without_wall_clock(whole)


def test_caps_that_end_in_a_pause_lose_nothing(tmp_path, workload, planned, followed):
    ending = CapTrace(times_s=(0.0, 4.0), caps_w=(6.0, 0.0))
    with pytest.raises(InputError, match="leave nothing to train with any more: 0 W from now on; add rows"):
        train(made.nano(), workload, planned, cap=ending, checkpoint=tmp_path / "c")
    more = CapTrace(times_s=(0.0, 4.0, 5.0), caps_w=(6.0, 0.0, 6.0))
    record = train(made.nano(), workload, planned, cap=more, checkpoint=tmp_path / "c", resume=True)
    assert made.trajectory(record) == made.trajectory(followed)
    assert record.above_cap_s == 0


def test_a_cap_that_cannot_be_read_is_noted_once_and_the_last_one_holds(tmp_path, workload, planned, monkeypatch):
    path = tmp_path / "cap"
    path.write_text("4.2\n")
    cap = WatchedCap(path=path)
    path.write_text("garbage\n")
    record = train(made.nano(), workload, planned, cap=cap)
    assert [event.kind for event in record.board_events] == ["cap unread"]
    assert "the last cap of 4.2 W holds" in record.board_events[0].text
    assert {one.asked_w for one in record.cap_intervals} == {4.2}


def test_a_callable_that_fails_ends_the_run_with_its_error(workload, planned):
    with pytest.raises(InputError, match="what cap_w returned: -1"):
        train(made.nano(), workload, planned, cap=CalledCap(cap_w=lambda time_s: 6.0 if time_s < 2 else -1.0))


def test_a_cap_that_changes_is_given_with_its_plan(workload, table, planned):
    with pytest.raises(InputError, match="give that cap as well"):
        train(made.nano(), workload, planned)
    with pytest.raises(InputError, match="no figures to choose a setting"):
        train(made.nano(), workload, made.plan(cap_w=4.3), cap=CAPS)
    supply = CapTrace(PowerCap(side="supply"), CAPS.times_s, CAPS.caps_w)
    with pytest.raises(InputError, match="the side of the cap: supply; allowed: module"):
        train(made.nano(), workload, planned, cap=supply)


def test_the_plan_of_a_constant_cap_can_follow_as_well(workload, table, followed):
    constant = plan(table, made.efficiency(), cap=PowerCap(4.3))
    record = train(made.nano(), workload, constant, cap=CAPS)
    assert record.above_cap_s == 0
    assert [one.setting for one in record.cap_intervals] == [one.setting for one in followed.cap_intervals]


def test_pauses_of_a_plan_for_another_goal_leave_it_at_its_point(workload, table):
    points = (EfficiencyPoint(batch_size=b, relative_samples=r, samples=500 * r) for b, r in ((8, 0.5), (32, 1.0)))
    curve = SampleEfficiency(workload="points", reference_batch_size=32, points=tuple(points))
    frugal = plan(table, curve, cap=PowerCap(), goal=Goal("energy"))
    assert frugal.knobs != plan(table, curve, cap=PowerCap()).knobs
    record = train(made.nano(), workload, frugal, cap=CapTrace(times_s=(0.0, 4.0, 9.0), caps_w=(math.inf, 0, math.inf)))
    began = next(one for one in record.cap_intervals if one.asked_w == 0)
    assert (began.time_s, began.cap_w, began.pause) == (pytest.approx(4.0, abs=0.11), None, "the cap is 0 W")
    assert {(one.asked_w, one.cap_w) for one in record.cap_intervals if one is not began} == {(None, None)}
    assert {one.setting for one in record.cap_intervals if not one.pause} == {frugal.clock_mhz}
    assert 5.0 <= record.paused_s <= 5.0 + LEAD_S + 0.5


@pytest.mark.slow
def test_on_real_time_the_setting_follows_and_training_pauses(tmp_path):
    """A board that trains itself, with the caps in a file that somebody else writes."""
    device, file = RealTimeDevice(), tmp_path / "watts"
    file.write_text("5\n")
    cells = [
        ProfileCell(batch_size=8, clock_mhz=clock, step_s=step_s, power_mean_w=watts, power_peak_w=watts, steps=5)
        for clock, step_s, watts in ((100.0, 0.004, 2.0), (200.0, 0.002, 4.0))
    ]
    points = (EfficiencyPoint(batch_size=8, relative_samples=1.0, samples=1e5),)
    curve = SampleEfficiency(workload="points", reference_batch_size=8, points=points)
    cap = WatchedCap(path=file)
    planned = plan(ProfileTable(device="bench", workload="points", cells=tuple(cells)), curve, cap=cap)
    follower = made.workload(target=None, budget_samples=10**7, batch_sizes=(8,))
    seen: list[tuple[float, int]] = []  # clock and evaluations at the end of each stage

    class Enough(Exception):
        pass

    def change(evaluation, readings):
        """The next cap once training goes on under the present one."""
        if evaluation.time_s < 1.5 * (len(seen) + 1) or (len(seen) == 2 and device.clock_mhz != 200.0):
            return
        seen.append((device.clock_mhz, evaluation.samples))
        if len(seen) == 3:
            raise Enough
        file.write_text(("3\n", "0\n")[len(seen) - 1])
        if len(seen) == 2:
            threading.Timer(4.0, file.write_text, ["5\n"]).start()

    with pytest.raises(Enough):
        train(device, follower, planned, cap=cap, checkpoint=tmp_path / "checkpoint", on_evaluation=change)
    assert [clock for clock, _ in seen] == [200.0, 100.0, 200.0]
    assert device.clock_mhz == 150.0  # as it was found
    intervals = load_checkpoint(tmp_path / "checkpoint")[1]["so_far"]["cap"]["intervals"]
    pauses = [one["pause"] for one in intervals]
    assert "the cap fell without notice" in pauses
    assert "the cap is 0 W" in pauses
    (began_s,) = [one["time_s"] for one in intervals if one["pause"] == "the cap is 0 W"]
    assert any(one["time_s"] - began_s > 2.0 and one["setting"] == {"clock_mhz": 200.0} for one in intervals)
