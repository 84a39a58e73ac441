"""Run any program under a pinned clock, a cap and a meter, and restore the board afterwards."""

import shutil
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from wattune_agent.cap_guard import CapGuard, is_too_hot, told
from wattune_agent.cap_level import KNOWN_S, CapLevel, Sensing
from wattune_agent.errors import AgentError, BadRequest, NotThere
from wattune_agent.kept import LEFT_OUT, CapNow, CapRecord, Kept
from wattune_agent.outcome import GuardRequest, Report
from wattune_agent.power_log import PowerTable
from wattune_agent.program import DEAD_S, GuardedProgram
from wattune_agent.readings import Joules, Stall, Stuck
from wattune_agent.settings import RecentClock
from wattune_agent.slicing import SLICE_S, gains_for
from wattune_agent.time_source import Pulse

PERIOD_S = 0.1
CHECK_S = 1.0

QUICK_S = 0.05
"""Averaging time below which a sensor is read twice as often: ten readings of a moment do not make the mean of a second
whose steps and gaps are as short (steps of 0.18 s: 8 to 11 % more work under the same cap)."""

BLIND_S = 2.0
"""Time without a reading (or without a temperature, if that is limited) after which the program is stopped."""

HANG_S = 5.0
"""Time after which a sensor that hangs counts as lost; a change of the clock may take two seconds."""

SAFETY_EXIT = 4
"""Exit code if the program was stopped for safety, whatever its own exit code."""


def run_guarded(
    controller: Any,
    command: Union[List[str], GuardedProgram],
    *,
    say: Callable[[str], None] = lambda text: None,
    **request: Any,
) -> Report:
    """Run a program, pinned, metered and guarded; restore the board in any case.

    ``controller`` has ``describe``, ``read``, ``claim``, ``pin``, ``check`` and ``restore``, and may have ``guard`` and
    ``slice``. ``command``: or a program that has not started yet, on that program's time. ``request``: the other fields
    of a ``GuardRequest``. ``say`` is called with a line for each event, from another thread.

    The program receives SIGINT, SIGTERM, SIGHUP and SIGQUIT of this process, which ends when the program does.
    SIGTERM, and SIGKILL ``program.KILL_S`` later, stop it if power exceeds the cap at the lowest clock, the clock
    cannot be changed, the sensor gives no reading for ``BLIND_S``, or this process is killed. However the guard ends,
    it continues a program that is held.

    Raises, before the program runs: BadRequest, NotThere, NoReading, Busy, Forbidden and the board's other errors if
    it cannot be guarded.
    """
    asked = GuardRequest([], **request)
    if not isinstance(command, GuardedProgram):
        if not command:
            raise BadRequest("no program to run")
        if shutil.which(command[0]) is None:
            raise BadRequest("program not found: {}".format(command[0]))
        command = GuardedProgram(command)
    board = controller.describe()
    reading = controller.read()
    if asked.max_temp_c is not None and reading.get("temperature_c") is None:
        raise NotThere("{}: no temperature is available, so it cannot be limited".format(board["name"]))
    run = _Run(controller, board, reading["power_w"], command, asked, say)
    try:
        run.prepare()
        run.run()
    finally:
        run.restore()
    return run.report()


class _Run:
    def __init__(
        self,
        controller: Any,
        board: Dict[str, Any],
        power_w: float,
        program: GuardedProgram,
        asked: GuardRequest,
        say: Callable[[str], None],
    ) -> None:
        clock_mhz, cap_w, window_s, caps = asked.clock_mhz, asked.cap_w, asked.window_s, asked.caps
        self._controller, self._board, self._program, self._time = controller, board, program, program.time
        self._settings = list(board["settings_mhz"])
        self._clock_mhz, self._cap_w, self._max_temp_c, self._say = clock_mhz, cap_w, asked.max_temp_c, say
        self._choice = asked.choice
        self._sensing = Sensing.of_board(board, window_s)
        self._settle_s = self._sensing.settle_s
        self._moving = caps
        self._lead_s = (window_s or 0.0) + self._settle_s + PERIOD_S  # of a lower cap that is announced
        if self._moving is not None:
            self._cap_w = cap_w = self._moving.now.limit_w
            self._followed = self._moving.now, self._moving.held
        self._window_s = window_s
        self._set_w: Optional[float] = None  # the cap that another client of the agent set
        self._asked_w = cap_w
        delay_s = board["lag_s"] + (board["window_s"] + board["period_s"]) / 2
        self._joules = Joules(delay_s, cap_w, window_s)
        self._period_s = PERIOD_S / 2 if 0 < board["window_s"] < QUICK_S else PERIOD_S
        self._stuck = Stuck(board["period_s"])
        self._first_w = power_w
        self._stall = None if asked.stall_s is None else Stall(asked.stall_s, power_w)
        self._recent = RecentClock(self._settings)
        self._ladder = [setting for setting in self._settings if clock_mhz is None or setting <= clock_mhz]
        held_w = cap_w if self._moving is None else self._moving.held.limit_w
        can_slice = asked.slices and hasattr(controller, "slice")
        gains = gains_for(board, self._ladder, window_s) if can_slice else None
        self._guard = CapGuard(
            self._ladder,
            self._pin,
            CapLevel(PowerTable.guess(self._ladder or [1.0]), held_w, self._sensing, gains=gains),
            asked.max_temp_c,
            free_at=self._ladder[-1] if self._ladder and clock_mhz is None else None,
            switch=self._switch,
        )
        self._is_blind = False
        self._at_s: Dict[float, float] = {}  # seconds at each setting
        self._counted_s = 0.0
        self._lowest_w: Optional[Tuple[float, float]] = None  # power at the lowest clock, above the cap, and its time
        self._record = CapRecord(lambda time_s: (self._joules.above_s(time_s), self._joules.energy_j(time_s)))
        self._pulse = Pulse(program.now_s)
        self._hottest_c: Optional[float] = None
        self._last_mhz: Optional[float] = None
        self._pause: Optional[str] = None
        self._steady_s = 0.0  # since when the program runs at the present clock
        self._events: List[Dict[str, Any]] = []
        self._answers = Kept()  # of the guard: after a day there may be 40,000
        self._pinning = threading.Lock()
        self._over = False
        self._is_chosen = False  # the board is the choice's
        self._watch_ended = threading.Event()
        self._why = ""
        self._is_restored: Optional[bool] = None
        # In the program's time: when there last was a reading, a sign of life of the guard, a look at the board.
        self._read_s = self._alive_s = self._checked_s = 0.0

    def prepare(self) -> None:
        """Pin the clock, wait until readings show it, and pass the limits to a controller that can guard them too."""
        if self._clock_mhz is not None:
            self._controller.pin(self._clock_mhz)
            self._time.sleep(self._settle_s)
            self._first_w = self._controller.read()["power_w"]
        if self._cap_w is None and self._max_temp_c is None and self._moving is None:
            return
        if not self._settings and self._moving is None:
            self._tell("no clock", "the board has no clock to lower: a program that stays above a limit is stopped")
        elif self._clock_mhz is None and self._settings and not hasattr(self._controller, "guard"):
            self._controller.claim()
        self._arm(self._cap_w)

    def _arm(self, cap_w: Optional[float]) -> None:
        """Pass the limits to a controller that can guard them too, for when this process does not."""
        is_limited = cap_w is not None or self._max_temp_c is not None
        if self._settings and is_limited and hasattr(self._controller, "guard"):
            self._controller.guard(cap_w, self._max_temp_c, self._window_s)

    def run(self) -> None:
        """Start the program, guard it until it ends, and restore the board before signals are handled again."""
        program = self._program
        with program.signals():
            try:
                self._stuck.notice(0.0, self._first_w)
                self._stuck.change()
                program.start()
                if self._moving is not None and not self._moving.held.may_run:
                    program.hold()
                self._pulse = Pulse(program.now_s)
                threading.Thread(target=self._watch, name="guard", daemon=True).start()
                while not self._time.wait(program.ended, 0.5):
                    self._beat()
                    if self._silent_s(self._alive_s) > HANG_S:
                        self._stop("the sensor or the clock has not responded for {:g} s".format(HANG_S))
                    program.kill_late()
                end_s = program.now_s() + HANG_S
                while not self._time.wait(self._watch_ended, 0.5) and program.now_s() < end_s:
                    self._beat()  # the guard's thread may be waiting for a clock to settle
                if not program.end_group():
                    text = "processes that the program started are still running {:g} s after SIGKILL"
                    self._tell("not ended", text.format(DEAD_S))
                if not self._joules.readings:  # it ended before the first reading: use the one from before its start
                    self._joules.add(0.0, self._first_w)
            finally:
                program.let_go()
                self.restore()

    def restore(self) -> None:
        """Restore the board, once, and record the events of that."""
        if self._is_restored is not None:
            return
        # A late thread must not pin it again.
        free = self._pinning.acquire(timeout=HANG_S)
        self._over = True
        if free:
            self._pinning.release()
        try:
            try:
                if self._choice is not None:
                    self._choice.restore()
            finally:
                self._controller.restore()
            self._is_restored = True
        except AgentError as error:
            self._is_restored = False
            self._tell("not restored", str(error))
        self._check()

    # ----------------------------------------------------------------------------------------------------- the guard

    def _watch(self) -> None:
        try:
            self._watch_program()
        finally:
            self._watch_ended.set()

    def _watch_program(self) -> None:
        program = self._program
        due_s = program.now_s()
        while True:
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - after any error, the program must not run without its guard
                self._stop("the guard failed: {}: {}".format(type(error).__name__, error))
            self._beat()
            self._alive_s = program.now_s()
            due_s = max(due_s + self._period_s, self._alive_s)
            is_sliced = self._guard.level.slices and self._period_s > SLICE_S
            if is_sliced and not self._time.wait(program.ended, due_s - self._alive_s - SLICE_S):
                self._tick()
            if self._time.wait(program.ended, due_s - program.now_s()):
                return

    def _tick(self) -> None:
        """Begin or end a slice between two readings."""
        if self._why or self._program.is_held or self._is_chosen:
            return
        self._count(self._program.now_s())
        try:
            self._guard.tick(self._program.now_s())
        except AgentError as error:
            self._stop("the clock cannot be changed: {}".format(error))

    @property
    def _held(self) -> Optional[float]:
        """The setting that is held; None while the board chooses."""
        return self._choice.held if self._is_chosen else self._guard.value if self._guard.is_held else None

    def _count(self, time_s: float) -> None:
        """Count the time until now at the setting that is held."""
        held = self._held
        if held is not None:
            self._at_s[held] = self._at_s.get(held, 0.0) + max(0.0, time_s - self._counted_s)
        self._counted_s = time_s

    def _look(self) -> None:
        program = self._program
        why = "no temperature"
        try:
            reading = self._controller.read()
        except AgentError as error:
            why = str(error)
        else:
            time_s = program.now_s()
            if program.ended.is_set():  # later readings are not the program's
                time_s = min(time_s, program.end_s)
            self._count(time_s)
            self._joules.add(time_s, reading["power_w"])
            if self._max_temp_c is None or reading.get("temperature_c") is not None:
                self._read_s, why = time_s, ""
            self._judge(time_s, reading)
        self._beat()
        if why and self._silent_s(self._read_s) > BLIND_S:
            self._go_blind("no reading for {:g} s: {}".format(BLIND_S, why))
        if program.now_s() - self._checked_s >= CHECK_S:
            self._checked_s = program.now_s()
            self._check()
        program.kill_late()

    def _go_blind(self, why: str) -> None:
        """Stop the program, unless it is only measured: at the board's own clocks, without a limit."""
        kept = (self._moving, self._cap_w, self._max_temp_c, self._clock_mhz, self._choice)
        if any(one is not None for one in kept):
            self._stop(why)
        elif not self._is_blind:
            self._is_blind = True
            self._tell("no reading", why)

    def _judge(self, time_s: float, reading: Dict[str, Any]) -> None:
        power_w, temperature_c, guard = reading["power_w"], reading.get("temperature_c"), self._guard
        if temperature_c is not None:
            self._hottest_c = max(temperature_c, self._hottest_c or temperature_c)
        self._notice_stuck(time_s, power_w, reading.get("clock_mhz"))
        if self._stall is not None:
            stalled = self._stall.notice(time_s, power_w, self._held, is_held=self._program.is_held)
            if stalled is not None:
                self._tell("stalled", stalled)
        if self._why:
            return
        is_set, self._set_w = reading.get("set_cap_w") != self._set_w, reading.get("set_cap_w")
        if is_set and self._moving is None:
            self._cap_w = self._joules.cap_w = self._asked_w if self._set_w is None else self._set_w
            guard.move_cap(self._cap_w)
        if self._choose(time_s, power_w):
            return
        try:
            if self._moving is None or not self._follow(time_s):
                self._guard_clock(time_s, power_w, temperature_c, reading.get("clock_mhz"))
        except AgentError as error:
            self._stop("the clock cannot be changed: {}".format(error))
        if guard.slices_failed is not None:
            self._tell("slices off", "the clock cannot be switched quickly: {}".format(guard.slices_failed))
            guard.slices_failed = None
        for event in guard.take_events():
            self._keep(dict(event, kind="guard", text=told(event, unit=self._board.get("setting_unit", "MHz"))))
        if self._moving is not None:
            now, held_mhz = self._followed[0], self._clock_mhz if self._held is None else self._held
            self._record.note(time_s, now.asked_w, now.limit_w, held_mhz, self._pause)
        if guard.stopped and (self._moving is None or is_too_hot(temperature_c, self._max_temp_c)):
            self._stop("the limit is exceeded even at the lowest clock")

    def _choose(self, time_s: float, power_w: float) -> bool:
        """Let the choice have the reading; returns true if it holds the board."""
        choice, guard = self._choice, self._guard
        if choice is None:
            return False
        try:
            held = guard.value if guard.is_held else self._clock_mhz
            self._is_chosen = choice(time_s, power_w, held, self._cap_w) or self._is_chosen
        except AgentError as error:
            self._stop("the clock cannot be changed: {}".format(error))
        for event in choice.take_events():
            self._keep(event)
        if self._is_chosen and choice.stopped is not None:
            self._stop(choice.stopped)
        return self._is_chosen

    def _guard_clock(
        self, time_s: float, power_w: float, temperature_c: Optional[float], clock_mhz: Optional[float]
    ) -> None:
        """Let the guard decide on a program that runs. Raises: AgentError."""
        guard = self._guard
        if not guard.is_held:
            self._recent.add(time_s, clock_mhz)
            guard.follow(self._recent.highest)
        guard(time_s, power_w, temperature_c)
        is_steady = time_s >= self._steady_s + self._settle_s + self._sensing.window_s
        if guard.level.is_above and guard.is_lowest and is_steady:
            self._lowest_w = guard.level.mean_w, time_s

    def _notice_stuck(self, time_s: float, power_w: float, clock_mhz: Optional[float]) -> None:
        """Report a sensor that does not change while the clock does."""
        stuck = self._stuck.notice(time_s, power_w)
        if stuck is not None:
            self._tell("stuck sensor", "{} {}".format(self._board.get("rail") or "the sensor", stuck))
        if self._last_mhz is not None and clock_mhz is not None and clock_mhz != self._last_mhz:
            self._stuck.change()
        self._last_mhz = clock_mhz

    # ------------------------------------------------------------------------------------------ a cap that changes

    def _follow(self, time_s: float) -> bool:
        """Bring the limit to the present cap, or a lower one that is set; returns true if the program is held."""
        moving, (now_before, held_before) = self._moving, self._followed
        problem = moving.look(time_s, self._lead_s, self._program.now_s)
        if problem is not None:
            self._tell(*problem)
        now, held = self._followed = self._lowered(moving.now), self._lowered(moving.held)
        if held != held_before:
            self._guard.move_cap(held.limit_w)
        pause = self._why_held(held, time_s)
        if pause is not None:
            self._hold(time_s)
        elif self._program.is_held:
            self._program.let_run()
            self._settle_again(time_s)
        if now != now_before:
            self._cap_w = self._joules.cap_w = now.limit_w
            if now.may_run:
                self._arm(moving.now.limit_w)  # in whose place the agent itself holds the one that is set
        self._pause = pause
        return pause is not None

    def _lowered(self, cap: CapNow) -> CapNow:
        """The cap, or the lower one that another client of the agent set."""
        is_lower = self._set_w is not None and self._set_w < cap.most_w
        return cap._replace(limit_w=self._set_w) if is_lower and cap.may_run else cap

    def _why_held(self, cap: CapNow, time_s: float) -> Optional[str]:
        if not cap.may_run:
            return "the cap is {:g} W".format(cap.asked_w or 0.0)
        if self._lowest_w is None or self._lowest_w[0] <= cap.most_w or time_s - self._lowest_w[1] > KNOWN_S:
            return None
        text = "the program draws {:.3g} W at the lowest clock, more than {:g} W"
        return text.format(self._lowest_w[0], cap.most_w)

    def _hold(self, time_s: float) -> None:
        moving = self._moving
        if self._followed == (moving.now, moving.now) and moving.is_last(time_s):
            self._stop("the caps leave nothing to run with any more")
            return
        if not self._program.is_held:
            self._settle_again(time_s)
        self._program.hold()

    def _settle_again(self, time_s: float) -> None:
        """Forget what was drawn before the program was held or continued."""
        self._guard.level.start_at(self._guard.level.setting)
        self._steady_s = time_s

    def _beat(self) -> None:
        """Restart every timeout after this process was itself stopped: a gap in its readings then proves nothing."""
        still_s = self._pulse.beat()
        if still_s:
            text = (
                "the guard itself did not run for {:.1f} s (SIGSTOP, or a frozen machine); the program was unguarded, "
            )
            self._tell(
                "stood still", text.format(still_s) + "and the energy of that time is taken from the previous reading"
            )

    def _silent_s(self, since_s: float) -> float:
        return self._program.now_s() - max(since_s, self._pulse.since_s)

    def _check(self) -> None:
        """Collect the board's events."""
        try:
            events = self._controller.check()
        except AgentError as error:
            self._tell("failed", str(error))
            return
        for event in events:
            self._keep(dict(event, time_s=max(0.0, self._program.at_s(event["time_s"]))))

    def _stop(self, why: str) -> None:
        if self._why:
            return
        self._why = why
        self._tell("stopped for safety", why)
        self._program.stop()
        if self._settings:
            # In a thread: a hang here must not prevent the program from being killed.
            threading.Thread(target=self._lower, name="lowest", daemon=True).start()

    def _lower(self) -> None:
        try:
            if self._is_chosen:
                self._choice.lower()
            else:
                self._pin(self._settings[0])
        except AgentError as error:
            self._tell("failed", "the lowest clock cannot be pinned: {}".format(error))

    def _pin(self, mhz: float) -> None:
        self._put(self._controller.pin, mhz)

    def _switch(self, mhz: float) -> None:
        self._put(self._controller.slice, mhz)

    def _put(self, change: Callable[[float], Any], mhz: float) -> None:
        with self._pinning:
            if not self._over:
                change(mhz)
                self._stuck.change()
                self._steady_s = self._program.now_s()

    # ----------------------------------------------------------------------------------------------------- the report

    def _tell(self, kind: str, text: str) -> None:
        self._keep({"time_s": self._program.now_s(), "kind": kind, "text": text})

    def _keep(self, event: Dict[str, Any]) -> None:
        (self._answers if event["kind"] == "guard" else self._events).append(event)
        with suppress(OSError):  # the reader has exited, as `head` does: the program keeps its guard
            self._say("{:.1f} s: {}: {}".format(event["time_s"], event["kind"], event["text"]))

    def report(self) -> Report:
        """The report of the run, after its end."""
        time_s, code = self._program.end_s, self._program.exit_code
        if self._why:
            code, ended = SAFETY_EXIT, "stopped for safety"
        else:
            ended = "interrupted" if self._program.was_signalled else "finished"
        energy_j = self._joules.energy_j(time_s)
        self._record.close(time_s)
        counts = zip((0, self._answers.left_out, self._record.joined), LEFT_OUT)
        texts = ["{:,} {}".format(count, what) for count, what in counts if count]
        events = [*self._events, *self._answers.all]
        events += [{"time_s": time_s, "kind": "left out", "text": text} for text in texts]
        return Report(
            time_s=time_s,
            energy_j=energy_j,
            power_mean_w=energy_j / time_s if time_s > 0 else 0.0,
            power_peak_w=self._joules.peak_w,
            above_cap_s=self._joules.above_s(time_s),
            hottest_c=self._hottest_c,
            readings=self._joules.readings,
            events=sorted(events, key=lambda event: event["time_s"]),
            exit_code=1 if self._is_restored is False and not code else code,
            ended=ended,
            cap_intervals=None if self._moving is None else self._record.intervals,
            paused_s=None if self._moving is None else self._record.paused_s(time_s),
            settings_s=[[setting, round(seconds, 3)] for setting, seconds in sorted(self._at_s.items())],
        )
