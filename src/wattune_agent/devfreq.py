"""The clock of a Jetson's GPU, through the kernel's devfreq.

It is found by the name of its node in the device tree, never by its address: the address, the folder and the links to
it differ from one JetPack to the next. Frequencies are in Hz here and become MHz when the list is read.

A GPU without work may lose its power. Up to JetPack 6 that is its driver's railgating; the Thor's GPU is a PCI device,
which the kernel suspends. Its driver before 595 takes limits then, but sets no clock and reports the one of before.

Sources: rbonghi/jetson_stats ``jtop/core/gpu.py`` and ``thor_power.py``, KernelTuner/kernel_tuner
``observers/tegra.py`` (names, railgating), NVIDIA/open-gpu-kernel-modules ``kernel-open/nvidia/nv-pci.c`` (Thor),
kernel ``Documentation/ABI/testing/sysfs-class-devfreq`` and ``sysfs-devices-power``.
"""

import re
from typing import Dict, List, Optional, Tuple

from wattune_agent.board import Clock
from wattune_agent.errors import AgentError, BadRequest, NotTaken
from wattune_agent.limits import FrequencyLimits, whole
from wattune_agent.restoring import restore_all
from wattune_agent.settings import thinned
from wattune_agent.tree import Tree, real, text

__all__ = ["GpuClock", "find_gpu_clock"]

HZ_PER_MHZ = 1000000

NAMES = ("gv11b", "gp10b", "ga10b", "gb10b", "gpu")
"""Names of the GPU's node: Xavier, TX2, Orin, Thor; Nano and TX1, and Orin since JetPack 6."""

_PCI = re.compile(r"^.*/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/)")

DEPTH = 5
"""Depth below /sys/devices to which a kernel's tree without class links is searched."""

COPY_DEPTH = 8
"""The same for a copy of a tree, in which it takes no time: a Thor's PCI device lies deep."""


class GpuClock(Clock):
    """The GPU's clock: both limits at one listed frequency; the governor is left alone."""

    unit = "gpu"

    def __init__(self, tree: Tree, folder: str) -> None:
        """``folder``: the devfreq folder. Raises: Forbidden, FileFailed, BadRequest if it lists no frequency."""
        self.folder = folder
        self._tree = tree
        self._limits = FrequencyLimits(tree, folder + "/min_freq", folder + "/max_freq", HZ_PER_MHZ)
        listed_hz = sorted(
            {int(text) for text in tree.read(folder + "/available_frequencies").split() if text.isdigit()}
        )
        limit = text(tree, self._limits.high_path)
        listed_hz = thinned([hz for hz in listed_hz if hz > 0], int(limit) if limit.isdigit() else None)
        self._hz: Dict[float, int] = {hz / HZ_PER_MHZ: hz for hz in listed_hz}
        if not self._hz:
            raise BadRequest("{}/available_frequencies lists no frequency".format(folder))
        self.settings_mhz = tuple(sorted(self._hz))
        device = _device(tree, folder)
        pci = _PCI.match(real(tree, device) + "/")
        # The switch that lets the GPU lose its power, and the text that keeps it powered.
        self._switch: Optional[Tuple[str, str]] = None
        if tree.exists(device + "/railgate_enable"):
            self._switch = device + "/railgate_enable", "0"
        elif pci is not None and tree.exists(pci.group() + "/power/control"):
            self._switch = pci.group() + "/power/control", "on"
        self._status = (device if pci is None else pci.group()) + "/power/runtime_status"

    def files(self) -> List[str]:
        """Both limits, and the switch of the GPU's power if there is one."""
        limits = [self._limits.low_path, self._limits.high_path]
        return limits + ([self._switch[0]] if self._switch is not None else [])

    def pin(self, mhz: float) -> Dict[str, str]:
        """Keep the GPU powered, then pin both limits; returns throttled files, as ``FrequencyLimits.pin``.

        Raises: BadRequest, NotTaken, Forbidden, FileFailed.
        """
        if mhz not in self._hz:
            raise BadRequest("the GPU has no {:g} MHz; it has {}".format(mhz, _listed(self.settings_mhz)))
        if self._switch is not None and self._tree.read(self._switch[0]) != self._switch[1]:
            # A GPU without power takes a limit, but follows it only later, and draws 0 W meanwhile.
            path, powered = self._switch
            self._tree.write(path, powered)
            now = self._tree.read(path)
            if now != powered:
                raise NotTaken("{} was written {}, but reads {}".format(path, powered, now[:40]))
        return self._limits.pin(self._hz[mhz])

    def pinned_mhz(self) -> Optional[float]:
        """The listed frequency that both limits are at; None if they allow a range or match no listed frequency."""
        hz = self._limits.pinned()
        if hz is None:
            return None
        near = min(self.settings_mhz, key=lambda mhz: abs(self._hz[mhz] - hz))
        return near if abs(self._hz[near] - hz) <= self._limits.tolerance else None

    def now_mhz(self) -> Optional[float]:
        """The current clock, as the driver reports it."""
        return whole(self._tree, self.folder + "/cur_freq") / HZ_PER_MHZ

    def is_suspended(self) -> bool:
        """True if the kernel has suspended the GPU."""
        return text(self._tree, self._status) == "suspended"

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The upper limit."""
        high = texts.get(self._limits.high_path, "").strip()
        return int(high) / HZ_PER_MHZ if high.isdigit() else None

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the limits, then the power switch. Raises: NotRestored, after restoring as much as possible."""
        restore_all(self._tree, texts)


def find_gpu_clock(tree: Tree) -> Tuple[Optional[GpuClock], List[str]]:
    """The GPU's clock in this tree and its problems; None if no clock can be used."""
    folders = [path for path in tree.glob("/sys/class/devfreq/*") if _is_gpu(tree, path)]
    if not folders:
        patterns = [
            "/sys/devices/" + "*/" * depth + "devfreq/*" for depth in range(1, DEPTH if tree.is_real else COPY_DEPTH)
        ]
        folders = [path for pattern in patterns for path in tree.glob(pattern) if _is_gpu(tree, path)]
    problems: List[str] = []
    for folder in folders:
        try:
            return GpuClock(tree, tree.real(folder)), problems
        except AgentError as error:
            problems.append("the GPU's clock in {} cannot be used: {}".format(folder, error))
    if not folders:
        problems.append(
            "no GPU clock: no device under /sys/class/devfreq or /sys/devices whose of_node/name is one of {} (is this "
            "a Jetson, and is the GPU's driver loaded? in a container, is /sys the board's?)".format(", ".join(NAMES))
        )
    return None, problems


def _is_gpu(tree: Tree, folder: str) -> bool:
    name = folder.rsplit("/", 1)[-1]
    if name.startswith("gpu-"):  # JetPack 7 names its clocks so; gpc is the one that computes, nvd the video engine
        return name.startswith("gpu-gpc")
    node = _device(tree, folder) + "/of_node/name"
    if tree.exists(node):
        try:
            name = tree.read(node)
        except AgentError:
            return False
    else:
        name = name.rpartition(".")[2]  # the driver's folder is called ADDRESS.NAME
    return name in NAMES or "gpu" in name


def _device(tree: Tree, folder: str) -> str:
    """The folder of the device that this clock belongs to: a link in it, or two folders up if links are missing."""
    if tree.exists(folder + "/device"):
        return folder + "/device"
    return folder.rsplit("/", 2)[0]


def _listed(settings_mhz: Tuple[float, ...]) -> str:
    return ", ".join("{:g}".format(mhz) for mhz in settings_mhz) + " MHz"
