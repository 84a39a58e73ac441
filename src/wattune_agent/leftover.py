"""Restore a board from its snapshot, including one that a killed process left behind."""

import os
from contextlib import contextmanager
from typing import Iterator, List, Optional, Tuple

from wattune_agent.conditions import conditions
from wattune_agent.errors import AgentError, Busy, NotKept, NotRestored
from wattune_agent.file_knob import Failure, bring_back
from wattune_agent.folders import Lock, board_lock, make_private, state_folder
from wattune_agent.snapshot import Snapshot, boot_id, family_of, has_ended, parts, snapshots, strangers
from wattune_agent.tree import Tree


def left_behind(tree: Tree) -> Optional[Snapshot]:
    """A snapshot whose process has ended; None if there is none.

    Raises: NotKept for an invalid snapshot file, if there are only such files.
    """
    failures: List[NotKept] = []
    for path in snapshots(tree):
        try:
            snapshot = Snapshot.load(path)
            if board_lock(tree, snapshot.family).is_free() and not _is_elsewhere(snapshot):
                return snapshot
        except NotKept as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return None


def restore_left_behind(tree: Tree, lock: Optional[Lock] = None, family: str = "") -> List[str]:
    """Restore every board that a process left changed; returns a line for each.

    ``lock``: the lock that the caller holds already. ``family``: the family of boards that the caller uses; errors of
    other families then become lines too, and boards that another process controls are left to it. Raises, after doing
    as much as possible: Busy if a running process controls the board, NotKept for an invalid snapshot, NotRestored.
    """
    if not os.path.exists(state_folder(tree)):
        return []
    make_private(state_folder(tree))  # before anything in it is read
    messages = ["{} is another user's: it is not obeyed; delete it".format(path) for path in strangers(tree)]
    failures: List[AgentError] = []
    for path in parts(tree):
        with _in_hand(tree, family_of(path), lock) as is_free:
            if is_free:
                os.unlink(path)
    for path in snapshots(tree):
        try:
            messages += _restore(tree, Snapshot.load(path), lock)
        except AgentError as error:
            if not family or family_of(path) == family:
                failures.append(error)
            elif not isinstance(error, Busy):
                messages.append(str(error))
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise NotRestored("; ".join(str(failure) for failure in failures))
    return messages


def give_back(tree: Tree, snapshot: Snapshot) -> List[str]:
    """Restore every file, verify them, and delete the snapshot; returns remarks for the user.

    Raises: NotRestored after restoring as much as possible; the snapshot then stays. NotKept if only the deletion
    failed.
    """
    with tree.deadline():
        failures, messages = _brought_back(tree, snapshot)
    if failures:
        raise NotRestored(
            "{} (everything else is restored; {} keeps the original state, and the restore can be tried again)".format(
                "; ".join(failure.text for failure in failures), snapshot.path
            )
        )
    snapshot.remove()
    return messages


def _brought_back(tree: Tree, snapshot: Snapshot) -> Tuple[List[Failure], List[str]]:
    """Restore every file; returns what could not be restored, and remarks."""
    # After a power cut the kernel starts afresh: nothing written is left, and its limits are the current mode's.
    began_anew = tree.is_real and bool(snapshot.boot) and snapshot.boot != boot_id()
    failures = [] if began_anew else bring_back(tree, snapshot.files)
    if failures and all(failure.clamped for failure in failures):
        clamps = conditions(tree).throttled
        if clamps:
            return [], ["{}; {} throttles it now, but it was written".format(failures[0].text, ", ".join(clamps))]
    return failures, []


def busy_with(tree: Tree, family: str, owner: str = "") -> Busy:
    """The error for a board that another process controls. ``owner``: that process, if its lock cannot be seen here."""
    who = owner or board_lock(tree, family).holder() or "another process"
    return Busy("another controller has the {} clock: {}".format(family, who))


def _restore(tree: Tree, snapshot: Snapshot, own_lock: Optional[Lock]) -> List[str]:
    with _in_hand(tree, snapshot.family, own_lock) as is_free:
        if not is_free or _is_elsewhere(snapshot):
            raise busy_with(tree, snapshot.family, snapshot.owner if is_free else "")
        messages = give_back(tree, snapshot)
    return ["the {} clock is as it was before {}".format(snapshot.family, snapshot.owner), *messages]


@contextmanager
def _in_hand(tree: Tree, family: str, own_lock: Optional[Lock]) -> Iterator[bool]:
    """Hold the lock on a board inside; False if another process has it. A lock that cannot be had, on a disk that
    cannot be written, keeps no board from its restore."""
    lock = board_lock(tree, family)
    is_own = own_lock is not None and own_lock.path == lock.path
    try:
        is_free = is_own or lock.acquire()
    except NotKept:
        is_free = True
    try:
        yield is_free
    finally:
        lock.release()


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """True if another running process owns it, although its lock is not visible from here."""
    if snapshot.pid in (0, os.getpid()):
        return False
    if snapshot.boot and snapshot.boot != boot_id():
        return False
    return not has_ended(snapshot.pid, snapshot.started)
