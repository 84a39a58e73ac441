"""The two files that bound a frequency, and how files are brought back.

Two kinds of kernels stand behind these files. Older ones refuse (EINVAL) a minimum above the maximum, newer ones take
it and let the maximum win without a word. Both take the order that is used here: at no instant is the minimum above
the maximum. Newer kernels keep the limits in kHz, and show the tightest of all that is asked for, so that a thermal
clamp reads like a lower maximum: whatever is written is read back.

Sources: Linux ``drivers/devfreq/devfreq.c`` (``min_freq_store``, ``get_freq_range``), ``drivers/cpufreq/cpufreq.c``;
KernelTuner/kernel_tuner ``observers/tegra.py`` for the order.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from wattune_agent.errors import AgentError, FileFailed, Forbidden, NotTaken
from wattune_agent.tree import Tree

__all__ = ["HIGHEST_MHZ", "Failure", "Limits", "bring_back", "same_text", "tolerance_of", "whole"]

TRIES = 3
"""So often limits are written before it is said that they do not take; between two tries another writer may be done."""

PAUSE_S = 0.02
"""Time between two tries."""

HIGHEST_MHZ = 10000
"""A limit above this is no limit that was found: an unlimited one reads as the top clock, or as 2147483647 Hz."""

_PAIRS = {"max_freq": ("min_freq", 1000000), "scaling_max_freq": ("scaling_min_freq", 1000)}

Failure = NamedTuple("Failure", [("path", str), ("text", str), ("clamped", bool)])
Failure.__doc__ = """A file that was not brought back, and why. ``clamped``: it was written without an error, but reads
lower than that, as it does while the kernel holds the clock down for a reason of its own."""


class Limits:
    """The smallest and the largest frequency that are allowed, each a file with a whole number in it.

    ``per_mhz``: how many of the files' units make a MHz (1000000 in devfreq, 1000 in cpufreq).
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
        """Let both limits be this, and see that they are.

        Where both read the same, but lower, the kernel holds the clock down for a reason of its own, such as heat, and
        what was written counts again when that is over. It is enough for a pin, for the clock is not above: then both
        files, with what was written; else nothing. Raises: NotTaken, Forbidden, FileFailed.
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
            except FileFailed as error:  # refused, or another writer came between: look again, then try again
                failure = error
                continue
            if abs(low - value) <= self.tolerance and abs(high - value) <= self.tolerance:
                return {}
            clamped = high < value and abs(low - high) <= self.tolerance
            failure = NotTaken(
                "{} and {} were written {}, but read {} and {}: another limit of the board's (its power mode, heat) or "
                "another program holds them".format(self.low_path, self.high_path, value, low, high)
            )
        if clamped:
            return {self.low_path: str(value), self.high_path: str(value)}
        assert failure is not None
        raise failure

    def pinned(self) -> Optional[int]:
        """What both limits are, in the files' unit; None where they leave room. Raises: Forbidden, FileFailed."""
        low, high = self.read()
        return high if abs(low - high) <= self.tolerance else None

    def restore(self, low_text: str, high_text: str) -> List[Failure]:
        """Bring back both texts; what does not come back, and why. One file that fails does not keep the other."""
        texts = {self.low_path: low_text, self.high_path: high_text}
        failures: List[Failure] = []
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            try:
                order = self._order(int(high_text), self.read()[1], attempt)
            except (AgentError, ValueError):
                order = [self.high_path, self.low_path]
            refused: Dict[str, str] = {}
            for path in order:
                try:
                    self._tree.write(path, texts[path])
                except AgentError as error:
                    refused[path] = str(error)
            failures = _compared(self._tree, texts, refused, self.tolerance)
            if not failures:
                break
        return failures

    def _order(self, high: int, high_now: int, attempt: int) -> List[str]:
        """Raising: the maximum first; lowering: the minimum first. The last attempt is the other way round, for limits
        that are not what they read (a clamp hides them)."""
        raising = high >= high_now
        if attempt == TRIES - 1:
            raising = not raising
        return [self.high_path, self.low_path] if raising else [self.low_path, self.high_path]


def bring_back(tree: Tree, saved: Dict[str, str]) -> List[Failure]:
    """Write each file's text as it was, in this order but limits in pairs; what does not come back, and why.

    All that can be brought back is, whatever happens to the others.
    """
    failures: List[Failure] = []
    done = set()
    for path, text in saved.items():
        if path in done:
            continue
        pair = _pair(path, saved)
        if pair is None:
            failures += _write(tree, path, text)
            continue
        low_path, high_path, per_mhz = pair
        done |= {low_path, high_path}
        failures += Limits(tree, low_path, high_path, per_mhz).restore(saved[low_path], saved[high_path])
    return failures


def whole(tree: Tree, path: str) -> int:
    """The whole number in the file. Raises: Forbidden, FileFailed."""
    text = tree.read(path)
    try:
        return int(text)
    except ValueError:
        raise FileFailed("{} holds no whole number but {!r}".format(path, text[:40])) from None


def same_text(one: str, other: str, tolerance: int = 0) -> bool:
    """Whether two texts say the same, numbers within a tolerance."""
    if one.strip() == other.strip():
        return True
    try:
        return abs(int(one) - int(other)) <= tolerance
    except ValueError:
        return False


def tolerance_of(path: str) -> int:
    """How far a number in this file may be from what was written: 1 kHz in the file's unit; 0 where it is no limit."""
    name = path.rsplit("/", 1)[-1]
    for high, (low, per_mhz) in _PAIRS.items():
        if name in (low, high):
            return per_mhz // 1000
    return 0


def _pair(path: str, saved: Dict[str, str]) -> Optional[Tuple[str, str, int]]:
    folder, _, name = path.rpartition("/")
    for high, (low, per_mhz) in _PAIRS.items():
        low_path, high_path = folder + "/" + low, folder + "/" + high
        if name in (low, high) and low_path in saved and high_path in saved:
            return low_path, high_path, per_mhz
    return None


def _write(tree: Tree, path: str, text: str) -> List[Failure]:
    failures: List[Failure] = []
    for attempt in range(TRIES):
        if attempt:
            tree.sleep(PAUSE_S)
        refused: Dict[str, str] = {}
        try:
            tree.write(path, text)
        except AgentError as error:
            refused[path] = str(error)
        failures = _compared(tree, {path: text}, refused, tolerance_of(path))
        if not failures:
            break
    return failures


def _compared(tree: Tree, texts: Dict[str, str], refused: Dict[str, str], tolerance: int) -> List[Failure]:
    """What a write said does not count where the file holds the text all the same."""
    failures = []
    for path, text in texts.items():
        try:
            now = tree.read(path)
        except AgentError as error:
            failures.append(Failure(path, refused.get(path, str(error)), False))
            continue
        if not same_text(now, text, tolerance):
            why = refused.get(path, "{} reads {} where {} was found".format(path, now[:40], text.strip()[:40]))
            failures.append(Failure(path, why, path not in refused and _below(now, text)))
    return failures


def _below(now: str, text: str) -> bool:
    try:
        return int(now) < int(text)
    except ValueError:
        return False
