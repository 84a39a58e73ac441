from __future__ import annotations

import json

import pytest
from tests.support.calls import calls_of
from tests.support.planning_tables import BATCHES, CLOCKS, KEY, board, cell, curve

from wattune.cap import PowerCap
from wattune.errors import RecordError
from wattune.planning import check_profile, plan
from wattune.planning.problem import OTHER_CAP
from wattune.records import AbortedProbe, Plan, ProfileCell, ProfileCost, ProfileTable, Supply, provenance


def test_predictions_follow_from_table_and_curve():
    profile, efficiency = board(), curve()
    found = plan(profile, efficiency, cap=PowerCap(4.0))
    chosen = next(c for c in profile.cells if c.point == found.point)
    relative_time = chosen.step_s / chosen.batch_size * efficiency.at(chosen.batch_size).relative_samples
    assert found.relative_time == relative_time
    assert found.predicted_s == pytest.approx(relative_time * 1000)
    assert found.predicted_j == pytest.approx(relative_time * 1000 * chosen.power_mean_w)
    assert found.predicted_peak_w == chosen.power_peak_w <= 4.0
    unknown = plan(profile, curve(samples=None), cap=PowerCap(4.0))
    assert unknown.point == found.point
    assert unknown.predicted_s is None
    assert unknown.predicted_j is None
    assert unknown.relative_time == relative_time


def test_every_candidate_says_why_it_lost():
    profile = board()
    cells = [c for c in profile.cells if c.batch_size not in (64, 128)]
    cells.append(ProfileCell(batch_size=128, out_of_memory=True))
    probe = AbortedProbe(batch_size=64, clock_mhz=CLOCKS[3], cap_w=4.0, power_w=4.9)
    profile = profile.model_copy(update={"cells": tuple(cells), "aborted": (probe,)})
    efficiency = curve({4: None, 8: 0.35, 16: 0.4, 32: 0.5, 64: 1.0})  # 128 does not fit and needs no point
    found = plan(profile, efficiency, cap=PowerCap(4.0))
    why = {(c.batch_size, c.clock_mhz): (c.feasible, c.why_not) for c in found.candidates}
    assert why[128, None] == (False, "does not fit in memory")
    assert why[64, CLOCKS[3]] == (False, "above the cap: 4.9 W read when the probe was stopped")
    assert why[4, CLOCKS[0]] == (True, "no proxy run reached the target")
    assert why[found.batch_size, found.clock_mhz] == (True, None)
    peak_w = next(c.power_peak_w for c in cells if (c.batch_size, c.clock_mhz) == (8, CLOCKS[-1]))
    assert why[8, CLOCKS[-1]] == (False, f"{peak_w:.4g} W exceeds the cap of 4 W")
    slow = next(c for c in found.candidates if (c.batch_size, c.clock_mhz) == (8, CLOCKS[0]))
    assert slow.why_not == f"{slow.relative_time / found.relative_time:.2f} x slower"
    assert [(c.batch_size, c.clock_mhz or 0) for c in found.candidates] == sorted(
        (c.batch_size, c.clock_mhz or 0) for c in found.candidates
    )


def test_ties_and_near_ties_differ_in_words():
    cells = (
        cell(8, 1, 1.0, 3.0, 2.0),
        cell(8, 2, 1.0, 3.0, 2.5),
        cell(8, 3, 1.001, 3.0),
        cell(8, 4, 1.0, 3.2, 2.0),
        cell(8, 5, 1.0, 3.0, 2.0),
        cell(8, 6, 0.5, 4.0000001),
    )
    profile = ProfileTable(device="d", workload="w", cells=cells)
    reasons = [c.why_not for c in plan(profile, curve({8: 1.0}), cap=PowerCap(4.0, window="peak")).candidates]
    assert reasons == [
        None,
        "as fast, but takes more energy",
        "less than 1 % slower",
        "as fast, but draws more power",
        "as fast; a tie goes to the larger batch, then to the lower setting",
        "4.0000001 W exceeds the cap of 4 W",
    ]


def test_the_plan_says_where_it_comes_from():
    cost = ProfileCost(time_s=60.0, energy_j=240.0, above_cap_s=0.0, probes=72)
    profile = board().model_copy(update={"key": KEY, "cost": cost, "sensor_window_s": 0.14})
    found = plan(profile, curve(), cap=PowerCap(4.0, margin_w=0.05))
    assert (found.key, found.profile_cost, found.sensor_window_s) == (KEY, cost, 0.14)
    assert (found.device, found.workload, found.target) == ("a board", "target", 0.9)
    assert (found.cap_w, found.margin_w, found.provenance.kind) == (4.0, 0.05, "simulated")
    assert Plan.parse(json.loads(json.dumps(found.dump()))) == found


def test_records_of_other_algorithms_or_batch_sizes_are_refused():
    other = curve().model_copy(update={"algorithm": "async-fgd"})
    with pytest.raises(RecordError, match="async-fgd"):
        plan(board(), other, cap=PowerCap(4.0))
    with pytest.raises(RecordError, match="no batch size: 4;"):
        plan(board(), curve({b: 1.0 for b in BATCHES if b != 4}), cap=PowerCap(4.0))


def test_a_table_with_nothing_to_choose_from_is_refused():
    empty = ProfileTable(device="d", workload="w", cells=(ProfileCell(batch_size=8, out_of_memory=True),))
    with pytest.raises(RecordError, match="no measured cell"):
        plan(empty, curve({8: 1.0}), cap=PowerCap(4.0))
    stopped = AbortedProbe(batch_size=8, clock_mhz=1, cap_w=4.0, power_w=4.9)
    with pytest.raises(RecordError, match="profile again for this cap"):
        plan(empty.model_copy(update={"aborted": (stopped,)}), curve({8: 1.0}), cap=PowerCap(5.0))
    with pytest.raises(RecordError, match="larger budget"):
        plan(board(), curve(dict.fromkeys(BATCHES)), cap=PowerCap(4.0))


@pytest.mark.parametrize(("step_s", "relative"), [(1e-200, 1e-200), (1e200, 1e200)])
def test_figures_beyond_all_devices_are_refused(step_s, relative):
    profile = ProfileTable(device="d", workload="w", cells=(cell(4, 1, step_s, 2.0), cell(8, 1, 1.0, 2.0)))
    with pytest.raises(RecordError, match="beyond any real device"):
        plan(profile, curve({4: relative, 8: 1.0}), cap=PowerCap(None))


def test_nothing_is_gained_where_neither_clock_nor_batch_size_makes_a_difference():
    flat = plan(board(), curve(dict.fromkeys(BATCHES, 1.0)), cap=PowerCap(None))
    assert {b.rule: b.speed_up for b in flat.baselines}["largest batch, fixed clock"] == 1.0


def test_a_profile_along_another_cap_is_noted():
    full = board()
    along = full.model_copy(
        update={"strategy": "staircase", "cost": ProfileCost(time_s=1, energy_j=1, above_cap_s=0, probes=5, cap_w=4.0)}
    )
    notes = {cap_w: plan(along, curve(), cap=PowerCap(cap_w)).notes for cap_w in (4.0, 5.0, None)}
    assert OTHER_CAP not in notes[4.0]
    assert OTHER_CAP in notes[5.0]
    assert OTHER_CAP in notes[None]
    assert OTHER_CAP not in plan(full, curve(), cap=PowerCap(5.0)).notes


def test_a_foreign_table_is_refused_with_every_difference():
    profile = board().model_copy(update={"key": KEY})
    check_profile(profile, KEY)
    other = KEY.model_copy(update={"data_type": "fp16", "model": "xyz"})
    with pytest.raises(RecordError) as caught:
        check_profile(profile, other)
    assert "model (xyz, not abc)" in str(caught.value)
    assert "data_type (fp16, not fp32)" in str(caught.value)
    keyless = board()
    check_profile(keyless, KEY)
    with pytest.raises(RecordError, match="device"):
        check_profile(keyless, KEY.model_copy(update={"device": "another board"}))


def test_a_simulated_profile_is_not_one_of_a_real_board():
    simulated, measured, unknown = (
        board().model_copy(update={"key": KEY, "provenance": provenance(kind)})
        for kind in ("simulated", "measured", None)
    )
    for profile, kind in ((simulated, "measured"), (measured, "simulated")):
        with pytest.raises(RecordError, match=f"kind \\({kind}, not "):
            check_profile(profile, KEY, kind=kind)
    for profile, kind in ((measured, "measured"), (measured, "replayed"), (measured, None), (unknown, "measured")):
        check_profile(profile, KEY, kind=kind)


def test_a_cap_at_the_supply_is_one_of_the_module():
    profile = board().model_copy(update={"supply": Supply(other_w=0.6, efficiency=0.9), "sensor_rail": "VDD_IN"})
    at_module, at_supply = (
        plan(profile, curve(), cap=PowerCap(4.2)),
        plan(profile, curve(), cap=PowerCap(5.3333333333, side="supply")),
    )
    assert at_supply.cap_w == pytest.approx(4.2)
    assert at_supply.point == at_module.point
    assert (at_supply.cap_side, at_supply.supply_cap_w) == ("supply", 5.3333333333)
    assert (at_module.cap_side, at_module.supply_cap_w) == ("module", None)
    assert at_supply.supply == at_module.supply == profile.supply
    assert at_supply.sensor_rail == "VDD_IN"
    assert plan(profile, curve(), cap=PowerCap(None, side="supply")).cap_w is None


def test_a_pick_that_was_measured_under_strain_is_reported():
    profile = board()
    chosen = plan(profile, curve(), cap=PowerCap(None)).point
    strain = {"throttled": ("gpu-balanced",), "swapped_bytes": 3 * 2**20}
    cells = tuple(c.model_copy(update=strain) if c.point == chosen else c for c in profile.cells)
    notes = plan(
        profile.model_copy(update={"cells": cells, "notes": ("of the table",)}), curve(), cap=PowerCap(None)
    ).notes
    assert notes == (
        "the board was throttled while this point was measured (gpu-balanced)",
        "the board swapped 3 MiB while this point was measured",
        "of the table",
    )


def test_a_pick_at_its_cards_power_limit_is_reported():
    profile = board()
    cells = tuple(c.model_copy(update={"notices": ("power limit",)}) for c in profile.cells)
    notes = plan(profile.model_copy(update={"cells": cells}), curve(), cap=PowerCap(None)).notes
    assert notes == ("its clock was held below the setting while it was measured (power limit)",)


def test_planning_a_full_grid_takes_few_calls():
    """The aim of 1 ms is measured by the benchmarks; this many calls keep it."""
    profile = board()
    assert len(profile.cells) == 72
    assert calls_of(lambda: plan(profile, curve(), cap=PowerCap(4.0))) < 16_000
