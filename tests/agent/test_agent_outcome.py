"""What a guarded run says of itself: limits that were not kept, where the clock ended, and a guard that stood still."""

import pytest
from tests.agent.test_agent_guarded import guard_for, kinds
from tests.support.made_board import MadeBoard
from tests.support.virtual_time import VirtualTime

from wattune_agent import time_source
from wattune_agent.cap_guard import PATIENCE_S
from wattune_agent.errors import FileFailed, NoReading
from wattune_agent.guarded import run_guarded
from wattune_agent.outcome import GuardRequest, in_words
from wattune_agent.time_source import Pulse


def words(report, **asked):
    whole = dict(dict.fromkeys(("clock_mhz", "cap_w", "supply_cap_w", "max_temp_c")), **asked)
    board = dict(MadeBoard().describe(), name="a board")
    return in_words(report, GuardRequest(command=["true"], **whole), board, "measured")


def test_a_step_of_an_agents_own_guard_is_an_event_like_any_other():
    board = MadeBoard()
    board.noticed = [{"time_s": 0.0, "kind": "guard", "text": "9.00 W with a cap of 5 W: down to 300 MHz"}]
    report = guard_for(board, 1.5, clock_mhz=400.0, cap_w=5.0)
    assert kinds(report) == ["guard"]
    assert "400 MHz" in words(report, clock_mhz=400.0, cap_w=5.0)[0]


def test_a_cap_that_another_client_set_is_named_beside_the_time_above_it():
    board, time = MadeBoard(), VirtualTime()
    read = board.read
    board.read = lambda: {**read(), "set_cap_w": 2.5}
    board.noticed = [{"time_s": time.now_s() + 0.1, "kind": "cap set", "text": "the cap is 2.5 W now"}]
    report = guard_for(board, 1.5, time, clock_mhz=500.0, cap_w=9.0)
    assert report.above_cap_s > 0
    assert any("above 9 W, or the cap set in its place, for" in line for line in words(report, cap_w=9.0))


def test_a_change_that_waits_for_its_clock_is_no_gap_of_the_guard():
    """The program ends meanwhile, and the guard's thread is the only one that is busy."""
    board, time = MadeBoard(), VirtualTime()

    def pin(mhz):
        if board.pins == [500.0]:
            board.pins.append(mhz)
            time.sleep(2.0)
            raise FileFailed("the clock is still at 500 MHz after 2 s")
        MadeBoard.pin(board, mhz)

    board.pin = pin
    later = [(1.05, lambda: setattr(board, "watts", 9.0))]
    report = guard_for(board, 1.5, time, later=later, clock_mhz=500.0, cap_w=5.0)
    assert "stood still" not in kinds(report)


def test_heat_is_said_with_the_hottest():
    board = MadeBoard()
    board.temperature_c = 91.0
    report = guard_for(board, 0.45, clock_mhz=100.0, max_temp_c=80.0)
    assert (report.exit_code, kinds(report)) == (0, ["guard"])
    assert report.hottest_c == 91.0
    assert "hottest 91.0 C, with a limit of 80 C" in words(report, max_temp_c=80.0)


def test_what_is_read_when_the_program_is_over_is_not_its_energy():
    board, time = MadeBoard(), VirtualTime()
    read = board.read

    def slow():
        time.sleep(0.2)
        return read()

    board.read = slow
    report = guard_for(board, 0.05, time)
    assert report.power_mean_w == pytest.approx(report.power_peak_w)
    assert report.energy_j == pytest.approx(5.0 * 0.05)


def test_what_was_before_the_program_is_at_its_beginning():
    board, time = MadeBoard(), VirtualTime()
    board.noticed = [{"time_s": time.now_s() - 60.0, "kind": "left behind", "text": "the clock is as it was"}]
    report = guard_for(board, 0.05, time, cap_w=9.0)
    assert (kinds(report), report.events[0]["time_s"]) == (["left behind"], 0.0)


def test_a_board_without_a_clock_is_said_to_have_none_to_lower():
    report = run_guarded(MadeBoard(settings=()), ["true"], cap_w=9.0)
    assert kinds(report) == ["no clock"]


def test_one_that_stops_listening_costs_the_program_nothing():
    def gone(text):
        raise BrokenPipeError

    report = guard_for(MadeBoard(), 0.45, clock_mhz=500.0, cap_w=3.5, say=gone)
    assert (report.exit_code, report.ended) == (0, "finished")
    assert "guard" in kinds(report)


def test_without_a_clock_a_limit_claims_the_board_and_nothing_else_does():
    for limits, claimed in (({"cap_w": 9.0}, 1), ({"max_temp_c": 80.0}, 1), ({}, 0)):
        board = MadeBoard()
        run_guarded(board, ["true"], **limits)
        assert (board.claimed, board.pins) == (claimed, [])


# --------------------------------------------------------------------------------------------- a guard that stood still


def test_a_pulse_tells_a_silence_of_all_once():
    now_s = [0.0]
    beating = Pulse(lambda: now_s[0])
    for now_s[0] in (0.5, 1.0, 2.0):
        assert beating.beat() == 0.0
    assert beating.since_s == 0.0
    now_s[0] = 2.0 + 2 * time_source.STILL_S
    assert beating.beat() == pytest.approx(2 * time_source.STILL_S)
    assert beating.beat() == 0.0
    assert beating.since_s == now_s[0]


@pytest.mark.parametrize(
    ("watts", "fails_first", "events"),
    [
        (3.0, False, ["stood still"]),
        (3.0, True, ["stood still"]),
        # Above the cap for less than the patience, unless the silence counts as well.
        (9.0, False, ["guard", "guard", "stood still"]),
    ],
)
def test_a_guard_that_stood_still_itself_begins_to_count_anew(watts, fails_first, events):
    board, time, still_s = MadeBoard([100.0]), VirtualTime(), 8.0
    board.read = lambda read=board.read: dict(read(), power_w=watts + time.now_s() % 0.5)  # or it looks stuck

    def stand_still():
        time.jump(still_s)
        if fails_first:
            board.fails["read"] = NoReading("i2c woke late")
            time.later(0.15, board.fails.clear)

    lasts_s = PATIENCE_S + still_s - 2.5  # a silence counts as two seconds
    report = guard_for(board, lasts_s, time, later=[(4.05, stand_still)], cap_w=5.0)
    assert (report.exit_code, report.ended, kinds(report)) == (0, "finished", events)
    still = next(event for event in report.events if event["kind"] == "stood still")
    assert "did not run for 8." in still["text"]
