"""The files of a board: plain reads and single writes below a root, and the board's time.

A root other than "/" is a folder with ``sys/...`` in it: a copy of a board for inspection, or a test's. Nothing outside
it is ever touched. Time belongs to the tree so that a simulated board can run on a clock of its own.
"""

import errno
import glob
import math
import os
import re
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional

from wattune_agent.errors import AgentError, FileFailed, Forbidden

if TYPE_CHECKING:
    from wattune_agent.nvml import Card, Cards

DEADLINE_S = 10.0
"""Time that a driver has to take a text: after that, everything else is done without it."""

SECOND_DEADLINE_S = 1.0
"""The same once a driver has hung: other files of it may hang as well."""

LOCK, LIMIT = "locked_clock_mhz", "power_limit_mw"
"""Names of the files that stand for an NVIDIA card, in its folder: see ``wattune_agent.nvidia``."""

_CARD_FILE = re.compile("/nvml/([A-Za-z0-9-]{1,90})/(?:" + LOCK + "|" + LIMIT + ")")


class Tree:
    """Files by their path as the board itself names them, such as ``/sys/class/devfreq``."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self._places: Dict[str, str] = {}
        self._cards: Optional["Cards"] = None
        self._has_deadline = False
        self._hanging: Dict[str, threading.Thread] = {}

    # ----------------------------------------------------------------------------------------------------------- time

    def now_s(self) -> float:
        """Monotonic time in seconds, from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        time.sleep(seconds)

    # ---------------------------------------------------------------------------------------------------------- files

    def read(self, path: str) -> str:
        """The file's text, without the white space and NUL bytes around it. Raises: Forbidden, FileFailed."""
        if self._has_deadline or self._hanging:
            return str(self._in_time(path, lambda: self._text(path)))
        return self._text(path)

    def _text(self, path: str) -> str:
        if card_of(path):
            return self._card(path).read(path.rpartition("/")[2])
        try:
            descriptor = self._opened(path, os.O_RDONLY)
            try:
                parts = [os.read(descriptor, 65536)]
                while parts[-1]:
                    parts.append(os.read(descriptor, 65536))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._mapped(error, path, "read") from error
        return b"".join(parts).decode("utf-8", "replace").strip(" \t\r\n\0")

    def read_number(self, path: str) -> float:
        """The number in the file. Raises: Forbidden, FileFailed."""
        text = self.read(path)
        try:
            return float(text)
        except ValueError:
            raise FileFailed("{} contains no number but {!r}".format(path, text[:40])) from None

    def write(self, path: str, text: str) -> None:
        """Write the text in one call, as the kernel's files require; a missing file is not created.

        Raises: Forbidden; FileFailed, also for a driver that hangs.
        """
        self._in_time(path, lambda: self._put(path, text))

    @contextmanager
    def deadline(self) -> Iterator[None]:
        """Let reads inside fail as well if a driver hangs. Writes always do, and all reads while one hangs."""
        self._has_deadline = True
        try:
            yield
        finally:
            self._has_deadline = False

    def _in_time(self, path: str, call: Callable[[], Any]) -> Any:
        """The result of the call, made in a thread: a call that hangs in a driver cannot be ended."""
        hanging = self._hanging = {stuck: thread for stuck, thread in self._hanging.items() if thread.is_alive()}
        results: List[Any] = []
        errors: List[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        if path not in hanging:
            thread = threading.Thread(target=run, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, and starts no thread any more
                return call()
            thread.join(SECOND_DEADLINE_S if hanging else DEADLINE_S)
            if thread.is_alive():
                self._hanging[path] = thread
        if errors:
            raise errors[0]
        if not results:
            raise FileFailed("{} is left as it is: its driver hangs".format(self._joined(path)))
        return results[0]

    def _put(self, path: str, text: str) -> None:
        if card_of(path):
            self._card(path).write(path.rpartition("/")[2], text)
            return
        try:
            descriptor = self._opened(path, os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(descriptor, text.encode("utf-8"))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._mapped(error, path, "written") from error

    def exists(self, path: str) -> bool:
        """True if the file or folder exists."""
        return os.path.exists(self._joined(path))

    def writable(self, path: str) -> bool:
        """True if this user may write the file, of the machine itself as root only."""
        return self.is_ours and os.access(self._joined(path), os.W_OK)

    def check_writable(self, path: str) -> None:
        """Check that the file can be written. Raises: Forbidden if this user may not, FileFailed if it is missing."""
        if card_of(path):
            self._card(path).check_writable()
            return
        if not self.exists(path):
            raise self._mapped(OSError(errno.ENOENT, os.strerror(errno.ENOENT)), path, "written")
        if not self.writable(path):
            raise self._mapped(OSError(errno.EACCES, os.strerror(errno.EACCES)), path, "written")

    def glob(self, pattern: str) -> List[str]:
        """Paths that match, sorted, as the board names them."""
        paths = glob.glob(glob.escape(self.root.rstrip("/")) + pattern)
        return sorted(path[len(self.root.rstrip("/")) :] for path in paths)

    def real(self, path: str) -> str:
        """The path without links, as the board names it. Raises: FileFailed if a link leads out of the root."""
        return self.inside(path)[len(self.root.rstrip("/")) :]

    # ---------------------------------------------------------------------------------------------------------- cards

    def cards(self) -> "Cards":
        """The NVIDIA cards of this machine. Raises: FileFailed below a root other than "/", which has none."""
        if self._cards is None:
            if self.root != "/":
                raise FileFailed("there are no NVIDIA cards in a copy of a board")
            # Only here: a hardened agent of another board may not load ctypes.
            from wattune_agent.nvml import Cards

            self._cards = Cards()
        return self._cards

    def _card(self, path: str) -> "Card":
        try:
            return self.cards().find(card_of(path))
        except (FileFailed, Forbidden):
            raise
        except AgentError as error:
            raise FileFailed("{}: {}".format(path, error)) from error

    @property
    def is_ours(self) -> bool:
        """True if this user may change boards here: the machine's own only as root. Others use root's agent."""
        return self.root != "/" or os.geteuid() == 0

    @property
    def is_real(self) -> bool:
        """True if ``/sys`` here belongs to a running kernel, and is not a folder of files."""
        where = self._joined("/sys")
        best, kind = "", ""
        try:
            with open("/proc/self/mounts", encoding="utf-8") as mounts:
                for line in mounts:
                    fields = line.split()
                    point = fields[1].replace("\\040", " ")
                    inside = where == point or where.startswith(point.rstrip("/") + "/")
                    if inside and len(point) >= len(best):
                        best, kind = point, fields[2]
        except OSError:
            return self.root == "/"
        return kind == "sysfs"

    def inside(self, path: str) -> str:
        """The path on this machine, with links followed. Raises: FileFailed if it leads out of the root."""
        real = os.path.realpath(self._joined(path))
        if self.root != "/" and real != self.root and not real.startswith(self.root + "/"):
            raise FileFailed("{} leads out of {}: not touched".format(path, self.root))
        return real

    def _opened(self, path: str, flags: int) -> int:
        # Following every link takes ten times as long as reading a sensor's file, so resolved paths are cached; if
        # one is no longer valid (a driver was reloaded), it is resolved again.
        try:
            if path in self._places:
                return os.open(self._places[path], flags | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENODEV):
                raise
        self._places[path] = self.inside(path)
        return os.open(self._places[path], flags | os.O_NOFOLLOW)

    def _joined(self, path: str) -> str:
        return self.root.rstrip("/") + path

    def _mapped(self, error: OSError, path: str, action: str) -> Exception:
        full_path = self._joined(path)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return Forbidden(
                "{} may not be {} by this user; run the agent as root (wattune-agent serve) and use --device "
                "agent".format(full_path, action)
            )
        return FileFailed("{} cannot be {}: {}".format(full_path, action, error.strerror or error))


def card_file(uuid: str, name: str) -> str:
    """The file of a tree that stands for a card's lock or power limit: see ``wattune_agent.nvidia``."""
    return "/nvml/{}/{}".format(uuid, name)


def card_of(path: str) -> str:
    """The UUID of the card whose file this is; empty for any other file."""
    match = _CARD_FILE.fullmatch(path)
    return match.group(1) if match is not None else ""


def text(tree: Tree, path: str) -> str:
    """The file's text; empty if it cannot be read."""
    try:
        return tree.read(path) if tree.exists(path) else ""
    except AgentError:
        return ""


def number(tree: Tree, path: str) -> Optional[float]:
    """The number at the beginning of the file; None if there is no number."""
    try:
        value = float(text(tree, path).split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return value if math.isfinite(value) else None


def first_text(tree: Tree, paths: List[str]) -> str:
    """The text of the first file that has any."""
    for path in paths:
        content = text(tree, path)
        if content:
            return content
    return ""


def real(tree: Tree, path: str) -> str:
    """The path without links; the path itself if the file does not exist, or if it leads out of the tree."""
    try:
        return tree.real(path) if tree.exists(path) else path
    except AgentError:
        return path
