"""What must be brought back on a GPU, on disk: written before the first change, removed after the last.

The driver keeps a locked clock and a power limit when the process that asked for them dies. The file then stays, and
``wattune restore`` (or the next wattune on this GPU) finds it. A lock tells whether its process still lives: the
kernel lets go of it with the process.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattune.errors import BoardUnusable, DeviceError, RecordError, WattuneError
from wattune.files import read_json, write_json
from wattune_agent.folders import folders
from wattune_agent.snapshot import boot_id, started_at
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
            # Not through a link: root looks into folders of others.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path.with_suffix(".lock"), flags, 0o644)
        except OSError as error:
            raise BoardUnusable(f"nothing can be kept in {self.path.parent} ({error.strerror})") from error
        try:
            # Not `flock`: a forked worker would hold that on when this process is dead.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            holder = _holder(self.path)
            raise BoardUnusable(f"another process controls this GPU{holder}: wait for it or end it") from error
        living = _living(self.path)  # its lock may not be seen from here, or was deleted
        if living is not None:
            os.close(descriptor)
            raise BoardUnusable(f"another process controls this GPU (process {living}): wait for it or end it")
        self._lock, self._pid = descriptor, os.getpid()
        _claimed.add(self.path)

    def read(self) -> dict[str, Any] | None:
        """What has to be brought back; None where nothing has. Raises: DeviceError where the file is not whole."""
        if not self.path.exists():
            return None
        if not stat.S_ISREG(self.path.lstat().st_mode):
            raise DeviceError(f"{self.path} is no file of ours: remove it")
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
            owner = {"pid": os.getpid(), "started": started_at(os.getpid()), "boot": boot_id()}
            write_json(self.path, {**data, **owner})
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


def usual_folders() -> list[Path]:
    """Where files of this user are, then where else some may be that concern him; root looks at those of all users."""
    return [Path(folder) for folder in folders(Tree())]


def usual_folder() -> Path:
    """Where this user's files are."""
    return usual_folders()[0]


def held_gpus(folder: Path) -> Iterator[str]:
    """UUIDs of the GPUs of which something is kept in ``folder``, by a process that lives or not."""
    for path in sorted(folder.glob("nvidia-*.json")):
        yield path.name[len("nvidia-") : -len(".json")]


def _holder(path: Path) -> str:
    data = _kept(path)
    return f" (process {data['pid']})" if "pid" in data else ""


def _living(path: Path) -> int | None:
    """The process that keeps the file, where it is another one that lives."""
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
