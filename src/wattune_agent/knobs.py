"""Table of the files that this package writes on a board. It is also the list of what a snapshot may restore.

Only files of this table are accepted from a snapshot, and only texts that could have been read from them (``fits``): a
damaged snapshot does no further harm.

Sources of the memory's files: NVIDIA's ``jetson_clocks`` (files, order of lock and rate), rbonghi/jetson_stats
``jtop/core/memory.py``; OE4T/linux-tegra-4.9 ``drivers/clk/tegra/clk.c`` (Nano: ``clk_update_rate`` can only be
written; ``clk_state`` counts each 1, so it is written once). Rates: JNano-CPU-CoarseGrain (Nano and TX1, whose 40.8, 68
and 102 MHz it calls problematic) and dream-lab's PowerTrain (Orin).
"""

import re
from typing import NamedTuple, Optional, Tuple

from wattune_agent.errors import FileFailed
from wattune_agent.tree import Tree

HZ, KHZ = 1000000, 1000
"""Units per MHz."""

HIGHEST_MHZ = 10000
"""A limit above this is not plausible: an unlimited one reads as the top clock, or as 2147483647 Hz."""

LONGEST = 100
"""Most characters in a text, including the trailing white space of some drivers."""

PAIRS = {"max_freq": "min_freq", "scaling_max_freq": "scaling_min_freq"}
"""Name of an upper limit's file -> name of the file of the lower limit beside it."""

CAPS = ("/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")
"""The power mode's cap on the memory's clock in newer and older JetPacks; 0 means that there is none."""

BPMP = "/sys/kernel/debug/bpmp/debug"
_OVERRIDE = "/sys/kernel/debug/clk/override.emc"
_BANDWIDTH = "/sys/kernel/debug/tegra_bwmgr"


class Memory(NamedTuple):
    """Files of the memory's clock on one kind of board: ``rate`` is read, ``setter`` is written. ``rates_mhz``: rates
    of the chips whose device tree is compatible with ``chip``, for firmware that lists none."""

    lock: str
    rate: str
    setter: str
    lowest: str
    highest: str
    chip: str
    rates_mhz: Tuple[float, ...]


MEMORIES = (
    Memory(
        lock=BPMP + "/clk/emc/mrq_rate_locked",
        rate=BPMP + "/clk/emc/rate",
        setter=BPMP + "/clk/emc/rate",
        lowest=BPMP + "/clk/emc/min_rate",
        highest=BPMP + "/clk/emc/max_rate",
        chip="tegra234",
        rates_mhz=(204.0, 665.6, 2133.0, 3199.0),
    ),
    Memory(
        lock=_OVERRIDE + "/clk_state",
        rate=_OVERRIDE + "/clk_rate",
        setter=_OVERRIDE + "/clk_update_rate",
        lowest=_BANDWIDTH + "/emc_min_rate",
        highest=_BANDWIDTH + "/emc_max_rate",
        chip="",  # only the Tegra210 of Nano and TX1 has these files
        rates_mhz=(204.0, 408.0, 665.6, 800.0, 1065.6, 1331.2, 1600.0),
    ),
)


class Row(NamedTuple):
    """Files of one kind. ``path``, ``text``: patterns of their paths, and of the texts that can be restored.
    ``per_mhz``: units per MHz, or per watt of a power limit; 0 for other files. ``tolerance``: largest difference
    between a written and a read number that count as equal, in the file's unit. ``only_changes``: the file is not
    written with the text that it has, since some files count what is written."""

    path: str
    text: str
    per_mhz: int = 0
    tolerance: int = 0
    only_changes: bool = False


_SYS = r"/sys/(?:devices|class)/(?:[^/]+/)*"
_PCI = r"/sys/devices/(?:[^/]+/)*[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/"
_CPU = r"/sys/devices/system/cpu/"
_POLICY = _CPU + r"(?:cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq)/"
_CARD = r"/nvml/[A-Za-z0-9-]{1,90}/"
_NUMBER, _SWITCH = r"\s*[0-9]{1,12}\s*", r"\s*[01]\s*"

# Kernels store limits in kHz. Firmware derives the memory's rate from a PLL: 3199 MHz may read 3200.
TABLE = (
    Row(_SYS + r"devfreq/[^/]+/(?:min|max)_freq", _NUMBER, HZ, 1000),
    Row(_SYS + r"railgate_enable", _SWITCH, only_changes=True),
    Row(_PCI + r"power/control", r"\s*(?:auto|on)\s*", only_changes=True),
    Row(_POLICY + r"scaling_(?:min|max)_freq", _NUMBER, KHZ, 1),
    Row(_CPU + r"(?:cpufreq/boost|intel_pstate/no_turbo)", _SWITCH, only_changes=True),
    Row(_POLICY + r"boost", _SWITCH, only_changes=True),
    Row("|".join(map(re.escape, CAPS)), _NUMBER, only_changes=True),
    Row("|".join(re.escape(memory.lock) for memory in MEMORIES), _SWITCH, only_changes=True),
    Row("|".join(re.escape(memory.rate) for memory in MEMORIES), _NUMBER, HZ, HZ),
    Row(_CARD + r"locked_clock_mhz", r"none"),
    Row(_CARD + r"power_limit_mw", _NUMBER, 1000, 500),
)
_COMPILED = [(re.compile(row.path), re.compile(row.text, re.ASCII), row) for row in TABLE]


def row_of(path: str) -> Optional[Row]:
    """The row of this file; None for a file that this package does not write."""
    return next((row for pattern, _, row in _COMPILED if pattern.fullmatch(path)), None)


def fits(path: str, text: str) -> bool:
    """True if this package writes the file, and if the file can have contained the text."""
    if ".." in path.split("/") or len(text) > LONGEST:
        return False
    row = next((row for file, form, row in _COMPILED if file.fullmatch(path) and form.fullmatch(text)), None)
    return row is not None and (not row.per_mhz or int(text) <= HIGHEST_MHZ * row.per_mhz)


def is_limit(path: str) -> bool:
    """True if the file holds a frequency, or a power limit."""
    row = row_of(path)
    return row is not None and row.per_mhz > 0


def tolerance_of(path: str) -> int:
    """Difference between a written and a read number that counts as equal, in the file's unit."""
    row = row_of(path)
    return 0 if row is None else row.tolerance


def same_text(one: str, other: str, tolerance: int = 0) -> bool:
    """True if two texts are equal, numbers within a tolerance."""
    if one.strip() == other.strip():
        return True
    try:
        return abs(int(one) - int(other)) <= tolerance
    except ValueError:
        return False


def whole(tree: Tree, path: str) -> int:
    """The whole number in the file. Raises: Forbidden, FileFailed."""
    text = tree.read(path)
    try:
        return int(text)
    except ValueError:
        raise FileFailed("{} contains no whole number but {!r}".format(path, text[:40])) from None
