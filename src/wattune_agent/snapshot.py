"""What a board was before its first change, on disk: it outlives the process, whatever ends it.

It is complete or not there at all: written beside its place, brought to the disk, then renamed. It is deleted once
everything is back.
"""

import errno
import json
import os
import stat
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.errors import FileFailed, Forbidden, NotKept
from wattune_agent.folders import folders, state_folder
from wattune_agent.limits import tolerance_of, whole
from wattune_agent.tree import Tree
from wattune_agent.writable import fits, is_of_mode

__all__ = ["Snapshot", "boot_id", "family_of", "found_texts", "is_strangers", "snapshots", "started_at", "state_folder"]

VERSION = 1

LARGEST = 1 << 20
"""Bytes of a file that are read: what is longer is no snapshot."""

_PREFIX, _SUFFIX = "board-", ".json"


class Snapshot(NamedTuple):
    """``files``: path and text, in the order in which they are brought back. ``pid``, ``started`` and ``boot``: the
    process that changes the board (pid 0: nobody any more). ``mode_id``: the power mode to go back to, if it was
    switched."""

    path: str
    family: str
    files: Dict[str, str]
    mode: Dict[str, str]
    mode_id: Optional[int]
    pid: int
    started: int
    boot: str
    command: str
    time: str

    @property
    def owner(self) -> str:
        """The process that changes the board, in words."""
        return "process {} ({}), since {}".format(self.pid, self.command or "no command", self.time)

    def with_files(self, tree: Tree, paths: List[str], mode_id: Optional[int] = None) -> "Snapshot":
        """The same with files that it does not hold yet, as they are now; itself where there is nothing new.

        With the mode to go back to, the files are those that a switch changes: kept where they can be read, and the
        cores' switches go before all else, for without cores there are no limits. Raises: Forbidden, FileFailed.
        """
        found: Dict[str, str] = {}
        for path in paths:
            if path not in self.files:
                try:
                    found.update(found_texts(tree, [path]))
                except (FileFailed, Forbidden):
                    if mode_id is None:
                        raise
        if not found and mode_id is None:
            return self
        first = {path: text for path, text in found.items() if path.endswith("/online")}
        return self._replace(
            files={**first, **self.files, **found}, mode_id=self.mode_id if mode_id is None else mode_id
        )

    def save(self) -> None:
        """Bring it to the disk, in one piece. Raises: NotKept; what was there before is then still there."""
        folder, beside = os.path.dirname(self.path), self.path + ".part"
        content = self._asdict()
        content.update(record="snapshot", version=VERSION, files=[[path, text] for path, text in self.files.items()])
        del content["path"]
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            _write(beside, (json.dumps(content, indent=1) + "\n").encode("utf-8"))
            os.replace(beside, self.path)
            _sync(folder)
        except OSError as error:
            _delete(beside)
            raise NotKept(
                "what the board is now cannot be kept in {}, so nothing is changed on it: {}".format(
                    self.path, error.strerror or error
                )
            ) from error

    def remove(self) -> None:
        """Delete it: everything is as it was. Raises: NotKept where it cannot be deleted."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise NotKept(
                "the board is as it was, but {} cannot be deleted: {}; delete it, or run the restore as the user who "
                "owns it".format(self.path, error.strerror or error)
            ) from error
        try:
            _sync(os.path.dirname(self.path))
        except OSError:
            pass  # after a power cut it may be there again; by then the kernel has forgotten all that was written

    @classmethod
    def load(cls, path: str) -> "Snapshot":
        """Read one. Raises: NotKept where it is no snapshot, or only a part of one.

        It names nothing but files that are changed here; that of another user than root nothing of a power mode either.
        """
        try:
            # Others may put there what they like: a pipe would never end.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError("it is no file")
                content = os.read(descriptor, LARGEST).decode("utf-8")
            finally:
                os.close(descriptor)
            return _checked(path, json.loads(content), _is_anothers(status))
        except OSError as error:
            raise NotKept("{} cannot be read: {}".format(path, error.strerror or error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotKept(
                "{} is not a whole snapshot ({}), so what the board was is not known: start the board anew, or set its "
                "clocks yourself, then delete the file".format(path, _why(error))
            ) from error

    @classmethod
    def of_now(cls, tree: Tree, family: str, paths: List[str], mode: Dict[str, str]) -> "Snapshot":
        """The board at this moment, in the hands of this process. Raises: Forbidden, FileFailed."""
        return cls(
            path=os.path.join(state_folder(tree), _PREFIX + family + _SUFFIX),
            family=family,
            files=found_texts(tree, paths),
            mode=dict(mode),
            mode_id=None,
            pid=os.getpid(),
            started=started_at(os.getpid()) or 0,
            boot=boot_id(),
            command=" ".join(sys.argv)[:200],
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )


def snapshots(tree: Tree) -> List[str]:
    """The snapshots that this user sees."""
    found = []
    for folder in folders(tree):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    return found


def family_of(path: str) -> str:
    """The family of boards whose snapshot a file is, whatever stands in it."""
    return os.path.basename(path)[len(_PREFIX) : -len(_SUFFIX)]


def is_strangers(path: str) -> bool:
    """Whether the file belongs to neither root nor this user."""
    try:
        return _is_anothers(os.lstat(path))
    except OSError:
        return False


def found_texts(tree: Tree, paths: List[str]) -> Dict[str, str]:
    """The text of each file as it is, white space at its end included. Raises: Forbidden, FileFailed."""
    texts = {}
    for path in paths:
        text = tree.read(path)
        khz = tolerance_of(path)
        if khz and not fits(path, str(whole(tree, path))):
            # Nothing that a board was: to bring it back later would leave the board at something else.
            raise FileFailed("{} reads {!r}, which is no frequency; nothing was changed".format(path, text[:40]))
        try:
            with open(tree.inside(path), "rb") as file:
                exact = file.read().decode("utf-8", "replace")
        except OSError:
            exact = text
        texts[path] = exact if exact.strip(" \t\r\n\0") == text and "\0" not in exact else text
        if not fits(path, texts[path]):
            raise FileFailed(
                "{} reads {!r}, which could not be brought back; nothing was changed".format(path, text[:40])
            )
    return texts


def boot_id() -> str:
    """What this start of the machine is called; empty where it has no name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def started_at(pid: int) -> Optional[int]:
    """When a living process began, in ticks since the machine's start; None where there is no such process.

    Source: proc(5), field 22 of ``stat``; the name in field 2 may hold spaces and parentheses.
    """
    try:
        with open("/proc/{}/stat".format(pid), encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "it has no {}".format(error.args[0])
    return str(error).splitlines()[0] if str(error) else "empty"


def _is_anothers(status: os.stat_result) -> bool:
    return status.st_uid not in (0, os.geteuid())


def _checked(path: str, content: Any, anothers: bool) -> Snapshot:
    if content["record"] != "snapshot" or content["version"] > VERSION:
        raise ValueError("it says it is a {} of version {}".format(content["record"], content["version"]))
    files: Dict[str, str] = {}
    for file, text in content["files"]:
        if not isinstance(file, str) or not isinstance(text, str) or not fits(file, text):
            raise ValueError("it names {!r} with {!r}".format(file, text)[:200])
        files[file] = text
    texts: Tuple[str, ...] = tuple(str(content[name]) for name in ("family", "boot", "command", "time"))
    mode_id = content["mode_id"]
    if anothers and (mode_id is not None or any(map(is_of_mode, files))):
        raise ValueError("it is of another user, who can have switched no power mode")
    return Snapshot(
        path=path,
        family=texts[0],
        files=files,
        mode={str(key): str(value) for key, value in content["mode"].items()},
        mode_id=None if mode_id is None else int(mode_id),
        pid=int(content["pid"]),
        started=int(content["started"]),
        boot=texts[1],
        command=texts[2],
        time=texts[3],
    )


def _write(path: str, content: bytes) -> None:
    _delete(path)  # in a folder of several users it may be somebody's link to elsewhere
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whoever finds the board changed has to be able to read how it was
        while content:
            content = content[os.write(descriptor, content) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot do this for a folder
            raise
    finally:
        os.close(descriptor)


def _delete(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
