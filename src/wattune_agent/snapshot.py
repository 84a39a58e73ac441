"""The state of a board before its first change, on disk: it outlives the process, however that ends.

It is complete or absent: written to a temporary file, synced to disk, then renamed. It is deleted once everything is
restored.
"""

import json
import os
import stat
import time
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Optional

from wattune_agent.errors import FileFailed, NotKept
from wattune_agent.folders import PART, make_private, state_folder, sync, this_process, write_whole
from wattune_agent.knobs import fits, is_limit, whole
from wattune_agent.tree import Tree

VERSION = 1

LARGEST = 1 << 20
"""Bytes of a file that are read: a longer file is not a snapshot."""

_PREFIX, _SUFFIX = "board-", ".json"


class Snapshot(NamedTuple):
    """The state to restore. ``files``: path and text, in the order of the restore. ``pid``, ``started``, ``boot``: the
    process that changes the board (pid 0: no process any longer)."""

    path: str
    family: str
    files: Dict[str, str]
    mode: Dict[str, str]
    pid: int
    started: int
    boot: str
    command: str
    time: str

    @property
    def owner(self) -> str:
        """The process that changes the board, in words."""
        return "process {} ({}), since {}".format(self.pid, self.command or "no command", self.time)

    def with_files(self, tree: Tree, paths: List[str]) -> "Snapshot":
        """The same with the current text of files that it does not contain yet; itself if there are none.

        Raises: Forbidden, FileFailed.
        """
        texts = found_texts(tree, [path for path in paths if path not in self.files])
        return self._replace(files={**self.files, **texts}) if texts else self

    def save(self) -> None:
        """Write it to disk, atomically. Raises: NotKept; the previous file, if any, is then unchanged."""
        content = self._asdict()
        content.update(record="snapshot", version=VERSION, files=[[path, text] for path, text in self.files.items()])
        del content["path"]
        make_private(os.path.dirname(self.path))
        try:
            write_whole(self.path, json.dumps(content, indent=1) + "\n", 0o600)
        except OSError as error:
            raise NotKept(
                "the board's current state cannot be saved in {}, so nothing is changed on it: {}".format(
                    self.path, error.strerror or error
                )
            ) from error

    def remove(self) -> None:
        """Delete it after a complete restore. Raises: NotKept if it cannot be deleted."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NotKept(
                "the board is restored, but {} cannot be deleted: {}; delete it".format(
                    self.path, error.strerror or error
                )
            ) from error
        # after a power cut it may reappear; by then the kernel has forgotten everything written
        with suppress(OSError):
            sync(os.path.dirname(self.path))

    @classmethod
    def load(cls, path: str) -> "Snapshot":
        """Read one. Raises: NotKept if it is not a snapshot, or an incomplete one.

        It may name only files that this package changes.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise ValueError("it is not a regular file")
                content = os.read(descriptor, LARGEST).decode("utf-8")
            finally:
                os.close(descriptor)
            return _checked(path, json.loads(content))
        except OSError as error:
            raise NotKept("{} cannot be read: {}".format(path, error.strerror or error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotKept(
                "{} is not a whole snapshot ({}), so the board's original state is unknown: reboot it, or set its "
                "clocks yourself, then delete the file".format(path, _why(error))
            ) from error

    @classmethod
    def of_now(cls, tree: Tree, family: str, paths: List[str], mode: Dict[str, str]) -> "Snapshot":
        """The board's current state, owned by this process. Raises: Forbidden, FileFailed."""
        return cls(
            path=os.path.join(state_folder(tree), _PREFIX + family + _SUFFIX),
            family=family,
            files=found_texts(tree, paths),
            mode=dict(mode),
            pid=os.getpid(),
            started=started_at(os.getpid()) or 0,
            boot=boot_id(),
            command=this_process(),
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )


def snapshots(tree: Tree) -> List[str]:
    """The files of snapshots that belong to this user."""
    return [path for path in _files(tree, _SUFFIX) if _is_own(path)]


def strangers(tree: Tree) -> List[str]:
    """The files that another user put in the place of snapshots, while others could still enter the folder."""
    return [path for path in _files(tree, _SUFFIX) if not _is_own(path)]


def parts(tree: Tree) -> List[str]:
    """The files of snapshots that a killed process began to write, or that another one is writing now."""
    return _files(tree, _SUFFIX + PART)


def family_of(path: str) -> str:
    """The family of boards in a snapshot's file name, whatever the content."""
    return os.path.basename(path)[len(_PREFIX) :].rpartition(_SUFFIX)[0]


def _files(tree: Tree, suffix: str) -> List[str]:
    folder = state_folder(tree)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names if name.startswith(_PREFIX) and name.endswith(suffix)]


def _is_own(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return True  # reading it will say why


def found_texts(tree: Tree, paths: List[str]) -> Dict[str, str]:
    """The exact text of each file, including trailing white space. Raises: Forbidden, FileFailed."""
    texts = {}
    for path in paths:
        text = tree.read(path)
        if is_limit(path) and not fits(path, str(whole(tree, path))):
            # Not a real state of a board: restoring it later would leave the board at something else.
            raise FileFailed("{} reads {!r}, which is not a frequency; nothing was changed".format(path, text[:40]))
        try:
            with open(tree.inside(path), "rb") as file:
                exact = file.read().decode("utf-8", "replace")
        except OSError:
            exact = text
        texts[path] = exact if exact.strip(" \t\r\n\0") == text and "\0" not in exact else text
        if not fits(path, texts[path]):
            raise FileFailed("{} reads {!r}, which could not be restored; nothing was changed".format(path, text[:40]))
    return texts


def boot_id() -> str:
    """The identifier of this boot; empty if there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def started_at(pid: int) -> Optional[int]:
    """Start time of a running process, in ticks since boot; None if it does not exist, or cannot be read."""
    try:
        return _started_at(pid)
    except OSError:
        return None


def has_ended(pid: int, started: int) -> bool:
    """True if the process that began at ``started`` is known to have ended. A read that fails for another reason, such
    as a lack of file descriptors, proves nothing."""
    try:
        return _started_at(pid) != started
    except OSError:
        return False


def _started_at(pid: int) -> Optional[int]:
    """The same as ``started_at``. Raises: OSError if the process may exist.

    Source: proc(5), field 22 of ``stat``; the name in field 2 may hold spaces and parentheses.
    """
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "it has no {}".format(error.args[0])
    return str(error).splitlines()[0] if str(error) else "empty"


def _checked(path: str, content: Any) -> Snapshot:
    if content["record"] != "snapshot" or content["version"] > VERSION:
        raise ValueError("it says it is a {} of version {}".format(content["record"], content["version"]))
    files: Dict[str, str] = {}
    for file, text in content["files"]:
        if not isinstance(file, str) or not isinstance(text, str) or not fits(file, text):
            raise ValueError("it names {!r} with {!r}".format(file, text)[:200])
        files[file] = text
    return Snapshot(
        path=path,
        family=str(content["family"]),
        files=files,
        mode={str(key): str(value) for key, value in content["mode"].items()},
        pid=int(content["pid"]),
        started=int(content["started"]),
        boot=str(content["boot"]),
        command=str(content["command"]),
        time=str(content["time"]),
    )
