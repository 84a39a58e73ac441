"""Who holds the board, at which clock, and until when: on time of the test's own."""

import pytest
from tests.support.made_board import CLOCKS, MadeBoard

from wattune_agent.errors import (
    BadRequest,
    Busy,
    FileFailed,
    Forbidden,
    NoReading,
    NotKept,
    NotRestored,
    NotTaken,
    NotThere,
)
from wattune_agent.lease import BLIND_S, LEASE_S, RETRY_S, UNREAD_S, BoardLease, Party


class Room:
    def __init__(self, board=None, **options):
        self.board = board or MadeBoard(window_s=0.1, lag_s=0.1)
        self.keeper = BoardLease(self.board, now_s=lambda: self.board.now_s, **options)
        self.trainer, self.other = Party("trainer"), Party("other")

    def pass_s(self, seconds, *heard):
        for _ in range(round(seconds * 10)):
            self.board.now_s = round(self.board.now_s + 0.1, 6)
            for party in heard:
                self.keeper.renew(party)
            self.keeper.tick()
            self.keeper.sample()

    def kinds(self, party=None):
        return [event["kind"] for event in (party or self.trainer).events]


@pytest.fixture
def room():
    return Room()


def guarded(room, mhz, cap_w, max_temp_c=None, window_s=None):
    room.keeper.pin(room.trainer, mhz)
    room.keeper.guard(room.trainer, cap_w, max_temp_c, window_s)


@pytest.mark.parametrize("mhz", [0.0, 99.0, 250.0, 600.0])
def test_only_listed_clocks(room, mhz):
    with pytest.raises(BadRequest, match="100, 200"):
        room.keeper.pin(room.trainer, mhz)
    room.keeper.pin(room.other, 100.0)


def test_one_holder_and_any_number_of_readers(room):
    room.keeper.pin(room.trainer, 300.0)
    for ask in (
        lambda: room.keeper.pin(room.other, 500.0),
        lambda: room.keeper.guard(room.other, 9.0, None),
        lambda: room.keeper.restore(room.other),
    ):
        with pytest.raises(Busy, match="trainer holds the board"):
            ask()
    room.keeper.renew(room.other)
    room.keeper.leave(room.other)
    assert room.board.mhz == 300.0
    room.keeper.leave(room.trainer)
    assert room.board.mhz is None
    assert room.keeper.pin(room.other, 500.0) == {"mhz": 500.0}


def test_a_silent_client_without_a_cap_loses_the_board_and_has_it_again_when_it_speaks(room):
    room.keeper.pin(room.trainer, 300.0)
    room.pass_s(LEASE_S, room.trainer)
    assert room.board.mhz == 300.0
    room.pass_s(LEASE_S + 0.2)
    assert room.board.mhz is room.keeper.mhz is None
    room.keeper.renew(room.trainer)
    assert room.board.mhz == 300.0
    assert room.kinds() == ["lease lapsed", "lease renewed"]


def test_a_silent_client_without_a_cap_can_be_followed_by_another(room):
    room.keeper.pin(room.trainer, 300.0)
    room.pass_s(LEASE_S + 0.2)
    room.keeper.pin(room.other, 500.0)
    room.keeper.renew(room.trainer)
    assert room.board.mhz == 500.0
    assert room.kinds() == ["lease lapsed", "taken over"]
    with pytest.raises(Busy, match="other holds"):
        room.keeper.pin(room.trainer, 300.0)


def test_a_silent_client_with_a_cap_is_held_at_the_lowest_clock_until_it_reads(room):
    guarded(room, 300.0, 9.0)
    room.pass_s(5 * LEASE_S)
    assert room.board.mhz == 100.0
    with pytest.raises(Busy):
        room.keeper.pin(room.other, 500.0)
    room.keeper.renew(room.trainer)
    room.keeper.read(room.other)
    assert room.board.mhz == 100.0
    room.keeper.read(room.trainer)
    assert room.board.mhz == 300.0
    room.pass_s(LEASE_S + 0.2)
    assert room.board.mhz == 100.0
    room.keeper.leave(room.trainer)
    assert room.board.mhz is None
    assert room.kinds() == ["lease lapsed", "reading again", "lease lapsed"]


def test_a_connection_without_its_process_is_no_client(room):
    guarded(room, 300.0, 9.0)
    room.trainer.is_gone = lambda: True
    room.keeper.tick()
    assert room.board.mhz is None


# ---------------------------------------------------------------------------------------------------------- the guard


@pytest.mark.parametrize("error", [Forbidden("max_freq may not be written"), Busy("process 7")])
def test_a_board_that_cannot_be_changed_cannot_be_guarded(error):
    room = Room()
    room.board.fails["claim"] = error
    with pytest.raises(type(error)):
        room.keeper.guard(room.trainer, 5.0, None)
    del room.board.fails["claim"]
    room.keeper.guard(room.other, 5.0, None)
    with pytest.raises(Busy, match="other holds"):
        room.keeper.guard(room.trainer, 5.0, None)


@pytest.mark.parametrize("window_s", [None, 1.0])
def test_a_client_that_does_not_read_above_its_cap_is_held_at_the_lowest_clock_until_it_reads(room, window_s):
    guarded(room, 500.0, 2.5, None, window_s)
    room.pass_s(2 * UNREAD_S - 0.2, room.trainer)
    assert room.board.mhz == 500.0
    room.pass_s(0.5, room.trainer)
    assert room.board.mhz == 100.0
    assert room.keeper.pin(room.trainer, 400.0) == {"mhz": 100.0}
    with pytest.raises(BadRequest):
        room.keeper.pin(room.trainer, 450.0)
    room.pass_s(60.0, room.trainer)
    assert room.board.mhz == 100.0
    room.keeper.read(room.trainer)
    assert room.board.mhz == 400.0
    assert room.kinds() == ["guard", "reading again"]
    assert "2.5 W" in room.trainer.events[0]["text"]


def test_a_client_that_reads_keeps_its_limits_itself(room):
    guarded(room, 500.0, 2.5, 40.0)
    for _ in range(100):
        room.pass_s(UNREAD_S - 0.1, room.trainer)
        room.keeper.read(room.trainer)
    assert room.board.mhz == 500.0
    assert room.kinds() == []


def test_a_client_that_does_not_read_below_its_cap_is_left_alone(room):
    room.keeper.guard(room.trainer, 4.5, None)
    room.board.free_mhz = 400.0
    room.pass_s(20.0, room.trainer)
    assert room.board.mhz is None
    room.board.free_mhz = 500.0
    room.pass_s(1.0, room.trainer)
    assert room.board.mhz == 100.0
    room.keeper.read(room.trainer)
    assert room.board.mhz is None
    assert room.board.restored == 1


def test_a_board_that_is_too_hot_while_its_client_does_not_read_is_lowered(room):
    guarded(room, 500.0, None, 80.0)
    room.pass_s(20.0, room.trainer)
    assert room.board.mhz == 500.0
    room.board.temperature_c = 85.0
    room.pass_s(0.2, room.trainer)
    assert room.board.mhz == 100.0
    assert "80 C" in room.trainer.events[0]["text"]


def test_a_limit_on_heat_needs_a_temperature(room):
    room.board.temperature_c = None
    with pytest.raises(NotThere, match="no temperature"):
        room.keeper.guard(room.trainer, None, 80.0)
    room.board.temperature_c = 50.0
    room.pass_s(0.1)
    guarded(room, 300.0, None, 80.0)
    room.board.temperature_c = None
    for _ in range(round(10 * BLIND_S) + 3):
        room.pass_s(0.1, room.trainer)
        room.keeper.read(room.trainer)
    assert room.board.mhz == 100.0
    room.board.temperature_c = 50.0
    room.pass_s(0.1, room.trainer)
    room.keeper.read(room.trainer)
    assert room.board.mhz == 300.0


def test_nothing_to_guard_by_is_said_at_once(room):
    room.board.fails["read"] = NoReading("no answer")
    with pytest.raises(NoReading):
        room.keeper.guard(room.trainer, 9.0, None)
    room.board.fails.clear()
    room.board.settings = []
    with pytest.raises(NotThere, match="no clock"):
        room.keeper.guard(room.trainer, 9.0, None)
    room.board.settings = list(CLOCKS)
    room.keeper.pin(room.other, 100.0)


def test_the_guard_can_be_ended_and_the_pin_stays(room):
    guarded(room, 500.0, 2.5)
    room.pass_s(6.0, room.trainer)
    assert room.board.mhz == 100.0
    room.keeper.guard(room.trainer, None, None)
    assert room.board.mhz == 500.0
    room.pass_s(6.0, room.trainer)
    assert room.board.mhz == 500.0


def test_any_client_sets_another_cap_until_the_holders_ends(room):
    with pytest.raises(BadRequest, match="no client has a cap"):
        room.keeper.set_cap(room.other, 2.5)
    guarded(room, 400.0, 4.5)
    room.keeper.set_cap(room.other, 2.5)
    assert room.keeper.read(room.trainer)["set_cap_w"] == 2.5
    assert "set_cap_w" not in room.keeper.read(room.other)
    room.pass_s(3.0, room.trainer)
    assert room.board.mhz == 100.0  # it does not read
    room.keeper.guard(room.trainer, 4.4, None)  # the holder's own cap waits
    assert room.keeper.read(room.trainer)["set_cap_w"] == 2.5
    room.keeper.set_cap(room.other, None)
    assert "set_cap_w" not in room.keeper.read(room.trainer)
    room.pass_s(3.0, room.trainer)
    assert room.board.mhz == 400.0
    assert room.kinds().count("cap set") == 2
    assert "by other" in room.trainer.events[0]["text"]
    room.keeper.set_cap(room.other, 2.5)
    room.keeper.restore(room.trainer)
    guarded(room, 300.0, 9.0)
    assert "set_cap_w" not in room.keeper.read(room.trainer)


# --------------------------------------------------------------------------------------------------- what can go wrong


def test_a_pin_that_fails_is_the_clients_and_leaves_the_board_free(room):
    room.board.fails["pin"] = NotTaken("stays at 500 MHz")
    with pytest.raises(NotTaken):
        room.keeper.pin(room.trainer, 300.0)
    assert room.keeper.mhz is None
    room.board.fails.clear()
    room.pass_s(3.0)
    assert room.board.mhz is None
    room.keeper.pin(room.other, 200.0)
    room.pass_s(2 * RETRY_S, room.other)
    assert room.board.mhz == 200.0


@pytest.mark.parametrize(("mhz", "then_mhz"), [(300.0, 300.0), (500.0, 400.0)])
def test_a_change_that_fails_leaves_the_board_to_its_client_where_it_was_or_lower(room, mhz, then_mhz):
    room.keeper.pin(room.trainer, 400.0)
    room.board.fails["pin"] = FileFailed("max_freq cannot be written")
    with pytest.raises(FileFailed):
        room.keeper.pin(room.trainer, mhz)
    with pytest.raises(Busy):
        room.keeper.pin(room.other, 100.0)
    room.pass_s(2 * RETRY_S, room.trainer)
    assert (room.board.mhz, room.board.restored) == (400.0, 0)
    room.board.fails.clear()
    room.pass_s(1.2, room.trainer)
    assert room.board.mhz == room.keeper.mhz == then_mhz
    room.keeper.restore(room.trainer)
    assert (room.board.mhz, room.board.restored) == (None, 1)


def test_a_guard_that_cannot_lower_the_clock_says_so_once_and_goes_on_trying(room):
    guarded(room, 500.0, 2.5)
    room.board.fails["pin"] = FileFailed("max_freq cannot be written")
    room.pass_s(10.0, room.trainer)
    assert room.kinds().count("failed") == 1
    assert (room.board.mhz, room.board.restored) == (500.0, 0)  # never given back under a cap
    del room.board.fails["pin"]
    room.pass_s(1.0, room.trainer)
    assert room.board.mhz is not None
    assert room.board.mhz < 500.0


def test_a_board_that_cannot_be_restored_is_tried_again(room):
    room.keeper.pin(room.trainer, 300.0)
    room.board.fails["restore"] = NotRestored("min_freq cannot be written")
    room.keeper.leave(room.trainer)
    assert room.board.mhz == 300.0
    room.pass_s(RETRY_S + 0.2)
    del room.board.fails["restore"]
    room.pass_s(RETRY_S + 0.2)
    assert room.board.mhz is None
    assert room.board.restored == 1


def test_what_cannot_be_restored_can_still_be_taken_by_the_next_client(room):
    room.keeper.pin(room.trainer, 300.0)
    room.board.fails["restore"] = NotRestored("min_freq cannot be written")
    with pytest.raises(NotRestored):
        room.keeper.restore(room.trainer)
    del room.board.fails["restore"]
    room.keeper.pin(room.other, 500.0)
    room.pass_s(2 * RETRY_S, room.other)
    assert room.board.mhz == 500.0


def test_what_the_controller_notices_reaches_the_holder(room):
    room.keeper.pin(room.trainer, 300.0)
    room.board.noticed = [{"time_s": 0.5, "kind": "another writer", "text": "max_freq reads 5"}]
    room.pass_s(1.2, room.trainer)
    assert room.kinds() == ["another writer"]
    assert room.kinds(room.other) == []


def test_what_was_left_behind_is_told_to_whoever_takes_the_board_next():
    room = Room(recover=lambda: ["the gpu clock is as it was before process 7"])
    room.keeper.open()
    room.keeper.read(room.other)
    assert room.kinds(room.other) == []
    room.keeper.pin(room.trainer, 300.0)
    assert room.kinds() == ["left behind"]


def fails_with(error):
    def fail():
        raise error

    return fail


def test_what_somebody_else_left_behind_does_not_fail_the_restore_of_ones_own_board():
    room = Room(recover=fails_with(NotKept("board-cpu.json is not a whole snapshot")))
    room.keeper.pin(room.trainer, 300.0)
    room.keeper.restore(room.trainer)
    assert room.board.mhz is None
    room.keeper.pin(room.other, 200.0)
    room.keeper.leave(room.other)
    assert room.board.mhz is None


def test_what_cannot_be_brought_back_at_the_start_does_not_keep_the_agent_from_starting():
    room = Room(recover=fails_with(NotRestored("min_freq cannot be written")))
    room.keeper.open()
    with pytest.raises(NotRestored):
        room.keeper.restore(room.trainer)


def test_closed_is_closed(room):
    room.keeper.pin(room.trainer, 300.0)
    room.keeper.close()
    assert room.board.mhz is None
    with pytest.raises(Busy, match="shutting down"):
        room.keeper.pin(room.trainer, 300.0)
    room.pass_s(1.0, room.trainer)
    assert room.board.mhz is None
