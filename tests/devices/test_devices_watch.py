"""A killed process with a group of boards: another process restores what it leaves, seconds later."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.support.agent_socket import serving
from tests.support.agent_trees import texts
from tests.support.board_records import unpack
from tests.support.live_board import live

from wattune.devices.group import open_group
from wattune.devices.watch import Watcher

LEADER = """
import os, sys, time
from wattune.devices.group import open_group

group = open_group(sys.argv[2:])
kind = sys.argv[1]
with group.at(group.combinations()[0]) as setting:
    if kind == "forks" and os.fork() == 0:  # holds the pipe and the locks for a while, as a data loader's worker does
        time.sleep(3.0)
        os._exit(0)
    print("ready", flush=True)
    while kind == "changes":
        for knobs in group.combinations():
            setting.change(knobs)
    if kind != "leaves":
        time.sleep(600)
print("left", flush=True)
time.sleep(600)
"""


@pytest.fixture
def trees(tmp_path):
    return [unpack("orin-nano-jp6", tmp_path / "orin"), unpack("nano-jp4", tmp_path / "nano")]


def kill(kind, trees, word, *, after_s=0.0):
    """Start the process, and kill it so long after it has said the word. Returns: what was changed then."""
    before = [texts(tree) for tree in trees]
    specs = [f"jetson?root={tree}" for tree in trees]
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, kind, *specs], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        while (said := process.stdout.readline().decode().strip()) != word:
            assert said, "it has ended"
        time.sleep(after_s)
        if word == "ready" and not after_s:
            assert all(texts(tree) != one for tree, one in zip(trees, before, strict=True))
    finally:
        if kind == "forks":
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)  # its whole group, as a terminal or a scheduler does
        process.wait()
        process.stdout.close()
    return before


def await_texts(trees, before):
    until_s = time.monotonic() + 60
    while [texts(tree) for tree in trees] != before:
        assert time.monotonic() < until_s, "the boards stay changed"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["waits", pytest.param("forks", marks=pytest.mark.slow)])
def test_boards_of_a_killed_process_are_restored(kind, trees):
    await_texts(trees, kill(kind, trees, "ready"))


@pytest.mark.slow
def test_boards_of_a_process_that_is_killed_at_any_moment_are_restored(trees):
    chance = random.Random(5)
    for _ in range(5):
        await_texts(trees, kill("changes", trees, "ready", after_s=chance.uniform(0.001, 0.2)))


def test_nothing_happens_to_boards_that_were_left(trees):
    before = kill("leaves", trees, "left")
    assert [texts(tree) for tree in trees] == before


def test_a_watcher_starts_for_boards_of_this_process_alone_and_again_if_it_was_killed(tmp_path):
    without = Watcher([])
    without.start()
    assert without._process is None
    watcher = Watcher([str(tmp_path)])
    watcher.start()
    first = watcher._process
    watcher.start()
    assert watcher._process is first
    first.kill()
    first.wait()
    watcher.start()
    second = watcher._process
    assert second is not first
    watcher.close(is_restored=True)
    assert second.returncode is not None


def test_a_watcher_of_what_could_not_be_restored_stays(tmp_path):
    watcher = Watcher([str(tmp_path)])
    watcher.start()
    process = watcher._process
    watcher.close(is_restored=False)
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.slow
def test_a_board_behind_an_agent_needs_no_watch(tmp_path):
    """The agent restores its board when the connection ends; only the board of this process is watched."""
    first, second, socket = (tmp_path / name for name in ("a", "b", "socket"))
    with live(first, throttled=False), live(second, throttled=False):
        with serving(first, socket):
            group = open_group([f"agent:{socket}", f"jetson?root={second}"])
            try:
                assert [member.leftover for member in group.members] == [None, str(second)]
                with group.at(group.safest):
                    assert [member.current() for member in group.members] == [member.safest for member in group.members]
                    assert group.power_w() == pytest.approx(sum(member.power_w() for member in group.members), rel=0.5)
                assert group.current() is None
            finally:
                group.close()
