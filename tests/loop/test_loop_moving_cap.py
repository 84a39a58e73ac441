"""Sessions under a cap that changes: the clock follows, training rests, and the weights are those of a constant cap."""

from __future__ import annotations

import shutil
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.sessions import (
    OwnTimeDevice,
    board,
    convolutional,
    distance,
    pictures,
    plain,
    trained,
)
from torch.utils.data import DataLoader

from wattune.cap import SensorLimit
from wattune.cap_source import CalledCap, CapTrace
from wattune.errors import CapError, InputError, RecordError
from wattune.loop.capped import capped
from wattune.loop.setting_ladder import KnownSetting, SettingLadder
from wattune.planning import plan
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.cap_follower import lead_s
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency, SessionRecord
from wattune.search.observation import Stretch

LEAD_S = lead_s(board().sensor, 1.0)


def loader_of(batch_size=32):
    return DataLoader(pictures(), batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(3))


class Run:
    """A session that trains for some passes."""

    def __init__(self, cap, *, passes, evaluates=False, **options):
        def evaluate(session):
            if evaluates:
                with session.evaluation(), torch.no_grad():
                    self.model(pictures().tensors[0])

        self.model = convolutional()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        options = {"optimizer": optimizer, "cap_w": cap, "loader": loader_of(), **options}
        self.session = trained(self.model, passes=passes, on_pass=evaluate, **options)
        self.record = self.session.record


CAPS = CapTrace(times_s=(0.0, 6.0, 8.0, 12.0, 20.0), caps_w=(5.0, 4.0, 0.0, 6.0, 4.2))


def test_a_lower_cap_is_there_before_its_time():
    record = Run(CapTrace(times_s=(0.0, 2.5, 3.4), caps_w=(6.0, 3.7, 6.0)), passes=2).record
    assert record.exact.above_cap_s == record.above_cap_s == 0
    assert record.cap_intervals[-1].asked_w == 6.0
    assert record.paused_s > 0.9  # the lowest setting draws more than 3.7 W
    assert "no measured setting stays under 3.7 W" in {one.pause for one in record.cap_intervals}


@pytest.fixture(scope="module")
def followed():
    return Run(CAPS, passes=28, keep_recipe=True)


@pytest.mark.slow
def test_the_weights_are_those_of_a_constant_cap(followed):
    model = convolutional()
    plain(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader_of(), 28)
    assert distance(followed.model, model) < 1e-6
    assert followed.record.samples == 28 * 2048
    assert followed.record.point.batch_size == 32


@pytest.mark.slow
def test_announced_caps_are_never_exceeded(followed):
    record = followed.record
    assert record.above_cap_s == record.exact.above_cap_s == 0
    assert record.readings_above_cap == 0
    assert {one.asked_w for one in record.cap_intervals} == {5.0, 4.0, 0.0, 6.0, 4.2}
    assert record.cap_w == 6.0
    assert SessionRecord.parse(record.dump()) == record
    assert "a cap that changes, with pauses of" in followed.session.explain()


@pytest.mark.slow
def test_settings_are_measured_from_the_lowest_up_and_come_before_a_lower_cap(followed):
    record = followed.record
    clocks = [change.point.clock_mhz for change in record.changes if change.why == "probe"]
    assert clocks == sorted(clocks)
    assert len(set(clocks)) == len(clocks) > 6
    lowered = next(one for one in record.cap_intervals if one.asked_w == 6.0 and one.time_s > 18)
    assert 20.0 - LEAD_S - 0.1 <= lowered.time_s <= 20.0 - LEAD_S + 0.1
    at_lower = [one.setting for one in record.cap_intervals if one.asked_w == 4.2]
    assert 76.8 < at_lower[-1] < max(clocks)
    measured = {cell.clock_mhz: cell.step_s for cell in record.table.cells}
    assert measured[at_lower[-1]] == min(s for mhz, s in measured.items() if mhz <= at_lower[-1])


@pytest.mark.slow
def test_training_rests_in_a_pause_and_goes_on(followed):
    record = followed.record
    pauses = [one for one in record.cap_intervals if one.pause is not None]
    assert "the cap is 0 W" in {one.pause for one in pauses}
    assert {one.setting for one in pauses} == {76.8}
    assert 4.0 < record.paused_s < 4.0 + LEAD_S + 0.5
    times_s = [one.time_s for one in record.cap_intervals]
    assert times_s == sorted(times_s)


@pytest.mark.slow
def test_an_unannounced_lowering_costs_one_window_at_most():
    record = Run(CalledCap(cap_w=lambda time_s: 6.0 if time_s < 8 else 4.0), passes=20).record
    assert 0 < record.exact.above_cap_s <= 1.0
    assert record.above_cap_s == pytest.approx(sum(one.above_cap_s for one in record.cap_intervals))
    assert any(one.pause == "the cap fell without notice" for one in record.cap_intervals)
    assert record.cap_intervals[-1].pause is None


@pytest.mark.slow
def test_evaluations_stay_under_the_cap_as_well():
    caps = CapTrace(times_s=(0.0, 3.0, 6.0, 9.0), caps_w=(6.0, 4.0, 6.0, 4.2))
    record = Run(caps, passes=12, keep_recipe=True, evaluates=True).record
    assert record.exact.above_cap_s == 0


@pytest.mark.slow
@pytest.mark.parametrize("at_s", [10.0, 6.5])
def test_a_session_that_was_killed_continues_with_the_cap_of_its_time(tmp_path, followed, at_s):
    """At 10 s it is in a pause, which began with a checkpoint."""
    path, killed = tmp_path / "c.safetensors", tmp_path / "killed.safetensors"
    shots = []

    def watts(self, time_s):
        if time_s >= at_s and not shots:
            shots.append(time_s)
            if path.exists():
                shutil.copy(path, killed)  # as it is when nobody can write another
            raise KeyboardInterrupt
        return CapTrace.watts(self, time_s)

    interrupted = type("Interrupted", (CapTrace,), {"watts": watts})(CAPS.form, CAPS.times_s, CAPS.caps_w)
    with pytest.raises(KeyboardInterrupt):
        Run(interrupted, passes=28, keep_recipe=True, checkpoint=path)
    paused = at_s == 10.0
    rest = Run(CAPS, passes=28, keep_recipe=True, checkpoint=killed if paused else path, resume=True)
    assert distance(rest.model, followed.model) < 1e-6
    assert rest.record.samples == followed.record.samples
    assert rest.record.exact.above_cap_s == 0
    times_s = [one.time_s for one in rest.record.cap_intervals]
    assert times_s == sorted(times_s)
    if paused:
        first = next(one for one in rest.record.cap_intervals if one.asked_w == 0.0)
        assert first.time_s == pytest.approx(8.0, abs=0.2)
        assert 4.0 < rest.record.paused_s < 4.0 + LEAD_S + 0.5
    probes = [change.point for change in rest.record.changes if change.why == "probe"]
    assert len(set(probes)) >= len(probes) - 1  # the one that was under way begins again


def test_a_checkpoint_of_a_constant_cap_is_of_another_session(tmp_path):
    path = tmp_path / "c.safetensors"
    Run(4.5, passes=1, checkpoint=path)
    with pytest.raises(RecordError, match="changing_cap"):
        Run(CAPS, passes=2, checkpoint=path, resume=True)


# --------------------------------------------------------------------------------------------------- with a profile


@pytest.fixture(scope="module")
def table():
    """A profile of two batch sizes: the larger one is twice as fast per sample, and draws 0.3 W more."""
    cells = []
    for size, faster, more_w in ((32, 1.0, 0.0), (64, 2.0, 0.3)):
        for index in range(12):
            mhz, watts = round(76.8 * (index + 1), 1), 3.6 + 0.15 * index + more_w
            cells.append(
                ProfileCell(
                    batch_size=size,
                    clock_mhz=mhz,
                    step_s=size / 32 / faster * 0.03 / (1 + index),
                    power_mean_w=watts,
                    power_std_w=0.02,
                    power_peak_w=watts + 0.05,
                    steps=100,
                )
            )
    return ProfileTable(
        device="sim:jetson-nano", workload="convolutional", cells=tuple(cells), sensor_window_s=0.02, strategy="full"
    )


def curve(second=1.05):
    points = [EfficiencyPoint(batch_size=s, relative_samples=r) for s, r in ((32, 1.0), (64, second))]
    return SampleEfficiency(workload="w", algorithm="backprop", reference_batch_size=32, points=tuple(points))


@pytest.mark.parametrize("second", [1.05, 3.0])
def test_the_batch_size_is_the_best_one_over_all_caps(table, second):
    caps = CapTrace(times_s=(0.0, 100.0), caps_w=(4.0, 6.0))
    run = Run(caps, passes=1, profile=table, efficiency=curve(second))
    expected = plan(table, curve(second), cap=caps)
    assert run.record.point.batch_size == expected.batch_size == (64 if second < 2 else 32)
    assert [change.why for change in run.record.changes if change.why == "probe"] == []  # all of it is known
    assert run.record.efficiency_from == "curve"


def test_without_a_curve_the_batch_size_stays_and_the_profile_tells_its_settings(tmp_path, table):
    path = tmp_path / "profile.json"
    table.save(path)
    record = Run(CapTrace(caps_w=(4.3,)), passes=1, profile=path).record
    assert record.point.batch_size == 32
    assert record.point.clock_mhz == 384.0  # 4.2 W, and its highest reading 4.25 W
    assert [change.why for change in record.changes] == ["the fastest known setting under the cap"]


@pytest.mark.slow
def test_the_record_of_an_earlier_session_is_a_profile(tmp_path):
    path = tmp_path / "session.json"
    first = Run(CapTrace(caps_w=(5.0,)), passes=20, record=path, keep_recipe=True).record
    again = Run(CapTrace(caps_w=(4.6,)), passes=2, profile=path, keep_recipe=True).record
    assert again.point.clock_mhz in {cell.clock_mhz for cell in first.table.cells}
    assert [change for change in again.changes if change.why == "probe"] == []
    assert again.exact.above_cap_s == 0


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("cap", "options", "said"),
    [
        ("fine.csv", {"goal": "energy"}, "a goal with a cap that changes: energy"),
        ("fine.csv", {"batch_sizes": [16, 32]}, "batch_sizes with a cap that changes"),
        ("fine.csv", {"profile": "missing.json"}, "missing.json"),
        (4.5, {"profile": "missing.json"}, "with a cap that changes"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, cap, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fine.csv").write_text("seconds,watts\n0,5\n9,4\n")
    device = board()
    clock = device.current()
    with pytest.raises((InputError, RecordError), match=said) as raised:
        Run(cap, passes=1, device=device, **options)
    assert "\n" not in str(raised.value)
    assert device.current() == clock


def test_caps_that_end_with_a_pause_end_the_session_with_a_checkpoint(tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(InputError, match="the caps leave nothing to train with any more: 0 W from now on"):
        Run(CapTrace(times_s=(0.0, 2.5), caps_w=(5.0, 0.0)), passes=9, checkpoint=path)
    more = CapTrace(times_s=(0.0, 2.5, 3.0), caps_w=(5.0, 0.0, 5.0))
    rest = Run(more, passes=2, checkpoint=path, resume=True)
    assert rest.record.samples == 2 * 2048
    assert rest.record.exact.above_cap_s == 0


def test_a_profile_of_another_device_or_without_the_batch_size_is_refused(table):
    with pytest.raises(InputError, match="another device"):
        Run(CAPS, passes=1, profile=table.model_copy(update={"device": "other"}))
    with pytest.raises(InputError, match="no batch size that the session may use: 32, 64; allowed: 8"):
        Run(CAPS, passes=1, profile=table, loader=loader_of(8))
    with pytest.raises(CapError):
        Run(CapTrace(caps_w=(1.0,)), passes=1, profile=table)


@pytest.mark.slow
def test_the_callbacks_of_trainers_say_that_their_caps_are_constant(tmp_path):
    lightning = pytest.importorskip("wattune.integrations.lightning")
    (tmp_path / "fine.csv").write_text("seconds,watts\n0,5\n9,4\n")
    with pytest.raises(InputError, match="a cap that changes in the Lightning callback"):
        lightning.PowerCapCallback(str(tmp_path / "fine.csv"))


# ------------------------------------------------------------------------------------------------------------ real time


def test_a_device_that_executes_steps_follows_a_file_that_another_program_writes(tmp_path):
    """2 W at 100 MHz, 4 W at 200 MHz."""
    path, device = tmp_path / "watts", OwnTimeDevice()
    path.write_text("3\n")
    model = torch.nn.Linear(8, 2)
    seen = []
    with capped(
        device=device,
        cap_w=f"watch:{path}",
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=4,
    ) as session:
        for step in range(1500):
            session.begin_step()
            session.end_step()
            seen.append((device.now_s(), device.clock_mhz))
            if step == 300:
                path.write_text("5\n")
            if step == 900:
                path.write_text("2.5\n")
    assert {mhz for _, mhz in seen[200:290]} == {100.0}  # after a try of the next one, of which nothing was known
    assert seen[890][1] == 200.0
    assert seen[-1][1] == 100.0
    assert [cap_w for cap_w, _ in groupby(one.asked_w for one in session.record.cap_intervals)] == [3.0, 5.0, 2.5]
    assert session.record.above_cap_s <= 1.0
    assert device.clock_mhz == 150.0


# ----------------------------------------------------------------------------------------------------------- the ladder

SHAPE = BatchShape(32, 32)


@given(
    st.floats(0.5, 10.0),
    st.floats(0.01, 30.0),
    st.floats(1.0, 3.0),
    st.lists(st.floats(0.3, 1.5), min_size=1, max_size=5),
)
def test_nothing_beyond_the_second_setting_is_tried_above_a_cap(static_w, dynamic_w, exponent, caps):
    """Power is static_w + dynamic_w * (clock / top) ** exponent; caps are shares of the most power."""
    device = board()
    ladder, settings = SettingLadder(SHAPE, device, {}), device.climbs()[0]
    top = settings[-1].first
    power_w = {k: static_w + dynamic_w * (k.first / top) ** exponent for k in settings}
    for share in caps:
        ladder.limit = SensorLimit(share * (static_w + dynamic_w))
        while (point := ladder.next()) is not None:
            if settings.index(point.knobs) > 1:
                assert power_w[point.knobs] <= ladder.limit.limit_w
            if power_w[point.knobs] > ladder.limit.limit_w:
                ladder.above(point, power_w[point.knobs])
            else:
                ladder.tell(point, Stretch(1 / point.knobs.first, 0.0, power_w[point.knobs], 1.0))
        best = ladder.best()
        known = [k for k in settings if ladder.step_s(k) is not None and power_w[k] <= ladder.limit.limit_w]
        assert (None if best is None else best.knobs) == (max(known) if known else None)
        assert ladder.setting(ladder.limit) == (None if best is None else best.knobs)


def test_a_ladder_resumes_with_what_it_knew():
    device = board()
    low, second = device.climbs()[0][:2]
    ladder = SettingLadder(SHAPE, device, {low: KnownSetting(0.1, 3.0)})
    ladder.limit = SensorLimit(4.0)
    assert ladder.next() == OperatingPoint(SHAPE, second)
    ladder.above(OperatingPoint(SHAPE, second), 4.1)
    again = SettingLadder(SHAPE, device, {})
    again.load_state_dict(ladder.state_dict())
    again.limit = SensorLimit(4.2)
    assert again.next() is None
    again.limit = SensorLimit(4.4)
    assert again.next() == OperatingPoint(SHAPE, second)
    assert again.setting(None) is None
    assert again.setting(SensorLimit(2.9)) is None
    assert again.setting(SensorLimit(3.1)) == low == Knobs(clock_mhz=76.8)
