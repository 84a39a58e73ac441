"""The fit of the simulated TX2 to recorded cells: on cells whose board is known, and what its results say."""

import json

import pytest
from benchmarks.paper.calibration import changed, value_of
from benchmarks.tables import boards as tables
from benchmarks.timing import RESULTS
from benchmarks.tx2_calibration import FITTED, MEMORY_MHZ, derived, fit_powers, work_of
from benchmarks.tx2_recordings import LSTM, Cell, FittedBoard

from wattune.devices import builtin_board
from wattune.devices.base import combinations
from wattune.point import Knobs

BOARD = builtin_board("jetson-tx2")
TX2_NX = builtin_board("jetson-tx2-nx")


@pytest.mark.slow
def test_the_power_of_a_known_board_is_found_again():
    model = FittedBoard(BOARD, {LSTM: work_of(LSTM, (1e11, 6e9, 6000.0))})
    settings = combinations(BOARD.chip("gpu").knobs)[::37]
    cells = [Cell(LSTM, knobs, 1.0, model.step(Cell(LSTM, knobs, 1.0, None, True))[1], True) for knobs in settings]
    found = fit_powers(model, cells)
    assert max(map(abs, found.power_errors(cells))) < 0.01
    assert found.board.gpu.voltage_v == pytest.approx(BOARD.gpu.voltage_v, rel=0.01)
    assert [found.step(cell)[0] for cell in cells] == [model.step(cell)[0] for cell in cells]


def test_the_results_meet_what_was_asked_of_them_and_belong_to_this_board():
    data = json.loads((RESULTS / "tx2_calibration.json").read_text())
    load = data["shipped"]["full_load"]
    assert load["within"] == load["clocks"] == 13
    assert load["ratio_within"]
    constants = data["shipped"]["constants"]
    assert constants["gpu.voltage_v"] == list(BOARD.gpu.voltage_v)
    assert constants["power.base_w"] == BOARD.power.base_w
    assert f"{load['ratio']:.2f}-fold" in tables.tx2_calibration()


def test_the_tx2_nx_is_the_tx2_at_its_own_clocks_but_for_what_is_fitted_to_its_times():
    alike = changed(derived(BOARD, TX2_NX), {place: value_of(TX2_NX, place) for place in FITTED})
    added = alike.model_copy(update={"host": alike.host.model_copy(update={"hidden": 0.0})})
    for section in ("gpu", "memory", "host", "power"):
        one, other = (getattr(board, section).model_dump() for board in (TX2_NX, added))
        for key, value in one.items():
            exact = value is None or isinstance(value, str | dict)
            assert value == (other[key] if exact else pytest.approx(other[key], rel=0.005)), f"{section}.{key}"


def test_the_tx2_nx_draws_what_the_tx2_does_with_the_same_clocks_and_nothing_fitted():
    alike = derived(BOARD, TX2_NX)
    names = {"memory_clock_mhz": MEMORY_MHZ, "cpu_clock_mhz": (BOARD.host.clocks_mhz or ())[-1]}
    work = work_of(LSTM, (1e11, 6e9, 6000.0))
    for clock_mhz in BOARD.gpu.clocks_mhz:
        there = Cell(LSTM, Knobs(clock_mhz=clock_mhz, **names), 1.0, None, True)
        here = Cell(LSTM, Knobs(clock_mhz=clock_mhz), 1.0, None, True)
        there_s, there_w = FittedBoard(BOARD, {LSTM: work}).step(there)
        here_s, here_w = FittedBoard(alike, {LSTM: work}).step(here)
        assert here_s == pytest.approx(there_s)
        # The power of a CPU with one clock does not rise while it issues operations.
        assert 0 <= there_w - here_w < 0.3


def test_the_results_of_the_tx2_nx_are_those_of_its_file():
    data = json.loads((RESULTS / "tx2_calibration.json").read_text())["tx2_nx"]
    for place, one in data["constants"].items():
        assert one["file"] == value_of(TX2_NX, place), "run `python -m benchmarks tx2_calibration`"
        assert one["fit"] == pytest.approx(one["file"], rel=0.03)
    assert max(abs(one["largest"]) for one in data["as shipped"]["times"].values()) < 0.05
