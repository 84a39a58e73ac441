"""Count optimizer steps of a program that ``wattune guard`` runs, in a page of memory that the guard reads.

Python imports this file at the start of every interpreter below the guard, since its folder is on ``PYTHONPATH``.
Standard library only, Python 3.6; nothing is counted in an older one. Nothing here raises, prints or holds a lock, and
nothing blocks but a step after a line that is to be read first: the program must not notice.

The protocol, for programs that count their own steps: the environment variable ``WATTUNE_STEPS`` names a file of
``SLOTS`` slots of 32 bytes. A process takes a free slot and writes its process id, the number of its steps so far, the
time of the last one (``CLOCK_MONOTONIC``, seconds) and a marker, packed as ``struct`` format ``=qqdq``. A change of the
marker says that steps mean something else from now on. With ``WATTUNE_LINES`` in the environment, a step is counted
once what the program has printed before it was read from the pipe: a metric belongs to the steps before it.
"""

import os
import sys

if False:  # for type comments alone: the module takes time to import
    from typing import Any, Dict, List, Optional, Set

VARIABLE = "WATTUNE_STEPS"
LINES = "WATTUNE_LINES"
FORMAT = "=qqdq"
SLOT = 32
SLOTS = 128

RARER = 3
"""Times in a row that an optimizer steps after two or more steps of the marker, before it becomes the marker."""

DEAD = 200
"""Steps of another optimizer without one of the marker after which the marker counts as dropped by the program."""

KEPT = 256
"""Most optimizers that are told apart."""

PATIENCE_S = 10.0
"""Seconds after which nobody seems to read the program's lines: no later step waits for it."""


class Stamps:
    """The slot of this process. A fork takes one of its own with its first step."""

    def __init__(self, path):
        # type: (str) -> None
        import mmap
        import struct
        import time

        self._pack, self._time_s, self._sleep = struct.Struct(FORMAT).pack, time.monotonic, time.sleep
        self._unread = None  # type: Any  # () -> bytes in the pipe of the standard output; None: no step waits
        if LINES in os.environ:
            from array import array
            from fcntl import ioctl
            from termios import FIONREAD

            def unread():
                # type: () -> int
                counted = array("i", [0])
                ioctl(1, FIONREAD, counted)
                return counted[0]

            self._unread = unread
        file = os.open(path, os.O_RDWR)
        try:
            self._page = mmap.mmap(file, SLOTS * SLOT)
        finally:
            os.close(file)
        self._unpack = struct.Struct(FORMAT).unpack
        self._pid, self._at, self._rounds = 0, -1, 0

    def stamp(self, marker):
        # type: (int) -> None
        """Count a step."""
        if self._unread is not None:
            self._until_read()
        pid = os.getpid()
        if pid != self._pid:
            self._pid, self._at, self._rounds = pid, self._free(pid), 0
        if self._at >= 0:
            self._rounds += 1
            self._page[self._at : self._at + SLOT] = self._pack(pid, self._rounds, self._time_s(), marker)

    def _until_read(self):
        # type: () -> None
        """Wait until the pipe of the standard output is empty."""
        until_s = self._time_s() + PATIENCE_S
        try:
            while self._unread():
                if self._time_s() > until_s:
                    self._unread = None
                    return
                self._sleep(0.001)
        except OSError:  # no pipe: it was redirected, or closed
            self._unread = None

    def _free(self, pid):
        # type: (int) -> int
        """Position of a slot that is free, or was of a process that has ended; -1 if there is none."""
        for number in range(SLOTS):
            at = (pid + number) % SLOTS * SLOT
            owner = self._unpack(self._page[at : at + SLOT])[0]
            if owner in (0, pid) or not os.path.exists("/proc/{}".format(owner)):
                return at
        return -1


class Rounds:
    """Tells which optimizer's step ends a round: the first one's, or that of a later one that steps at most half as
    often, such as a generator's."""

    def __init__(self, stamp):
        # type: (Any) -> None
        self._stamp = stamp
        self._known = {}  # type: Dict[int, List[int]]
        self._marker = None  # type: Optional[int]
        self._number = self._steps = 0
        self._dead = DEAD
        self._dropped = set()  # type: Set[int]
        self._is_gone = False  # whether the marker's optimizer exists no more
        self._alive = {}  # type: Dict[int, Any]

    def step(self, optimizer, *_):
        # type: (Any, *Any) -> None
        """Post-hook of every optimizer's step."""
        try:
            one = id(optimizer)
            self.count(one)
            if one not in self._alive:
                import weakref

                self._alive[one] = weakref.ref(optimizer, lambda _: self._forget(one))
        except Exception:
            pass

    step._torchdynamo_disable = True  # type: ignore[attr-defined]  # as torch.compiler.disable marks a function

    def _forget(self, one):
        # type: (int) -> None
        """Forget that an optimizer was dropped that exists no more: the next one may have its id."""
        self._alive.pop(one, None)
        self._dropped.discard(one)
        self._is_gone = self._is_gone or one == self._marker

    def count(self, one):
        # type: (int) -> None
        """Count a step of this optimizer."""
        if self._marker is None:
            self._marker = one
        if one == self._marker:
            self._steps += 1
            self._stamp(self._number)
            return
        seen = self._known.get(one)
        if seen is None:
            if len(self._known) >= KEPT:
                self._known.clear()
            # The marker's steps at its last step; steps in a row that were rarer; steps without any of the marker.
            self._known[one] = [self._steps, 0, 0]
            return
        since = self._steps - seen[0]
        seen[0] = self._steps
        seen[1] = seen[1] + 1 if since >= 2 else 0
        seen[2] = seen[2] + 1 if since == 0 else 0
        if seen[2] >= self._dead:
            if one in self._dropped:
                self._dead *= 2  # a marker that comes back was not dropped: the next one has longer
            if not self._is_gone:
                self._dropped.add(self._marker)
        elif seen[1] < RARER:
            return
        self._marker, self._number, self._is_gone = one, self._number + 1, False
        self._known.clear()
        self._stamp(self._number)


def watch(module, stamp):
    # type: (Any, Any) -> None
    """Count the steps of all optimizers; ``module``: ``torch.optim.optimizer``."""
    rounds = Rounds(stamp)
    if hasattr(module, "register_optimizer_step_post_hook"):
        module.register_optimizer_step_post_hook(rounds.step)
        return
    begin = module.Optimizer.__init__  # before torch 2.0

    def init(self, *args, **kwargs):
        # type: (Any, *Any, **Any) -> None
        begin(self, *args, **kwargs)
        try:
            _wrap(type(self), rounds)
        except Exception:
            pass

    module.Optimizer.__init__ = init


def _wrap(kind, rounds):
    # type: (Any, Rounds) -> None
    step = kind.step
    if getattr(step, "counted_by_wattune", False):
        return
    import functools

    @functools.wraps(step)
    def counted(self, *args, **kwargs):
        # type: (Any, *Any, **Any) -> Any
        result = step(self, *args, **kwargs)
        rounds.step(self)
        return result

    counted.counted_by_wattune = True  # type: ignore[attr-defined]
    kind.step = counted


class Finder:
    """Begins to count as soon as the program has imported torch's optimizers."""

    def __init__(self, path):
        # type: (str) -> None
        self._path = path

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        """The module's own spec, whose loader registers the hook afterwards."""
        if name != "torch.optim.optimizer":
            return None
        try:
            sys.meta_path.remove(self)
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec(name, path)
            if spec is None or spec.loader is None:
                return None
            run = spec.loader.exec_module

            def exec_module(module):
                # type: (Any) -> None
                run(module)
                try:
                    watch(module, Stamps(self._path).stamp)
                except Exception:
                    pass

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
            return spec
        except Exception:
            return None


def begin(here):
    # type: (str) -> None
    """Wait for torch, and run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    if sys.version_info < (3, 6):  # no torch of these is counted
        _run_hidden_one()
        return
    path = os.environ.get(VARIABLE)
    if path:
        sys.meta_path.insert(0, Finder(path))
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        own = module_from_spec(spec)
        sys.modules["sitecustomize"] = own
        spec.loader.exec_module(own)


def _run_hidden_one():
    # type: () -> None
    """Run the user's own ``sitecustomize`` as Python 2 does, which knows no specs."""
    imp = __import__("imp")  # gone from Python 3.12
    try:
        found = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)


if __name__ == "sitecustomize":
    begin(os.path.dirname(os.path.abspath(__file__)))
