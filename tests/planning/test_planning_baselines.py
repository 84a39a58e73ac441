from __future__ import annotations

import pytest
from tests.support.planning_tables import BATCHES, CLOCKS, board, cell, curve

from wattune.cap import PowerCap, SensorLimit
from wattune.planning import BASELINES, pick, plan
from wattune.planning.baselines import batch_size_of
from wattune.planning.table import PlanningTable, worst_case
from wattune.point import Knobs
from wattune.records import AbortedProbe, ProfileCell, ProfileTable, ReferencePower, ReferenceSet

CAP_W = 4.0


def worst_clock(profile: ProfileTable, cap_w: float) -> float:
    return max(f for f in CLOCKS if all(p.power_peak_w <= cap_w for p in profile.reference.powers if p.clock_mhz == f))


def test_each_rule_chooses_what_it_says():
    profile, efficiency = board(), curve()
    peaks = {(c.batch_size, c.clock_mhz): c.power_peak_w for c in profile.cells}

    def own_clock(batch_size: int) -> float:
        return max(f for f in CLOCKS if peaks[batch_size, f] <= CAP_W)

    fixed = worst_clock(profile, CAP_W)
    expected = {
        "largest batch, fixed clock": (128, fixed),
        "best batch, fixed clock": (8, fixed),
        "best batch, then clock": (8, own_clock(8)),
        "largest batch, own clock": (128, own_clock(128)),
    }
    assert set(expected) == set(BASELINES)
    for rule, place in expected.items():
        choice = pick(rule, profile, efficiency, SensorLimit(CAP_W))
        assert (choice.batch_size, choice.clock_mhz) == place
        assert choice.feasible
        assert choice.why_not is None
    assert fixed < own_clock(128) < own_clock(8)  # or the rules could not be told apart
    joint = pick("wattune", profile, efficiency, SensorLimit(CAP_W))
    assert joint.point == plan(profile, efficiency, cap=PowerCap(CAP_W)).point


def test_fastest_uses_the_targets_own_curve():
    target = curve({4: 3.0, 8: 2.0, 16: 1.5, 32: 1.2, 64: 1.1, 128: 1.0})
    assert pick("fastest", board(), target, SensorLimit(None)).batch_size == 128
    assert pick("wattune", board(), curve(), SensorLimit(None)).batch_size < 128


def test_without_reference_powers_the_fixed_clock_is_left_out():
    profile = board(reference=False)
    rules = [b.rule for b in plan(profile, curve(), cap=PowerCap(CAP_W)).baselines]
    assert rules == ["best batch, then clock", "largest batch, own clock"]
    assert pick("largest batch, fixed clock", profile, curve(), SensorLimit(CAP_W)) is None
    # Without a cap every clock keeps it.
    assert pick("largest batch, fixed clock", profile, curve(), SensorLimit(None)).clock_mhz == CLOCKS[-1]


def test_a_reference_that_was_stopped_says_nothing_of_higher_caps():
    powers = [
        ReferencePower(workload="a", batch_size=8, clock_mhz=100, power_peak_w=3.0),
        ReferencePower(workload="a", batch_size=8, clock_mhz=200, power_peak_w=4.1, stopped=True),
        ReferencePower(workload="b", batch_size=8, clock_mhz=100, power_peak_w=3.5),
        ReferencePower(workload="b", batch_size=8, clock_mhz=200, power_peak_w=3.9),
    ]
    reference = ReferenceSet(set_version=1, powers=tuple(powers))
    assert worst_case(board().model_copy(update={"reference": reference}), None) == {Knobs(clock_mhz=100): 3.5}
    assert worst_case(board(reference=False), None) == {}


def test_one_high_reading_of_a_reference_does_not_lower_the_fixed_clock():
    profile = board()
    fixed = worst_clock(profile, CAP_W)

    def read(power: ReferencePower, outlier_w: float) -> ReferencePower:
        # Two seconds of readings, which scatter by 80 mW around their mean.
        figures = {"power_mean_w": power.power_peak_w - 0.2, "power_std_w": 0.08, "step_s": 0.02, "steps": 100}
        figures["power_window_w"] = power.power_peak_w - 0.17
        return power.model_copy(update={**figures, "power_peak_w": power.power_peak_w + outlier_w})

    for outlier_w in (0.0, 0.04):
        powers = tuple(
            read(power, outlier_w if power.clock_mhz == fixed else 0.0) for power in profile.reference.powers
        )
        reference = ReferenceSet(set_version=1, powers=powers)
        noisy = profile.model_copy(update={"reference": reference, "cap_window_s": 1.0, "sensor_window_s": 0.1})
        choice = pick("largest batch, fixed clock", noisy, curve(), SensorLimit(CAP_W, window_s=1.0))
        assert choice.clock_mhz >= fixed
    by_reading = pick("largest batch, fixed clock", noisy, curve(), SensorLimit(CAP_W))
    assert by_reading.clock_mhz < fixed  # each reading counts under such a cap


def test_a_fixed_clock_that_exceeds_the_cap_for_this_workload_is_reported():
    profile = board()
    # References that draw little: the clock that suits them is too high for batch size 128.
    powers = tuple(p.model_copy(update={"power_peak_w": 2.0}) for p in profile.reference.powers)
    profile = profile.model_copy(update={"reference": ReferenceSet(set_version=1, powers=powers)})
    found = plan(profile, curve(), cap=PowerCap(CAP_W, window="peak"))
    baseline = next(b for b in found.baselines if b.rule == "largest batch, fixed clock")
    assert (baseline.clock_mhz, baseline.feasible, baseline.speed_up) == (CLOCKS[-1], False, None)
    assert baseline.why_not == "6.3 W exceeds the cap of 4 W"


def test_references_that_always_exceed_the_cap():
    profile = board()
    cap_w = 2.3  # batch size 4 keeps it at the lowest clock, the references do not
    found = plan(profile, curve(), cap=PowerCap(cap_w))
    baseline = next(b for b in found.baselines if b.rule == "best batch, fixed clock")
    assert baseline.clock_mhz == CLOCKS[0]
    assert not baseline.feasible
    assert baseline.why_not == "no setting is known at which every reference workload stays under the cap"


def test_a_batch_that_always_exceeds_the_cap_is_named_with_its_lowest_point():
    choice = pick("largest batch, own clock", board(), curve(), SensorLimit(2.5))
    assert (choice.batch_size, choice.clock_mhz, choice.feasible) == (128, CLOCKS[0], False)
    assert "exceeds the cap of 2.5 W" in choice.why_not


def test_a_cell_that_a_staircase_skipped_is_named_and_not_chosen():
    profile = board()
    fixed = worst_clock(profile, CAP_W)
    cells = tuple(c for c in profile.cells if (c.batch_size, c.clock_mhz) != (8, fixed))
    found = plan(profile.model_copy(update={"cells": cells}), curve(), cap=PowerCap(CAP_W))
    baseline = next(b for b in found.baselines if b.rule == "best batch, fixed clock")
    assert (baseline.batch_size, baseline.clock_mhz, baseline.feasible) == (8, fixed, False)
    assert "did not measure this point" in baseline.why_not
    # At the largest batch size, the workload was measured among the references.
    cells = tuple(c for c in profile.cells if (c.batch_size, c.clock_mhz) != (128, fixed))
    whole = pick("largest batch, fixed clock", profile, curve(), SensorLimit(CAP_W))
    figures = {"power_mean_w": 3.5, "power_std_w": 0.0, "step_s": 0.5, "steps": 9, "power_peak_w": 3.5}
    own = ReferencePower(workload="target backprop 1f", batch_size=128, clock_mhz=fixed, **figures)
    others = (own.model_copy(update={"clock_mhz": f, "power_peak_w": 9.0}) for f in CLOCKS if f != fixed)
    reference = ReferenceSet(set_version=2, powers=(*profile.reference.powers, own, *others))
    part = profile.model_copy(update={"cells": cells, "reference": reference})
    choice = pick("largest batch, fixed clock", part, curve(), SensorLimit(CAP_W))
    assert (choice.point, choice.feasible) == (whole.point, True)
    assert choice.relative_time == pytest.approx(0.5 / 128)


def test_the_batch_size_of_a_baseline_is_not_that_of_the_sizes_that_a_guided_profile_measured():
    some = board((16, 64)).model_copy(update={"strategy": "guided"})
    rules = [b.rule for b in plan(some, curve(), cap=PowerCap(CAP_W)).baselines]
    assert rules == []  # 8 and 128 were not measured
    measured = board((8, 16, 128)).model_copy(update={"strategy": "guided"})
    for rule, size in (("best batch, then clock", 8), ("largest batch, own clock", 128)):
        assert pick(rule, measured, curve(), SensorLimit(CAP_W)).batch_size == size


def test_a_batch_size_above_one_that_did_not_fit_is_no_baseline_s():
    some = board((8, 16)).model_copy(update={"strategy": "guided"})
    unfit = ProfileCell(batch_size=64, clock_mhz=some.cells[0].clock_mhz, out_of_memory=True)
    table = PlanningTable(some.model_copy(update={"cells": (*some.cells, unfit)}), curve(), None)
    assert max(point.batch_size for point in curve().points) == 128
    assert batch_size_of("largest batch, own clock", table) == 32  # which was not tried


def test_a_fixed_clock_leaves_room_for_the_noise_of_hours():
    profile = board()
    fixed = worst_clock(profile, CAP_W)
    # The mean is far below the cap at the fixed clock, or so near that a few seconds' readings did not cross it.
    for below_w, is_kept in ((0.6, True), (0.1, False)):
        figures = {"power_mean_w": CAP_W - below_w, "power_std_w": 0.08, "step_s": 0.02, "steps": 100}
        figures["power_peak_w"] = CAP_W - below_w + 0.09
        powers = tuple(p.model_copy(update=figures if p.clock_mhz == fixed else {}) for p in profile.reference.powers)
        near = profile.model_copy(update={"reference": ReferenceSet(set_version=1, powers=powers)})
        choice = pick("largest batch, fixed clock", near, curve(), SensorLimit(CAP_W))
        assert (choice.clock_mhz == fixed) == is_kept


def test_the_largest_batch_that_fits_is_taken():
    profile = board()
    cells = tuple(
        ProfileCell(batch_size=128, clock_mhz=c.clock_mhz, out_of_memory=True) if c.batch_size == 128 else c
        for c in profile.cells
    )
    profile = profile.model_copy(update={"cells": cells})
    assert pick("largest batch, own clock", profile, curve(), SensorLimit(CAP_W)).batch_size == 64
    # A probe that was stopped at the cap did fit.
    probe = AbortedProbe(batch_size=128, clock_mhz=CLOCKS[0], cap_w=CAP_W, power_w=4.2)
    profile = profile.model_copy(update={"cells": profile.measured, "aborted": (probe,)})
    choice = pick("largest batch, own clock", profile, curve(), SensorLimit(CAP_W))
    assert (choice.batch_size, choice.feasible) == (128, False)
    assert choice.why_not == "above the cap: 4.2 W read when the probe was stopped"
    choice = pick("largest batch, own clock", profile, curve(), SensorLimit(5.0))
    assert not choice.feasible
    assert "profile again for this cap" in choice.why_not


def test_a_power_limit_takes_the_place_of_the_clock():
    profile = board()
    cells = tuple(c.model_copy(update={"clock_mhz": None, "power_limit_w": c.clock_mhz / 100}) for c in profile.cells)
    powers = tuple(
        p.model_copy(update={"clock_mhz": None, "power_limit_w": p.clock_mhz / 100}) for p in profile.reference.powers
    )
    limited = profile.model_copy(update={"cells": cells, "reference": ReferenceSet(set_version=1, powers=powers)})
    for rule in ("wattune", *BASELINES):
        by_clock = pick(rule, profile, curve(), SensorLimit(CAP_W))
        by_limit = pick(rule, limited, curve(), SensorLimit(CAP_W))
        assert by_limit.clock_mhz is None
        assert (by_limit.batch_size, by_limit.power_limit_w) == (by_clock.batch_size, by_clock.clock_mhz / 100)


def test_a_device_without_any_setting_is_chosen_for_by_batch_size_alone():
    profile = ProfileTable(
        device="d", workload="w", cells=tuple(cell(b, None, 0.1 + 0.01 * b, 2 + b / 64) for b in BATCHES)
    )
    found = plan(profile, curve(), cap=PowerCap(3.5))
    assert found.clock_mhz is None
    assert [b.rule for b in found.baselines] == ["best batch, then clock", "largest batch, own clock"]


def test_a_fixed_clock_goes_with_the_largest_micro_batch():
    cells = tuple(cell(8, f, 3.0 / f, f).model_copy(update={"micro_batch_size": m}) for m in (2, 4) for f in (1.0, 2.0))
    powers = tuple(ReferencePower(workload="a", batch_size=8, clock_mhz=f, power_peak_w=f) for f in (1.0, 2.0))
    profile = ProfileTable(device="d", workload="w", cells=cells, reference=ReferenceSet(set_version=1, powers=powers))
    choice = pick("largest batch, fixed clock", profile, curve({8: 1.0}), SensorLimit(1.5))
    assert (choice.micro_batch_size, choice.clock_mhz) == (4, 1.0)


def test_a_largest_batch_that_never_reached_the_target_has_no_prediction():
    relative = {4: 0.42, 8: 0.35, 16: 0.4, 32: 0.5, 64: 1.0, 128: None}
    efficiency = curve(relative)
    found = plan(board(), efficiency, cap=PowerCap(CAP_W))
    baseline = next(b for b in found.baselines if b.rule == "largest batch, own clock")
    assert baseline.feasible
    assert baseline.relative_time is None
    assert baseline.why_not == "no proxy run reached the target"
    assert baseline.clock_mhz == max(
        c.clock_mhz for c in board().cells if c.batch_size == 128 and c.power_peak_w <= CAP_W
    )
