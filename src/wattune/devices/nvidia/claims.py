"""Snapshots on disk of what has to be restored on a GPU: written before the first change, removed after the last.

The driver keeps a locked clock and a power limit when the process that set them dies. The file then stays, and
``wattune restore`` (or the next wattune on this GPU) finds it. A lock tells if its process is still alive: the
kernel releases it when the process ends. An agent that controls the GPU holds the same lock.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattune.errors import DeviceError, DeviceUnavailable, RecordError, WattuneError
from wattune.files import read_json, write_json
from wattune_agent.folders import folders
from wattune_agent.lock import Lock, holders
from wattune_agent.snapshot import boot_id, started_at
from wattune_agent.tree import Tree

_claimed: set[Path] = set()
"""Claims of this process: the kernel's locks hold between processes only."""


class Held:
    """The claim of one process on one GPU, in ``folder``."""

    def __init__(self, folder: Path, uuid: str):
        self.path = folder / f"nvidia-{uuid}.json"
        self._lock: _CardLock | None = None
        self._pid = os.getpid()

    @property
    def mine(self) -> bool:
        """True if this process is the one that may change the GPU."""
        return self._lock is not None and self._pid == os.getpid()

    @property
    def parent(self) -> int | None:
        """The process that may change the GPU if this one is a fork of it; otherwise None."""
        return self._pid if self._lock is not None and self._pid != os.getpid() else None

    def claim(self) -> None:
        """Become the only process that may change the GPU. Raises: DeviceUnavailable if another one is."""
        if self._lock is not None:
            return
        if self.path in _claimed:
            raise DeviceUnavailable("this process controls the GPU already")
        lock = _CardLock(Tree(), str(self.path.with_suffix(".lock")))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            is_free = lock.acquire()
        except OSError as error:
            raise DeviceUnavailable(f"nothing can be kept in {self.path.parent} ({error.strerror})") from error
        if not is_free:
            holder = ", ".join(holders(Tree(), lock.path)) or _holder(self.path)
            raise DeviceUnavailable(
                f"another process controls this GPU{f' ({holder})' if holder else ''}: wait for it or end it; if it is "
                "an agent, use --device agent"
            )
        living = _living(self.path)  # its lock may not be visible from here, or was deleted
        if living is not None:
            lock.release()
            raise DeviceUnavailable(f"another process controls this GPU (process {living}): wait for it or end it")
        self._lock, self._pid = lock, os.getpid()
        _claimed.add(self.path)

    def read(self) -> dict[str, Any] | None:
        """The state to restore; None if there is none. Raises: DeviceError if the file is not complete."""
        if not self.path.exists():
            return None
        if not stat.S_ISREG(self.path.lstat().st_mode):
            raise DeviceError(f"{self.path} was not written by wattune: remove it")
        try:
            data = read_json(self.path)
        except RecordError as error:
            raise DeviceError(f"what was kept of a GPU cannot be read: {error}") from error
        if not isinstance(data, dict) or not isinstance(data.get("uuid"), str):
            raise DeviceError(
                f"{self.path} was not written by wattune: remove it after `nvidia-smi --reset-gpu-clocks`"
            )
        return data

    def keep(self, data: dict[str, Any]) -> None:
        """Write the state that has to be restored later. Raises: DeviceError if it cannot be saved."""
        try:
            owner = {"pid": os.getpid(), "started": started_at(os.getpid()), "boot": boot_id()}
            write_json(self.path, {**data, **owner})
        except WattuneError as error:
            raise DeviceError(f"nothing was changed, since it could not be kept first: {error}") from error

    def release(self) -> None:
        """Remove the snapshot, since nothing has to be restored any more, and give up the claim."""
        if self.mine:
            self.path.unlink(missing_ok=True)
        self.let_go()

    def let_go(self) -> None:
        """Give up the claim; the next process finds the snapshot, if any."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            _claimed.discard(self.path)


class _CardLock(Lock):
    """The lock on a file that need not be there, and not through a link: root looks into the folders of others."""

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def usual_folders() -> list[Path]:
    """Folders of snapshots: this user's first, then others that may concern it; for root those of all users."""
    return [Path(folder) for folder in folders(Tree())]


def usual_folder() -> Path:
    """The folder of this user's snapshots."""
    return usual_folders()[0]


def held_gpus(folder: Path) -> Iterator[str]:
    """UUIDs of the GPUs with a snapshot in ``folder``, of a process that is alive or not."""
    for path in sorted(folder.glob("nvidia-*.json")):
        yield path.name[len("nvidia-") : -len(".json")]


def _holder(path: Path) -> str:
    data = _kept(path)
    return f"process {data['pid']}" if "pid" in data else ""


def _living(path: Path) -> int | None:
    """The process that wrote the file, if it is another one and still alive."""
    data = _kept(path)
    pid = data.get("pid")
    if not isinstance(pid, int) or pid in (0, os.getpid()) or data.get("boot") != boot_id():
        return None
    return pid if data.get("started") is not None and started_at(pid) == data["started"] else None


def _kept(path: Path) -> dict[str, Any]:
    if not path.is_file() or path.is_symlink():
        return {}
    try:
        data = read_json(path)
    except RecordError:
        return {}
    return data if isinstance(data, dict) else {}
