"""The two files that bound a frequency, and the files that a restore may write.

Kernels treat these files in two ways. Older ones refuse (EINVAL) a minimum above the maximum, newer ones accept it and
silently let the maximum win. Both accept the order used here: the minimum is never above the maximum. Newer kernels
store the limits in kHz, and show the tightest of all requests, so that thermal throttling reads like a lower maximum:
everything written is therefore read back.

Sources: Linux ``drivers/devfreq/devfreq.c`` (``min_freq_store``, ``get_freq_range``), ``drivers/cpufreq/cpufreq.c``;
KernelTuner/kernel_tuner ``observers/tegra.py`` for the order.

Only files that this package changes are ever accepted from a snapshot (``fits``), and only texts that could have been
read from them: a damaged snapshot does no further harm.
"""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.errors import AgentError, FileFailed, Forbidden, NotTaken
from wattune_agent.tree import Tree

__all__ = [
    "HIGHEST_MHZ",
    "PAIRS",
    "PAUSE_S",
    "TRIES",
    "Failure",
    "FrequencyLimits",
    "compared",
    "fits",
    "is_limit",
    "per_mhz_of",
    "same_text",
    "tolerance_of",
    "whole",
]

TRIES = 3
"""Attempts to write limits before reporting a failure; another writer may finish between two of them."""

PAUSE_S = 0.02
"""Time between two tries."""

HIGHEST_MHZ = 10000
"""A limit above this is not plausible: an unlimited one reads as the top clock, or as 2147483647 Hz."""

PAIRS = {"max_freq": ("min_freq", 1000000), "scaling_max_freq": ("scaling_min_freq", 1000)}

Failure = NamedTuple("Failure", [("path", str), ("text", str), ("clamped", bool)])
Failure.__doc__ = """A file that was not restored, and why. ``clamped``: the write succeeded, but the file reads lower,
as it does while the kernel throttles the clock."""


class FrequencyLimits:
    """The smallest and the largest allowed frequency, each a file with a whole number in it.

    ``per_mhz``: the files' units per MHz (1000000 in devfreq, 1000 in cpufreq).
    """

    def __init__(self, tree: Tree, low_path: str, high_path: str, per_mhz: int) -> None:
        self.low_path = low_path
        self.high_path = high_path
        self.tolerance = per_mhz // 1000
        self._tree = tree

    def read(self) -> Tuple[int, int]:
        """Smallest and largest, in the files' unit. Raises: Forbidden, FileFailed."""
        return whole(self._tree, self.low_path), whole(self._tree, self.high_path)

    def pin(self, value: int) -> Dict[str, str]:
        """Set both limits to ``value`` and verify them.

        If both read the same, but lower, the kernel is throttling the clock, for example because of heat, and the
        written limits apply again when that ends. That is enough for a pin, since the clock is not above it: the result
        is then both files with the text written, otherwise empty. Raises: NotTaken, Forbidden, FileFailed.
        """
        clamped = False
        failure: Optional[AgentError] = None
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            try:
                clamped = False
                for path in self._order(value, self.read()[1], attempt):
                    self._tree.write(path, str(value))
                low, high = self.read()
            except Forbidden:
                raise
            except FileFailed as error:  # refused, or another writer interfered: read again, then try again
                failure = error
                continue
            if abs(low - value) <= self.tolerance and abs(high - value) <= self.tolerance:
                return {}
            clamped = high < value and abs(low - high) <= self.tolerance
            failure = NotTaken(
                "{} and {} were written {}, but read {} and {}: another limit of the board (its power mode, heat) or "
                "another program holds them".format(self.low_path, self.high_path, value, low, high)
            )
        if clamped:
            return {self.low_path: str(value), self.high_path: str(value)}
        assert failure is not None
        raise failure

    def pinned(self) -> Optional[int]:
        """The value of both limits, in the files' unit; None if they allow a range. Raises: Forbidden, FileFailed."""
        low, high = self.read()
        return high if abs(low - high) <= self.tolerance else None

    def restore(self, low_text: str, high_text: str) -> List[Failure]:
        """Restore both texts and return the failures. A failure of one file does not prevent the other."""
        texts = {self.low_path: low_text, self.high_path: high_text}
        failures: List[Failure] = []
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            try:
                order = self._order(int(high_text), self.read()[1], attempt)
            except (AgentError, ValueError):
                order = [self.high_path, self.low_path]
            errors: Dict[str, str] = {}
            for path in order:
                try:
                    self._tree.write(path, texts[path])
                except AgentError as error:
                    errors[path] = str(error)
            failures = compared(self._tree, texts, errors, self.tolerance)
            if not failures:
                break
        return failures

    def _order(self, high: int, high_now: int, attempt: int) -> List[str]:
        """The order of writes: the maximum first to raise, the minimum first to lower. The last attempt reverses it,
        for limits hidden by throttling, which differ from what they read."""
        raising = high >= high_now
        if attempt == TRIES - 1:
            raising = not raising
        return [self.high_path, self.low_path] if raising else [self.low_path, self.high_path]


def whole(tree: Tree, path: str) -> int:
    """The whole number in the file. Raises: Forbidden, FileFailed."""
    text = tree.read(path)
    try:
        return int(text)
    except ValueError:
        raise FileFailed("{} contains no whole number but {!r}".format(path, text[:40])) from None


def same_text(one: str, other: str, tolerance: int = 0) -> bool:
    """True if two texts are equal, numbers within a tolerance."""
    if one.strip() == other.strip():
        return True
    try:
        return abs(int(one) - int(other)) <= tolerance
    except ValueError:
        return False


def tolerance_of(path: str) -> int:
    """The allowed difference between a written and a read limit: 1 kHz in the file's unit; 0 for any other file.

    1 MHz of a memory clock, which firmware derives from a PLL: 3199 MHz may read 3200. Half a watt of a card's limit.
    """
    if _CARD_LIMIT.fullmatch(path):
        return 500
    return per_mhz_of(path) // (1 if _EMC_RATE.fullmatch(path) else 1000)


def is_limit(path: str) -> bool:
    """True if the file is a limit of a frequency."""
    return bool(per_mhz_of(path))


def per_mhz_of(path: str) -> int:
    """The file's units per MHz; 0 for a file that is not a limit of a frequency."""
    if _EMC_RATE.fullmatch(path):
        return 1000000
    if _CARD_LIMIT.fullmatch(path):
        return 1000
    name = path.rpartition("/")[2]
    for high, (low, per_mhz) in PAIRS.items():
        if name in (low, high):
            return per_mhz
    return 0


def compared(tree: Tree, texts: Dict[str, str], errors: Dict[str, str], tolerance: int) -> List[Failure]:
    """Compare the files with the texts; an error of a write does not count if the file contains the text anyway."""
    failures = []
    for path, text in texts.items():
        try:
            now = tree.read(path)
        except AgentError as error:
            failures.append(Failure(path, errors.get(path, str(error)), False))
            continue
        if not same_text(now, text, tolerance):
            why = errors.get(path, "{} reads {}, but {} was found".format(path, now[:40], text.strip()[:40]))
            failures.append(Failure(path, why, path not in errors and _below(now, text)))
    return failures


def _below(now: str, text: str) -> bool:
    try:
        return int(now) < int(text)
    except ValueError:
        return False


LONGEST = 100
"""Most characters in a text, including the trailing white space of some drivers."""

_CPU = "/sys/devices/system/cpu/"
_DEVFREQ = re.compile(r"/sys/(?:devices|class)/(?:[^/]+/)*devfreq/[^/]+/(?:min|max)_freq")
_CPUFREQ = re.compile(_CPU + r"(?:cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq)/scaling_(?:min|max)_freq")
_RAILGATE = re.compile(r"/sys/(?:devices|class)/(?:[^/]+/)*railgate_enable")
_POWER = re.compile(r"/sys/devices/(?:[^/]+/)*[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/power/control")
_BOOST = re.compile(_CPU + r"(?:cpufreq/boost|intel_pstate/no_turbo|(?:cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq)/boost)")
_CARD = re.compile(r"/nvml/[A-Za-z0-9-]{1,90}/locked_clock_mhz")
_CARD_LIMIT = re.compile(r"/nvml/[A-Za-z0-9-]{1,90}/power_limit_mw")
_CORE = re.compile(_CPU + r"cpu[0-9]+/online")
_MEMORY = re.compile(r"/sys/kernel/(?:nvpmodel_clk_cap/emc|nvpmodel_emc_cap/emc_iso_cap)")
_EMC_LOCK = re.compile(r"/sys/kernel/debug/(?:bpmp/debug/clk/emc/mrq_rate_locked|clk/override\.emc/clk_state)")
_EMC_RATE = re.compile(r"/sys/kernel/debug/(?:bpmp/debug/clk/emc/rate|clk/override\.emc/clk_rate)")

_FREQUENCY = re.compile(r"\s*[0-9]{1,12}\s*", re.ASCII)
_RUNTIME = re.compile(r"\s*(?:auto|on)\s*", re.ASCII)
_SWITCH = re.compile(r"\s*[01]\s*", re.ASCII)

_UNLOCKED = re.compile(r"none")

_KINDS = (
    (_CARD, _UNLOCKED),
    (_CARD_LIMIT, _FREQUENCY),
    (_DEVFREQ, _FREQUENCY),
    (_CPUFREQ, _FREQUENCY),
    (_RAILGATE, _SWITCH),
    (_POWER, _RUNTIME),
    (_BOOST, _SWITCH),
    (_CORE, _SWITCH),
    (_MEMORY, _FREQUENCY),
    (_EMC_LOCK, _SWITCH),
    (_EMC_RATE, _FREQUENCY),
)


def fits(path: str, text: str) -> bool:
    """True if this package changes the file, and if the file can have contained the text."""
    if ".." in path.split("/") or len(text) > LONGEST:
        return False
    if not any(file.fullmatch(path) and form.fullmatch(text) for file, form in _KINDS):
        return False
    return not is_limit(path) or int(text) <= HIGHEST_MHZ * per_mhz_of(path)
