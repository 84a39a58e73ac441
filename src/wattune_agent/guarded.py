"""Run any program under a pinned clock, a cap and a meter, and restore the board afterwards."""

import shutil
import threading
from typing import Any, Callable, Dict, List, Optional

from wattune_agent.cap_guard import COOL_BY_C, UP_BELOW, CapGuard, is_too_hot, told
from wattune_agent.cap_window import CapWindow
from wattune_agent.errors import AgentError, BadRequest, NotThere
from wattune_agent.moving_limit import CapNow, CapRecord, MovingLimit, SeenPowers
from wattune_agent.outcome import Report, missed
from wattune_agent.program import DEAD_S, GuardedProgram
from wattune_agent.readings import Joules, Stuck
from wattune_agent.settings import RecentClock
from wattune_agent.time_source import Pulse

__all__ = ["BLIND_S", "SAFETY_EXIT", "guard_program", "run_guarded"]

PERIOD_S = 0.1
CHECK_S = 1.0

BLIND_S = 2.0
"""Time without a reading (or without a temperature, if that is limited) after which the program is stopped."""

HANG_S = 5.0
"""Time after which a sensor that hangs counts as lost; a change of the clock may take two seconds."""

SAFETY_EXIT = 4
"""Exit code if the program was stopped for safety, whatever its own exit code."""


def run_guarded(
    controller: Any,
    command: List[str],
    *,
    clock_mhz: Optional[float] = None,
    cap_w: Optional[float] = None,
    window_s: Optional[float] = None,
    max_temp_c: Optional[float] = None,
    caps: Any = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run a program, pinned, metered and guarded; restore the board in any case.

    ``controller`` has ``describe``, ``read``, ``claim``, ``pin``, ``check`` and ``restore``, and may have ``guard``.
    Without ``clock_mhz`` the clock is left alone until the power exceeds the cap: its mean over ``window_s``, or a
    single reading (None). The program receives SIGINT, SIGTERM,
    SIGHUP, SIGQUIT and Ctrl-Z of this process, which ends when the program does. SIGTERM, and SIGKILL
    ``program.KILL_S`` later, stop it if power exceeds the cap at the lowest clock, the clock cannot be changed, the
    sensor gives no reading for ``BLIND_S``, or this process is killed.

    ``caps`` (as ``MovingLimit`` has them) is a cap that changes, in place of ``cap_w``. The program is held by SIGSTOP
    while the cap is 0 W, or less than it draws at the lowest clock, and stopped for good if that cap is the last.
    However the guard ends, it continues a program that is held. ``say`` is called with a line for each event,
    from another thread.

    Raises, before the program runs: BadRequest, NotThere, NoReading, Busy, Forbidden and the board's other errors if
    it cannot be guarded.
    """
    if not command:
        raise BadRequest("no program to run")
    if shutil.which(command[0]) is None:
        raise BadRequest("program not found: {}".format(command[0]))
    return guard_program(
        controller,
        GuardedProgram(command),
        clock_mhz=clock_mhz,
        cap_w=cap_w,
        window_s=window_s,
        max_temp_c=max_temp_c,
        caps=caps,
        say=say,
    )


def guard_program(
    controller: Any,
    program: GuardedProgram,
    *,
    clock_mhz: Optional[float] = None,
    cap_w: Optional[float] = None,
    window_s: Optional[float] = None,
    max_temp_c: Optional[float] = None,
    caps: Any = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Do as ``run_guarded`` for a program that has not started yet, on that program's time."""
    board = controller.describe()
    reading = controller.read()
    if max_temp_c is not None and reading.get("temperature_c") is None:
        raise NotThere("{}: no temperature is available, so it cannot be limited".format(board["name"]))
    run = _Run(controller, board, reading["power_w"], program, clock_mhz, cap_w, window_s, max_temp_c, caps, say)
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
        clock_mhz: Optional[float],
        cap_w: Optional[float],
        window_s: Optional[float],
        max_temp_c: Optional[float],
        caps: Any,
        say: Callable[[str], None],
    ) -> None:
        self._controller, self._board, self._program, self._time = controller, board, program, program.time
        self._settings = list(board["settings_mhz"])
        self._clock_mhz, self._cap_w, self._max_temp_c, self._say = clock_mhz, cap_w, max_temp_c, say
        self._settle_s = board["window_s"] + board["lag_s"] + board["period_s"]
        self._moving = None if caps is None else MovingLimit(caps, (window_s or 0.0) + self._settle_s + PERIOD_S)
        if self._moving is not None:
            self._cap_w = cap_w = self._moving.now.limit_w
        self._window = CapWindow.of_board(board, cap_w, window_s)
        delay_s = board["lag_s"] + (board["window_s"] + board["period_s"]) / 2
        self._joules = Joules(CapWindow.of_board(board, cap_w, window_s), delay_s)
        self._stuck = Stuck(board["period_s"])
        self._first_w = power_w
        self._recent = RecentClock(self._settings)
        self._guard: Optional[CapGuard] = None
        self._ladder = [setting for setting in self._settings if clock_mhz is None or setting <= clock_mhz]
        if clock_mhz is not None or not self._settings:
            self._guard = self._new_guard(self._ladder)
        self._seen, self._steady_s = SeenPowers(self._ladder or [0.0]), 0.0
        self._record = CapRecord(self._joules.above_s, self._joules.energy_j)
        self._pulse = Pulse(program.now_s)
        self._hottest_c: Optional[float] = None
        self._reported_events = 0
        self._events: List[Dict[str, Any]] = []
        self._pinning = threading.Lock()
        self._over = False
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
        elif hasattr(self._controller, "guard"):
            self._arm()
        elif self._clock_mhz is None and self._settings:
            self._controller.claim()

    def _arm(self) -> None:
        """Pass the limits to a controller that can guard them too, for when this process does not."""
        is_limited = self._cap_w is not None or self._max_temp_c is not None
        if self._settings and is_limited and hasattr(self._controller, "guard"):
            self._controller.guard(self._cap_w, self._max_temp_c, self._window.window_s)

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
                if not program.is_watched:
                    self._tell("unwatched", "no shell is available to stop the program if this process is killed")
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
                self._tell_missed()
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
            due_s = max(due_s + PERIOD_S, self._alive_s)
            if self._time.wait(program.ended, due_s - self._alive_s):
                return

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
            self._joules.add(time_s, reading["power_w"])
            if self._max_temp_c is None or reading.get("temperature_c") is not None:
                self._read_s, why = time_s, ""
            self._judge(time_s, reading)
        self._beat()
        if why and self._silent_s(self._read_s) > BLIND_S:
            self._stop("no reading for {:g} s: {}".format(BLIND_S, why))
        if program.now_s() - self._checked_s >= CHECK_S:
            self._checked_s = program.now_s()
            self._check()
        program.kill_late()

    def _judge(self, time_s: float, reading: Dict[str, Any]) -> None:
        power_w, temperature_c = reading["power_w"], reading.get("temperature_c")
        self._window.add(time_s, power_w)
        if temperature_c is not None:
            self._hottest_c = max(temperature_c, self._hottest_c or temperature_c)
        stuck = self._stuck.notice(time_s, power_w)
        if stuck is not None:
            self._tell("stuck sensor", "{} {}".format(self._board.get("rail") or "the sensor", stuck))
        if self._why:
            return
        if self._guard is None:
            self._recent.add(time_s, reading.get("clock_mhz"))
        if self._moving is not None:
            try:
                if self._follow(self._moving, time_s, temperature_c):
                    return  # the program is held
            except AgentError as error:
                self._stop("the clock cannot be changed: {}".format(error))
                return
        if self._guard is None:
            if not (self._window.is_above or is_too_hot(temperature_c, self._max_temp_c)):
                return
            # Step down from the clock that the board chose under this load.
            self._guard = self._new_guard(self._settings, free_at=self._recent.highest)
        before, above_w = self._at(), self._window.mean_w if self._window.is_above else None
        try:
            self._guard(time_s, power_w, temperature_c)
        except AgentError as error:
            self._stop("the clock cannot be changed: {}".format(error))
        events = self._guard.events[self._reported_events :]
        self._reported_events += len(events)
        for event in events:
            self._keep(dict(event, kind="guard", text=told(event, unit=self._board.get("setting_unit", "MHz"))))
        if self._moving is not None and above_w is not None:
            self._see_above(time_s, before, above_w)
        if self._guard.stopped and (self._moving is None or is_too_hot(temperature_c, self._max_temp_c)):
            self._stop("the limit is exceeded even at the lowest clock")

    # ------------------------------------------------------------------------------------------ a cap that changes

    def _follow(self, moving: MovingLimit, time_s: float, temperature_c: Optional[float]) -> bool:
        """Bring limit and clock to the present cap; returns true if the program is held. Raises: AgentError."""
        held_before, now_before = moving.held, moving.now
        for kind, text in moving.look(time_s, self._program.now_s):
            self._tell(kind, text)
        self._see(time_s)
        is_lower = moving.held.most_w < held_before.most_w
        if moving.held != held_before:
            self._window.move_cap(moving.held.limit_w)
            if self._guard is not None:
                self._guard.move_cap(moving.held.limit_w)
        pause = self._why_held(moving.held)
        if pause is not None:
            self._hold(moving, time_s)
        else:
            warmest_c = None if self._max_temp_c is None else self._max_temp_c - COOL_BY_C
            self._choose(moving, time_s, is_lower=is_lower, may_rise=not is_too_hot(temperature_c, warmest_c))
            if self._program.is_held:
                self._program.let_run()
                self._settle_again(time_s)
        if moving.now != now_before:
            self._cap_w = moving.now.limit_w
            self._joules.move_cap(self._cap_w)
            if moving.now.may_run:
                self._arm()
        value = None if self._guard is None else self._guard.value
        self._record.note(time_s, moving.now, self._clock_mhz if value is None else value, pause)
        return pause is not None

    def _why_held(self, cap: CapNow) -> Optional[str]:
        if not cap.may_run:
            return "the cap is {:g} W".format(cap.asked_w or 0.0)
        lowest_w = self._seen.power_w(self._ladder[0] if self._ladder else 0.0)
        if lowest_w is None or lowest_w <= cap.most_w:
            return None
        return "the program draws {:.3g} W at the lowest clock, more than {:g} W".format(lowest_w, cap.most_w)

    def _hold(self, moving: MovingLimit, time_s: float) -> None:
        if moving.now == moving.held and moving.is_last(time_s):
            self._stop("the caps leave nothing to run with any more")
            return
        if not self._program.is_held:
            self._settle_again(time_s)
        self._program.hold()

    def _choose(self, moving: MovingLimit, time_s: float, *, is_lower: bool, may_rise: bool) -> None:
        """Down to a clock that surely stays under the cap, the lowest if none is known to; up as far as is known."""
        limit_w, guard = moving.held.most_w, self._guard
        if not self._ladder:
            return
        if guard is None:
            if not is_lower or self._window.mean_w <= limit_w:
                return
            guard = self._guard = self._new_guard(self._settings, free_at=self._recent.highest)
        lowest = self._ladder[0]
        wanted = lowest if moving.is_recovering else self._seen.highest_under(UP_BELOW * limit_w)
        if is_lower:
            wanted = lowest if wanted is None else min(wanted, guard.value)
            if max(self._window.mean_w, self._seen.power_w(guard.value) or 0.0) <= limit_w:
                return  # it is low enough already
        elif (
            wanted is None
            or wanted == guard.value
            or (wanted > guard.value and not may_rise)
            or (wanted < guard.value and not moving.is_recovering)
        ):
            return
        guard.jump(wanted, time_s, self._window.mean_w)

    def _see(self, time_s: float) -> None:
        """Note the power of the present clock, once the window holds nothing else."""
        window_s = self._window.window_s or 0.0
        if self._program.is_held or time_s < self._steady_s + self._settle_s + window_s or not self._window.is_full:
            return
        self._seen.see(time_s, self._at(), self._window.mean_w)

    def _see_above(self, time_s: float, setting: float, power_w: float) -> None:
        """Note a power above the cap at a clock that was left for it, or at the lowest once readings are of it."""
        if setting != self._at() or time_s >= self._steady_s + self._settle_s:
            self._seen.see(time_s, setting, power_w)

    def _may_rise(self, setting: float) -> bool:
        expected_w = self._seen.expected_w(setting)
        return expected_w is None or self._window.cap_w is None or expected_w <= self._window.cap_w

    def _at(self) -> float:
        if self._guard is None:
            return self._recent.highest
        return 0.0 if self._guard.value is None else float(self._guard.value)

    def _settle_again(self, time_s: float) -> None:
        self._window.restart(self._settle_s)
        self._seen.leave()
        self._steady_s = time_s

    def _new_guard(self, ladder: List[float], free_at: Optional[float] = None) -> CapGuard:
        guard = CapGuard(
            ladder,
            self._pin,
            self._window.cap_w,
            self._settle_s,
            self._max_temp_c,
            free_at=free_at,
            window=self._window,
        )
        if self._moving is not None:
            guard.may_rise = self._may_rise
        return guard

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
            self._pin(self._settings[0])
        except AgentError as error:
            self._tell("failed", "the lowest clock cannot be pinned: {}".format(error))

    def _pin(self, mhz: float) -> None:
        with self._pinning:
            if not self._over:
                self._controller.pin(mhz)
                self._stuck.change()
                self._seen.leave()
                self._steady_s = self._program.now_s()

    # ----------------------------------------------------------------------------------------------------- the report

    def _tell_missed(self) -> None:
        """Report exceeded limits of a program that ended before the guard's patience did."""
        if not self._joules.readings:  # it ended before the first reading: use the one from before its start
            self._joules.add(0.0, self._first_w)
        is_constant = self._guard is not None and self._moving is None
        events = self._guard.events if self._guard is not None and is_constant else []
        text = missed(events, self._joules.above_s(self._program.end_s), self._joules.is_above, self._cap_w)
        if text and not self._why:
            self._tell("not kept", text)

    def _tell(self, kind: str, text: str) -> None:
        self._keep({"time_s": self._program.now_s(), "kind": kind, "text": text})

    def _keep(self, event: Dict[str, Any]) -> None:
        self._events.append(event)
        try:
            self._say("{:.1f} s: {}: {}".format(event["time_s"], event["kind"], event["text"]))
        except OSError:
            pass  # the reader has exited, as `head` does: the program keeps its guard

    def report(self) -> Report:
        """The report of the run, after its end."""
        time_s, code = self._program.end_s, self._program.exit_code
        if self._why:
            code, ended = SAFETY_EXIT, "stopped for safety"
        else:
            ended = "interrupted" if self._program.was_signalled else "finished"
        energy_j = self._joules.energy_j(time_s)
        intervals, paused_s = self._record.end(time_s) if self._moving is not None else (None, None)
        return Report(
            time_s=time_s,
            energy_j=energy_j,
            power_mean_w=energy_j / time_s if time_s > 0 else 0.0,
            power_peak_w=self._joules.peak_w,
            above_cap_s=self._joules.above_s(time_s),
            hottest_c=self._hottest_c,
            readings=self._joules.readings,
            events=self._events,
            exit_code=1 if self._is_restored is False and not code else code,
            ended=ended,
            cap_intervals=intervals,
            paused_s=paused_s,
        )
