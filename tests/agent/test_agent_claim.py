"""A board that is claimed, and not changed: what would keep it from being changed is known before."""

import os

import pytest
from tests.support.agent_trees import HIGH, LOW, MadeTree, board_in, gpu_tree, texts

from wattune_agent.controller import Controller
from wattune_agent.errors import Busy, NotKept, NotThere
from wattune_agent.snapshot import Snapshot, snapshots


@pytest.fixture
def tree(tmp_path):
    return MadeTree(gpu_tree(tmp_path / "board"))


def test_a_claim_changes_nothing_and_keeps_others_away(tree):
    before = texts(tree.root)
    with Controller(board_in(tree)) as controller, Controller(board_in(tree)) as other:
        controller.claim()
        controller.claim()
        assert (tree.written, snapshots(tree)) == ([], [])
        for change in (other.claim, lambda: other.pin(408.0)):
            with pytest.raises(Busy, match="process {}".format(os.getpid())):
                change()
        controller.restore()
        other.claim()
        assert tree.written == []
    assert texts(tree.root) == before


def test_what_somebody_sets_under_a_claim_stays(tree):
    with Controller(board_in(tree)) as controller:
        controller.claim()
        tree.write(HIGH, "714000000")
    assert tree.read(HIGH) == "714000000"
    with Controller(board_in(tree)) as controller:
        controller.claim()
        tree.write(HIGH, "816000000")
        controller.pin(408.0)
        assert tree.read(LOW) == tree.read(HIGH) == "408000000"
    assert tree.read(HIGH) == "816000000"  # as it was found when it was changed


def test_what_was_left_behind_comes_back_by_a_claim(tree):
    board = board_in(tree)
    Snapshot.of_now(tree, "jetson", board.clock.files(), {})._replace(pid=0).save()
    before = texts(tree.root)
    tree.write(HIGH, "408000000")
    with Controller(board) as controller:
        controller.claim()
        assert [event["kind"] for event in controller.check()] == ["left behind"]
        assert texts(tree.root) == before


def test_a_snapshot_that_could_not_be_kept_is_known_before(tree, tmp_path):
    (tmp_path / "board" / "var").write_text("a file where the folder should be")
    with Controller(board_in(tree)) as controller, Controller(board_in(tree)) as other:
        for _ in range(2):
            with pytest.raises(NotKept):
                controller.claim()
        (tmp_path / "board" / "var").unlink()
        other.claim()


def test_a_clock_that_may_not_be_written_is_known_before(tree, tmp_path):
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o001:  # from here on up everybody may enter
                break
            folder.chmod(0o755)
    for path in (LOW, HIGH):
        (tmp_path / "board" / path[1:]).chmod(0o444)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            Controller(board_in(MadeTree(tmp_path / "board"))).claim()
            os.write(write, b"claimed")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has to see it
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert said.startswith("Forbidden")
    assert "may not be written by this user" in said
    assert "_freq" in said


def test_a_clock_that_is_not_there_cannot_be_claimed(tree):
    board = board_in(tree)
    board.clock = None
    with pytest.raises(NotThere):
        Controller(board).claim()
