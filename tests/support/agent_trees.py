"""Small trees with a clock, kernels that answer like old and new ones, and a process that can be killed at any call."""

import errno
import fcntl
import os
from pathlib import Path

from wattune_agent.board import Board
from wattune_agent.cpufreq import find_cpu_clock
from wattune_agent.devfreq import find_gpu_clock
from wattune_agent.errors import FileFailed
from wattune_agent.tree import Tree

LISTED_MHZ = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0)
GPU = "/sys/devices/platform/bus@0/17000000.gpu"
DEVFREQ = GPU + "/devfreq/17000000.gpu"
LOW, HIGH, NOW = DEVFREQ + "/min_freq", DEVFREQ + "/max_freq", DEVFREQ + "/cur_freq"
RAILGATE = GPU + "/railgate_enable"
CPU = "/sys/devices/system/cpu"


def put(root, path, text):
    """A file with this text, as the board names it."""
    place = Path(f"{root}{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
    return place


def link(root, path, to):
    """A link from ``path`` to ``to``, both as the board names them."""
    place = Path(f"{root}{path}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(f"{root}{to}", place.parent))


def gpu_tree(root, *, low_mhz=306.0, high_mhz=1020.0, now_mhz=306.0, node="gpu\0", railgate="1\n", links=True):
    """A tree like an Orin Nano's; returns its root."""
    put(root, DEVFREQ + "/available_frequencies", " ".join(f"{round(mhz * 1e6)}" for mhz in LISTED_MHZ) + "\n")
    put(root, LOW, f"{round(low_mhz * 1e6)}\n")
    put(root, HIGH, f"{round(high_mhz * 1e6)}\n")
    put(root, NOW, f"{round(now_mhz * 1e6)}\n")
    put(root, DEVFREQ + "/governor", "nvhost_podgov\n")
    if node is not None:
        put(root, GPU + "/of_node/name", node)
    if railgate is not None:
        put(root, RAILGATE, railgate)
    if links:
        link(root, DEVFREQ + "/device", GPU)
        link(root, "/sys/class/devfreq/17000000.gpu", DEVFREQ)
    return root


def cpu_tree(root, policies=None, *, boost=None, no_turbo=None):
    """A tree with cpufreq policies: number -> files of the policy beside its usual ones."""
    for number, files in (policies or {0: {"scaling_available_frequencies": "400000 800000 1200000 1600000"}}).items():
        usual = {
            "affected_cpus": str(number),
            "cpuinfo_min_freq": "400000",
            "cpuinfo_max_freq": "1600000",
            "scaling_min_freq": "400000",
            "scaling_max_freq": "1600000",
            "scaling_cur_freq": "400000",
        }
        for name, text in {**usual, **files}.items():
            if text is not None:
                put(root, f"{CPU}/cpufreq/policy{number}/{name}", text + "\n")
    if boost is not None:
        put(root, CPU + "/cpufreq/boost", boost + "\n")
    if no_turbo is not None:
        put(root, CPU + "/intel_pstate/no_turbo", no_turbo + "\n")
    return root


def texts(root):
    """Every file below ``sys``, byte for byte, but for the clocks of this moment."""
    found = {}
    for folder, _, names in os.walk(f"{root}/sys"):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and "cur_freq" not in name:
                found[path] = Path(path).read_bytes()
    return found


def kinds(events):
    return [event["kind"] for event in events]


def board_in(tree, family="jetson", sensor=None):
    find = find_gpu_clock if family == "jetson" else find_cpu_clock
    clock, problems = find(tree)
    return Board(tree, family=family, name="made board", clock=clock, sensor=sensor, problems=list(problems))


class TimedTree(Tree):
    """A tree on time of its own."""

    def __init__(self, root):
        super().__init__(str(root))
        self.time_s = 0.0
        self.slept = []

    def now_s(self):
        return self.time_s

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time_s += seconds


class MadeTree(TimedTree):
    """A tree whose GPU follows its limits; ``refuses``: as old kernels do, out of order.

    ``before_write`` is called with each path and text, and may raise; ``written`` are the paths, in order.
    """

    refuses = False
    clamp_mhz = None
    follows = True

    def __init__(self, root):
        super().__init__(root)
        self.written = []
        self.before_write = lambda path, text: None
        self.before_read = lambda path: None
        self.actions = []

    def sleep(self, seconds):
        super().sleep(seconds)
        for action in [action for action in self.actions if action[0] <= self.time_s]:
            self.actions.remove(action)
            action[1]()

    def read(self, path):
        self.before_read(path)
        text = super().read(path)
        if path.endswith(("/min_freq", "/max_freq", "/cur_freq")) and self.clamp_mhz is not None:
            return str(min(_number(text), round(self.clamp_mhz * 1e6)))
        return text

    def write(self, path, text):
        self.written.append(path)
        self.before_write(path, text)
        if self.refuses and path in (LOW, HIGH):
            other = _number(super().read(HIGH if path == LOW else LOW)) or int(text)
            if (path == LOW and int(text) > other) or (path == HIGH and int(text) < other):
                raise FileFailed(f"{path} cannot be written: {os.strerror(errno.EINVAL)}")
        super().write(path, text)
        if path in (LOW, HIGH) and self.follows and super().exists(NOW):
            low, high, now = (_number(super(MadeTree, self).read(p)) for p in (LOW, HIGH, NOW))
            super().write(NOW, str(min(max(now, low), high)))


def _number(text):
    return int(text or 0)  # a process that is killed between opening and writing leaves a plain file empty


class Ending:
    """Counts the calls that touch files, and ends the process just before one of them."""

    NAMES = ("open", "write", "fsync", "replace", "unlink", "makedirs")

    def __init__(self, at, number):
        self.left, self.number, self.count = at, number, 0
        for name in self.NAMES:
            setattr(os, name, self._counting(getattr(os, name)))
        fcntl.flock = self._counting(fcntl.flock)

    def _counting(self, call):
        def counted(*args, **kwargs):
            self.count += 1
            if self.count == self.left:
                os.kill(os.getpid(), self.number)
            return call(*args, **kwargs)

        return counted
