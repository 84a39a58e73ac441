"""Plans for one batch size, and the command that runs a program there."""

from __future__ import annotations

import shlex

import pytest

from wattune.cap import PowerCap
from wattune.errors import CapError, InputError
from wattune.planning import plan
from wattune.records import (
    AbortedProbe,
    EfficiencyPoint,
    ProfileCell,
    ProfileTable,
    Program,
    SampleEfficiency,
    Supply,
)

PROGRAM = Program(
    command="sh -c 'train {batch_size} {steps}' -n {steps}", device="jetson?root=/a b", step_time="printed"
)


def table(actuator="clock_mhz", **changes):
    cells = [
        ProfileCell(
            batch_size=b,
            **{actuator: s},
            step_s=b / s,
            power_mean_w=s / 50 + b / 8,
            power_peak_w=s / 50 + b / 8,
            steps=5,
        )
        for b in (8, 16)
        for s in (100.0, 114.75)
    ]
    stopped = (AbortedProbe(batch_size=32, **{actuator: 100.0}, cap_w=5.0, power_w=6.0),)
    return ProfileTable(device="d", workload="w", cells=tuple(cells), aborted=stopped, **changes)


def test_only_the_clock_is_chosen():
    made = plan(table(), cap=PowerCap(3.2), batch_size=8)
    assert (made.batch_size, made.clock_mhz, made.predicted_s) == (8, 100.0, None)
    assert {candidate.batch_size for candidate in made.candidates} == {8}
    assert made.baselines == ()
    assert "no efficiency record" in made.notes[0]
    assert (made.program, made.run_by) == (None, None)
    assert plan(table(), cap=PowerCap(None), batch_size=16).clock_mhz == 114.75


def test_a_batch_size_goes_with_a_curve_too():
    points = tuple(EfficiencyPoint(batch_size=b, relative_samples=r, samples=1e3 * r) for b, r in ((8, 0.2), (16, 1.0)))
    curve = SampleEfficiency(workload="w", reference_batch_size=16, points=points)
    assert plan(table(), curve, cap=PowerCap(None)).batch_size == 8
    made = plan(table(), curve, cap=PowerCap(None), batch_size=16)
    assert (made.batch_size, made.notes) == (16, ())
    assert made.predicted_s == pytest.approx(1e3 / 114.75)


def test_without_either_there_has_to_be_one_size():
    with pytest.raises(InputError, match="the batch size is missing; allowed: 8, 16, 32"):
        plan(table(), cap=PowerCap(None))
    only = table().model_copy(update={"cells": table().cells[:2], "aborted": ()})
    assert plan(only, cap=PowerCap(None)).batch_size == 8
    with pytest.raises(InputError, match="12; allowed: 8, 16, 32"):
        plan(table(), cap=PowerCap(None), batch_size=12)
    with pytest.raises(CapError):
        plan(table(), cap=PowerCap(1.0), batch_size=8)
    with pytest.raises(CapError):
        plan(table(), cap=PowerCap(5.5), batch_size=32)


@pytest.mark.parametrize(
    ("actuator", "cap", "words"),
    [
        ("clock_mhz", PowerCap(9.0), ["--clock", "114.75MHz", "--cap", "9W"]),
        ("clock_mhz", PowerCap(), ["--clock", "114.75MHz"]),
        ("clock_mhz", PowerCap(12.5, "supply"), ["--clock", "114.75MHz", "--cap", "12.5W@supply"]),
        ("power_limit_w", PowerCap(9.0), ["--cap", "9W"]),
    ],
)
def test_the_command_that_runs_a_program(actuator, cap, words):
    made = plan(table(actuator, program=PROGRAM, supply=Supply(other_w=1.0, efficiency=0.9)), cap=cap, batch_size=8)
    assert made.program == PROGRAM
    expected = ["wattune", "guard", "--device", "jetson?root=/a b", *words]
    assert shlex.split(made.run_by) == [*expected, "--", "sh", "-c", "train 8 STEPS", "-n", "STEPS"]
    assert any("power limit" in note for note in made.notes) == (actuator == "power_limit_w")


def test_a_command_with_other_places_is_not_told():
    program = PROGRAM.model_copy(update={"command": "train {batch_size} {rate}"})
    assert plan(table(program=program), cap=PowerCap(9.0), batch_size=8).run_by is None


def test_how_sure_a_given_batch_size_is_best_is_not_said():
    """It is the only one that is compared, so that the probability would be 1 whatever the records say."""
    points = tuple(
        EfficiencyPoint(batch_size=b, relative_samples=r, samples=1e3 * r, low=0.9 * r, high=1.1 * r, log_sd=0.05)
        for b, r in ((8, 0.2), (16, 1.0))
    )
    curve = SampleEfficiency(workload="w", reference_batch_size=16, points=points)
    assert plan(table(), curve, cap=PowerCap(None)).p_best > 0.9
    for made in (
        plan(table(), curve, cap=PowerCap(None), batch_size=16),
        plan(table(), cap=PowerCap(3.2), batch_size=8),
    ):
        assert (made.p_best, made.expected_loss) == (None, None)
