"""Five cells, measured again: does a table of another mode still hold?"""

from __future__ import annotations

import pytest
from tests.support.profiles import board, workload

from wattune.devices import ReplayDevice
from wattune.errors import InputError, RecordError
from wattune.profiling import check, profile, profile_key
from wattune.profiling.recheck import five
from wattune.records import ProfileTable, Supply


@pytest.fixture(scope="module")
def table() -> ProfileTable:
    """Of the board in another mode, with other software."""
    found = profile(board(), workload(), reference=False)
    return found.model_copy(update={"key": found.key.model_copy(update={"mode": "5W", "software": "torch 1.0"})})


def test_a_table_that_holds_gets_the_new_key_and_five_fresh_cells(table):
    device = board()
    device.supply = Supply(other_w=1.0, efficiency=0.9)
    before, heard = device.current(), []
    found, deviations = check(device, workload(), table, progress=lambda *now: heard.append(now))
    assert device.current() == before
    assert found.key == profile_key(device, workload(), "backprop")
    assert found.supply == device.supply
    assert [c.point for c in found.cells] == [c.point for c in table.cells]
    fresh = {c.point for c in five(table.measured)}
    assert {(p.batch_size, p.knobs["clock_mhz"]) for p in fresh} == {
        (8, 76.8),
        (8, 921.6),
        (32, 537.6),
        (128, 76.8),
        (128, 921.6),
    }
    others = [(new, old) for new, old in zip(found.cells, table.cells, strict=True) if old.point not in fresh]
    assert all(new == old for new, old in others)
    assert len(deviations.cells) == 5
    assert deviations.largest < 0.02
    assert "batch size 8 at 76.8 MHz: time +0.0%, power " in str(deviations)
    assert "5 cells of this table were measured again after a change of mode (" in found.notes[-1]
    assert found.provenance.kind == "simulated"
    assert heard[-1] == (5, 5, "done")
    assert ProfileTable.parse(found.dump()) == found


def slower(cell, factor):
    return cell.model_copy(update={"step_s": cell.step_s * factor})


def test_a_table_that_does_not_hold_is_refused_with_what_was_found(table):
    changed = table.model_copy(update={"cells": tuple(slower(cell, 1.1) for cell in table.cells)})
    with pytest.raises(RecordError, match=r"does not hold any more.*batch size 8 at 76.8 MHz: time -9.1%, power [+-]0"):
        check(board(), workload(), changed)
    nearly = table.model_copy(update={"cells": tuple(slower(cell, 1.04) for cell in table.cells)})
    _, deviations = check(board(), workload(), nearly)
    assert deviations.largest == pytest.approx(1 - 1 / 1.04, abs=1e-3)


def test_what_breaks_the_cap_that_it_kept_does_not_hold(table):
    cost = table.cost.model_copy(update={"cap_w": 4.5})
    with pytest.raises(RecordError, match=r"stopped at .* above 4.5 W"):
        check(board(), workload(), table.model_copy(update={"cost": cost}))


def test_a_table_of_something_else_is_refused_before_anything_runs(table):
    device = board()
    with pytest.raises(RecordError, match="data_type"):
        check(device, workload(data_type="fp16"), table)
    with pytest.raises(RecordError, match="no key"):
        check(device, workload(), table.model_copy(update={"key": None}))
    with pytest.raises(RecordError, match="no measured cell"):
        check(device, workload(), table.model_copy(update={"cells": ()}))
    with pytest.raises(InputError, match="recorded"):
        check(ReplayDevice(table), workload(), table)
    assert device.now_s() == 0


@pytest.mark.parametrize(("kind", "on"), [("simulated", "measured"), ("measured", "simulated")])
def test_a_table_that_was_simulated_does_not_become_a_measured_one(table, kind, on):
    device = board()
    device.kind = on
    copy = table.model_copy(update={"provenance": table.provenance.model_copy(update={"kind": kind})})
    with pytest.raises(RecordError, match=f"kind \\({on}, not {kind}\\)"):
        check(device, workload(), copy)
    assert device.now_s() == 0


def test_a_small_table_has_fewer_cells_to_check(table):
    assert len(five(table.cells[:1])) == 1
    assert [c.clock_mhz for c in five(table.cells[:12])] == [76.8, 921.6, 537.6]
    assert five(()) == []
