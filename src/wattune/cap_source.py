"""Power caps that change: a trace of caps over time, a file that another program writes, a callable, or several.

How much may be drawn changes; everything else of a cap (where it holds, its window, margin and temperature) stays, and
``wattune.cap.PowerCap`` turns each of the caps into a limit at the sensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from typing_extensions import Self

from wattune import units
from wattune.cap import PowerCap, SensorLimit, SupplyLosses, parse_side
from wattune.errors import InputError
from wattune.tables import AS_KNOWN, SUFFIXES, Layout
from wattune.trace_file import read_trace
from wattune.watched_file import WatchedFile

WATCH: Final = "watch:"
"""Beginning of the text that names a file to watch."""

PAUSE_W: Final = 0.0
"""Cap under which nothing may run."""

UNLIMITED_W: Final = math.inf
"""Cap of a time in which nothing is limited; a file cannot have it."""

STALE_S: Final = 60.0
"""Seconds after which a watched file that was being rewritten counts as abandoned by its program."""

LEVELS: Final = 250
"""Most different caps that a trace is planned by; of more, each counts as the next lower level."""

RANGE_CAPS: Final = 9
"""Caps, evenly spaced, that stand for a range of them."""

NO_CAP: Final = PowerCap()
"""Sensor, default window, no margin and no temperature limit: the usual form of a cap."""


class CapProblem(NamedTuple):
    """Why a cap is not what its source says: the ``kind`` of event, and a sentence that also says which cap holds."""

    kind: str
    text: str


@dataclass(frozen=True)
class CapSource(ABC):
    """A power cap whose watts change over the time of a run; 0 W: nothing may run, infinite: there is no limit.

    ``form``: the side, margin, temperature and window of every cap; its own watts are not used.
    """

    form: PowerCap = NO_CAP

    @abstractmethod
    def watts(self, time_s: float) -> float:
        """The cap ``time_s`` seconds after the beginning, in watts as asked for. Raises: InputError."""

    @property
    @abstractmethod
    def shares(self) -> dict[float, float]:
        """Watts of each cap, ascending -> its share of the time; the shares add up to 1."""

    def next_change_s(self, time_s: float) -> float | None:
        """Time of the next change after ``time_s``; None if none is announced."""
        return None

    def level_w(self, watts: float) -> float:
        """The entry of ``shares`` that a cap of these watts counts as: the highest one that is not above it."""
        return self._levels_w[bisect_right(self._levels_w, watts) - 1]

    @cached_property
    def _levels_w(self) -> list[float]:
        return list(self.shares)

    @property
    def is_announced(self) -> bool:
        """True if all changes are known beforehand, so that after the last one there is none."""
        return False

    def why_paused(self, time_s: float) -> str | None:
        """Why nothing may run at this time, in a few words; None if there is nothing to add to a cap of 0 W."""
        return None

    @property
    def is_a_limit(self) -> bool:
        """True if any cap is more than a pause and less than infinite, so that the side of the caps matters."""
        return True

    @property
    def parts(self) -> tuple[CapSource, ...]:
        """The caps that hold at once, each of which may be bound to the clock on the wall: this one alone."""
        return (self,)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Sentences on what was assumed of the files of these caps, such as the zone of their times."""
        return tuple(dict.fromkeys(text for one in self.parts if (text := getattr(one, "note", None))))

    @property
    def problem(self) -> CapProblem | None:
        """Why the newest cap could not be read, and which one holds; None if it could."""
        return None

    def elapsed_s(self, moment: datetime) -> float | None:
        """Seconds from the beginning to this moment; None if the cap is not bound to the clock on the wall."""
        return None

    def highest(self) -> PowerCap:
        """The highest of the caps. Raises: InputError if nothing may ever run."""
        highest_w = max(self.shares)
        if not highest_w:
            raise InputError("the cap is 0 W all the time", allowed="watts above zero at some time")
        return replace(self.form, limit_w=highest_w)

    def limit(self, watts: float, supply: SupplyLosses | None, averaging_s: float | None) -> SensorLimit | None:
        """The limit at the sensor under a cap of ``watts``, as ``PowerCap.at_sensor`` computes it.

        None if the cap leaves nothing: it is 0 W, all of it is margin, or the rest of the board uses it up. Raises:
        InputError for a supply that is not known, and a window that is shorter than the sensor's own.
        """
        self.form.at_sensor(supply, averaging_s)  # the window
        if not watts:
            return None
        if watts == UNLIMITED_W:
            return replace(self.form, limit_w=None).at_sensor(supply, averaging_s)
        if self.form.side == "supply":
            if supply is not None and supply.at_module(watts) <= self.form.margin_w:
                return None
        elif watts <= self.form.margin_w:
            return None
        return replace(self.form, limit_w=watts).at_sensor(supply, averaging_s)

    @property
    def _at_side(self) -> str:
        return "" if self.form.side == "module" else f"@{self.form.side}"

    def with_form(self, form: PowerCap) -> Self:
        """The same caps with another margin, window and temperature; the side stays."""
        return replace(self, form=replace(form, limit_w=None, side=self.form.side))


@dataclass(frozen=True)
class CapTrace(CapSource):
    """Caps that are known beforehand.

    ``times_s``: ascending, the first is 0; each cap of ``caps_w`` (watts, 0: pause) holds until the next time, the last
    one for good. ``begin``: the moment of the first row, if the times are moments on the clock; None: seconds of a run.
    ``why``: why it pauses, in a few words, if its watts do not say it; ``note``: what was assumed of its file.
    In ``shares`` the last cap counts as long as the one before it.

    Raises: InputError for times that do not ascend from 0, and caps that are negative or not numbers.
    """

    times_s: tuple[float, ...] = (0.0,)
    caps_w: tuple[float, ...] = (PAUSE_W,)
    begin: datetime | None = None
    name: str = "the caps"
    why: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.caps_w) or not self.times_s or self.times_s[0] != 0:
            raise InputError(self.name, allowed="a cap for each time, the first at 0 s")
        for earlier_s, later_s in pairwise(self.times_s):
            if not earlier_s < later_s < math.inf:
                raise InputError(f"a time of {self.name}", value=later_s, allowed=f"more than {earlier_s:g} s")
        for cap_w in self.caps_w:
            if isinstance(cap_w, bool) or not 0 <= cap_w <= UNLIMITED_W:
                raise InputError(f"a cap of {self.name}", value=cap_w, allowed="watts, 0 or more")

    @classmethod
    def load(cls, path: str | Path, form: PowerCap | None = None, layout: Layout = AS_KNOWN) -> CapTrace:
        """Read a table of times and ``watts``, see ``read_trace``. Watts that are empty or 0 are a pause.

        Raises: InputError in one line, with the line of the file.
        """
        trace = read_trace(path, "watts", layout)
        caps_w = tuple(trace.factor * _watts(row.where, row.cell) for row in trace.rows)
        return cls(form or NO_CAP, trace.times_s, caps_w, trace.begin, str(path), note=trace.note)

    def __str__(self) -> str:
        return self.name + self._at_side

    def watts(self, time_s: float) -> float:
        """The cap of the last time that is not after ``time_s``. Raises: InputError before the first."""
        if time_s < 0:
            raise InputError(
                f"{self.name} begins after the run", value=f"{-time_s:.0f} s later", allowed="a first row before it"
            )
        return self.caps_w[bisect_right(self.times_s, time_s) - 1]

    def next_change_s(self, time_s: float) -> float | None:
        """The next time at which the cap is another one."""
        self.watts(time_s)  # which refuses a time before the first
        index = bisect_right(self._changes_s, time_s)
        return self._changes_s[index] if index < len(self._changes_s) else None

    @cached_property
    def _changes_s(self) -> list[float]:
        rows = zip(self.times_s[1:], pairwise(self.caps_w), strict=True)
        return [time_s for time_s, (before_w, cap_w) in rows if before_w != cap_w]

    @cached_property
    def shares(self) -> dict[float, float]:
        """Watts of each cap, ascending -> its share of the time; of many caps, watts of at most ``LEVELS`` levels."""
        spans_s = [later_s - earlier_s for earlier_s, later_s in pairwise(self.times_s)]
        spans_s.append(spans_s[-1] if spans_s else 1.0)
        total_s = math.fsum(spans_s)
        shares = dict.fromkeys(self._levels_w, 0.0)
        for cap_w, span_s in zip(self.caps_w, spans_s, strict=True):
            shares[self.level_w(cap_w)] += span_s / total_s
        return shares

    @cached_property
    def _levels_w(self) -> list[float]:
        caps_w = sorted(set(self.caps_w))
        if len(caps_w) <= LEVELS:
            return caps_w
        # Both ends are levels: a pause, and the highest cap.
        return [caps_w[round(index * (len(caps_w) - 1) / (LEVELS - 1))] for index in range(LEVELS)]

    @property
    def is_a_limit(self) -> bool:
        """True unless all caps are pauses or infinite."""
        return any(0 < cap_w < UNLIMITED_W for cap_w in self.caps_w)

    def why_paused(self, time_s: float) -> str | None:
        """``why``, always the same."""
        return self.why

    @property
    def is_announced(self) -> bool:
        """All changes are known."""
        return True

    def elapsed_s(self, moment: datetime) -> float | None:
        """Seconds from the first row to this moment, which has a time zone."""
        return None if self.begin is None else (moment - self.begin).total_seconds()


@dataclass(frozen=True)
class _Unannounced(CapSource):
    """``range_w``: least and most watts of the caps, all equally likely; None: the present cap alone."""

    range_w: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.range_w is not None:
            low_w, high_w = self.range_w
            if not 0 <= low_w < high_w < math.inf:
                raise InputError("the range of caps", value=f"{low_w:g}..{high_w:g} W", allowed="such as 4W..7W")

    @property
    def shares(self) -> dict[float, float]:
        """Watts of caps that are evenly spaced over the range -> the same share of each."""
        if self.range_w is None:
            return {self.watts(0.0): 1.0}
        low_w, high_w = self.range_w
        step_w = (high_w - low_w) / (RANGE_CAPS - 1)
        return {low_w + index * step_w: 1.0 / RANGE_CAPS for index in range(RANGE_CAPS)}


@dataclass(frozen=True)
class CalledCap(_Unannounced):
    """The watts that ``cap_w`` returns for the seconds of the run; None and 0 are a pause."""

    cap_w: Callable[[float], float | None] = lambda time_s: PAUSE_W

    def __str__(self) -> str:
        return "a callable" + self._at_side

    def watts(self, time_s: float) -> float:
        """The watts that the callable returns. Raises: InputError unless that is a number, 0 or more, or None."""
        value = self.cap_w(time_s)
        if value is None:
            return PAUSE_W
        if isinstance(value, (bool, str)) or not 0 <= value < math.inf:
            raise InputError("what cap_w returned", value=value, allowed="watts, 0 or more, or None for a pause")
        return float(value)


@dataclass(frozen=True)
class WatchedCap(_Unannounced):
    """The number of watts in a file, which another program replaces or rewrites.

    The last number holds while the file cannot be read, does not answer, or has something else in it. A file that was
    being rewritten, and then is not for ``stale_s`` seconds, counts as its lowest cap: that of ``range_w``, else the
    lowest so far. ``file``: what was read so far.

    Raises: InputError if the file has no watts at the beginning.
    """

    path: Path = Path()
    stale_s: float = STALE_S
    file: WatchedFile | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is None:
            object.__setattr__(self, "file", WatchedFile(self.path.absolute(), self.stale_s))

    def __str__(self) -> str:
        return f"{WATCH}{self.path}{self._at_side}"

    def watts(self, time_s: float) -> float:
        """The newest number in the file, or the lowest one if the file is stale."""
        file = self._file
        file.look()
        return self._lowest_w if file.is_stale else file.watts

    @property
    def problem(self) -> CapProblem | None:
        """Why the newest number does not hold, or why the file's present content is not a cap."""
        if self._file.is_stale:
            why = f"{self.path} has not been rewritten for {self.stale_s:g} s"
            return CapProblem("cap stale", f"{why}; its lowest cap of {self._lowest_w:g} W holds")
        if self._file.problem is None:
            return None
        return CapProblem("cap unread", f"{self._file.problem}; the last cap of {self._file.watts:g} W holds")

    @property
    def _file(self) -> WatchedFile:
        assert self.file is not None  # made with the cap
        return self.file

    @property
    def _lowest_w(self) -> float:
        return self._file.lowest_w if self.range_w is None else self.range_w[0]


@dataclass(frozen=True)
class LowestCap(CapSource):
    """Several caps that hold at once: the lowest of them. ``sources``: one or more.

    Raises: InputError for caps at different sides, of which none is the lower one while what lies between is unknown.
    """

    sources: tuple[CapSource, ...] = ()

    def __post_init__(self) -> None:
        forms = [one.form for one in self.sources if one.is_a_limit]
        if len({form.side for form in forms}) > 1:
            raise InputError("caps at the sensor and at the supply together", allowed="all of them at the same side")
        if forms and self.form == NO_CAP:
            object.__setattr__(self, "form", replace(forms[0], limit_w=None))

    def __str__(self) -> str:
        return " and ".join(map(str, self.sources))

    @property
    def parts(self) -> tuple[CapSource, ...]:
        """The caps, each with a clock of its own."""
        return self.sources

    def watts(self, time_s: float) -> float:
        """The lowest of the present caps."""
        return min(one.watts(time_s) for one in self.sources)

    def next_change_s(self, time_s: float) -> float | None:
        """Time of the next announced change of any of them."""
        changes_s = [change_s for one in self.sources if (change_s := one.next_change_s(time_s)) is not None]
        return min(changes_s, default=None)

    @cached_property
    def shares(self) -> dict[float, float]:
        """Watts of each cap, ascending -> its share of the time; caps that are not announced count as independent."""
        if self.is_announced:
            times_s = [0.0]
            while (following_s := self.next_change_s(times_s[-1])) is not None:
                times_s.append(following_s)
            return CapTrace(self.form, tuple(times_s), tuple(map(self.watts, times_s))).shares
        shares = {UNLIMITED_W: 1.0}
        for one in self.sources:
            together: dict[float, float] = {}
            for watts, share in shares.items():
                for own_w, own_share in one.shares.items():
                    lower_w = min(watts, own_w)
                    together[lower_w] = together.get(lower_w, 0.0) + share * own_share
            shares = together
        return dict(sorted(shares.items()))

    @property
    def is_announced(self) -> bool:
        """All changes of all caps are known."""
        return all(one.is_announced for one in self.sources)

    @property
    def is_a_limit(self) -> bool:
        """True if one of them has watts."""
        return any(one.is_a_limit for one in self.sources)

    @property
    def problem(self) -> CapProblem | None:
        """The first problem of any of them."""
        return next((one.problem for one in self.sources if one.problem is not None), None)

    def elapsed_s(self, moment: datetime) -> float | None:
        """Seconds since the beginning of the first one that is bound to the clock on the wall."""
        return next((passed_s for one in self.sources if (passed_s := one.elapsed_s(moment)) is not None), None)

    def with_form(self, form: PowerCap) -> Self:
        """The same caps with another margin, window and temperature."""
        return replace(super().with_form(form), sources=tuple(one.with_form(form) for one in self.sources))


OneCap = float | str | Path | PowerCap | CapSource | Callable[[float], float | None] | None

AnyCap = OneCap | Sequence[OneCap]
"""A cap, constant or not, or several; see ``cap_of``."""


def cap_of(
    value: object,
    *,
    range_w: tuple[float, float] | None = None,
    stale_s: float = STALE_S,
    layout: Layout = AS_KNOWN,
) -> PowerCap | CapSource:
    """The cap that is meant, constant or not.

    Changing are a ``CapSource``, the path of a table (``CapTrace.load``; as a text it ends with one of ``SUFFIXES``, or
    with ``.csv@supply``), a text ``watch:FILE``, and a callable from seconds to watts; everything else is as in
    ``PowerCap.of``. Of a list of caps the lowest holds. ``range_w``: least and most watts of a file that is
    watched, or a callable; ``stale_s``: see ``WatchedCap``; ``layout``: how to read a table.

    Raises: InputError.
    """
    cap: PowerCap | CapSource
    if isinstance(value, (list, tuple)) and value:
        cap = _lowest([cap_of(one, stale_s=stale_s, layout=layout) for one in value], range_w)
    elif isinstance(value, CapSource):
        cap = value
    elif isinstance(value, Path):
        cap = CapTrace.load(value, layout=layout)
    elif isinstance(value, str):
        cap = _parsed(value, range_w, stale_s, layout)
    elif callable(value):
        cap = CalledCap(range_w=range_w, cap_w=value)
    else:
        cap = PowerCap.of(value)  # type: ignore[arg-type]  # it refuses everything else
    parts = cap.parts if isinstance(cap, CapSource) else ()
    if range_w is not None and all(getattr(one, "range_w", None) != range_w for one in parts):
        raise InputError("a range of caps", allowed="with watch:FILE or a callable, whose caps are not known before")
    return cap


def _lowest(caps: Sequence[PowerCap | CapSource], range_w: tuple[float, float] | None) -> PowerCap | CapSource:
    """The lowest of several caps, constant or not; ``range_w`` is the range of caps that are not announced."""
    constant = [one for one in caps if isinstance(one, PowerCap)]
    limited = [one for one in constant if one.limit_w is not None]
    if len(constant) == len(caps) and len({one.side for one in limited}) < 2:
        return min(limited, key=lambda one: one.limit_w or 0.0, default=NO_CAP)
    sources = [
        replace(one, range_w=range_w) if isinstance(one, _Unannounced) and range_w is not None else one
        for one in caps
        if isinstance(one, CapSource)
    ]
    sources += [CapTrace(one, caps_w=(one.limit_w or 0.0,), name=f"{one.limit_w!r}W") for one in limited]
    return sources[0] if len(sources) == 1 else LowestCap(sources=tuple(sources))


FAR: Final = 100
"""Ratio of a cap to all that a board draws from which the cap is taken for a slip of the unit. A cap that merely does
not limit the board is a few times what the board draws, and watts for milliwatts are 300 to 1000 times as much."""


def check_scale(cap: PowerCap | CapSource, highest_w: float | None) -> None:
    """Check that watts are not milliwatts. ``highest_w``: the most that the board draws, None if unknown.

    Raises: InputError for a cap that is far above all that the board draws, and for one that changes if its least watts
    are.
    """
    caps_w = (cap.limit_w,) if isinstance(cap, PowerCap) else tuple(cap.shares)
    least_w = min((watts for watts in caps_w if watts and watts < math.inf), default=None)
    if least_w is None or highest_w is None or least_w < FAR * highest_w:
        return
    above = f"{least_w / highest_w:.0f} times what this board draws at most"
    if isinstance(cap, PowerCap):
        raise InputError(f"{least_w:g} W is {above}", hint=f"{least_w:g}mW?")
    raise InputError(f"{least_w:g} W, the lowest cap of {cap}, is {above}", hint="are these mW?")


def parse_range(text: str) -> tuple[float, float]:
    """Least and most watts from a text such as "4W..7W". Raises: InputError."""
    low, dots, high = text.partition("..")
    low_w, high_w = units.read(low, "W"), units.read(high, "W")
    if not dots or low_w is None or high_w is None or not low_w < high_w:
        raise InputError("cap_range", value=text, allowed="two numbers of watts, the lower one first, such as 4W..7W")
    return low_w, high_w


def _parsed(text: str, range_w: tuple[float, float] | None, stale_s: float, layout: Layout) -> PowerCap | CapSource:
    name, at, word = text.rpartition("@")
    side = parse_side(word) if at else None
    name, form = (text, NO_CAP) if side is None else (name, PowerCap(side=side))
    if name.startswith(WATCH):
        return WatchedCap(form, range_w, Path(name.removeprefix(WATCH)), stale_s)
    return CapTrace.load(name, form, layout) if name.lower().endswith(SUFFIXES) else PowerCap.parse(text)


def _watts(where: str, text: str) -> float:
    if not text:
        return PAUSE_W
    return units.parse(text, "W", name=f"{where}: watts", zero=True, also="; empty or 0 for a pause")
