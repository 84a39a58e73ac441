from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import training_runs as made
from tests.support.device_examples import FileDevice

from wattune.algorithms import load_checkpoint, open_algorithm, save_checkpoint
from wattune.cap import PowerCap, SensorLimit
from wattune.devices import Fault, ReplayDevice
from wattune.errors import DeviceError, InputError, Interrupted, RecordError, SensorError
from wattune.planning import plan as make_plan
from wattune.point import Knobs
from wattune.profiling import profile, profile_key
from wattune.records import (
    Baseline,
    EfficiencyPoint,
    Evaluation,
    Plan,
    ProfileCell,
    ProfileCost,
    ProfileTable,
    SampleEfficiency,
    TrainingRecord,
)
from wattune.training import price, train
from wattune.training.evaluation_log import EvaluationLog


def same(one: TrainingRecord, other: TrainingRecord) -> bool:
    """But for the time of the wall clock."""
    return without_wall_clock(one) == without_wall_clock(other)


def without_wall_clock(record):
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"created_at": None})})


class Stop:
    """Ctrl-C at the n-th evaluation."""

    def __init__(self, at):
        self.left = at

    def __call__(self, done, total, what):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_a_training_to_the_target():
    device, workload = made.nano(), made.workload()
    found = device.current()
    lines = []
    plan = made.plan(target=0.123)  # of the proxy
    record = train(device, workload, plan, progress=lambda *line: lines.append(line))
    assert (record.reached, record.ended, record.target) == (True, "target reached", 0.9)
    assert record.samples == record.evaluations[-1].samples <= workload.budget_samples
    assert [e.samples for e in record.evaluations] == list(range(64, record.samples + 1, 64))
    assert record.evaluations[-1].metric >= 0.9 > max(e.metric for e in record.evaluations[:-1])
    times = [e.time_s for e in record.evaluations]
    assert times == sorted(times)
    assert record.time_s == pytest.approx(times[-1])
    assert record.provenance.kind == "simulated"
    assert record.provenance.seed == 0
    assert record.guard == ()
    assert {sample.setting for sample in record.trace} == {614.4}
    assert len(lines) == len(record.evaluations)
    assert "accuracy" in lines[-1][2]
    assert device.current() == found
    assert TrainingRecord.parse(record.dump()) == record


def planned(device, workload, cap_w):
    points = (EfficiencyPoint(batch_size=b, relative_samples=1.0) for b in workload.batch_sizes)
    efficiency = SampleEfficiency(workload="points", reference_batch_size=32, points=tuple(points))
    return make_plan(
        profile(device, workload, limit=SensorLimit(cap_w), reference=False), efficiency, cap=PowerCap(cap_w)
    )


@pytest.mark.parametrize("cap_w", [3.9, 4.6, *(pytest.param(w, marks=pytest.mark.slow) for w in (4.1, 4.3))])
def test_no_reading_above_the_cap_with_a_perfect_sensor(cap_w):
    workload = made.workload(target=None)
    plan = planned(made.nano(), workload, cap_w)
    record = train(made.nano(), workload, plan)
    assert record.readings_above_cap == 0
    assert record.above_cap_s == record.exact.above_cap_s == 0
    assert record.guard == ()
    assert record.power_peak_w <= cap_w
    assert record.readings > 50


def test_a_spike_is_seen_answered_and_recorded():
    device = made.nano(faults=[made.spike(time_s=3.0, duration_s=2.0, gain=1.2)])
    record = price(made.long_curve(60), device, made.long_workload(), made.plan().point, cap_w=4.3)
    downs = [event for event in record.guard if event.action == "down"]
    ups = [event for event in record.guard if event.action == "up"]
    begin_s = 3.0 - device.sensor.settle_s  # in the time of the training, which starts with a settled sensor
    assert begin_s < downs[0].time_s < begin_s + 2 * 0.43
    assert all(event.power_w > 4.3 for event in downs)
    assert 1 <= len(downs) <= 8
    assert downs[-1].time_s < begin_s + 2.0 + 2 * 0.43
    assert record.power_peak_w > 4.3
    assert 0 < record.above_cap_s < 3.5
    assert downs[-1].setting < ups[0].setting <= ups[-1].setting <= 614.4
    assert {sample.setting for sample in record.trace} >= {614.4, downs[0].setting}
    assert record.ended == "budget used up"


@pytest.mark.slow
def test_a_cap_that_no_setting_keeps_ends_the_training_for_safety(tmp_path):
    device = made.nano()
    record = train(device, made.workload(target=None, budget_samples=10**6), made.plan(cap_w=3.0))
    assert (record.reached, record.ended) == (False, "stopped for safety")
    assert "W at the lowest setting, above the cap of 3 W" in record.reason
    assert record.guard[-1].action == "at lowest"
    assert record.guard[-1].setting == device.knobs[0].values[0]
    assert 10 < record.time_s < 20
    assert 0 < record.samples < 10**6
    assert record.samples % 8 == 0
    assert device.current() == device.combinations()[-1]


FAULTY = {"noise_w": 0.03, "resolution_w": 0.0405, "faults": [made.spike(1.0, 0.5)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "stops", [(1,), (3, 1, 4), *(pytest.param(stops, marks=pytest.mark.slow) for stops in ((2,), (7,), (10, 10)))]
)
def test_a_resumed_training_ends_with_the_same_record(tmp_path, stops):
    workload, plan = made.workload(target=None, budget_samples=1536), made.plan(cap_w=4.27)
    whole = train(made.nano(**FAULTY, seed=3), workload, plan, checkpoint=tmp_path / "whole", seed=1)
    assert whole.guard
    path = tmp_path / "parts"
    for stop in stops:
        device = made.nano(**FAULTY, seed=3)
        with pytest.raises(Interrupted):
            train(device, workload, plan, checkpoint=path, resume=True, seed=1, progress=Stop(stop))
        assert device.current() == device.combinations()[-1]
    done = []
    resumed = train(
        made.nano(**FAULTY, seed=3),
        made.workload(target=None, budget_samples=1536),
        plan,
        checkpoint=path,
        resume=True,
        seed=1,
        progress=lambda samples, *_: done.append(samples),
    )
    assert same(resumed, whole)
    assert done[0] == 64 * (sum(stops) + 1)  # nothing is done again


def test_a_checkpoint_of_training_from_a_battery_is_refused(tmp_path):
    path = tmp_path / "c"
    train(made.nano(), made.workload(), made.plan(), checkpoint=path)
    state, extra = load_checkpoint(path)
    save_checkpoint(path, state, extra={**extra, "so_far": {**extra["so_far"], "battery": {"rest_w": 1.4}}})
    with pytest.raises(RecordError, match="from a battery"):
        train(made.nano(), made.workload(), made.plan(), checkpoint=path, resume=True)


def test_resuming_what_is_finished_does_nothing_and_gives_the_record(tmp_path):
    path = tmp_path / "c"
    first = train(made.nano(), made.workload(), made.plan(), checkpoint=path)
    lines = []
    again = train(
        made.nano(),
        made.workload(),
        made.plan(),
        checkpoint=path,
        resume=True,
        progress=lambda *line: lines.append(line),
    )
    assert lines == []
    assert same(again, first)


@pytest.mark.slow
def test_a_checkpoint_from_before_0_1_0_is_resumed(tmp_path):
    workload, plan, path = made.workload(target=None, budget_samples=1024), made.plan(cap_w=4.27), tmp_path / "parts"
    whole = train(made.nano(**FAULTY, seed=3), workload, plan, checkpoint=tmp_path / "whole")
    shutil.copy(Path(__file__).parent / "data/training_before_0_1_0.safetensors", path)
    resumed = train(made.nano(**FAULTY, seed=3), workload, plan, checkpoint=path, resume=True)
    assert whole.evaluation_s
    assert whole.checkpoint_s
    # It does not tell what the evaluations before it took, so nothing is said of all of them.
    assert resumed.evaluation_s is None
    assert resumed.checkpoint_s is None
    # Its guard knew no level, and begins at the setting of then: times differ by that, results do not.
    assert (resumed.samples, resumed.ended) == (whole.samples, whole.ended)
    assert (resumed.guard[0].action, resumed.guard[0].clock_mhz) == (whole.guard[0].action, whole.guard[0].clock_mhz)
    assert resumed.guard[0].power_w == pytest.approx(whole.guard[0].power_w)
    assert resumed.time_s == pytest.approx(whole.time_s, rel=0.01)


def test_each_evaluation_takes_40_bytes_of_a_checkpoint_and_keeps_what_is_unknown():
    log = EvaluationLog()
    for number in range(3):
        log.append(Evaluation(samples=64 * number, metric=0.1 * number, time_s=number / 3, energy_j=None, loss=None))
    again = EvaluationLog(log.state)
    assert log.state.nbytes == 3 * 40
    assert (again.all, again.last, len(again)) == (log.all, log.all[-1], 3)
    assert again.last.energy_j is None


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("seed", {"seed": 2}),
        ("cap_w", {"plan": made.plan(cap_w=5.0)}),
        ("point", {"plan": made.plan(batch_size=32)}),
        ("workload", {"workload": made.workload(target=0.5)}),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(tmp_path, field, changes):
    given = {"workload": made.workload(), "plan": made.plan(), "seed": 1}
    with pytest.raises(Interrupted):
        train(made.nano(), **given, checkpoint=tmp_path / "c", progress=Stop(1))
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(RecordError, match=field):
        train(made.nano(), **{**given, **changes}, checkpoint=tmp_path / "c", resume=True)
    assert (tmp_path / "c").read_bytes() == before


def test_a_plan_for_something_else_is_refused():
    device, workload = made.nano(), made.workload()
    key = profile_key(device, workload, "backprop")
    plan = made.plan(key=key.model_copy(update={"data_type": "fp16"}))
    with pytest.raises(RecordError, match=r"data_type \(fp32, not fp16\)"):
        train(device, workload, plan, key=key)


def test_a_plan_with_another_knob_or_clock_is_refused():
    with pytest.raises(InputError, match="power_limit_w"):
        train(made.nano(), made.workload(), Plan(batch_size=8, power_limit_w=100.0))
    with pytest.raises(InputError, match="no such clock_mhz"):
        train(made.nano(), made.workload(), made.plan(clock_mhz=600.0))


def test_a_metric_that_is_not_a_number_ends_the_training():
    device = made.nano()
    record = train(device, made.workload(metric=made.DIVERGING, target=None), made.plan())
    assert (record.reached, record.ended, record.evaluations) == (False, "diverged", ())
    assert record.samples > 0
    assert record.pays_after_trainings is None
    assert device.current() == device.combinations()[-1]


@pytest.mark.slow
def test_a_sensor_that_is_away_for_a_moment_is_asked_again():
    whole = train(made.nano(), made.workload(target=None), made.plan())
    device = made.nano(faults=[Fault(kind="dropout", time_s=2.0, duration_s=1.5)])
    record = train(device, made.workload(target=None), made.plan())
    assert (record.ended, record.reason, record.samples) == ("budget used up", None, whole.samples)
    assert record.readings == whole.readings - 15
    assert record.energy_j == pytest.approx(whole.energy_j, rel=0.01)
    assert record.board_events == ()


@pytest.mark.parametrize("cap_w", [None, 5.0])
def test_training_never_continues_without_readings(tmp_path, cap_w):
    device = made.nano(faults=[Fault(kind="dropout", time_s=2.0, duration_s=5.0)])
    clocks, apply = [], device._apply
    device._apply = lambda knobs: (clocks.append(knobs["clock_mhz"]), apply(knobs))
    workload, plan = made.workload(target=None, budget_samples=10**5), made.plan(cap_w=cap_w)
    record = train(device, workload, plan, checkpoint=tmp_path / "c")
    assert (record.ended, record.reached) == ("stopped for safety", False)
    assert "the power sensor stopped responding" in record.reason
    assert 4.0 < device.now_s() < 4.4  # it was given up 2 s after its last reading, and the step then ended
    assert clocks == [614.4, device.knobs[0].values[0], 921.6]  # the last one as the board was found
    assert [event.kind for event in record.board_events] == ["sensor lost"]
    assert "set to the lowest, 76.8" in record.board_events[0].text
    assert device.current() == device.combinations()[-1]


@pytest.mark.slow
def test_training_resumes_after_a_safety_stop(tmp_path):
    workload, plan, path = made.workload(target=None), made.plan(), tmp_path / "c"
    whole = train(made.nano(), workload, plan)
    faulty = made.nano(faults=[Fault(kind="dropout", time_s=2.0, duration_s=5.0)])
    stopped = train(faulty, workload, plan, checkpoint=path)
    assert 0 < stopped.samples < whole.samples
    assert stopped.samples > stopped.evaluations[-1].samples
    resumed = train(made.nano(), workload, plan, checkpoint=path, resume=True)
    assert (resumed.ended, resumed.samples, resumed.reason) == ("budget used up", whole.samples, None)
    assert [e.metric for e in resumed.evaluations] == [e.metric for e in whole.evaluations]
    assert {sample.setting for sample in resumed.trace} == {614.4}


def test_a_sensor_that_never_gave_a_reading_is_an_error():
    device = made.nano(faults=[Fault(kind="dropout", time_s=0.0, duration_s=10.0)])
    with pytest.raises(SensorError, match="gives no reading"):
        train(device, made.workload(target=None), made.plan())
    assert device.now_s() < 3
    assert device.current() == device.combinations()[-1]


class Stuck(FileDevice):
    """A board that cannot be slowed down."""

    def _apply(self, knobs):
        if knobs == self.safest:
            raise DeviceError("the clock cannot be written")
        super()._apply(knobs)


def test_a_board_that_cannot_be_slowed_down_ends_the_training(tmp_path):
    device = Stuck(tmp_path)
    with pytest.raises(DeviceError, match="cannot be written"):
        train(device, made.workload(target=None, budget_samples=10**8), made.plan(clock_mhz=200.0, cap_w=4.0))
    assert device.now_s() < 30


def test_what_the_sensor_holds_from_before_is_not_answered():
    device, workload = made.nano(), made.workload(target=None)
    work = open_algorithm("backprop", workload, 32).work()
    with device.at(Knobs(clock_mhz=921.6)):
        while device.power_w() < 4.6:
            with device.step(work):
                pass
    record = train(device, workload, made.plan(cap_w=4.3))
    assert record.guard == ()
    assert record.power_peak_w < 4.3


def test_a_training_shorter_than_the_first_reading_has_a_record():
    workload = made.workload(
        target=0.01, evaluate_every=32, host_s_per_sample=0.0, batch_sizes=(32,), budget_samples=32
    )
    device = made.nano(period_s=1.0, window_s=1.0)
    record = train(device, workload, made.plan(batch_size=32, clock_mhz=921.6))
    assert record.reached
    assert record.time_s < 0.1
    assert record.readings == 1


@pytest.mark.slow
def test_what_profiling_cost_against_this_training():
    cost = ProfileCost(time_s=100.0, energy_j=400.0, above_cap_s=0.0, probes=12)
    rule = Baseline(batch_size=32, clock_mhz=307.2, feasible=True, rule="largest batch, fixed clock", speed_up=1.5)
    record = train(made.nano(), made.workload(), made.plan(profile_cost=cost, baselines=(rule,)))
    assert record.profiling_share == pytest.approx(100 / record.time_s)
    assert record.pays_after_trainings == math.ceil(100 / (0.5 * record.time_s))
    for nothing_gained in (1.0, 0.9, None):
        slower = rule.model_copy(update={"speed_up": nothing_gained})
        record = train(made.nano(), made.workload(), made.plan(profile_cost=cost, baselines=(slower,)))
        assert record.pays_after_trainings is None


def test_on_a_recording_only_the_steps_count(tmp_path):
    cells = [
        ProfileCell(batch_size=8, power_limit_w=limit_w, step_s=0.1, power_mean_w=50.0, power_peak_w=60.0, steps=5)
        for limit_w in (100.0, 150.0)
    ]
    device = ReplayDevice(ProfileTable(device="bench", workload="points", cells=tuple(cells)))
    workload, plan = made.workload(target=None), Plan(batch_size=8, power_limit_w=150.0, cap_w=70.0)
    record = train(device, workload, plan, checkpoint=tmp_path / "c")
    assert record.time_s == pytest.approx(2048 / 8 * 0.1)
    assert record.energy_j == pytest.approx(50.0 * record.time_s, rel=0.02)
    assert record.provenance.kind == "replayed"
    assert "evaluations" in record.provenance.model_dump()["left_out"]
    assert record.exact is None


def test_a_board_that_executes_steps_is_measured_in_real_time(tmp_path):
    device = FileDevice(tmp_path)
    workload = replace(made.workload(), target=None, budget_samples=512)
    record = train(device, workload, made.plan(clock_mhz=100.0, cap_w=5.0), checkpoint=tmp_path / "c")
    assert device.current() == Knobs(clock_mhz=200.0)
    assert 0 < record.time_s <= device.now_s()
    assert record.power_peak_w == pytest.approx(4.321)
    assert record.provenance.kind == "measured"
    assert record.exact is None


def test_a_plan_without_a_key_is_still_of_one_device():
    with pytest.raises(RecordError, match="device"):
        train(made.nano(), made.workload(), made.plan().model_copy(update={"key": None, "device": "some-other-board"}))
