"""What must be brought back on a GPU, on disk: written before the first change, removed after the last.

The driver keeps a locked clock and a power limit when the process that asked for them dies. The file then stays, and
``wattune restore`` (or the next wattune on this GPU) finds it. A lock tells whether its process still lives: the
kernel lets go of it with the process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattune.errors import BoardUnusable, DeviceError, RecordError, WattuneError
from wattune.files import read_json, write_json
from wattune_agent.folders import state_folder
from wattune_agent.tree import Tree

_claimed: set[Path] = set()
"""What this process has claimed: the kernel's locks are between processes."""


class Held:
    """The claim of one process on one GPU, in ``folder``."""

    def __init__(self, folder: Path, uuid: str):
        self.path = folder / f"nvidia-{uuid}.json"
        self._lock: int | None = None
        self._pid = os.getpid()

    @property
    def mine(self) -> bool:
        """Whether this process is the one that may change the GPU."""
        return self._lock is not None and self._pid == os.getpid()

    @property
    def parent(self) -> int | None:
        """The process that may change it, where this one is only a fork of that; None elsewhere."""
        return self._pid if self._lock is not None and self._pid != os.getpid() else None

    def claim(self) -> None:
        """Become the only one who may change the GPU. Raises: BoardUnusable where another one is."""
        if self._lock is not None:
            return
        if self.path in _claimed:
            raise BoardUnusable("this process controls the GPU already")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BoardUnusable(f"nothing can be kept in {self.path.parent} ({error.strerror})") from error
        try:
            # Not `flock`: a forked worker would hold that on when this process is dead.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            holder = _holder(self.path)
            raise BoardUnusable(f"another process controls this GPU{holder}: wait for it or end it") from error
        self._lock, self._pid = descriptor, os.getpid()
        _claimed.add(self.path)

    def read(self) -> dict[str, Any] | None:
        """What has to be brought back; None where nothing has. Raises: DeviceError where the file is not whole."""
        if not self.path.exists():
            return None
        try:
            data = read_json(self.path)
        except RecordError as error:
            raise DeviceError(f"what was kept of a GPU cannot be read: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("uuid"), str):
            raise DeviceError(f"{self.path} is none of our files: remove it after `nvidia-smi --reset-gpu-clocks`")
        return data

    def keep(self, data: dict[str, Any]) -> None:
        """Write what will have to be brought back. Raises: DeviceError where it cannot be kept."""
        try:
            write_json(self.path, {**data, "pid": os.getpid()})
        except WattuneError as error:
            raise DeviceError(f"nothing was changed, since it could not be kept first: {error}") from error

    def release(self) -> None:
        """Nothing has to be brought back any more; the next one may."""
        if self.mine:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """The next one may, and finds what is kept."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _claimed.discard(self.path)


def usual_folder() -> Path:
    """Where this user's files are."""
    return Path(state_folder(Tree()))


def held_gpus(folder: Path) -> Iterator[str]:
    """UUIDs of the GPUs of which something is kept in ``folder``, by a process that lives or not."""
    for path in sorted(folder.glob("nvidia-*.json")):
        yield path.name[len("nvidia-") : -len(".json")]


def _holder(path: Path) -> str:
    try:
        data = read_json(path)
    except RecordError:
        return ""
    return f" (process {data['pid']})" if isinstance(data, dict) and "pid" in data else ""
