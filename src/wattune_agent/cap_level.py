"""The rule that holds a cap and uses it: one level on a ladder of settings, from what was drawn at each setting.

``CapLevel`` decides, without reading or writing anything. The guards of programs and training call ``step`` with each
reading, and set what it returns.
"""

import math
from collections import deque
from typing import Any, Deque, Dict, NamedTuple, Optional, Sequence, Tuple

from wattune_agent.power_log import PowerLog, PowerTable

WINDOW_S = 1.0
"""Default window of a cap in seconds, unless the sensor averages over longer: supplies and batteries bear higher
power for such a time, and a sensor of usual noise measures that mean to one percent."""

ROOM = 0.015
"""Share of the cap that stays unused at a new setting, for errors of table and sensor."""

SLICED_ROOM = 0.005
"""The same while slices follow the mean closely."""

SLACK = 0.01
"""Share of the cap by which the mean over one window may seem to be above it at a whole setting, for a sensor of
unknown noise. The mean over ``PEAK_S`` may not."""

SLACK_Z = 3.0
"""The same in standard deviations of the mean, for a sensor of known noise."""

PEAK_S = 10.0
"""Time for which the highest demand is remembered: a load that comes back within it finds the setting that it needs."""

UP_PER_S = 0.15
"""Settings by which the level rises in a second."""

SOON_S = 0.1
"""Time ahead for which the mean is foreseen: until the next reading, nothing can be changed."""

PAY_BACK = 2.0
"""Watts below the cap for each watt that the mean would be above it."""

DEAF_S = 0.03
"""Time after a change for which an instantaneous reading may be of both settings."""

SHORTEST_S = 0.1
"""Shortest slice."""

LEAST_GAIN = 0.01
"""Least share by which slices have to speed up the work: fewer changes are better than less."""

LEARNS = 0.05
"""Exponent by which one reading changes the table."""

LEARNS_FROM = 0.8
"""Share of the cap from which a reading says something about the table: at rest, settings hardly differ."""

TRY_AFTER_S = 15.0
"""Time with room below the cap after which the next setting is tried although the table says that it does not fit."""

TRY_AGAIN_S = 300.0
"""Time between two such trials of a setting: what did not fit one load may fit the next one."""

TRY_BELOW = 0.97
"""Share of the cap that the highest mean stays below while there is room."""

KNOWN_S = 600.0
"""Time for which the power that was seen at a setting is relied on: programs have phases."""


STEADY = 0.02
"""Share by which the highest demand may exceed the usual one while a load counts as steady: that much is noise of the
sensor, of which slices need not stay clear."""


class Sensing(NamedTuple):
    """Window of the cap in seconds (0: every reading counts); averaging, lag, period and noise of the sensor, which are
    0 if they are small or unknown."""

    window_s: float
    averaging_s: float = 0.0
    lag_s: float = 0.0
    period_s: float = 0.0
    noise_w: float = 0.0

    @classmethod
    def of_board(cls, board: Dict[str, Any], window_s: Optional[float]) -> "Sensing":
        """The sensing of a board, as a controller describes it. ``window_s``: None if every reading counts."""
        return cls(window_s or 0.0, board["window_s"], board["lag_s"], board["period_s"])

    @property
    def window_noise_w(self) -> float:
        """Noise of the mean over the window."""
        return self.noise_w * math.sqrt(
            min(1.0, max(self.averaging_s, self.period_s, SOON_S) / (self.window_s or SOON_S))
        )

    @property
    def settle_s(self) -> float:
        """Time after a change until a reading contains none of the power before it."""
        return self.averaging_s + self.lag_s + self.period_s


class _Trial(NamedTuple):
    """A setting that is tried: when it began, the highest mean of the setting below, and the highest mean so far."""

    setting: int
    begin_s: float
    before_w: float
    highest_w: float
    is_doubted: bool
    """True if the table says that the setting does not fit."""


class CapLevel:
    """The level at which the mean power over the window stays under ``cap_w`` (None: no cap).

    Level 3.4 stands for setting 3, and setting 4 for 40 % of each window, if ``gains`` are given: the share by which
    each setting is faster than the setting below. Otherwise levels are rounded down. Settings are indexes of a ladder,
    which ``table`` describes.
    """

    def __init__(
        self,
        table: PowerTable,
        cap_w: Optional[float],
        sensing: Sensing,
        *,
        gains: Optional[Sequence[float]] = None,
        up_per_s: float = UP_PER_S,
    ) -> None:
        self.table = table
        self.cap_w = cap_w
        """Change it by ``move_cap``."""
        self.slices = gains is not None and sensing.window_s > 0
        """True while slices are used; set it to false to end that."""
        self.is_sliced = False
        """True while the setting is the upper of two that share the window."""
        self.most = len(table) - 1
        """The highest setting that may be used."""
        self.tries = True
        """False while a probe or the board chooses the setting: then no setting is tried."""
        self.level = float(self.most)
        self.setting = self.most
        """The present setting."""
        self.mean_w = 0.0
        """The mean over the window."""
        self.foreseen_w = 0.0
        """The highest mean that is expected if the setting stays."""
        self.is_paying_back = False
        """True if the window holds so much that the setting has to be lower than the level."""
        self._gains = gains or ()
        self._sensing = sensing
        self._up_per_s = up_per_s
        self._log = PowerLog(max(PEAK_S, 2 * sensing.window_s) + sensing.settle_s)
        self._load_w = 0.0  # what the last setting would draw now
        self._peaks: Deque[Tuple[float, float]] = deque()  # times ascend and demands descend
        self._usual_w = 0.0  # mean demand of about ``PEAK_S``; 0: unknown
        self._frame_s = self._changed_s = self._fresh_s = self._forced_s = self._paid_s = -math.inf
        self._last_w: Optional[float] = None
        self._mix: Dict[int, float] = {}  # seconds at each setting in the last reading
        self._room_s: Optional[float] = None  # since when there has been room below the cap
        self._tried_s: Dict[int, float] = {}
        self._seen_w: Dict[int, Tuple[float, float]] = {}  # setting -> when it was last seen, and its mean
        self._trial: Optional[_Trial] = None
        self._moved_s = -math.inf  # when the cap changed last
        self._jumps = False

    @property
    def settle_s(self) -> float:
        """Time after a change until a reading contains none of the power before it."""
        return self._sensing.settle_s

    @property
    def is_above(self) -> bool:
        """True if the mean over the window is surely above the cap."""
        return self.cap_w is not None and self.mean_w > self._most_w

    # --------------------------------------------------------------------------------------------------------- the rule

    def step(self, time_s: float, power_w: Optional[float] = None) -> int:
        """The setting from now on; ``power_w``: a reading of now, None between two readings."""
        seconds = self._note(time_s, power_w)
        if seconds:
            if power_w is not None and self._is_fresh(time_s, power_w):
                self._read(time_s, power_w)
            self._change(time_s, self._decide(time_s, seconds))
        return self.setting

    def follow(self, setting: int) -> None:
        """Continue at a setting that the board chose."""
        self.setting = setting
        self.level = max(self.level, float(setting))

    def move_cap(self, cap_w: Optional[float]) -> None:
        """Hold another cap: a higher one at once, as far as the table says."""
        self._jumps = cap_w is None or (self.cap_w is not None and cap_w > self.cap_w)
        self.cap_w, self._trial, self._room_s = cap_w, None, None
        if not math.isinf(self._log.end_s):
            self._moved_s = self._log.end_s

    def start_at(self, setting: int) -> None:
        """Begin at a setting, and forget what was drawn before."""
        self.setting, self.level = setting, float(setting)
        self._forget()

    def _forget(self) -> None:
        self._log.load([])
        self._peaks.clear()
        self._load_w, self._usual_w, self._last_w = 0.0, 0.0, None
        self._room_s, self._trial = None, None
        self._fresh_s = -math.inf

    def _note(self, time_s: float, power_w: Optional[float]) -> float:
        """Note what was drawn since the last step, as far as it is known; returns the seconds."""
        if time_s < self._log.end_s:  # the clock was set back
            self._forget()
        seconds = time_s - self._log.end_s
        if math.isinf(seconds):
            if power_w is None:
                return 0.0
            self._load_w = power_w / self.table[self.setting]
            seconds = self._sensing.averaging_s + self._sensing.lag_s + SOON_S
        if seconds > 0:
            self._log.add(time_s, seconds, self.setting, self._load_w * self.table[self.setting])
        return seconds

    def _is_fresh(self, time_s: float, power_w: float) -> bool:
        """False for a value that the sensor still holds, and for one that may be of two settings."""
        sensing = self._sensing
        if power_w == self._last_w and time_s < self._fresh_s + sensing.period_s:
            return False
        self._last_w, self._fresh_s = power_w, time_s
        return sensing.averaging_s > 0 or time_s - sensing.lag_s - self._changed_s > DEAF_S

    def _read(self, time_s: float, power_w: float) -> None:
        end_s = time_s - self._sensing.lag_s
        begin_s = end_s - max(self._sensing.averaging_s, 1e-3)
        known_s, expected_w, _ = self._log.means(begin_s, end_s, self.table)
        if not known_s:
            return
        if expected_w <= 0:  # it has read nothing at all until now
            self._load_w = power_w / self.table[self.setting]
            return
        factor = power_w / expected_w
        self._log.correct(begin_s, factor)
        self._load_w *= factor
        if self.slices and self.cap_w is not None and power_w >= LEARNS_FROM * self.cap_w:
            self._learn(begin_s, self._log.mix(begin_s, end_s), factor)

    def _learn(self, begin_s: float, mix: Dict[int, float], factor: float) -> None:
        """Correct the table by a reading that differs from the one before in its slices alone."""
        before, self._mix = self._mix, mix
        if not before or begin_s - max(self._sensing.averaging_s, 2 * SOON_S) < self._forced_s:
            return
        upper = max(*before, *mix)
        if upper and min(*before, *mix) >= upper - 1:
            more = mix.get(upper, 0.0) / sum(mix.values()) - before.get(upper, 0.0) / sum(before.values())
            self._correct_table({upper - 1: min(1.25, max(0.8, factor)) ** (LEARNS * more)})

    def _decide(self, time_s: float, seconds: float) -> int:
        window_s, table = self._sensing.window_s or seconds, self.table
        _, self.mean_w, share = self._log.means(time_s - window_s, time_s, table)
        self._raise(time_s, seconds, self.mean_w / share)
        rest_s, rest_w, _ = self._log.means(time_s - window_s + SOON_S, time_s, table)
        soon_w = (rest_s * rest_w + SOON_S * self._load_w * table[self.setting]) / (rest_s + SOON_S)
        self.foreseen_w = max(soon_w, self._peaks[0][1] * table[self.setting])
        # Before the first reading of a doubted setting, what is foreseen is no more than the table's opinion.
        is_doubted = self._trial is not None and self._trial.is_doubted and self._is_unread
        is_limited = self.cap_w is not None and self._sensing.window_s > 0 and not is_doubted
        self.is_paying_back = is_limited and soon_w > self._most_w
        if self.tries and not self.slices and self.cap_w is not None:
            self._try(time_s, soon_w)
        whole = min(self.most, int(self.level + 1e-9))
        if self.is_paying_back:
            assert self.cap_w is not None
            aim_w = min(self.cap_w, self._most_w)
            most_w = aim_w - PAY_BACK * (soon_w - aim_w)
            self.is_sliced = False
            return min(whole, table.highest(most_w / self._load_w))
        self.is_sliced = self._is_up(time_s, whole)
        return whole + self.is_sliced

    @property
    def _most_w(self) -> float:
        """The most that the mean over one window may seem to be."""
        assert self.cap_w is not None
        if self._log.end_s < self._moved_s + PEAK_S and self._sensing.window_s:
            return self.cap_w * (1 - SLACK)  # the change is too fast for the sensor: what is expected has errors too
        is_strict = not self._sensing.window_s or self.slices
        return self.cap_w + (0.0 if is_strict else max(SLACK * self.cap_w, SLACK_Z * self._sensing.window_noise_w))

    def _raise(self, time_s: float, seconds: float, demand_w: float) -> None:
        """Bring the level to what the highest demand allows: down at once, up slowly."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= demand_w:
            peaks.pop()
        peaks.append((time_s, demand_w))
        while peaks[0][0] < time_s - PEAK_S:
            peaks.popleft()
        self._usual_w += (demand_w - self._usual_w) * (min(1.0, seconds / PEAK_S) if self._usual_w else 1.0)
        wanted = float(len(self.table) - 1)
        if self.cap_w is not None and peaks[0][1] > 0:
            room = SLICED_ROOM if self.slices else ROOM
            wanted = self.table.level_of((1 - room) * self.cap_w / (self._sliced_w if self.slices else peaks[0][1]))
            if not self.slices and self._may_stay(time_s):
                wanted = max(wanted, float(self.setting))
        if time_s >= self._changed_s + self._sensing.settle_s + self._sensing.window_s:
            self._seen_w[self.setting] = time_s, self.mean_w
        if self._jumps:
            self.level, self._jumps = min(wanted, max(self.level, float(self._surest(time_s)))), False
        elif self._trial is None:
            self.level = min(wanted, self.level + self._up_per_s * seconds)
        elif wanted > self.level:  # the setting waits for the end of the trial, the level need not
            self.level = min(wanted, self.level + self._up_per_s * seconds, self._trial.setting + 0.999)

    def _surest(self, time_s: float) -> int:
        """The highest setting that was seen below the cap lately, or is below it if each step is twice the table's."""
        room_w = (1 - ROOM) * (math.inf if self.cap_w is None else self.cap_w)
        seen = [one for one, (at_s, watts) in self._seen_w.items() if watts <= room_w and time_s - at_s <= KNOWN_S]
        surest, watts = self.setting, self.mean_w
        for setting in range(self.setting + 1, self.most + 1):
            watts *= 2 * self.table.ratios[setting - 1] - 1
            surest = setting if watts <= room_w else surest
        return max([surest, *seen])

    def _may_stay(self, time_s: float) -> bool:
        """True if no window was surely above the cap, and many together are not, at the present whole setting."""
        share = self.table[self.setting]
        if self._peaks[0][1] * share > self._most_w:
            return False
        known_s, long_w, long_share = self._log.means(time_s - PEAK_S, time_s, self.table)
        is_known = self._sensing.window_s > 0 and known_s >= PEAK_S / 2
        return not is_known or long_w / long_share * share <= (self.cap_w or 0.0)

    def _is_up(self, time_s: float, whole: int) -> bool:
        """True in that part of the frame in which the setting above ``whole`` is used."""
        window_s = self._sensing.window_s
        if not self.slices:
            return False
        if not 0 <= time_s - self._frame_s < window_s - 1e-9:
            self._frame_s = time_s
        share = self.level - whole
        part_s = share * window_s
        if whole >= self.most or part_s < SHORTEST_S or share * self._gains[whole] < LEAST_GAIN:
            return False
        return time_s - self._frame_s < part_s - 1e-9

    @property
    def _sliced_w(self) -> float:
        """The demand that slices have to fit: the highest one, or the usual one of a steady load."""
        highest_w = self._peaks[0][1]
        return min(highest_w, self._usual_w) if highest_w <= (1 + STEADY) * self._usual_w else highest_w

    def _change(self, time_s: float, setting: int) -> None:
        if setting == self.setting:
            return
        lower = min(setting, self.setting)
        is_slice = abs(setting - self.setting) == 1 and lower <= self.level <= lower + 1
        if self.is_paying_back or not is_slice:
            self._forced_s = time_s
        if self.is_paying_back:
            self._paid_s = time_s
        # Soon after that, windows hold power that is not of the new setting.
        is_judged = self.cap_w is not None and self.tries and not self.slices and time_s > self._paid_s + PEAK_S
        if is_judged and setting == self.setting + 1 and setting not in self._tried_s:
            self._begin_trial(setting, time_s, is_doubted=False)
        self.setting, self._changed_s = setting, time_s

    # ----------------------------------------------------------------------------------------------------------- trials

    def _try(self, time_s: float, soon_w: float) -> None:
        """Try the next setting once there has been room for long, whatever the table says."""
        if self._trial is not None:
            self._judge_trial(self._trial, time_s, soon_w)
            return
        upper, highest_w = self.setting + 1, self._peaks[0][1] * self.table[self.setting]
        assert self.cap_w is not None
        if upper > self.most or highest_w >= TRY_BELOW * self.cap_w or self.level >= upper:
            self._room_s = None
            return
        if self._room_s is None:
            self._room_s = time_s
        if time_s - self._room_s >= TRY_AFTER_S and time_s - self._tried_s.get(upper, -math.inf) >= TRY_AGAIN_S:
            self.level = float(upper)
            self._begin_trial(upper, time_s, is_doubted=True)

    def _begin_trial(self, upper: int, time_s: float, *, is_doubted: bool) -> None:
        self._tried_s[upper], self._room_s = time_s, None
        self._trial = _Trial(upper, time_s, self._peaks[0][1] * self.table[upper - 1], 0.0, is_doubted)

    @property
    def _is_unread(self) -> bool:
        """True if no reading is of the setting that is tried."""
        sensing = self._sensing
        return self._trial is not None and self._fresh_s <= self._trial.begin_s + sensing.averaging_s + sensing.lag_s

    def _judge_trial(self, trial: _Trial, time_s: float, soon_w: float) -> None:
        """End a trial that lasted long enough or whose mean is too high, and learn from it."""
        if self.setting != trial.setting or self.most < trial.setting:
            self._trial = None  # another setting was chosen meanwhile: nothing is known of this one
            self._tried_s.pop(trial.setting, None)
            return
        if self._is_unread:
            return
        trial = self._trial = trial._replace(highest_w=max(trial.highest_w, self.mean_w, soon_w))
        is_too_much = trial.highest_w > self._most_w
        if not is_too_much and time_s - trial.begin_s < PEAK_S + self._sensing.window_s:
            return
        lower, self._trial = trial.setting - 1, None
        if trial.before_w > 0:
            self._learn_trial(lower, trial.highest_w / trial.before_w)
        self._peaks = deque([(time_s, trial.highest_w / self.table[trial.setting])])
        if is_too_much:
            self.level = float(lower)

    def _learn_trial(self, lower: int, ratio: float) -> None:
        """Note a ratio that was seen. If a step was smaller than in the table, so are the untried ones above."""
        ratios = self.table.ratios
        wrong = min(1.0, max(0.03, (ratio - 1) / (ratios[lower] - 1)))
        above = [step for step in range(lower + 1, len(ratios)) if step + 1 not in self._tried_s]
        factors = {step: (1 + (ratios[step] - 1) * wrong) / ratios[step] for step in above}
        self._correct_table({**factors, lower: ratio / ratios[lower]})

    def _correct_table(self, factors: Dict[int, float]) -> None:
        """Correct ratios of the table; what is expected at the present setting stays."""
        before = self.table[self.setting]
        for lower, factor in factors.items():
            self.table.learn(lower, factor)
        scale = before / self.table[self.setting]
        self._load_w *= scale
        self._usual_w *= scale
        self._peaks = deque((time_s, demand_w * scale) for time_s, demand_w in self._peaks)

    # ------------------------------------------------------------------------------------------------------------ state

    def state_dict(self) -> Dict[str, Any]:
        """State from which a later level continues, as JSON values."""
        times = {name: getattr(self, "_" + name) for name in _TIMES}
        return {
            **{name: None if time_s is None or math.isinf(time_s) else time_s for name, time_s in times.items()},
            "ratios": self.table.ratios,
            "level": self.level,
            "setting": self.setting,
            "most": self.most,
            "log": self._log.state(),
            "load_w": self._load_w,
            "usual_w": self._usual_w,
            "last_w": self._last_w,
            "peaks": [list(peak) for peak in self._peaks],
            "mix": [list(pair) for pair in self._mix.items()],
            "tried_s": [list(pair) for pair in self._tried_s.items()],
            "seen_w": [[setting, *seen] for setting, seen in self._seen_w.items()],
            "trial": None if self._trial is None else list(self._trial),
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continue from the ``state_dict`` of a level on a ladder of the same length; another ladder starts over."""
        if len(state["ratios"]) != len(self.table) - 1:
            return
        for name in _TIMES:
            unknown = None if name == "room_s" else -math.inf
            setattr(self, "_" + name, unknown if state[name] is None else state[name])
        self.table = PowerTable(state["ratios"])
        self.level, self.setting, self.most = state["level"], state["setting"], state["most"]
        self._log.load(state["log"])
        self._load_w, self._last_w = state["load_w"], state["last_w"]
        self._usual_w = state.get("usual_w", 0.0)
        self._peaks = deque((time_s, demand_w) for time_s, demand_w in state["peaks"])
        self._mix = {int(setting): seconds for setting, seconds in state["mix"]}
        self._tried_s = {int(setting): time_s for setting, time_s in state["tried_s"]}
        self._seen_w = {int(setting): (time_s, watts) for setting, time_s, watts in state["seen_w"]}
        self._trial = None if state["trial"] is None else _Trial(*state["trial"])


_TIMES = ("frame_s", "changed_s", "fresh_s", "forced_s", "paid_s", "moved_s", "room_s")
