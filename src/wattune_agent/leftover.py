"""Restore a board from its snapshot, including one that a killed process left behind."""

import os
from typing import List, Optional

from wattune_agent.conditions import conditions
from wattune_agent.devfreq import find_gpu_clock
from wattune_agent.errors import AgentError, Busy, FileFailed, Forbidden, NotKept, NotRestored
from wattune_agent.limits import is_of_gpu, may_write
from wattune_agent.lock import Lock, holders, place
from wattune_agent.mode import mode_id, switch_mode
from wattune_agent.restoring import bring_back
from wattune_agent.snapshot import Snapshot, boot_id, family_of, has_ended, is_strangers, snapshots, started_at
from wattune_agent.tree import Tree, real

__all__ = ["busy_with", "give_back", "left_behind", "lock_path", "restore_left_behind"]


def left_behind(tree: Tree) -> Optional[Snapshot]:
    """A snapshot whose process has ended; None if there is none.

    Raises: NotKept for an invalid snapshot file, if there are only such files.
    """
    failures: List[NotKept] = []
    for path in snapshots(tree):
        try:
            snapshot = Snapshot.load(path)
        except NotKept as error:
            failures.append(error)
            continue
        lock = _lock(tree, snapshot)
        if lock is not None and not lock.acquire():
            continue
        if lock is not None:
            lock.release()
        if not _is_elsewhere(snapshot):
            return snapshot
    if failures:
        raise failures[0]
    return None


def restore_left_behind(tree: Tree, lock: Optional[Lock] = None, family: str = "") -> List[str]:
    """Restore every board that a process left changed; returns a line for each.

    ``lock``: the lock that the caller holds already. ``family``: the family of boards that the caller uses; errors of
    other families then become lines too, and boards that another process controls are left to it. Raises, after doing
    as much as possible: Busy if a running process controls the board, NotKept for an invalid snapshot, NotRestored.
    """
    messages: List[str] = []
    failures: List[AgentError] = []
    for path in snapshots(tree):
        try:
            messages += _restore(tree, Snapshot.load(path), lock)
        except AgentError as error:
            if not family or (family_of(path) == family and not _is_nonsense(path, error)):
                failures.append(error)
            elif not isinstance(error, Busy):
                messages.append(str(error))
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise NotRestored("; ".join(str(failure) for failure in failures))
    return messages


def give_back(tree: Tree, snapshot: Snapshot) -> List[str]:
    """Restore the power mode and every file, verify them, and delete the snapshot; returns remarks for the user.

    Raises: NotRestored after restoring as much as possible; the snapshot then stays. NotKept if only the deletion
    failed.
    """
    why: List[str] = []
    if snapshot.mode_id is not None:
        try:
            # Even if it is the current mode: an interrupted switch changed files, but not yet nvpmodel's status.
            switch_mode(tree, snapshot.mode_id, always=True)
        except AgentError as error:
            if mode_id(tree) != snapshot.mode_id:
                why.append("the power mode is not {} again: {}".format(snapshot.mode_id, error))
    # After a power cut the kernel starts afresh: nothing written is left, and its limits are the current mode's.
    began_anew = tree.is_real and bool(snapshot.boot) and snapshot.boot != boot_id()
    failures = [] if began_anew else bring_back(tree, snapshot.files)
    messages: List[str] = []
    if failures and all(failure.clamped for failure in failures):
        clamps = conditions(tree).throttled
        if clamps:
            messages = ["{}; {} throttles it now, but it was written".format(failures[0].text, ", ".join(clamps))]
            failures = []
    why += [failure.text for failure in failures]
    if why:
        raise NotRestored(
            "{} (everything else is restored; {} keeps the original state, and the restore can be tried again)".format(
                "; ".join(why), snapshot.path
            )
        )
    snapshot.remove()
    return messages


def busy_with(tree: Tree, family: str, path: str = "") -> Busy:
    """The error for a board whose lock is taken, with its holder if known. ``path``: the lock's file."""
    lockers = holders(tree, path) if path else []
    for snapshot_path in snapshots(tree):
        try:
            snapshot = Snapshot.load(snapshot_path)
        except AgentError:
            continue
        if snapshot.family == family:
            who = snapshot.owner
            if started_at(snapshot.pid) != snapshot.started:
                who += ", or a child of it, since it has ended itself"
            others = [locker for locker in lockers if not locker.startswith("process {} ".format(snapshot.pid))]
            if others:
                who += "; the lock is held by " + ", ".join(others)
            return Busy("another controller has the {} clock: {}".format(family, who))
    who = ", ".join(lockers) or "a process that holds a lock on " + (path or "it")
    return Busy("another controller has the {} clock: {}".format(family, who))


def lock_path(files: List[str]) -> str:
    """The file whose lock represents the board: the first upper limit."""
    return ([path for path in files if path.endswith("max_freq")] or files)[0]


def _restore(tree: Tree, snapshot: Snapshot, own_lock: Optional[Lock]) -> List[str]:
    lock = _lock(tree, snapshot)
    # Both files of a card have one lock.
    ours = lock is not None and own_lock is not None and place(tree, lock.path) == place(tree, own_lock.path)
    if lock is not None and not ours and not lock.acquire():
        raise busy_with(tree, snapshot.family, lock.path)
    try:
        if _is_elsewhere(snapshot):
            raise busy_with(tree, snapshot.family)
        _check_owner(tree, snapshot)
        messages = give_back(tree, snapshot)
    finally:
        if lock is not None and not ours:
            lock.release()
    return ["the {} clock is as it was before {}".format(snapshot.family, snapshot.owner), *messages]


def _check_owner(tree: Tree, snapshot: Snapshot) -> None:
    """Check that a snapshot of another user names only what that user can have changed.

    Root would otherwise set any clock of the machine for anyone who writes a file. Raises: NotKept.
    """
    if not snapshot.is_foreign:
        return
    clock, _ = find_gpu_clock(tree)
    of_gpu = [real(tree, path) for path in clock.files()] if clock is not None else []
    for path in snapshot.files:
        if (is_of_gpu(path) and real(tree, path) not in of_gpu) or not may_write(tree, path, snapshot.uid):
            raise NotKept(
                "{} belongs to user {}, who may not write {}: it is not restored for them; set the clock yourself if "
                "it is changed (or reboot), then delete the file".format(snapshot.path, snapshot.uid, path)
            )


def _lock(tree: Tree, snapshot: Snapshot) -> Optional[Lock]:
    """The snapshot's lock; None if its file is missing or unreadable, and the rest is then restored without it."""
    if not snapshot.files:
        return None
    path = lock_path(list(snapshot.files))
    try:
        os.close(os.open(place(tree, path), os.O_RDONLY | os.O_CLOEXEC))
    except (OSError, FileFailed, Forbidden):
        return None
    return Lock(tree, path)


def _is_nonsense(path: str, error: AgentError) -> bool:
    """True for another user's invalid snapshot: leaving such a file must not block the board for others."""
    return isinstance(error, NotKept) and is_strangers(path)


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """True if another running process owns it, although its lock is not visible from here."""
    if snapshot.pid in (0, os.getpid()):
        return False
    if snapshot.boot and snapshot.boot != boot_id():
        return False
    return not has_ended(snapshot.pid, snapshot.started)
