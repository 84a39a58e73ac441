"""The clock of a Jetson's memory (EMC), through the lock on it in debugfs, which only root can reach."""

import re
from typing import List, Optional

from wattune_agent.file_knob import FileKnob, Limits
from wattune_agent.knobs import BPMP, CAPS, HZ, KHZ, MEMORIES, Memory, tolerance_of
from wattune_agent.tree import Tree, first_text, number

LEAST_MHZ = 204.0
"""The lowest rate that is offered: lower ones were seen to hang a board."""


def find_memory_clock(tree: Tree, compatible: str) -> Optional[FileKnob]:
    """The memory's clock, if this user may set it and its rates are known; ``compatible``: the device tree's names."""
    for memory in MEMORIES:
        if not all(map(tree.exists, (memory.lock, memory.rate, memory.setter))):
            continue
        limits = Limits(tree, next((cap for cap in CAPS if tree.exists(cap)), ""), [memory.lock, memory.rate])
        if not all(map(tree.writable, [memory.setter, *limits.files()])):
            return None
        rates = _rates(tree, memory, compatible)
        return FileKnob(tree, "memory", HZ, [(limits, rates)], rates, now=memory.rate) if rates else None
    return None


def _rates(tree: Tree, memory: Memory, compatible: str) -> List[int]:
    """The rates within the board's own bounds, ascending, in Hz."""
    # The firmware lists them in kHz.
    text = first_text(tree, [BPMP + "/emc/possible_rates", BPMP + "/clk/emc/possible_rates"])
    listed = [int(word) * (HZ // KHZ) for word in re.findall(r"\b[0-9]{4,8}\b", text)]
    if not listed and memory.chip in compatible:
        listed = [round(mhz * HZ) for mhz in memory.rates_mhz]
    low, high = number(tree, memory.lowest), number(tree, memory.highest)
    tolerance = tolerance_of(memory.rate)
    least = max(LEAST_MHZ * HZ, low or 0.0) - tolerance
    return sorted({hz for hz in listed if least <= hz <= (high or float("inf")) + tolerance})
