"""The mode of a board: the state that a measured table depends on and that training does not set itself.

Read from files that every user may read, so that the agent and other users see the same. Sources: NVIDIA Jetson Linux
Developer Guide, "Supported Modes and Power Efficiency" and nvpmodel.conf; rbonghi/jetson_stats jtop/core/nvpmodel.py.
"""

import re
from typing import Dict, List, Optional

from wattune_agent.cpufreq import has_cores, policies
from wattune_agent.knobs import CAPS
from wattune_agent.tree import Tree, first_text, number, text

_CONF = "/etc/nvpmodel.conf"
_STATUS = "/var/lib/nvpmodel/status"


def mode(tree: Tree, family: str = "jetson") -> Dict[str, str]:
    """The parts of the mode, in words, in a fixed order. Parts that the board does not report are left out.

    The pinned clock is not part of it: the GPU's on a Jetson, the CPU's on a board that trains on its CPU.
    """
    parts: Dict[str, str] = {}
    number_now = mode_id(tree)
    if number_now is not None:
        name = _name_of(tree, number_now)
        parts["nvpmodel"] = "{} (ID {})".format(name, number_now) if name else "ID {}".format(number_now)
    _add(parts, "online cores", text(tree, "/sys/devices/system/cpu/online"))
    if family == "jetson":
        _add(parts, "CPU limit", _cpu_limits(tree))
        _add(parts, "jetson_clocks", _jetson_clocks(tree))
    _add(parts, "memory clock limit", _emc_cap(tree))
    release = l4t(tree)
    _add(parts, "L4T", release)
    if not release:
        _add(parts, "kernel", text(tree, "/proc/sys/kernel/osrelease").partition("-")[0])
        match = re.search(r"^NVRM version:.*?\s(\d+\.\d[\d.]*)\s", text(tree, "/proc/driver/nvidia/version"), re.M)
        _add(parts, "driver", match.group(1) if match else "")
    return parts


def mode_id(tree: Tree) -> Optional[int]:
    """The power mode by nvpmodel's number: the one in its status, otherwise its default; None if there is neither."""
    match = re.search(r"pmode:\s*(\d+)", text(tree, _STATUS))
    if match is None:
        match = re.search(r"^\s*<\s*PM_CONFIG\s+DEFAULT=(\d+)", text(tree, _CONF), re.M)
    return int(match.group(1)) if match else None


def _name_of(tree: Tree, mode_number: int) -> str:
    """The name of a power mode; empty if nvpmodel's configuration has none."""
    for line in re.findall(r"^\s*<\s*POWER_MODEL\s+([^>]*)>", text(tree, _CONF), re.M):
        fields = {key: value for key, _, value in (field.partition("=") for field in line.split())}
        if fields.get("ID") == str(mode_number):
            return str(fields.get("NAME", ""))
    return ""


def _add(parts: Dict[str, str], name: str, value: str) -> None:
    if value:
        parts[name] = value


def _policies(tree: Tree) -> List[str]:
    """The folders of the cores' clocks, except for cores that are off, whose limits are out of date."""
    return [folder for folder in policies(tree) if has_cores(tree, folder)]


def _cpu_limits(tree: Tree) -> str:
    """The highest clock that each cluster may go to, each value once: "1510.4 MHz", or "2035.2 + 345.6 MHz"."""
    limits: List[str] = []
    for policy in _policies(tree):
        khz = number(tree, policy + "/scaling_max_freq")
        if khz is not None and "{:g}".format(khz * 1e-3) not in limits:
            limits.append("{:g}".format(khz * 1e-3))
    return " + ".join(limits) + " MHz" if limits else ""


def _jetson_clocks(tree: Tree) -> str:
    """The state of jetson_clocks, "on" if every CPU policy is fixed at one clock, as that tool does besides the GPU."""
    pairs = [
        (number(tree, policy + "/scaling_min_freq"), number(tree, policy + "/scaling_max_freq"))
        for policy in _policies(tree)
    ]
    if not pairs or any(None in pair for pair in pairs):
        return ""
    return "on" if all(low == high for low, high in pairs) else "off"


def _emc_cap(tree: Tree) -> str:
    for path in CAPS:
        hz = number(tree, path)
        if hz is not None:
            return "{:g} MHz".format(hz * 1e-6) if hz > 0.0 else "none"
    return ""


def l4t(tree: Tree) -> str:
    """The release of Jetson Linux, empty if there is none: "# R36 (release), REVISION: 4.3, ..." is 36.4.3."""
    release = first_text(tree, ["/etc/nv_tegra_release", "/usr/lib/nv_tegra_release"])
    match = re.search(r"R(\d+)\D+REVISION:\s*([\d.]+)", release)
    return "{}.{}".format(match.group(1), match.group(2)) if match else ""
