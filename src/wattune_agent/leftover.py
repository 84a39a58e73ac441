"""Bring a board back from its snapshot, also from one that a process left behind when it was killed."""

import os
from typing import List, Optional

from wattune_agent.conditions import conditions
from wattune_agent.errors import AgentError, Busy, FileFailed, Forbidden, NotKept, NotRestored
from wattune_agent.limits import bring_back
from wattune_agent.lock import Lock, holders
from wattune_agent.mode import mode_id, switch_mode
from wattune_agent.snapshot import Snapshot, boot_id, family_of, is_strangers, snapshots, started_at
from wattune_agent.tree import Tree

__all__ = ["busy_with", "give_back", "left_behind", "lock_path", "restore_left_behind"]


def left_behind(tree: Tree) -> Optional[Snapshot]:
    """A snapshot that nobody answers for: its process is gone. None where there is none.

    Raises: NotKept for a file that is no snapshot, where nothing but such files is left.
    """
    broken: List[NotKept] = []
    for path in snapshots(tree):
        try:
            snapshot = Snapshot.load(path)
        except NotKept as error:
            broken.append(error)
            continue
        lock = _lock(tree, snapshot)
        if lock is not None and not lock.acquire():
            continue
        if lock is not None:
            lock.release()
        if not _is_elsewhere(snapshot):
            return snapshot
    if broken:
        raise broken[0]
    return None


def restore_left_behind(tree: Tree, held: Optional[Lock] = None, family: str = "") -> List[str]:
    """Bring back every board that a process left changed; a line for each says what came back.

    ``held``: the lock that the caller holds already. ``family``: whose boards the caller is about; what is wrong with
    those of other families is then a line too, and those that somebody controls are left to him. Raises, after all that
    can be done is: Busy where a living process controls the board, NotKept for a file that is no snapshot, NotRestored.
    """
    said: List[str] = []
    failures: List[AgentError] = []
    for path in snapshots(tree):
        try:
            said += _restore(tree, Snapshot.load(path), held)
        except AgentError as error:
            if not family or (family_of(path) == family and not _is_nonsense(path, error)):
                failures.append(error)
            elif not isinstance(error, Busy):
                said.append(str(error))
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise NotRestored("; ".join(str(failure) for failure in failures))
    return said


def give_back(tree: Tree, snapshot: Snapshot) -> List[str]:
    """Bring back the power mode and every file, see that they are, and delete the snapshot; what is worth saying.

    Raises: NotRestored after all that can be brought back is; the snapshot then stays. NotKept where only the deletion
    failed.
    """
    why: List[str] = []
    if snapshot.mode_id is not None:
        try:
            # Also where it is the mode of now: a switch that was stopped half-way changed files, but not yet its note.
            switch_mode(tree, snapshot.mode_id, always=True)
        except AgentError as error:
            if mode_id(tree) != snapshot.mode_id:
                why.append("the power mode is not {} again: {}".format(snapshot.mode_id, error))
    # After a power cut the kernel begins anew: nothing that was written is left, and its limits are the mode's of now.
    began_anew = tree.is_real and bool(snapshot.boot) and snapshot.boot != boot_id()
    failures = [] if began_anew else bring_back(tree, snapshot.files)
    said: List[str] = []
    if failures and all(failure.clamped for failure in failures):
        clamps = conditions(tree).throttled
        if clamps:
            said = ["{}; {} clamps it now, and it was written".format(failures[0].text, ", ".join(clamps))]
            failures = []
    why += [failure.text for failure in failures]
    if why:
        raise NotRestored(
            "{} (all else is as it was; {} keeps what the board was, and the restore can be tried again)".format(
                "; ".join(why), snapshot.path
            )
        )
    snapshot.remove()
    return said


def busy_with(tree: Tree, family: str, path: str = "") -> Busy:
    """The error for a board whose lock is taken, with who has it as far as that is known. ``path``: the lock's file."""
    lockers = holders(tree, path) if path else []
    for kept in snapshots(tree):
        try:
            snapshot = Snapshot.load(kept)
        except AgentError:
            continue
        if snapshot.family == family:
            who = snapshot.owner
            if started_at(snapshot.pid) != snapshot.started:
                who += ", or a child of it, for it is gone itself"
            others = [locker for locker in lockers if not locker.startswith("process {} ".format(snapshot.pid))]
            if others:
                who += "; the lock is held by " + ", ".join(others)
            return Busy("another controller has the {} clock: {}".format(family, who))
    who = ", ".join(lockers) or "a process that holds a lock on " + (path or "it")
    return Busy("another controller has the {} clock: {}".format(family, who))


def lock_path(files: List[str]) -> str:
    """The file whose lock stands for the board: the first upper limit."""
    return ([path for path in files if path.endswith("max_freq")] or files)[0]


def _restore(tree: Tree, snapshot: Snapshot, held: Optional[Lock]) -> List[str]:
    lock = _lock(tree, snapshot)
    ours = lock is not None and held is not None and lock.path == held.path
    if lock is not None and not ours and not lock.acquire():
        raise busy_with(tree, snapshot.family, lock.path)
    try:
        if _is_elsewhere(snapshot):
            raise busy_with(tree, snapshot.family)
        said = give_back(tree, snapshot)
    finally:
        if lock is not None and not ours:
            lock.release()
    return ["the {} clock is as it was before {}".format(snapshot.family, snapshot.owner), *said]


def _lock(tree: Tree, snapshot: Snapshot) -> Optional[Lock]:
    """None where the file is gone or may not be read: then the rest is brought back all the same."""
    if not snapshot.files:
        return None
    path = lock_path(list(snapshot.files))
    try:
        os.close(os.open(tree.inside(path), os.O_RDONLY | os.O_CLOEXEC))
    except (OSError, FileFailed, Forbidden):
        return None
    return Lock(tree, path)


def _is_nonsense(path: str, error: AgentError) -> bool:
    """Whether it is no snapshot, and another user's: nobody keeps the rest from the board by leaving such a file."""
    return isinstance(error, NotKept) and is_strangers(path)


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """Whether another process that lives answers for it, although its lock is not seen from here."""
    if snapshot.pid in (0, os.getpid()):
        return False
    if snapshot.boot and snapshot.boot != boot_id():
        return False
    return started_at(snapshot.pid) == snapshot.started
