"""Any program under a pinned clock, a cap and a meter; the board as it was found afterwards."""

import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from wattune_agent.cap_guard import CapGuard
from wattune_agent.errors import AgentError, BadRequest, NotThere
from wattune_agent.joules import Joules

__all__ = ["BLIND_S", "KILL_S", "SAFETY_EXIT", "Report", "run_guarded"]

PERIOD_S = 0.1
CHECK_S = 1.0

BLIND_S = 2.0
"""Time without a reading after which the program is stopped."""

HANG_S = 5.0
"""Time after which a sensor that does not even fail counts as gone; a change of the clock may take two seconds."""

KILL_S = 10.0
"""Time that a program has to end by itself when it is stopped for safety."""

SAFETY_EXIT = 4
"""Exit code of a program that was stopped for safety, whatever it ended with itself."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Report(NamedTuple):
    """What a guarded run was. Energy, mean and peak are those of the sensor's readings, taken ten times a second.

    ``above_cap_s``: time during which the latest reading was above the cap. ``events``: ``{"time_s", "kind", "text"}``
    in seconds since the program began; those of the guard also have ``power_w``, ``action``, ``setting``. One of kind
    "not restored" says that the board is not as it was found; ``restore_left_behind`` then has what is needed.
    ``exit_code``: the program's (128 + n where signal n ended it), or 4. ``ended``: "finished", "interrupted" or
    "stopped for safety".
    """

    time_s: float
    energy_j: float
    power_mean_w: float
    power_peak_w: float
    above_cap_s: float
    readings: int
    events: List[Dict[str, Any]]
    exit_code: int
    ended: str


def run_guarded(
    controller: Any,
    command: List[str],
    *,
    clock_mhz: Optional[float] = None,
    cap_w: Optional[float] = None,
    max_temp_c: Optional[float] = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run a program, pinned, metered and guarded; restore the board, whatever happens.

    ``controller`` has ``describe``, ``read``, ``pin``, ``check`` and ``restore``, and may have ``guard``. Without
    ``clock_mhz`` the clock is left alone until a reading is above the cap. The program gets the SIGINT, SIGTERM, SIGHUP
    and Ctrl-Z of this process, which ends when the program does. SIGTERM, and SIGKILL ``KILL_S`` later, end the
    program where the cap is not kept at the lowest clock, the clock cannot be changed, or the sensor is gone for
    ``BLIND_S``. ``say`` is called with a line for each event, from another thread.

    Raises, before the program runs: BadRequest, NotThere, NoReading, Busy, and what the board raises.
    """
    if not command:
        raise BadRequest("no program to run")
    if shutil.which(command[0]) is None:
        raise BadRequest("there is no program {}".format(command[0]))
    board = controller.describe()
    reading = controller.read()
    if max_temp_c is not None and reading.get("temperature_c") is None:
        raise NotThere("{}: no temperature to hold a limit on".format(board["name"]))
    run = _Run(controller, board, reading["power_w"], clock_mhz, cap_w, max_temp_c, say)
    try:
        if clock_mhz is not None:
            controller.pin(clock_mhz)
        if (cap_w is not None or max_temp_c is not None) and board["settings_mhz"] and hasattr(controller, "guard"):
            controller.guard(cap_w, max_temp_c)
        run.run(command)
    finally:
        try:
            controller.restore()
        except AgentError as error:
            run.tell("not restored", str(error))
            run.unrestored = True
    return run.report()


class _Run:
    def __init__(
        self,
        controller: Any,
        board: Dict[str, Any],
        power_w: float,
        clock_mhz: Optional[float],
        cap_w: Optional[float],
        max_temp_c: Optional[float],
        say: Callable[[str], None],
    ) -> None:
        self.unrestored = False
        self._controller = controller
        self._settings = list(board["settings_mhz"])
        self._clock_mhz, self._cap_w, self._max_temp_c, self._say = clock_mhz, cap_w, max_temp_c, say
        self._settle_s = board["window_s"] + board["lag_s"] + board["period_s"]
        delay_s = board["lag_s"] + (board["window_s"] + board["period_s"]) / 2
        self._joules = Joules(cap_w, delay_s)
        self._first_w = power_w
        self._guard: Optional[CapGuard] = None
        if clock_mhz is not None or not self._settings:
            self._guard = self._guard_from(clock_mhz)
        self._told = 0
        self._events: List[Dict[str, Any]] = []
        self._program: Optional[subprocess.Popen] = None  # type: ignore[type-arg]
        self._ended = threading.Event()
        self._pinning = threading.Lock()
        self._over = False
        self._pending: List[int] = []
        self._interrupted = False
        self._why = ""
        self._kill_s: Optional[float] = None
        self._began_s = self._end_s = self._read_s = self._alive_s = self._checked_s = time.monotonic()

    # -------------------------------------------------------------------------------------------------- the program

    def run(self, command: List[str]) -> None:
        """Start it, watch it, and come back when it has ended."""
        before = self._take_signals()
        try:
            try:
                # A session of its own: its whole process group can be stopped, and Ctrl-C reaches it through us alone.
                program = subprocess.Popen(command, start_new_session=True)
            except OSError as error:
                raise BadRequest("{} cannot be run: {}".format(command[0], error.strerror or error)) from error
            self._began_s = self._end_s = self._read_s = self._alive_s = self._checked_s = time.monotonic()
            self._program = program
            self._forward()
            watching = threading.Thread(target=self._watch, name="guard", daemon=True)
            threading.Thread(target=self._await, args=(program,), name="program", daemon=True).start()
            watching.start()
            while not self._ended.wait(0.5):
                if time.monotonic() - self._alive_s > HANG_S:
                    self._stop("the sensor, or the clock, hangs for {:g} s".format(HANG_S))
                self._kill_late()
            watching.join(HANG_S)
            self._end_group()
            # The board is brought back next: a thread that comes late must not pin it again.
            free = self._pinning.acquire(timeout=HANG_S)
            self._over = True
            if free:
                self._pinning.release()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _await(self, program: "subprocess.Popen[bytes]") -> None:
        program.wait()
        self._end_s = time.monotonic()
        self._ended.set()

    def _end_group(self) -> None:
        """Where the program was stopped for safety, nothing that it started goes on either."""
        while self._kill_s is not None and self._signal(0):
            self._kill_late()
            time.sleep(0.02)

    def _signal(self, number: int) -> bool:
        if self._program is None:
            return False
        try:
            os.killpg(self._program.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _stop(self, why: str) -> None:
        if self._kill_s is not None:
            return
        self._why = why
        self._kill_s = time.monotonic() + KILL_S
        self.tell("stopped for safety", why)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped would not hear of it
        if self._settings:
            # In a thread: what hangs here must not keep the program from being killed.
            threading.Thread(target=self._lower, name="lowest", daemon=True).start()

    def _lower(self) -> None:
        try:
            self._pin(self._settings[0])
        except AgentError as error:
            self.tell("failed", "the lowest clock cannot be pinned: {}".format(error))

    def _pin(self, mhz: float) -> None:
        with self._pinning:
            if not self._over:
                self._controller.pin(mhz)

    def _kill_late(self) -> None:
        if self._kill_s is not None and time.monotonic() >= self._kill_s:
            self._signal(signal.SIGKILL)

    # -------------------------------------------------------------------------------------------------- the signals

    def _take_signals(self) -> Dict[int, Any]:
        before: Dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            return before
        for number, handler in [*((n, self._on_signal) for n in _FORWARDED), (signal.SIGTSTP, self._on_pause)]:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
        return before

    def _on_signal(self, number: int, _: Any) -> None:
        self._interrupted = True
        self._pending.append(number)
        self._forward()

    def _on_pause(self, *_: Any) -> None:
        # The program stands still while nobody guards it.
        self._signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._read_s = self._alive_s = time.monotonic()
        self._signal(signal.SIGCONT)

    def _forward(self) -> None:
        while self._program is not None and self._pending:
            self._signal(self._pending.pop(0))

    # ----------------------------------------------------------------------------------------------------- the guard

    def _watch(self) -> None:
        due_s = self._began_s
        while True:
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - whatever it is, the program must not go on without its guard
                self._stop("the guard failed: {}: {}".format(type(error).__name__, error))
            self._alive_s = time.monotonic()
            due_s = max(due_s + PERIOD_S, self._alive_s)
            if self._ended.wait(due_s - self._alive_s):
                return

    def _look(self) -> None:
        try:
            reading = self._controller.read()
        except AgentError as error:
            if time.monotonic() - self._read_s > BLIND_S:
                self._stop("no reading of the power sensor for {:g} s: {}".format(BLIND_S, error))
        else:
            self._read_s = time.monotonic()
            time_s = self._read_s - self._began_s
            self._joules.add(time_s, reading["power_w"])
            self._judge(time_s, reading)
        now_s = time.monotonic()
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            try:
                events = self._controller.check()
            except AgentError as error:
                events = [{"time_s": now_s, "kind": "failed", "text": str(error)}]
            for event in events:
                self._keep(dict(event, time_s=event["time_s"] - self._began_s))
        self._kill_late()

    def _judge(self, time_s: float, reading: Dict[str, Any]) -> None:
        power_w, temperature_c = reading["power_w"], reading.get("temperature_c")
        if self._kill_s is not None:
            return
        if self._guard is None:
            hot = self._max_temp_c is not None and temperature_c is not None and temperature_c > self._max_temp_c
            if not hot and (self._cap_w is None or power_w <= self._cap_w):
                return
            # Down from the clock that the board has chosen itself: a mode's own limit stays below it.
            now_mhz = reading.get("clock_mhz")
            below = [s for s in self._settings if now_mhz is None or s <= now_mhz + 0.5]
            self._guard = self._guard_from((below or self._settings[:1])[-1])
        try:
            self._guard(time_s, power_w, temperature_c)
        except AgentError as error:
            self._stop("the clock cannot be changed: {}".format(error))
        events = self._guard.events[self._told :]
        self._told += len(events)
        for event in events:
            self._keep(dict(event, kind="guard", text=_guard_text(event)))
        if self._guard.stopped:
            self._stop("the limit is not kept at the lowest clock")

    def _guard_from(self, mhz: Optional[float]) -> CapGuard:
        return CapGuard(self._settings, mhz, self._pin, self._cap_w, self._settle_s, self._max_temp_c)

    # ----------------------------------------------------------------------------------------------------- the report

    def tell(self, kind: str, text: str) -> None:
        """Keep an event of this moment."""
        self._keep({"time_s": time.monotonic() - self._began_s, "kind": kind, "text": text})

    def _keep(self, event: Dict[str, Any]) -> None:
        self._events.append(event)
        self._say("{:.1f} s: {}: {}".format(event["time_s"], event["kind"], event["text"]))

    def report(self) -> Report:
        """What the run was, after it ended."""
        assert self._program is not None
        if not self._joules.readings:  # over before there was one: that of the moment before stands for it
            self._joules.add(0.0, self._first_w)
        time_s = self._end_s - self._began_s
        code = self._program.returncode
        code = 128 - code if code < 0 else code
        if self._why:
            code, ended = SAFETY_EXIT, "stopped for safety"
        else:
            ended = "interrupted" if self._interrupted else "finished"
        energy_j = self._joules.energy_j(time_s)
        return Report(
            time_s=time_s,
            energy_j=energy_j,
            power_mean_w=energy_j / time_s if time_s > 0 else 0.0,
            power_peak_w=self._joules.peak_w,
            above_cap_s=self._joules.above_s(time_s),
            readings=self._joules.readings,
            events=self._events,
            exit_code=1 if self.unrestored and not code else code,
            ended=ended,
        )


def _guard_text(event: Dict[str, Any]) -> str:
    said = "{:.2f} W".format(event["power_w"])
    if "temperature_c" in event:
        said += ", {:.1f} C".format(event["temperature_c"])
    if event["action"] == "at lowest":
        return said + " at the lowest clock"
    return "{}: {} to {:g} MHz".format(said, event["action"], event["setting"])
