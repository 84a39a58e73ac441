"""Evaluations and checkpoints: forecast before training, and timed while training."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made
from tests.support.device_examples import FileDevice

from wattune.cap import PowerCap
from wattune.devices import ReplayDevice
from wattune.planning import plan as make_plan
from wattune.planning import with_evaluations
from wattune.profiling import profile
from wattune.records import EfficiencyPoint, ProfileCell, ProfileTable, SampleEfficiency
from wattune.training import evaluation_costs, train


def test_what_is_measured_before_is_what_training_takes(tmp_path):
    workload = made.workload()
    evaluation_s, checkpoint_s = evaluation_costs(made.nano(), workload, made.plan())
    record = train(made.nano(), workload, made.plan(), checkpoint=tmp_path / "c")
    number = len(record.evaluations)
    assert record.evaluation_s == pytest.approx(number * evaluation_s, rel=1e-6)
    # The state of the optimizer and of random numbers is there as well.
    assert record.checkpoint_s == pytest.approx(number * checkpoint_s, rel=0.05)
    assert 0 < record.evaluation_s + record.checkpoint_s < record.time_s


def test_the_time_that_is_left_has_the_evaluations_to_come():
    profiled = made.workload(batch_sizes=(32,))
    points = (EfficiencyPoint(batch_size=32, relative_samples=1.0, samples=2048.0),)
    curve = SampleEfficiency(workload="points", reference_batch_size=32, points=points)
    plan = make_plan(profile(made.nano(), profiled), curve, cap=PowerCap(None))

    def left_s(every):
        lines = []
        workload = made.workload(batch_sizes=(32,), target=None, evaluate_every=every, host_s_per_sample=0.1)
        train(made.nano(), workload, plan, progress=lambda *line: lines.append(line))
        text = next(text for done, _, text in lines if done == 1024).rsplit("about ", 1)[1]
        hours, minutes, seconds = text.split(" left")[0].split(":")
        return 3600 * int(hours) + 60 * int(minutes) + int(seconds)

    assert left_s(64) > left_s(1024) + 5


def test_a_device_that_executes_steps_takes_a_few_passes_of_its_own(tmp_path):
    device, workload = FileDevice(tmp_path), made.workload()
    plan = made.plan(clock_mhz=200.0)
    evaluation_s, checkpoint_s = evaluation_costs(device, workload, plan)
    assert evaluation_s > 0
    assert checkpoint_s > 0
    planned = with_evaluations(
        plan.model_copy(update={"step_s": 0.01, "power_mean_w": 3.0, "predicted_s": 0.01 * 512 / plan.batch_size}),
        every_samples=workload.evaluate_every,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
    )
    assert planned.evaluations.number == -(-512 // workload.evaluate_every)


def test_a_recording_has_neither():
    cell = ProfileCell(batch_size=8, step_s=0.1, power_mean_w=3, power_peak_w=4, steps=5)
    recorded = ReplayDevice(ProfileTable(device="bench", workload="points", cells=(cell,)))
    assert evaluation_costs(recorded, made.workload(), made.plan(clock_mhz=None)) is None
