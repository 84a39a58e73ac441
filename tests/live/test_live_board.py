"""The manners of kernels that the live board has."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from tests.support.live.board import LiveBoard


def pin(board: LiveBoard, mhz: float) -> None:
    """In the order that every kernel takes."""
    for clock in board.clocks:
        value = str(round(mhz * board.model.per_mhz))
        order = (clock.high_path, clock.low_path) if int(value) > clock.high else (clock.low_path, clock.high_path)
        for path in order:
            board.write(path, value)


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
