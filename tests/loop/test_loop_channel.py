"""Messages between the ranks of a job: they arrive in order, and a rank that is gone is noticed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn

from wattune.errors import DeviceError, InputError
from wattune.loop.ranks import channel as channels
from wattune.loop.ranks.agreement import Ranks
from wattune.loop.ranks.channel import Channel, RankLost


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(channels, "SILENT_AFTER_S", 6.0)
    monkeypatch.setattr(channels, "RAISE_WITHIN_S", 30.0)  # the main thread is the test's


@pytest.fixture
def three() -> Iterator[list[Channel]]:
    """The channels of three ranks."""
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)  # type: ignore[attr-defined]
    made = [Channel(store, rank, 3, 600.0) for rank in range(3)]
    yield made
    for channel in reversed(made):  # rank 0 waits for the others
        channel.close()


def lost_of(channel: Channel, within_s: float = 30.0) -> str | None:
    until_s = time.monotonic() + within_s
    while channel.lost is None and time.monotonic() < until_s:
        time.sleep(0.01)
    return channel.lost


def test_messages_reach_the_others_in_order(three: list[Channel]) -> None:
    for number in range(channels.OLD):
        three[0].send("all", {"number": number})
        three[2].send("at/2", number)
    three[1].send("at/1", "here")
    for follower in three[1:]:
        assert [follower.receive("all")["number"] for _ in range(channels.OLD)] == list(range(channels.OLD))
    assert [three[0].receive("at/2", 2) for _ in range(channels.OLD)] == list(range(channels.OLD))
    assert three[0].receive("at/1", 1) == "here"
    with pytest.raises(DeviceError, match="rank 1 has not answered within 0"):
        three[0].receive("board/1", 1, 0.01)


def test_a_stop_is_received_although_the_leader_has_left_since(three: list[Channel]) -> None:
    three[0].send("all", {"stop": "above the cap"})
    three[0].close("above the cap")
    follower = three[1]
    assert lost_of(follower) is not None
    assert follower.receive("all") == {"stop": "above the cap"}
    with pytest.raises(RankLost, match="above the cap"):
        follower.receive("all")


def test_a_rank_that_gives_no_sign_of_life_is_lost(three: list[Channel]) -> None:
    until_s = time.monotonic() + 30.0
    while three[0].peers[2].heard_s == math.inf and time.monotonic() < until_s:
        time.sleep(0.01)
    three[2]._done.set()  # its thread ends
    assert lost_of(three[0]) == "rank 2 has given no sign of life for 6 s"
    assert lost_of(three[1]) == "rank 2 has given no sign of life for 6 s"


def test_a_rank_that_goes_on_without_rank_0_hears_so(three: list[Channel]) -> None:
    three[0].close()
    with pytest.raises(RankLost, match="rank 0 has ended its session"):
        three[1].receive("all")


def test_ranks_of_one_computer_share_a_real_device_of_one_name(three: list[Channel]) -> None:
    places = [("a 1", "cpu"), ("a 1", "cpu"), ("a 2", "cpu"), ("a 1", "jetson"), ("a 1", "sim:jetson-nano")]
    facts = [{"computer": computer, "spec": spec} for computer, spec in [*places, places[-1]]]
    ranks = Ranks(facts, three[0], nn.Linear(1, 1))
    assert ranks.holders == [0, 0, 2, 3, 4, 5]
    assert [ranks.serves_itself(rank) for rank in range(6)] == [False, False, True, True, False, False]
    assert (ranks.pools("node"), ranks.pools("job")) == ([0, 0, 2, 0, 0, 0], [0] * 6)


def test_an_error_of_a_device_is_not_the_cause_once_a_rank_is_lost(three: list[Channel]) -> None:
    assert three[2].end(DeviceError("its own")) is None
    assert lost_of(three[0]) == lost_of(three[1]) == "rank 2 ended with an error: its own"
    lost = three[0].end(DeviceError("the device of rank 2 does not answer"))
    assert isinstance(lost, RankLost)
    assert str(lost) == "rank 2 ended with an error: its own"
    assert three[1].end(InputError("its own")) is None
