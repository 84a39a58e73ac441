"""A training that finds its plan stale: on boards that changed after they were profiled."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made

from wattune.cap import PowerCap
from wattune.devices import Fault
from wattune.errors import Interrupted
from wattune.goal import Goal
from wattune.planning import plan as make_plan
from wattune.profiling import profile
from wattune.records import EfficiencyPoint, SampleEfficiency, TrainingRecord
from wattune.training import train
from wattune.training.plan_drift import Drift, DriftWatch

CAP_W = 4.5
FOR_EVER = 1e6
DRAWS_LESS = Fault(kind="power", time_s=0, duration_s=FOR_EVER, gain=0.85)


def workload():
    """Some minutes of training, on a board that waits for the data of each sample as little as it can."""
    return made.workload(target=None, budget_samples=38400, evaluate_every=1280, host_s_per_sample=0.001)


@pytest.fixture(scope="module")
def plan():
    """For a board as it was."""
    table = profile(made.nano(), workload(), reference=False)
    points = tuple(EfficiencyPoint(batch_size=b, relative_samples=1.0, samples=38400.0) for b in (8, 32))
    curve = SampleEfficiency(workload="points", reference_batch_size=32, points=points)
    return make_plan(table, curve, cap=PowerCap(CAP_W))


def trained(plan, *faults, **arguments) -> TrainingRecord:
    return train(made.nano(faults=faults), workload(), plan, **arguments)


@pytest.mark.slow
def test_on_the_board_that_was_profiled_nothing_is_changed(plan):
    record = trained(plan)
    assert record.replanned == ()
    assert record.board_events == ()
    assert {sample.setting for sample in record.trace} == {plan.clock_mhz}


@pytest.mark.slow
def test_a_board_that_draws_less_is_taken_to_a_higher_clock(plan):
    record = trained(plan, DRAWS_LESS)
    (change,) = record.replanned
    assert change.point.clock_mhz > plan.clock_mhz
    assert change.point.batch_size == plan.batch_size
    assert change.why == "steps draw 15 % less than the profile says"
    assert change.samples < 0.2 * record.samples
    assert record.readings_above_cap == 0
    assert record.trace[-1].setting == change.point.clock_mhz
    without = trained(plan.model_copy(update={"step_s": None}), DRAWS_LESS)
    assert without.replanned == ()
    assert record.time_s < without.time_s
    assert TrainingRecord.parse(record.dump()) == record


@pytest.mark.slow
def test_a_plan_for_energy_is_changed_for_energy(plan):
    """Of what the cap allows on the board as it is, the setting of least energy, or the fastest within the bound."""
    table = profile(made.nano(), workload(), reference=False)
    points = tuple(EfficiencyPoint(batch_size=b, relative_samples=1.0, samples=38400.0) for b in (8, 32))
    curve = SampleEfficiency(workload="points", reference_batch_size=32, points=points)
    tight = make_plan(table, curve, cap=PowerCap(CAP_W), goal=Goal("energy"))
    watch = DriftWatch(made.nano(), tight, 38400)
    energy_j = {one.knobs: one.predicted_j for one in tight.candidates if one.batch_size == tight.batch_size}
    least = min(energy_j, key=energy_j.get)
    assert tight.knobs == least or energy_j[tight.knobs] <= min(
        one.predicted_j for one in tight.candidates if one.feasible and one.batch_size == tight.batch_size
    )
    moved = watch.follow(Drift(1.0, 0.7)) or tight.knobs
    assert energy_j[moved] == pytest.approx(min(energy_j.values()))
    bounded = make_plan(table, curve, cap=PowerCap(CAP_W), goal=Goal("energy", max_slowdown=0.05))
    moved = DriftWatch(made.nano(), bounded, 38400).follow(Drift(1.0, 0.7)) or bounded.knobs
    assert moved["clock_mhz"] >= bounded.clock_mhz  # nothing slower than what the bound allowed


@pytest.mark.slow
def test_a_board_that_draws_more_is_brought_down_before_the_cap_is_broken_for_long(plan):
    higher = plan.model_copy(update={"cap_w": 1.2 * plan.predicted_peak_w})
    record = trained(higher, Fault(kind="power", time_s=0, duration_s=FOR_EVER, gain=1.1))
    # There is room: more power is said, and the clock stays or rises as far as the cap allows.
    (seen,) = (*record.replanned, *record.board_events)
    assert "draw 10 % more" in (getattr(seen, "why", None) or seen.text)
    assert record.readings_above_cap == 0


@pytest.mark.slow
def test_a_board_that_is_slower_is_named_and_left_where_it_is(plan):
    record = trained(plan, Fault(kind="slowdown", time_s=0, duration_s=FOR_EVER, gain=1.2))
    assert record.replanned == ()
    assert [event.kind for event in record.board_events] == ["plan stale"]
    assert record.board_events[0].text == "steps take 20 % longer than the profile says"


@pytest.mark.slow
def test_what_the_guard_answers_is_not_taken_for_another_board(plan):
    """A spike above the cap moves the clock down for a while: what was measured meanwhile says nothing of the plan."""
    tight = plan.model_copy(update={"cap_w": 1.001 * plan.predicted_peak_w})
    record = trained(tight, made.spike(5.0, 1.0))
    assert record.guard
    assert record.replanned == ()


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory):
    """A training with a new plan that nothing interrupts."""
    return trained(plan, DRAWS_LESS, checkpoint=tmp_path_factory.mktemp("whole") / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(2, 2), *(pytest.param(stops, marks=pytest.mark.slow) for stops in ((1,), (3,)))])
def test_a_resumed_training_run_follows_its_new_plan(plan, whole, tmp_path, stops):
    for stop in stops:
        left = [stop]

        def interrupt(*_, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            trained(plan, DRAWS_LESS, checkpoint=tmp_path / "parts", resume=True, progress=interrupt)
    resumed = trained(plan, DRAWS_LESS, checkpoint=tmp_path / "parts", resume=True)
    assert resumed.replanned == whole.replanned
    assert (resumed.time_s, resumed.energy_j, resumed.trace) == (whole.time_s, whole.energy_j, whole.trace)


def test_in_words():
    assert str(Drift(1.2, 0.9)) == "steps draw 10 % less and take 20 % longer than the profile says"
    assert str(Drift(0.9, 1.0)) == "steps take 10 % less than the profile says"
    assert not Drift(1.04, 0.96).is_stale
