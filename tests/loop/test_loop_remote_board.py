"""A board of another rank: read, set and restored through the job's store, and what counts while a message is late."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.support.agent_trees import texts
from tests.support.board_records import unpack

from wattune.cap import SensorLimit
from wattune.devices.group import device_group
from wattune.errors import DeviceError
from wattune.loop.ranks import remote_board
from wattune.loop.ranks.channel import Channel
from wattune.loop.ranks.remote_board import RemoteBoard, ServedBoard
from wattune.point import Knobs
from wattune.records import StepWork
from wattune_agent import readings
from wattune_agent.errors import FileFailed


@pytest.fixture
def channels() -> Iterator[list[Channel]]:
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)  # type: ignore[attr-defined]
    made = [Channel(store, rank, 3, 600.0) for rank in range(3)]
    yield made
    for channel in reversed(made):  # rank 0 waits for the others
        channel.close()


def opened(channels: list[Channel], folder: Path) -> tuple[list[ServedBoard], list[RemoteBoard]]:
    """The boards of ranks 1 and 2, each as its rank and as rank 0 has it."""
    served = []
    for rank in (1, 2):
        served.append(ServedBoard(channels[rank], f"jetson?root={unpack('orin-nano-jp6', folder / f'{rank}')}", seed=0))
    return served, [RemoteBoard(channels[0], rank) for rank in (1, 2)]


def test_rank_0_reads_sets_and_restores_boards_of_other_ranks(channels: list[Channel], tmp_path: Path) -> None:
    served, remote = opened(channels, tmp_path)
    before = [texts(tmp_path / name) for name in "12"]
    group = device_group(remote)
    assert group.power_w() == pytest.approx(sum(board._board.power_w() for board in served))
    assert group.conditions().temperature_c == served[0]._board.conditions().temperature_c
    with group.at(group.combinations()[-1]) as setting:
        group.arm_guard(SensorLimit(5.0))  # of an agent, which these boards have not
        setting.change(group.safest)
        assert [board.current() for board in remote] == [board._board.safest for board in served]
        with group.at(group.combinations()[1]):
            pass
        assert [board._board.current() for board in served] == [board._board.safest for board in served]
    assert [texts(tmp_path / name) for name in "12"] == before
    for board in served:
        board.close(waits=False)


def test_no_board_rises_before_another_has_confirmed_that_it_falls(
    channels: list[Channel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, remote = opened(channels, tmp_path)
    group = device_group(remote)
    low, middle, high = (group.combinations()[index] for index in (0, 1, -1))
    name = group.knobs[0].name
    with group.at(low):
        remote[1]._apply(high)
        goes_on = threading.Event()
        change = served[1]._setting.change  # type: ignore[union-attr]
        served[1]._setting.change = lambda knobs: goes_on.wait(60) and change(knobs)  # type: ignore[union-attr, method-assign]
        group._table = {**group._table, middle[name]: (high[name], low[name])}  # watts go from rank 2 to rank 1
        monkeypatch.setattr(remote_board, "SILENT_AFTER_S", 0.2)
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"rank 1 \(.*\): rank 2 has not answered within 0.2 s"):
                group._apply(middle)
            assert [board._board.current() for board in served] == [low, high]
        monkeypatch.undo()
        goes_on.set()
        until_s = time.monotonic() + 60
        while served[1]._board.current() != low:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        group._apply(middle)  # the late answers are not taken for this one's
        assert [board.current() for board in remote] == [high, low]
    for board in served:
        board.close(waits=False)


def test_an_error_of_the_driver_is_an_answer(channels: list[Channel], tmp_path: Path) -> None:
    """The call after it is answered as well."""
    served, remote = opened(channels, tmp_path)
    apply = served[0]._board._apply
    served[0]._board._apply = lambda knobs: os.stat(tmp_path / "absent") and None  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match=r"FileNotFoundError: .*absent"):
        remote[0]._apply(remote[0].safest)
    served[0]._board._apply = apply  # type: ignore[method-assign]
    with remote[0].at(remote[0].safest):
        assert served[0]._board.current() == remote[0].safest
    for board in served:
        board.close(waits=False)


def test_a_sensor_that_is_stuck_while_the_work_changes_is_noticed(
    channels: list[Channel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "STUCK_S", 0.0)
    served, (board, _) = opened(channels, tmp_path)
    board.power_w()
    with board.step(StepWork(samples=1, micro_batch_size=1, data_type="fp32", phases=(), peak_memory_bytes=0)):
        for _ in range(readings.STUCK_READINGS):
            board.power_w()
    assert [event.kind for event in board.events()] == ["stuck sensor"]
    for one in served:
        one.close(waits=False)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_board_that_may_still_change_keeps_its_watcher(
    channels: list[Channel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Its restore has failed, or its first setting comes after the end, and is undone."""
    monkeypatch.setattr(remote_board, "ENDED_WITHIN_S", 0.1)
    (served, other), (remote, _) = opened(channels, tmp_path)
    board, before, begun, goes_on = served._board, texts(tmp_path / "1"), threading.Event(), threading.Event()
    apply = board._apply

    def late(knobs: Knobs) -> None:
        begun.set()
        goes_on.wait(60)
        apply(knobs)

    def fails() -> None:
        raise FileFailed("Input/output error")

    setting = threading.Thread(target=remote._apply, args=[remote.safest], daemon=True)
    if is_late:
        board._apply = late  # type: ignore[method-assign]
        setting.start()
        assert begun.wait(60)
    else:
        for name in ("restore", "close"):
            monkeypatch.setattr(board._board, name, fails)  # type: ignore[attr-defined]
        with pytest.raises(DeviceError), remote.at(remote.safest):
            pass
    watcher = served._watcher._process
    assert watcher is not None
    try:
        with suppress(DeviceError):
            served.close(waits=False)
        assert watcher.poll() is None
        goes_on.set()
        served._threads[1].join(60)
        assert (texts(tmp_path / "1") == before) is is_late
    finally:
        watcher.kill()
        watcher.wait()
        monkeypatch.undo()
        board.close()
    if is_late:
        setting.join(60)
    other.close(waits=False)
