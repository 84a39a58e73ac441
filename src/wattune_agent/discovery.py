"""The boards in a tree, and the parts of each: a clock, a power sensor, a name, a mode."""

import re
from typing import Dict, List, Optional, Tuple

from wattune_agent.board import Board, PowerSensor
from wattune_agent.cpufreq import find_cpu_clock
from wattune_agent.devfreq import find_gpu_clock
from wattune_agent.emc import find_memory_clock
from wattune_agent.errors import AgentError, BadRequest, NotThere
from wattune_agent.file_knob import FileKnob
from wattune_agent.ina3221 import find_rails
from wattune_agent.nvidia import find_card, is_card
from wattune_agent.rapl import find_rapl
from wattune_agent.tree import Tree, first_text, text

FAMILIES = ("jetson", "cpu")
"""Supported families: a Jetson by its GPU, any computer by its CPU. The first one that is present is the default.
Beside them, NVIDIA's cards by their names, "nvidia", "nvidia:INDEX" or "nvidia:UUID": never the default."""

CPU_SETTINGS = 6
"""Most settings of a Jetson's CPU beside its GPU: each multiplies those of the other clocks."""

_DEVICE_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
_DMI = "/sys/class/dmi/id/"
_NOTHING = re.compile(r"^(?:|none|default string|to be filled by o\.e\.m\.|system product name|system version)$", re.I)


def find_board(tree: Tree, family: str) -> Board:
    """The board of this family. Missing parts are None, and ``problems`` say what was looked for and what would help.

    Raises: BadRequest for a family that does not exist, NotThere if the tree has no board of it.
    """
    if is_card(family):
        return find_card(tree, family)
    if family not in FAMILIES:
        allowed = ", ".join((*FAMILIES, "nvidia, nvidia:INDEX, nvidia:UUID"))
        raise BadRequest("unknown family of boards: {!r}; allowed: {}".format(family, allowed))
    clock, sensor, problems = _parts(tree, family)
    if clock is None and sensor is None and not _is_there(tree, family):
        raise NotThere("{}: {}".format(_missing(family, tree), "; ".join(problems) or "no clock and no sensor"))
    return Board(
        tree,
        family=family,
        name=board_name(tree) or family,
        clock=clock,
        sensor=sensor,
        problems=problems,
        others=_others(tree) if family == "jetson" and clock is not None else None,
    )


def families(tree: Tree) -> List[str]:
    """The families present in the tree."""
    names: List[str] = []
    if is_tegra(tree) or (not _other_vendor(tree) and _has_jetson_parts(tree)):
        names.append("jetson")
    if _is_there(tree, "cpu"):
        names.append("cpu")
    return names


def board_name(tree: Tree) -> str:
    """The board's own name: the device tree's model, else the product by DMI, else the CPU's model; may be empty."""
    name = first_text(tree, [base + "/model" for base in _DEVICE_TREES])
    if not name:
        parts = [text(tree, _DMI + field) for field in ("sys_vendor", "product_name")]
        if parts[0] and parts[1].startswith(parts[0].split()[0]):
            del parts[0]
        name = " ".join(part for part in parts if not _NOTHING.match(part))
    if not name:
        match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text(tree, "/proc/cpuinfo"), re.M)
        name = match.group(1) if match else ""
    return re.sub(r"\s+", " ", name.replace("\0", " ")).strip()


def compatible(tree: Tree) -> str:
    """The names of board and chip in the device tree, such as "nvidia,p3768-0000+p3767-0005 nvidia,tegra234"."""
    return first_text(tree, [base + "/compatible" for base in _DEVICE_TREES]).replace("\0", " ")


def is_tegra(tree: Tree) -> bool:
    """True if the tree identifies itself as one of NVIDIA's boards."""
    identity = " ".join(text(tree, base + "/" + name) for base in _DEVICE_TREES for name in ("compatible", "model"))
    if re.search(r"nvidia|tegra|jetson", identity, re.I) or tree.exists("/etc/nv_tegra_release"):
        return True
    return "jetson" in text(tree, _DMI + "product_name").lower()


# ------------------------------------------------------------------------------------------------------------- private


def _parts(tree: Tree, family: str) -> Tuple[Optional[FileKnob], Optional[PowerSensor], List[str]]:
    clock: Optional[FileKnob]
    clock, problems = find_gpu_clock(tree) if family == "jetson" else find_cpu_clock(tree)
    sensor, more = find_rails(tree) if family == "jetson" else _cpu_sensor(tree)
    return clock, sensor, [*problems, *more]


def _others(tree: Tree) -> Dict[str, FileKnob]:
    """The clocks of a Jetson beside its GPU's, those that this user may set: root, unless files were opened to it."""
    clocks: Dict[str, FileKnob] = {}
    memory = find_memory_clock(tree, compatible(tree))
    if memory is not None:
        clocks["memory_clock_mhz"] = memory
    cpu, _ = find_cpu_clock(tree, CPU_SETTINGS)
    if cpu is not None and all(map(tree.writable, cpu.files())):
        clocks["cpu_clock_mhz"] = cpu
    return clocks


def _cpu_sensor(tree: Tree) -> Tuple[Optional[PowerSensor], List[str]]:
    """The sensor that covers most of the board: its own monitors, then the package."""
    rails, why_not = find_rails(tree)
    return (rails, why_not) if rails is not None or _is_arm(tree) else find_rapl(tree)


def _is_arm(tree: Tree) -> bool:
    """True for a processor that cannot have RAPL's counters."""
    return bool(compatible(tree)) or is_tegra(tree) or "CPU implementer" in text(tree, "/proc/cpuinfo")


def _has_jetson_parts(tree: Tree) -> bool:
    clock: Optional[FileKnob] = None
    try:
        clock, _ = find_gpu_clock(tree)
    except AgentError:
        return False
    return clock is not None or find_rails(tree)[0] is not None


def _other_vendor(tree: Tree) -> bool:
    """True for a board that names its vendor: other vendors' boards have a GPU in devfreq too."""
    return bool(compatible(tree)) or tree.exists(_DMI + "product_name")


def _is_there(tree: Tree, family: str) -> bool:
    if family == "jetson":
        return is_tegra(tree)
    if tree.exists("/sys/devices/system/cpu") or tree.exists("/proc/cpuinfo"):
        return True
    return bool(tree.glob("/sys/class/powercap/intel-rapl:*"))


def _missing(family: str, tree: Tree) -> str:
    if family == "jetson":
        return "no Jetson here ({})".format(board_name(tree) or "no name")
    return "no CPU to be found in {}".format(tree.root)
