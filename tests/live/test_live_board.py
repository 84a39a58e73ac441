"""The live board itself: its kernel's manners, its lateness, its power, its heat."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.support.live.board import LiveBoard
from tests.support.live.power import MODELS

FAMILIES = sorted(MODELS)


def pin(board: LiveBoard, mhz: float) -> None:
    """In the order that every kernel takes."""
    for clock in board.clocks:
        value = str(round(mhz * board.model.per_mhz))
        order = (clock.high_path, clock.low_path) if int(value) > clock.high else (clock.low_path, clock.high_path)
        for path in order:
            board.write(path, value)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_holds_what_its_record_holds(family: str) -> None:
    board = LiveBoard(family)
    for path in board.writable():
        assert board.text(path) == board.record["files"][path].strip()
    for path in board.paths():
        assert int(board.text(path)) >= 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_clock_follows_late(family: str) -> None:
    board = LiveBoard(family, settle_s=0.2)
    board.load = 1.0
    top_mhz = board.clocks[0].high / board.model.per_mhz
    before_mhz = board.clock_mhz
    board.advance(0.19)
    assert board.clock_mhz == before_mhz < top_mhz
    board.advance(0.21)
    assert board.clock_mhz == top_mhz


@pytest.mark.parametrize("family", FAMILIES)
def test_pinned_it_stays_there_under_any_load(family: str) -> None:
    board = LiveBoard(family)
    middle_mhz = board.clocks[0].listed[3] / board.model.per_mhz
    pin(board, middle_mhz)
    for second, load in enumerate((0.0, 1.0, 0.5)):
        board.load = load
        board.advance(second + 1.0)
        # A Nano's GPU has no power while it has nothing to do, and does not follow yet.
        assert board.clock_mhz == (middle_mhz if load or family != "nano" or second else 76.8)


def test_the_older_kernel_refuses_a_minimum_above_the_maximum() -> None:
    board = LiveBoard("nano")
    clock = board.clocks[0]
    pin(board, 153.6)
    with pytest.raises(OSError, match="Invalid argument") as raised:
        board.write(clock.low_path, "307200000")
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="Invalid argument"):
        board.write(clock.high_path, "76800000")
    assert (board.text(clock.low_path), board.text(clock.high_path)) == ("153600000", "153600000")


def test_the_newer_kernel_lets_the_maximum_win_and_remembers() -> None:
    board = LiveBoard("orin-nano")
    clock = board.clocks[0]
    pin(board, 408.0)
    board.write(clock.low_path, "816000000")
    assert (board.text(clock.low_path), board.text(clock.high_path)) == ("408000000", "408000000")
    board.write(clock.high_path, "1020000000")
    assert board.text(clock.low_path) == "816000000"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["fast", "", "-5", "1.5"])
def test_nonsense_is_refused(family: str, text: str) -> None:
    board = LiveBoard(family)
    for path in board.writable():
        before = board.text(path)
        with pytest.raises(OSError, match="Invalid argument"):
            board.write(path, text)
        assert board.text(path) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_what_only_tells_takes_nothing(family: str) -> None:
    board = LiveBoard(family)
    with pytest.raises(OSError, match="Permission denied"):
        board.write(board.clocks[0].now_path, "100")


def test_a_value_between_two_steps_becomes_the_higher_one() -> None:
    board = LiveBoard("nano")
    board.load = 1.0
    board.write(board.clocks[0].high_path, "640000000")
    board.advance(1.0)
    assert board.clock_mhz == 691.2


@pytest.mark.parametrize(("family", "shown"), [("orin-nano", True), ("nano", False), ("cpu-laptop", True)])
def test_a_clamp_lowers_the_clock_and_the_newer_kernels_show_it(family: str, shown: bool) -> None:
    board = LiveBoard(family)
    board.load = 1.0
    board.advance(1.0)
    limit_mhz = board.clocks[0].listed[2] / board.model.per_mhz
    board.clamp(limit_mhz)
    board.advance(2.0)
    assert board.clock_mhz == limit_mhz
    assert (board.text(board.clocks[0].high_path) == str(board.clocks[0].listed[2])) is shown
    states = [board.text(p) for p in board.paths() if p.endswith("/cur_state")]
    assert states
    assert all(int(state) > 0 for state in states)
    board.clamp(None)
    board.advance(3.0)
    assert board.clock_mhz == board.clocks[0].high / board.model.per_mhz


def test_a_gpu_without_power_takes_limits_but_does_not_follow() -> None:
    board = LiveBoard("nano")
    switch = next(path for path in board.writable() if path.endswith("railgate_enable"))
    assert board.text(switch) == "1"
    pin(board, 460.8)
    board.advance(5.0)
    assert board.clock_mhz == 76.8
    assert board.rails_w()["POM_5V_GPU"] == 0.0
    board.write(switch, "0")
    board.advance(6.0)
    assert board.clock_mhz == 460.8
    assert board.rails_w()["POM_5V_GPU"] > 0.0


def test_without_turbo_the_base_is_the_top() -> None:
    board = LiveBoard("cpu-laptop")
    board.load = 1.0
    board.advance(1.0)
    assert board.clock_mhz == 3400.0
    board.write("/sys/devices/system/cpu/intel_pstate/no_turbo", "1")
    board.advance(2.0)
    assert board.clock_mhz == 1600.0


# -------------------------------------------------------------------------------------------------------------- sensors


def channel(board: LiveBoard, rail: str, unit: str) -> Callable[[], int]:
    """A reading of one channel, by its rail's name."""
    path = next(path for path, entry in board._rails.items() if entry == (rail, unit))
    return lambda: int(board.text(path))


def test_a_reading_is_a_mean_held_for_a_period() -> None:
    board = LiveBoard("nano", settle_s=0.0)
    read_mw = channel(board, "POM_5V_IN", "mW")
    board.write(next(p for p in board.writable() if p.endswith("railgate_enable")), "0")
    board.advance(0.422 * 20 + 0.01)
    idle_mw, idle_w = read_mw(), board.power_w()
    board.load = 1.0
    busy_w = board.power_w()
    assert read_mw() == idle_mw == pytest.approx(1e3 * idle_w, abs=25)
    board.advance(0.422 * 20 + 0.21)
    assert read_mw() == idle_mw
    board.advance(0.422 * 21 + 0.001)
    # The window was idle for its first hundredth of a second only.
    assert read_mw() == pytest.approx(1e3 * (idle_w + (busy_w - idle_w) * 0.412 / 0.422), abs=25)
    board.advance(0.422 * 22 + 0.001)
    assert read_mw() == pytest.approx(1e3 * busy_w, abs=25)


@pytest.mark.parametrize(("family", "rail"), [("nano", "POM_5V_IN"), ("orin-nano", "VDD_IN")])
def test_readings_move_in_the_steps_of_the_chip(family: str, rail: str) -> None:
    board = LiveBoard(family)
    volts, amps = channel(board, rail, "mV"), channel(board, rail, "mA")
    for second in range(1, 40):
        board.load = second / 40
        board.advance(float(second))
        assert volts() % 8 == 0
        assert amps() % 8 == 0
        assert volts() * amps() / 1e6 == pytest.approx(board.power_w(), abs=0.045)


@pytest.mark.parametrize("family", FAMILIES)
def test_power_grows_with_clock_and_load(family: str) -> None:
    board = LiveBoard(family, settle_s=0.0)
    before_w = 0.0
    for step in board.clocks[0].listed[::2]:
        pin(board, step / board.model.per_mhz)
        board.load = 1.0
        assert board.power_w() > before_w
        before_w = board.power_w()
        board.load = 0.2
        assert board.power_w() < before_w
    parts = [w for rail, w in board.rails_w().items() if rail != board.model.whole and rail not in ("core", "uncore")]
    assert board.power_w() >= sum(parts)


def test_energy_counters_count_and_begin_anew() -> None:
    board = LiveBoard("cpu-laptop")
    psys = next(path for path, entry in board._counters.items() if entry[0] == "psys")
    first = int(board.text(psys))
    board.load = 1.0
    board.advance(10.0)
    highest = int(board.record["files"][psys.replace("energy_uj", "max_energy_range_uj")])
    last = int(board.text(psys))
    assert last < first <= highest
    assert (last - first) % (highest + 1) == pytest.approx(1e6 * board.energy_j(), abs=1e5)


# ----------------------------------------------------------------------------------------------------------------- heat


@pytest.mark.parametrize("family", FAMILIES)
def test_it_warms_up_and_cools_down(family: str) -> None:
    board = LiveBoard(family)
    begin_c = board.temperature_c
    board.load = 1.0
    board.advance(20 * board.model.heat_s)
    assert begin_c + 5.0 < board.temperature_c < board.model.trip_c
    assert board.temperature_c == pytest.approx(25.0 + board.model.heat_c_per_w * board.power_w(), abs=0.1)
    assert all(clock.clamp is None for clock in board.clocks)
    board.load = 0.0
    board.advance(60 * board.model.heat_s)
    assert board.temperature_c == pytest.approx(25.0 + board.model.heat_c_per_w * board.power_w(), abs=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_too_hot_it_throttles_and_recovers(family: str) -> None:
    board = LiveBoard(family)
    board.load = 1.0
    board.advance(1.0)
    top_mhz = board.clock_mhz
    board.ambient_c = board.model.trip_c - 0.6 * board.model.heat_c_per_w * board.power_w()
    board.advance(10 * board.model.heat_s)
    assert board.clock_mhz < top_mhz
    assert board.temperature_c < board.model.trip_c + 2.0
    board.ambient_c = 20.0
    board.advance(20 * board.model.heat_s)
    assert board.clock_mhz == top_mhz


def test_an_hour_leaves_nothing_behind() -> None:
    board = LiveBoard("orin-nano")
    for step in range(3600):
        board.load = (step % 7) / 7
        board.advance(float(step))
    assert len(board._history._pieces) < 20
