"""A knob of a board by its files: pinned, read back, and restored.

Kernels treat the two limits of a clock in two ways. Older ones refuse (EINVAL) a minimum above the maximum, newer ones
accept it and silently let the maximum win. Both accept the order used here: the minimum is never above the maximum.
Newer kernels store the limits in kHz, and show the tightest of all requests, so that thermal throttling reads like a
lower maximum: everything written is therefore read back.

The memory's lock holds the rate that is written, whatever drivers ask for. Without the lock the kernel and the firmware
(BPMP) choose the rate by the load. The power mode's cap on that clock is an upper limit beside the lock. A pin keeps
both at the same frequency: the cap is raised before a higher rate is locked, and lowered after a lower rate is locked.
Once the lock is released, the rate follows the load again: it is not restored.

Sources: Linux ``drivers/devfreq/devfreq.c`` (``min_freq_store``, ``get_freq_range``), ``drivers/cpufreq/cpufreq.c``;
KernelTuner/kernel_tuner ``observers/tegra.py`` for the order.
"""

from contextlib import suppress
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from wattune_agent.errors import AgentError, FileFailed, Forbidden, NotRestored, NotTaken
from wattune_agent.knobs import CAPS, MEMORIES, PAIRS, is_limit, row_of, same_text, tolerance_of, whole
from wattune_agent.tree import Tree, text

TRIES = 3
"""Attempts to write limits before reporting a failure; another writer may finish between two of them."""

PAUSE_S = 0.02
"""Time between two tries."""

Failure = NamedTuple("Failure", [("path", str), ("text", str), ("clamped", bool)])
Failure.__doc__ = """A file that was not restored, and why. ``clamped``: the write succeeded, but the file reads lower,
as it does while the kernel throttles the clock."""


class Limits:
    """Files that hold one value together: an upper limit (empty: none), and the ``rest``, which is written after it to
    raise the value and before it to lower it. The last of the rest is the lower limit, or the value itself; a lock
    before it is "1" while the value is held."""

    def __init__(self, tree: Tree, high: str, rest: List[str]) -> None:
        self.high = high
        self._tree = tree
        self._rest = rest
        self._value = rest[-1]
        self._locks = rest[:-1]
        self.tolerance = tolerance_of(self._value)

    def files(self) -> List[str]:
        """Every file."""
        return self._rest + ([self.high] if self.high else [])

    def pin(self, value: int) -> Dict[str, str]:
        """Set everything to ``value`` and verify it.

        If all read lower, the kernel is throttling the clock, for example because of heat, and what was written applies
        again when that ends. That is enough for a pin, since the clock is not above it: the result is then these files
        with the text written, otherwise empty. Raises: NotTaken, Forbidden, FileFailed.
        """
        texts = {path: "1" if path in self._locks else str(value) for path in self.files()}
        is_clamped = False
        failure: Optional[AgentError] = None
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            is_clamped = False
            try:
                for path in self._order(value, attempt):
                    _write(self._tree, path, texts[path])
                # A cap beside a lock only has to be no lower.
                now = {path: self._tree.read(path) for path in (self._rest if self._locks else texts)}
                if all(same_text(read, texts[path], tolerance_of(path)) for path, read in now.items()):
                    return {}
                is_clamped = self._is_clamped(value)
            except Forbidden:
                raise
            except FileFailed as error:  # refused, or another writer interfered: read again, then try again
                failure = error
                continue
            failure = NotTaken(
                "{}: written {}, but read {}; another limit of the board (its power mode, heat) or another program "
                "holds it".format(" and ".join(now), value, " and ".join(read[:40] for read in now.values()))
            )
        if is_clamped:
            return {path: written for path, written in texts.items() if path not in self._locks}
        assert failure is not None
        raise failure

    def pinned(self) -> Optional[int]:
        """The value that is held, in the files' unit; None if a range is allowed. Raises: Forbidden, FileFailed."""
        if any(self._tree.read(path) != "1" for path in self._locks):
            return None
        if not is_limit(self._value):  # a card's lock
            locked = self._tree.read(self._value)
            return int(locked) if locked.isdigit() else None
        value = whole(self._tree, self._value)
        if not self.high or self._locks:
            return value
        high = whole(self._tree, self.high)
        return high if abs(value - high) <= self.tolerance else None

    def restore(self, texts: Dict[str, str]) -> List[Failure]:
        """Restore the texts and return the failures. A failure of one file does not prevent the others."""
        found = {path: texts[path] for path in self.files()}
        if any(found[path].strip() != "1" for path in self._locks):
            del found[self._value]  # it follows the load again
        failures: List[Failure] = []
        for attempt in range(TRIES):
            if attempt:
                self._tree.sleep(PAUSE_S)
            try:
                order = self._order(int(found.get(self.high, "0")), attempt)
            except (AgentError, ValueError):
                order = [self.high, *self._rest]
            errors: Dict[str, str] = {}
            for path in order:
                try:
                    if path in found:
                        _write(self._tree, path, found[path])
                except AgentError as error:
                    errors[path] = str(error)
            failures = _compared(self._tree, found, errors)
            if not failures:
                break
        return failures

    def _is_clamped(self, value: int) -> bool:
        """True if the files hold a lower value than was written."""
        if not self.high or any(self._tree.read(path) != "1" for path in self._locks):
            return False
        high, now = whole(self._tree, self.high), whole(self._tree, self._value)
        # A locked rate may be any below its cap, but a lower limit that is lower than the upper one leaves a range.
        is_held = now <= high + self.tolerance and (bool(self._locks) or now >= high - self.tolerance)
        return is_held and 0 < high < value - self.tolerance

    def _order(self, value: int, attempt: int) -> List[str]:
        """The order of writes; an upper limit of 0 means none. The last attempt reverses that of two limits, which
        throttling may hide: they then differ from what they read. Raises: Forbidden, FileFailed."""
        if not self.high:
            return self._rest
        is_raised = value == 0 or 0 < whole(self._tree, self.high) <= value
        if attempt == TRIES - 1 and not self._locks:
            is_raised = not is_raised
        return [self.high, *self._rest] if is_raised else [*self._rest, self.high]


class FileKnob:
    """A clock that can be pinned to one of its frequencies, or another knob of a board (``knob`` says so).

    ``limits``: the files of each unit with a clock of its own, and the values that this unit takes, ascending. A unit
    without the value of a setting is held at its next lower one. ``switches``: files that would undo a pin, with the
    text while pinned, before the limits or after them in the order of a restore. ``now``: the file of the present
    value. ``status``: the file that says that the unit is suspended.
    """

    knob = "clock_mhz"
    """The name of what is pinned. The values of "power_limit_w" are watts, here and in each method."""

    measure = "MHz"

    reports_pin = True
    """False if the files of the clock do not show that another program changed it."""

    def __init__(
        self,
        tree: Tree,
        unit: str,
        per_mhz: int,
        limits: Sequence[Tuple[Limits, Sequence[int]]],
        settings: Sequence[int],
        *,
        now: str = "",
        status: str = "",
        switches: Sequence[Tuple[str, str]] = (),
        switches_first: bool = False,
    ) -> None:
        self.unit = unit
        """The unit that the clock drives: "gpu", "cpu" or "memory"."""
        self.settings_mhz = tuple(value / per_mhz for value in settings)
        """The frequencies that can be pinned, ascending."""
        self._tree = tree
        self._per_mhz = per_mhz
        self._limits = limits
        self._now = now
        self._status = status
        self._switches = switches
        self._switches_first = switches_first

    def files(self) -> List[str]:
        """Every file that ``pin`` may write, in the order in which a snapshot is restored."""
        switches, limits = self._active()
        paths = [path for one, _ in limits for path in one.files()]
        others = [path for path, _ in switches]
        return others + paths if self._switches_first else paths + others

    def pin(self, mhz: float) -> Dict[str, str]:
        """Switch off what would undo a pin, then pin the limits at one of ``settings_mhz``. Returns the files that
        throttling holds lower, each with the text written; usually empty.

        Raises: NotTaken, Forbidden, FileFailed.
        """
        switches, limits = self._active()
        for path, pinned in switches:
            # A GPU without power takes a limit, but follows it only later, and draws 0 W meanwhile.
            _write(self._tree, path, pinned)
            now = self._tree.read(path)
            if now != pinned:
                raise NotTaken("{} was written {}, but reads {}".format(path, pinned, now[:40]))
        clamped: Dict[str, str] = {}
        for one, values in limits:
            clamped.update(one.pin(self._value(values, mhz)))
        return clamped

    def pinned_mhz(self) -> Optional[float]:
        """The lowest setting that every unit is at; None if a range is allowed. Raises: Forbidden, FileFailed."""
        held = [(one.pinned(), values, one.tolerance) for one, values in self._active()[1]]
        for mhz in self.settings_mhz:
            if all(
                now is not None and abs(now - self._value(values, mhz)) <= tolerance for now, values, tolerance in held
            ):
                return mhz
        return None

    def now_mhz(self) -> Optional[float]:
        """The current frequency; None if the board does not report it. Raises: Forbidden, FileFailed."""
        return whole(self._tree, self._now) / self._per_mhz

    def is_suspended(self) -> bool:
        """True if the unit has no power now: it follows its limits when it wakes, and until then reports any clock."""
        return bool(self._status) and text(self._tree, self._status) == "suspended"

    def limit_mhz(self, texts: Dict[str, str]) -> Optional[float]:
        """The highest frequency that these texts of ``files`` allow; None if that is not among them."""
        high = texts.get(self._limits[0][0].high, "").strip()
        return int(high) / self._per_mhz if high.isdigit() and int(high) > 0 else None

    def restore(self, texts: Dict[str, str]) -> None:
        """Restore the text of each file. Raises: NotRestored, after restoring as much as possible."""
        failures = bring_back(self._tree, texts)
        if failures:
            raise NotRestored("; ".join(failure.text for failure in failures))

    def _active(self) -> Tuple[Sequence[Tuple[str, str]], Sequence[Tuple[Limits, Sequence[int]]]]:
        """The switches and limits that apply now."""
        return self._switches, self._limits

    def _value(self, values: Sequence[int], mhz: float) -> int:
        value = round(mhz * self._per_mhz)
        return max([listed for listed in values if listed <= value] or [values[0]])


def bring_back(tree: Tree, texts: Dict[str, str]) -> List[Failure]:
    """Write back each file's text, in this order but files of one clock together; returns the failures.

    Every file that can be restored is, even if others fail.
    """
    failures: List[Failure] = []
    restored = set()
    for path in texts:
        if path not in restored:
            limits = _limits_of(tree, path, texts)
            restored.update(limits.files())
            failures += limits.restore(texts)
    return failures


def _limits_of(tree: Tree, path: str, texts: Dict[str, str]) -> Limits:
    """The file with those of the same clock, as far as they are among the texts."""
    for memory in MEMORIES:
        if memory.lock in texts and memory.rate in texts:
            limits = Limits(tree, next((cap for cap in CAPS if cap in texts), ""), [memory.lock, memory.rate])
            if path in limits.files():
                return limits
    folder, _, name = path.rpartition("/")
    for high, low in PAIRS.items():
        pair = folder + "/" + high, folder + "/" + low
        if name in (high, low) and pair[0] in texts and pair[1] in texts:
            return Limits(tree, pair[0], [pair[1]])
    return Limits(tree, "", [path])


def _write(tree: Tree, path: str, wanted: str) -> None:
    """Write the file, or the file that sets it. Limits are always written, since throttling may hide what they hold.

    Raises: Forbidden, FileFailed.
    """
    setter = next((memory.setter for memory in MEMORIES if path == memory.rate), path)
    row = row_of(path)
    if row is not None and row.only_changes:
        with suppress(AgentError):
            if tree.read(path) == wanted.strip():
                return
    tree.write(setter, wanted)


def _compared(tree: Tree, texts: Dict[str, str], errors: Dict[str, str]) -> List[Failure]:
    """Compare the files with the texts; an error of a write does not count if the file contains the text anyway."""
    failures = []
    for path, found in texts.items():
        try:
            now = tree.read(path)
        except AgentError as error:
            failures.append(Failure(path, errors.get(path, str(error)), False))
            continue
        if not same_text(now, found, tolerance_of(path)):
            why = errors.get(path, "{} reads {}, but {} was found".format(path, now[:40], found.strip()[:40]))
            failures.append(Failure(path, why, path not in errors and _is_below(now, found)))
    return failures


def _is_below(now: str, found: str) -> bool:
    try:
        return int(now) < int(found)
    except ValueError:
        return False
