"""A snapshot is whole or not there, and tells whose it is."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.agent_trees import HIGH, LOW, RAILGATE, MadeTree, put, texts
from tests.support.live.tree import disk_full

from wattune_agent import tree as tree_module
from wattune_agent.errors import Busy, FileFailed, NotKept, NotRestored
from wattune_agent.folders import SYSTEM_FOLDER, board_lock, state_folder
from wattune_agent.leftover import left_behind, restore_left_behind
from wattune_agent.snapshot import Snapshot, boot_id, found_texts, snapshots, started_at
from wattune_agent.tree import Tree

FILES = [LOW, HIGH, RAILGATE]


@pytest.fixture
def snapshot(tree):
    return Snapshot.of_now(tree, "jetson", FILES, {"nvpmodel": "MAXN (ID 0)"})


@pytest.fixture
def dead():
    """A process that is gone: its id and when it began."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = started_at(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return process.pid, started


def held(tree, family="jetson"):
    """The lock on the board, as another controller holds it."""
    lock = board_lock(tree, family)
    assert lock.acquire()
    return lock


def saved(snapshot, **changes):
    changed = snapshot._replace(**changes)
    changed.save()
    return changed


# ------------------------------------------------------------------------------------------------------------ the file


def test_it_comes_back_as_it_was(snapshot):
    snapshot.save()
    assert Snapshot.load(snapshot.path) == snapshot
    assert list(Snapshot.load(snapshot.path).files) == FILES  # the order matters
    assert snapshot.pid == os.getpid()
    assert snapshot.started == started_at(os.getpid())
    assert snapshot.boot == boot_id()
    assert snapshot.files[HIGH] == "1020000000\n"
    content = json.loads(Path(snapshot.path).read_text())
    assert (content["record"], content["version"]) == ("snapshot", 1)


def test_the_end_of_each_text_is_kept(tree, tmp_path):
    put(tmp_path, LOW, "306000000  \n\n")
    put(tmp_path, HIGH, "1020000000")
    put(tmp_path, RAILGATE, "1\n\0")
    assert list(found_texts(tree, FILES).values()) == ["306000000  \n\n", "1020000000", "1"]


def test_a_tree_that_says_otherwise_than_its_folder_is_believed(tree):
    tree.clamp_mhz = 510.0
    assert found_texts(tree, [HIGH]) == {HIGH: "510000000"}


def test_a_file_that_was_cut_off_is_one_clear_line(snapshot):
    snapshot.save()
    whole = Path(snapshot.path).read_bytes()
    for length in range(0, len(whole) - 2, 7):
        Path(snapshot.path).write_bytes(whole[:length])
        with pytest.raises(NotKept, match="is not a whole snapshot") as raised:
            Snapshot.load(snapshot.path)
        assert "\n" not in str(raised.value)
        assert snapshot.path in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b"[" * 100000,
        b'{"record": "profile", "version": 1}',
        b'{"record": "snapshot", "version": 2}',
        b'{"record": "snapshot", "version": "1"}',
        b'{"record": "snapshot", "version": 1, "files": [["/etc/passwd", "root::0:0"]]}',
        b'{"record": "snapshot", "version": 1, "files": [["/sys/../etc/passwd", ""]]}',
        b'{"record": "snapshot", "version": 1, "files": [["/sys/x", 1]]}',
        b'{"record": "snapshot", "version": 1, "files": [1]}',
        b'{"record": "snapshot", "version": 1, "files": []}',
    ],
    ids=range(13),
)
def test_a_foreign_file_is_one_clear_line(tmp_path, content):
    (tmp_path / "board-x.json").write_bytes(content)
    with pytest.raises(NotKept, match="is not a whole snapshot") as raised:
        Snapshot.load(str(tmp_path / "board-x.json"))
    assert "\n" not in str(raised.value)


# ----------------------------------------------------------------------------------------------------- what goes wrong


def test_a_full_disk_leaves_what_was_there(snapshot):
    snapshot.save()
    with disk_full(), pytest.raises(NotKept):
        snapshot._replace(pid=3).save()
    assert Snapshot.load(snapshot.path) == snapshot


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "makedirs"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_every_call_may_fail(snapshot, monkeypatch, call, number):
    def fails(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(NotKept, match=os.strerror(number)):
        snapshot.save()
    monkeypatch.undo()
    assert snapshots(MadeTree(snapshot.path.split("/var/")[0])) == []


def test_short_writes_are_gone_on_with(snapshot, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, content: real(file, content[:10]))
    snapshot.save()
    assert Snapshot.load(snapshot.path) == snapshot


def test_a_folder_that_cannot_be_synced_is_no_failure(snapshot, monkeypatch):
    real = os.fsync

    def fsync(file):
        if os.path.isdir(f"/proc/self/fd/{file}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    snapshot.save()
    assert Snapshot.load(snapshot.path) == snapshot


def test_a_snapshot_that_cannot_be_deleted_says_so(snapshot, monkeypatch):
    snapshot.save()

    def fails(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "unlink", fails)
    with pytest.raises(NotKept, match="cannot be deleted: Permission denied"):
        snapshot.remove()


def test_a_file_that_cannot_be_read_gives_no_snapshot(tree):
    with pytest.raises(FileFailed, match="missing"):
        Snapshot.of_now(tree, "jetson", [*FILES, "/sys/missing"], {})


# ---------------------------------------------------------------------------------------------------------- the folder


@pytest.mark.parametrize("text", ["-1", "999999999999"])
def test_a_limit_that_cannot_be_is_not_kept_as_how_the_board_was_found(tree, tmp_path, text):
    put(tmp_path, HIGH, text)
    with pytest.raises(FileFailed, match="not a frequency; nothing was changed"):
        Snapshot.of_now(tree, "jetson", FILES, {})


def test_no_limit_of_a_power_mode_is_one(tree, tmp_path):
    put(tmp_path, HIGH, "2147483647\n")
    assert Snapshot.of_now(tree, "jetson", FILES, {}).files[HIGH] == "2147483647\n"


def test_a_tree_whose_folder_leads_out_is_refused(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/var").symlink_to(tmp_path)
    with pytest.raises(FileFailed, match="leads out"):
        state_folder(Tree(str(tmp_path / "tree")))


def test_the_folder_is_its_owners_alone(tree, snapshot, tmp_path):
    assert state_folder(Tree()) == SYSTEM_FOLDER
    snapshot.save()
    folder = tmp_path / SYSTEM_FOLDER[1:]
    assert folder.stat().st_mode & 0o7777 == 0o700
    folder.chmod(0o2775)
    assert len(restore_left_behind(tree, lock=held(tree))) == 1
    assert folder.stat().st_mode & 0o7777 == 0o700


def test_other_files_of_the_folder_are_no_snapshots(tree, tmp_path):
    for name in ("board-cpu.json", "board-cpu.json.part", "board-cpu.lock", "nvidia-0.json"):
        put(tmp_path, f"{SYSTEM_FOLDER}/{name}", "{}")
    assert snapshots(tree) == [f"{tmp_path}{SYSTEM_FOLDER}/board-cpu.json"]


def test_what_a_killed_process_began_to_write_is_removed(tree, tmp_path):
    begun = put(tmp_path, SYSTEM_FOLDER + "/board-cpu.json.part", "{")
    writing = put(tmp_path, SYSTEM_FOLDER + "/board-jetson.json.part", "{")
    lock = held(tree)
    assert restore_left_behind(tree) == []
    assert (begun.exists(), writing.exists()) == (False, True)
    lock.release()
    assert restore_left_behind(tree) == []
    assert not writing.exists()


# ----------------------------------------------------------------------------------------------------- the process


def test_a_process_that_nobody_waited_for_is_gone():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert started_at(pid) is None
    os.waitpid(pid, 0)


def test_a_dead_process_left_it_behind(tree, snapshot, dead, tmp_path):
    before = texts(tmp_path)
    left = saved(snapshot, pid=dead[0], started=dead[1], command="python train.py")
    for path, text in ((LOW, "612000000"), (HIGH, "612000000"), (RAILGATE, "0")):
        tree.write(path, text)
    assert left_behind(tree) == left
    (line,) = restore_left_behind(tree)
    assert f"process {dead[0]} (python train.py)" in line
    assert texts(tmp_path) == before
    assert left_behind(tree) is None
    assert restore_left_behind(tree) == []


@pytest.mark.parametrize("changes", [{"started": 1}, {"boot": "another"}, {"pid": 0}])
def test_another_process_with_its_number_is_not_it(tree, snapshot, changes):
    left = saved(snapshot, **{"pid": os.getppid(), "started": started_at(os.getppid()), **changes})
    assert left_behind(tree) == left
    assert len(restore_left_behind(tree)) == 1


def test_a_living_process_has_it(tree, snapshot):
    saved(snapshot, pid=os.getppid(), started=started_at(os.getppid()))
    assert left_behind(tree) is None
    with pytest.raises(Busy, match=f"process {os.getppid()}"):
        restore_left_behind(tree)
    assert os.path.exists(snapshot.path)


def test_a_lock_counts_although_the_process_is_gone(tree, snapshot, dead):
    """A child that it forked, or a process of a container, goes on."""
    saved(snapshot, pid=dead[0], started=dead[1])
    lock = held(tree)
    assert left_behind(tree) is None
    with pytest.raises(Busy, match=f"process {os.getpid()} "):
        restore_left_behind(tree)
    lock.release()
    assert left_behind(tree) is not None


def test_a_file_of_the_lock_that_is_gone_does_not_keep_the_rest(tree, snapshot, dead, tmp_path):
    saved(snapshot, pid=dead[0], started=dead[1])
    put(tmp_path, LOW, "612000000\n")
    (tmp_path / HIGH[1:]).unlink()
    tree.follows = False
    with pytest.raises(NotRestored, match="max_freq"):
        restore_left_behind(tree)
    assert tree.read(LOW) == "306000000"
    assert left_behind(tree) is not None
    put(tmp_path, HIGH, "612000000\n")
    assert len(restore_left_behind(tree)) == 1
    assert tree.read(HIGH) == "1020000000"


@pytest.mark.parametrize("path", [LOW, HIGH])
def test_a_driver_that_hangs_does_not_keep_the_rest(tree, snapshot, dead, tmp_path, monkeypatch, path):
    monkeypatch.setattr(tree_module, "DEADLINE_S", 0.2)
    monkeypatch.setattr(tree_module, "SECOND_DEADLINE_S", 0.1)
    saved(snapshot, pid=dead[0], started=dead[1])
    for name in FILES:
        put(tmp_path, name, {RAILGATE: "0"}.get(name, "612000000"))
    (tmp_path / path[1:]).unlink()
    os.mkfifo(tmp_path / path[1:])  # whoever opens it waits
    with pytest.raises(NotRestored, match=f"{path} is left as it is: its driver hangs") as raised:
        restore_left_behind(Tree(str(tmp_path)))
    assert "\n" not in str(raised.value)
    (other,) = {LOW, HIGH} - {path}
    assert (tmp_path / other[1:]).read_text() == snapshot.files[other]
    assert (tmp_path / RAILGATE[1:]).read_text() == "1\n"
    assert left_behind(tree) is not None


def test_several_are_all_brought_back_and_every_failure_is_told(tree, snapshot, dead, tmp_path):
    for family in ("a", "b", "c"):
        put(tmp_path, f"/sys/devices/{family}/devfreq/x/max_freq", "1\n")
        files = {f"/sys/devices/{family}/devfreq/x/max_freq": "2\n"}
        path = f"{os.path.dirname(snapshot.path)}/board-{family}.json"
        saved(snapshot, path=path, family=family, files=files, pid=dead[0], started=dead[1])
    put(tmp_path, SYSTEM_FOLDER + "/board-b.json", "{")
    (tmp_path / "sys/devices/a/devfreq/x/max_freq").unlink()
    with pytest.raises(NotRestored, match=r"a/devfreq/x/max_freq.*is not a whole snapshot"):
        restore_left_behind(tree)
    assert tree.read("/sys/devices/c/devfreq/x/max_freq") == "2"
    assert [os.path.basename(path) for path in snapshots(tree)] == ["board-a.json", "board-b.json"]
