"""The clock of a Jetson's GPU, through the kernel's devfreq: both limits at one listed frequency.

It is found by the name of its node in the device tree, never by its address: the address, the folder and the links to
it differ from one JetPack to the next. Frequencies are in Hz here and become MHz when the list is read.

A GPU without work may lose its power. Up to JetPack 6 that is its driver's railgating; the Thor's GPU is a PCI device,
which the kernel suspends. Its driver before 595 takes limits then, but sets no clock and reports the one of before.

Sources: rbonghi/jetson_stats ``jtop/core/gpu.py`` and ``thor_power.py``, KernelTuner/kernel_tuner
``observers/tegra.py`` (names, railgating), NVIDIA/open-gpu-kernel-modules ``kernel-open/nvidia/nv-pci.c`` (Thor),
kernel ``Documentation/ABI/testing/sysfs-class-devfreq`` and ``sysfs-devices-power``.
"""

import re
from typing import List, Optional, Tuple

from wattune_agent.errors import AgentError, BadRequest
from wattune_agent.file_knob import FileKnob, Limits
from wattune_agent.knobs import HZ
from wattune_agent.settings import thinned
from wattune_agent.tree import Tree, real, text

NAMES = ("gv11b", "gp10b", "ga10b", "gb10b", "gpu")
"""Names of the GPU's node: Xavier, TX2, Orin, Thor; Nano and TX1, and Orin since JetPack 6."""

_PCI = re.compile(r"^.*/[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/)")

DEPTH = 5
"""Depth below /sys/devices to which a kernel's tree without class links is searched."""

COPY_DEPTH = 8
"""The same for a copy of a tree, in which it takes no time: a Thor's PCI device lies deep."""


def find_gpu_clock(tree: Tree) -> Tuple[Optional[FileKnob], List[str]]:
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
            return _gpu_clock(tree, tree.real(folder)), problems
        except AgentError as error:
            problems.append("the GPU's clock in {} cannot be used: {}".format(folder, error))
    if not folders:
        problems.append(
            "no GPU clock: no device under /sys/class/devfreq or /sys/devices whose of_node/name is one of {} (is this "
            "a Jetson, and is the GPU's driver loaded? in a container, is /sys the board's?)".format(", ".join(NAMES))
        )
    return None, problems


def _gpu_clock(tree: Tree, folder: str) -> FileKnob:
    """The clock in this devfreq folder; its governor is left alone.

    Raises: Forbidden, FileFailed, BadRequest if it lists no frequency.
    """
    limits = Limits(tree, folder + "/max_freq", [folder + "/min_freq"])
    words = tree.read(folder + "/available_frequencies").split()
    limit = text(tree, limits.high)
    listed = thinned(
        sorted({int(word) for word in words if word.isdigit()} - {0}), int(limit) if limit.isdigit() else None
    )
    if not listed:
        raise BadRequest("{}/available_frequencies lists no frequency".format(folder))
    device = _device(tree, folder)
    pci = _PCI.match(real(tree, device) + "/")
    # The switch that lets the GPU lose its power, and the text that keeps it powered.
    switches = []
    if tree.exists(device + "/railgate_enable"):
        switches = [(device + "/railgate_enable", "0")]
    elif pci is not None and tree.exists(pci.group() + "/power/control"):
        switches = [(pci.group() + "/power/control", "on")]
    return FileKnob(
        tree,
        "gpu",
        HZ,
        [(limits, listed)],
        listed,
        now=folder + "/cur_freq",
        status=(device if pci is None else pci.group()) + "/power/runtime_status",
        switches=switches,
    )


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
