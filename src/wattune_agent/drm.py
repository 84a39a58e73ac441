"""Graphics cards as the kernel lists them: the folders of those that a driver controls, and what they are called.

Source: kernel ``Documentation/ABI/testing/sysfs-bus-pci`` and ``drivers/pci/pci-driver.c`` (``uevent``).
"""

import os
import re
from typing import Callable, Dict, List, Optional, Tuple

from wattune_agent.board import Clock, PowerSensor
from wattune_agent.errors import AgentError
from wattune_agent.tree import Tree, first_text, number, real, text

__all__ = ["UNTRIED", "best_card", "card_name", "find_parts", "free_memory_bytes", "hwmon_files", "power_limit_w"]

UNTRIED = "never run on a card: written from the kernel's documentation and tested on files made from it"
"""The problem of every device of these drivers, until one was tried."""

DRIVERS = {"amd": "amdgpu", "intel": "xe"}
"""Family of boards -> the driver of its cards."""

_CARD = re.compile(r"card[0-9]+")
_POWER_LIMITS = {"amd": "power1_cap", "intel": "power1_max"}


def best_card(tree: Tree, family: str) -> Optional[str]:
    """The folder of the family's card with the most memory, by PCI address if that is unknown; None without a card.

    Cards' numbers change from one start to the next.
    """
    return max(
        _cards(tree, family), key=lambda folder: number(tree, folder + "/mem_info_vram_total") or 0.0, default=None
    )


def find_parts(
    tree: Tree,
    family: str,
    missing: str,
    clock_of: Callable[[Tree, str], Clock],
    find_sensor: Callable[[Tree, str, List[str]], Optional[PowerSensor]],
) -> Tuple[Optional[Clock], Optional[PowerSensor], List[str]]:
    """Clock and sensor of the family's best card, and its problems; None for what cannot be used.

    ``missing``: the problem to report if no card is found. ``find_sensor`` adds the problems of the sensor.
    """
    folder = best_card(tree, family)
    if folder is None:
        return None, None, [missing]
    problems: List[str] = []
    count = len(_cards(tree, family))
    if count > 1:
        used = os.path.basename(folder)
        problems.append("{} GPUs of the driver {}: only {} is used".format(count, DRIVERS[family], used))
    clock: Optional[Clock] = None
    try:
        clock = clock_of(tree, folder)
    except AgentError as error:
        problems.append("the GPU's clock in {} cannot be used: {}".format(folder, error))
    return clock, find_sensor(tree, folder, problems), problems


def card_name(tree: Tree, family: str, folder: str) -> str:
    """The card's product name, which few report, otherwise its PCI identifiers."""
    vendor = {"amd": "AMD", "intel": "Intel"}[family]
    product = text(tree, folder + "/product_name")
    if product:
        return product if product.startswith(vendor) else "{} {}".format(vendor, product)
    return "{} GPU {}".format(vendor, _uevent(tree, folder).get("PCI_ID", "")).strip()


def hwmon_files(tree: Tree, folder: str, name: str) -> List[str]:
    """The files of this name that the card's monitor has."""
    return tree.glob("{}/hwmon/hwmon[0-9]*/{}".format(folder, name))


def power_limit_w(tree: Tree, family: str) -> Optional[float]:
    """The limit at which the card itself lowers its clock; None if it has none, or does not report it."""
    folder = best_card(tree, family)
    for path in hwmon_files(tree, folder, _POWER_LIMITS[family]) if folder is not None else []:
        limit_uw = number(tree, path)
        if limit_uw:  # 0: the limit is switched off
            return limit_uw * 1e-6
    return None


def free_memory_bytes(tree: Tree, family: str) -> Optional[float]:
    """The card's free memory; None if its driver does not report it."""
    folder = best_card(tree, family)
    if folder is None:
        return None
    total, used = (number(tree, folder + "/mem_info_vram_" + name) for name in ("total", "used"))
    return None if total is None or used is None else max(0.0, total - used)


def _cards(tree: Tree, family: str) -> List[str]:
    """The folders of the PCI devices that the family's driver controls, by address."""
    folders = {
        real(tree, path + "/device")
        for path in tree.glob("/sys/class/drm/card[0-9]*")  # also the card's outputs, such as card0-DP-1
        if _CARD.fullmatch(os.path.basename(path)) and _uevent(tree, path + "/device").get("DRIVER") == DRIVERS[family]
    }
    return sorted(folders)


def _uevent(tree: Tree, folder: str) -> Dict[str, str]:
    lines = first_text(tree, [folder + "/uevent"]).splitlines()
    return dict(line.partition("=")[::2] for line in lines)
