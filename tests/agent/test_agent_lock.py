"""Who has the lock on a board, as far as the kernel says."""

import os
import subprocess
import sys

import pytest
from tests.support.agent_trees import HIGH, LOW, MadeTree, board_in, gpu_tree

from wattune_agent import lock as lock_module
from wattune_agent.controller import Controller
from wattune_agent.errors import Busy
from wattune_agent.lock import Lock, holders


@pytest.fixture
def tree(tmp_path):
    return MadeTree(gpu_tree(tmp_path))


@pytest.fixture
def holder(tree):
    """A program of somebody's that only locks the file."""
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", code, tree.inside(HIGH)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


@pytest.fixture
def locks(tree, holder, tmp_path, monkeypatch):
    """The kernel's list; not every kernel that tests run on has one."""
    status = os.stat(tree.inside(HIGH))
    place = "{:02x}:{:02x}:{}".format(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    (tmp_path / "locks").write_text(
        f"1: POSIX  ADVISORY  WRITE 1 {place} 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE {holder.pid} {place} 0 EOF\n"
        f"2: -> FLOCK  ADVISORY  WRITE 2 {place} 0 EOF\n"
        "3: FLOCK  ADVISORY  WRITE 3 00:01:1 0 EOF\n"
        f"4: FLOCK  ADVISORY  WRITE 0 {place} 0 EOF\n"
        "nonsense\n"
    )
    monkeypatch.setattr(lock_module, "LOCKS", str(tmp_path / "locks"))


@pytest.mark.usefixtures("locks")
def test_who_holds_it_is_named(tree, holder):
    (who,) = holders(tree, HIGH)
    assert who.startswith(f"process {holder.pid} ({sys.executable} -c import fcntl")
    assert "\0" not in who
    assert holders(tree, LOW) == []
    with Controller(board_in(tree)) as controller, pytest.raises(Busy, match=f"clock: process {holder.pid} "):
        controller.pin(408.0)


@pytest.mark.usefixtures("holder")
def test_where_the_kernel_does_not_say_it_is_a_process(tree, monkeypatch):
    monkeypatch.setattr(lock_module, "LOCKS", "/nonexistent")
    assert holders(tree, HIGH) == []
    with Controller(board_in(tree)) as controller, pytest.raises(Busy, match="a process that holds a lock on "):
        controller.pin(408.0)


@pytest.mark.usefixtures("locks")
def test_the_one_of_the_snapshot_and_the_one_with_the_lock_are_both_named(tree, holder):
    other = Lock(tree, LOW)
    assert other.acquire()
    other.release()
    from wattune_agent.snapshot import Snapshot

    Snapshot.of_now(tree, "jetson", [LOW, HIGH], {}).save()
    with Controller(board_in(tree)) as controller:
        with pytest.raises(Busy, match=f"process {os.getpid()} .*; the lock is held by process {holder.pid} "):
            controller.pin(408.0)
