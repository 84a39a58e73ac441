"""What other users, other programs and a stranger's folder can put before the agent."""

import json
import os
from pathlib import Path

import pytest
from tests.support.agent_trees import CPU, DEVFREQ, HIGH, LOW, RAILGATE, MadeTree, board_in, cpu_tree, gpu_tree, put
from tests.support.board_records import materialise

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import FileFailed, Forbidden, NotKept
from wattune_agent.folders import board_lock, state_folder
from wattune_agent.leftover import left_behind, restore_left_behind
from wattune_agent.slicing import load_switch, save_switch
from wattune_agent.snapshot import Snapshot, snapshots
from wattune_agent.tree import Tree

FILES = [LOW, HIGH, RAILGATE]
SOMEBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to somebody else")


class RealTree(MadeTree):
    """A folder that is taken for the machine itself."""

    def __init__(self, root):
        super().__init__(root)
        self.folder, self.root = self.root, "/"

    def _joined(self, path):
        return self.folder + path

    def glob(self, pattern):
        return [path[len(self.folder) :] for path in super().glob(self.folder + pattern)]

    def real(self, path):
        return self.inside(path)[len(self.folder) :]


@pytest.fixture
def machine(tmp_path):
    """A machine with a board."""
    return RealTree(gpu_tree(tmp_path / "board"))


def left_on(tree):
    """The snapshot of a process of root that was killed, as versions before this one left it; the board is pinned."""
    left = Snapshot.of_now(tree, "jetson", FILES, {})._replace(pid=0)
    left.save()
    os.chmod(left.path, 0o644)
    os.chmod(os.path.dirname(left.path), 0o2775)
    for path, text in ((LOW, "612000000"), (HIGH, "612000000"), (RAILGATE, "0")):
        tree.write(path, text)
    return left


# --------------------------------------------------------------------------------------------- what a snapshot may name


def content(files, **changes):
    usual = {"record": "snapshot", "version": 1, "family": "jetson", "files": files, "mode": {}}
    return {**usual, "pid": 0, "started": 0, "boot": "", "command": "", "time": "", **changes}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/kernel/uevent_helper", "/tmp/x"),
        ("/sys/kernel/uevent_helper", "1"),
        ("/sys/power/state", "mem"),
        ("/sys/fs/cgroup/devfreq/x/min_freq", "306000000"),
        ("/sys/module/devfreq/x/min_freq", "306000000"),
        (DEVFREQ + "/governor", "powersave"),
        (DEVFREQ + "/device/driver/unbind", "1"),
        (LOW, "/bin/sh"),
        (LOW, ""),
        (LOW, "306000000\n408000000\n"),
        (LOW, "-1"),
        (LOW, "99999999999999"),
        (RAILGATE, "1 2"),
        (RAILGATE, "on"),
        (RAILGATE, "/bin/sh"),
        (CPU + "/cpu1/online", "1"),
        (CPU + "/cpufreq/policy0/scaling_governor", "powersave"),
        (CPU + "/cpufreq/policy0/scaling_max_freq", "800000 " + " " * 1000),
        (CPU + "/microcode/reload", "1"),
    ],
)
def test_a_snapshot_that_names_anything_else_is_none(tmp_path, path, text):
    (tmp_path / "board-jetson.json").write_text(json.dumps(content([[path, text]])))
    with pytest.raises(NotKept, match="not a whole snapshot"):
        Snapshot.load(str(tmp_path / "board-jetson.json"))


def test_whatever_a_board_has_can_be_kept_and_read_again(tmp_path):
    for number, path in enumerate(sorted((Path(__file__).parent.parent / "boards").glob("*.json"))):
        record = json.loads(path.read_text(encoding="utf-8"))
        tree = Tree(materialise(record, str(tmp_path / str(number))))
        clock = find_board(tree, record["expect"]["family"]).clock
        kept = Snapshot.of_now(tree, "x", clock.files(), {})
        kept.save()
        assert Snapshot.load(kept.path) == kept


def test_what_could_not_be_brought_back_is_not_kept(tree, tmp_path):
    put(tmp_path, RAILGATE, "on and off\n")
    with pytest.raises(FileFailed, match=r"railgate_enable reads 'on and off'.*nothing was changed"):
        Snapshot.of_now(tree, "jetson", FILES, {})


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_only_a_file_is_read(tmp_path, kind):
    place = tmp_path / "board-jetson.json"
    (tmp_path / "other").write_text(json.dumps(content([])))
    {"fifo": os.mkfifo, "link": lambda path: path.symlink_to(tmp_path / "other"), "folder": os.mkdir}[kind](place)
    with pytest.raises(NotKept):
        Snapshot.load(str(place))


def test_a_link_in_the_place_of_the_file_beside_is_not_followed(tree, tmp_path):
    kept = Snapshot.of_now(tree, "jetson", FILES, {})
    put(tmp_path, "/theirs", "precious")
    os.makedirs(os.path.dirname(kept.path))
    os.symlink(tmp_path / "theirs", kept.path + ".part")
    kept.save()
    assert (tmp_path / "theirs").read_text() == "precious"
    assert Snapshot.load(kept.path) == kept


# ----------------------------------------------------------------------------------------- whose file, and whose folder


@as_root
def test_root_obeys_no_file_of_another_user(machine):
    left = left_on(machine)
    os.chown(left.path, SOMEBODY, SOMEBODY)
    before = {path: machine.read(path) for path in FILES}
    assert left_behind(machine) is None
    assert restore_left_behind(machine) == [f"{left.path} is another user's: it is not obeyed; delete it"]
    assert {path: machine.read(path) for path in FILES} == before
    with Controller(board_in(machine)) as controller:
        controller.pin(408.0)  # such a file keeps nobody from the board
        assert "is not obeyed" in controller.check()[0]["text"]
        assert Snapshot.load(left.path).pid == os.getpid()
    assert {path: machine.read(path) for path in FILES} == before


@as_root
def test_root_uses_no_folder_of_another_user(machine):
    left = left_on(machine)
    os.chown(os.path.dirname(left.path), SOMEBODY, SOMEBODY)
    before = {path: machine.read(path) for path in FILES}
    with Controller(board_in(machine)) as controller:
        for change in (lambda: restore_left_behind(machine), lambda: controller.pin(408.0), controller.claim):
            with pytest.raises(NotKept, match=r"belongs to user 65534, not to user 0: .* nothing is changed") as raised:
                change()
            assert "\n" not in str(raised.value)
    assert {path: machine.read(path) for path in FILES} == before


@as_root
def test_no_other_user_reaches_a_snapshot_or_a_lock(machine):
    with Controller(board_in(machine)) as controller:
        controller.pin(408.0)
        folder = state_folder(machine)
        assert sorted(os.listdir(folder)) == ["board-jetson.json", "board-jetson.lock"]
        for name in ("", "/board-jetson.json", "/board-jetson.lock"):
            assert os.stat(folder + name).st_mode & 0o077 == 0


def test_only_root_changes_the_machine(machine, monkeypatch):
    for path in FILES:
        os.chmod(machine.inside(path), 0o666)
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)
    with Controller(board_in(machine)) as controller:
        for change in (lambda: controller.pin(408.0), controller.claim):
            with pytest.raises(Forbidden, match=r"as root \(wattune-agent serve\) and use --device agent"):
                change()
    assert machine.written == []
    assert not os.path.exists(state_folder(machine))
    assert (left_behind(machine), restore_left_behind(machine)) == (None, [])


# ------------------------------------------------------------------------------------------------------ other families


@pytest.fixture
def broken(tree, tmp_path):
    cpu_tree(tmp_path)
    put(tmp_path, "/var/lib/wattune/board-cpu.json", '{"record": "snap')
    return tree


def test_a_broken_snapshot_of_another_family_is_told_and_keeps_nobody_from_pinning(broken, tmp_path):
    with Controller(board_in(broken)) as controller:
        controller.pin(408.0)
        (event,) = controller.check()
        assert event["kind"] == "left behind"
        assert "board-cpu.json is not a whole snapshot" in event["text"]
        Snapshot.load(snapshots(broken)[1])
    assert broken.read(HIGH) == "1020000000"
    with Controller(board_in(broken, "cpu")) as controller, pytest.raises(NotKept, match="not a whole"):
        controller.pin(800.0)


def test_a_restore_of_one_family_goes_past_the_others(broken, tree, tmp_path):
    lock = board_lock(tree, "cpu")
    assert lock.acquire()
    said = restore_left_behind(tree, family="jetson")
    assert ["not a whole snapshot" in line for line in said] == [True]
    Snapshot.of_now(tree, "cpu", board_in(tree, "cpu").clock.files(), {}).save()
    assert restore_left_behind(tree, family="jetson") == []  # somebody is at work there
    lock.release()


def test_what_was_left_behind_is_found_behind_a_broken_one(broken):
    left = Snapshot.of_now(broken, "jetson", FILES, {})._replace(pid=0)
    left.save()
    assert left_behind(broken) == left
    left.remove()
    with pytest.raises(NotKept):
        left_behind(broken)


# --------------------------------------------------------------------------------------------------------- the figures


def test_figures_stay_in_their_tree(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "tree/etc").symlink_to(tmp_path / "theirs")
    tree = Tree(str(tmp_path / "tree"))
    with pytest.raises(FileFailed, match="leads out"):
        save_switch(tree, "a nano", 0.1, 0.01)
    assert load_switch(tree, "a nano") is None
    assert os.listdir(tmp_path / "theirs") == []
