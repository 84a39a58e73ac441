"""A process beside this one that restores this computer's boards if this one is killed.

Boards that this process controls itself stay as they are set when it gets SIGKILL, until ``wattune restore`` is run by
someone. ``python -m wattune.devices.group.watch LEFTOVERS PARENT`` does that: it reads a byte for each change on its
standard input, and at the end of that, or of its parent, restores what the parent has not said to have restored.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence

from wattune.devices.group.watcher import CHANGED, RESTORED

LOOK_S = 0.5
"""Time between two looks at the parent: its pipe stays open while a fork lives, such as a data loader's worker."""

TRY_FOR_S = 60.0
"""Time for which a restore is tried again: forks of the parent hold its lock until they notice its end."""

PAUSE_S = 0.5


def await_end(pipe: int, parent: int) -> bool:
    """Wait until the parent has said that everything is restored and closed the pipe, or has ended.

    Returns: True if it has not said so. A parent that lives could not restore something: its locks end with it.
    """
    word = RESTORED
    while True:
        is_orphan = os.getppid() != parent  # looked at first: what it said before its end is in the pipe by then
        if select.select([pipe], [], [], 0.0 if is_orphan else LOOK_S)[0]:
            said = os.read(pipe, 64)
            if not said:
                break
            word = said[-1:]
        elif is_orphan:
            break
    while word == CHANGED and os.getppid() == parent:
        time.sleep(LOOK_S / 10)
    return word == CHANGED


def restore(leftovers: Sequence[str], try_for_s: float = TRY_FOR_S) -> list[str]:
    """Restore the boards that dead processes left below these roots, and try again for a while. Returns: what was done,
    in words."""
    from wattune_agent.leftover import restore_left_behind
    from wattune_agent.tree import Tree

    said: list[str] = []
    waiting = list(leftovers)
    until_s = time.monotonic() + try_for_s
    while waiting:
        failed = {}
        for leftover in waiting:
            try:
                said += restore_left_behind(Tree(leftover))
            except Exception as error:  # noqa: BLE001 - nobody is left who could handle it
                failed[leftover] = str(error)
        waiting = list(failed)
        if time.monotonic() > until_s:
            return said + list(failed.values())
        if waiting:
            time.sleep(PAUSE_S)
    return said


def main() -> None:
    """Watch, and restore."""
    leftovers = json.loads(sys.argv[1])
    if await_end(sys.stdin.fileno(), int(sys.argv[2])):
        for line in restore(leftovers):
            sys.stderr.write(f"wattune: {line}\n")


if __name__ == "__main__":
    main()
