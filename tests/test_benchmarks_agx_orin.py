"""The fit of the AGX Orin to recorded energies: it finds a shape that it can have, and the file is what it found."""

from __future__ import annotations

import json

import pytest
from benchmarks.agx_orin import BASE, BOARD, NAME, SWITCHING, counted, energies_j, fitted, shape, voltages_v
from benchmarks.paper.calibration import changed, value_of
from benchmarks.timing import RESULTS

from wattune.devices.simulator.board_file import builtin_board

FILE = builtin_board(BOARD)


@pytest.mark.slow
def test_the_fit_finds_the_shape_of_another_board_and_keeps_the_switching_power_at_the_top():
    work = counted(16)
    curve = voltages_v(FILE.gpu.clocks_mhz, 510.0)
    true = FILE.model_copy(update={"gpu": FILE.gpu.model_copy(update={"voltage_v": curve})})
    true = changed(true, {BASE: 9.0, "power.traffic_w_per_gbps": 0.0})
    rails = changed(true, {BASE: 3.0})
    joules = dict(zip(FILE.gpu.clocks_mhz, energies_j(rails, work).tolist(), strict=True))
    found = fitted(FILE, work, joules)
    assert shape(found, work, joules)["rms"] < 0.005
    assert value_of(found, BASE) == pytest.approx(9.0, rel=0.1)
    assert [value_of(found, place) for place in SWITCHING] == pytest.approx(
        [value_of(FILE, place) for place in SWITCHING], rel=0.05
    )


def test_the_file_has_what_was_fitted_and_the_recorded_shape():
    data = json.loads((RESULTS / f"{NAME}.json").read_text())
    refit = dict(data["refit"])
    assert tuple(refit.pop("voltage_v")) == FILE.gpu.voltage_v, "run `python -m benchmarks agx_orin`"
    assert refit == {place: round(value_of(FILE, place), 1) for place in refit}, "run `python -m benchmarks agx_orin`"
    for one in data["shapes"].values():
        assert one["steps_apart"] <= 1
        assert 1.2 <= one["highest_over_least"] <= 1.45
