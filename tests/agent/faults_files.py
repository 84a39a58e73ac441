"""Faults of files: permissions, files that vanish, errors, nonsense; and of the snapshot's disk."""

import json
from pathlib import Path

from tests.agent.faults_made import BY_RESTORE, Quick, cell, fault
from tests.support.live.tree import disk_full

from wattune_agent.guarded import run_guarded
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import Snapshot, boot_id, snapshots, state_folder

# ------------------------------------------------------------------------------------------------------- permissions


@fault("no permission to write the clock")
def _(bench):
    bench.tree.fault("*", "forbidden", on="write")
    bench.pin()
    bench.tree.sleep(0.1)
    bench.tells(lambda: run_guarded(bench.controller, ["false"], cap_w=900.0))


@fault("permission lost halfway through a pin, after each write in turn")
def _(bench):
    tree, allowed = bench.tree, len(bench.board.clock.files())
    for count in range(1, allowed):
        tree.writes.clear()
        tree.before_write = lambda path, text, count=count: (
            tree.fault("*", "forbidden", on="write", from_s=tree.now_s()) if len(tree.writes) == count else None
        )
        assert not bench.pin()
        assert bench.told == ["`NotRestored`"]
        assert not bench.is_back
        bench.tells(bench.controller.close)
        bench.mend()
        assert restore_left_behind(tree)
        assert bench.is_back
    bench.check()
    return cell(bench.told, BY_RESTORE)


@fault("permission lost while pinned")
def _(bench):
    bench.controller.pin(bench.mhz, bench.others)
    bench.tree.fault("*", "forbidden", on="write")
    bench.looks()


# -------------------------------------------------------------------------------------- files that vanish, and errors


@fault("a limit's file vanishes while pinned (driver reloaded, core offline)")
def _(bench):
    assert bench.pin()
    bench.tree.fault(bench.high, "vanished")
    bench.looks()


@fault("EIO at a write, briefly")
def _(bench):
    bench.tree.fault(bench.high, "eio", on="write", until_s=bench.tree.now_s() + 0.02)
    assert bench.pin()
    assert bench.is_at(bench.mhz)


@fault("a write is refused each time (EIO, EBUSY, EINVAL)")
def _(bench):
    bench.refuses((bench.high, bench.switch), "eio", "busy", "refused", on="write")


@fault("EIO at the change of a pinned clock")
def _(bench):
    assert bench.pin()
    pinned = bench.limits
    bench.tree.fault(bench.high, "eio", on="write")
    for mhz in (bench.other_mhz, bench.settings[-1]):
        assert not bench.pin(mhz)
        assert bench.limits[1] <= pinned[1]


@fault("a write is silently ignored")
def _(bench):
    bench.refuses((bench.high, bench.switch), "ignored")


@fault("a limit is gone, cannot be read, is empty, or contains garbage, 1000 THz or a negative value before the pin")
def _(bench):
    bench.refuses((bench.low, bench.high), "vanished", "eio", "empty", "garbage", "absurd", "negative")


@fault("EIO at a limit, starting while it is pinned")
def _(bench):
    assert bench.pin()
    bench.tree.fault(bench.low, "eio")
    bench.looks()


@fault("a limit contains garbage while pinned")
def _(bench):
    assert bench.pin()
    bench.tree.fault(bench.high, "garbage")
    bench.looks()


# -------------------------------------------------------------------------------------------------------- the snapshot


@fault("the snapshot cannot be written (disk full, no folder)")
def _(bench):
    with disk_full():
        assert not bench.pin()
    folder = Path(state_folder(bench.tree))
    for path in folder.iterdir() if folder.exists() else ():
        path.unlink()
    folder.rmdir()
    folder.write_text("a file where the folder should be")
    assert not bench.pin()
    assert snapshots(bench.tree) == []
    folder.unlink()


@fault("a snapshot is found that is truncated, or names files outside /sys")
def _(bench):
    for change in (
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(bench.low, "/sys/../etc/passwd"),
    ):
        _leave(bench, change)
        assert not bench.pin()
        bench.tells(restore_left_behind, bench.tree)
        Path(snapshots(bench.tree)[0]).unlink()


@fault("power cut while pinned, then a reboot")
def _(bench):
    _leave(bench, lambda text: text.replace(boot_id(), "the start before").replace(bench.tree.read(bench.low), "1"))
    bench.tree.__class__ = Started
    assert bench.pin()
    bench.controller.restore()
    assert all(text != "1" or path == bench.switch for _, path, text in bench.tree.writes)


class Started(Quick):
    """As a running kernel's files, which know nothing of the time before the machine was started."""

    is_real = True


def _leave(bench, change):
    """The snapshot of an ended process, with its text changed."""
    files = bench.board.clock.files()
    snapshot = Snapshot.of_now(bench.tree, bench.board.family, files, {})._replace(pid=0)
    snapshot.save()
    path = Path(snapshot.path)
    text = change(path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")
    try:
        assert json.loads(text)["boot"] != snapshot.boot or bench.low not in text
    except ValueError:
        assert text  # cut off
