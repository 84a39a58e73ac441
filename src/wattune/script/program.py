"""The choice of clocks beside the guard of a program: takes the board over with the program's first rounds."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Final

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.devices.real_time import unmapped
from wattune.errors import DeviceError, InputError, WattuneError
from wattune.files import cache_folders, read_json, write_json
from wattune.point import Knobs
from wattune.power.limiter import PowerLimiter
from wattune.program.rounds import Stamp, StepPage
from wattune.script.controller import Choice, ScriptController

UNSTAMPED_S: Final = 60.0
"""Time under load after which a program that stamps no step is said to be one."""

BUSY: Final = 1.15
"""Power over the lowest reading so far from which on a program counts as load."""


class ProgramClocks:
    """The ``choice`` of ``wattune_agent.guarded.run_guarded``: a ``ScriptController`` on a board that runs a program.

    ``names``: the knobs to set. Nothing is changed before the program's first round.
    """

    def __init__(
        self,
        device: Device,
        limit: SensorLimit,
        page: StepPage,
        *,
        names: Sequence[str],
        expect_s: float | None = None,
        remembered: dict[str, Any] | None = None,
    ):
        self._device, self._limit, self._page, self._names = device, limit, page, names
        self._expect_s, self._remembered = expect_s, remembered
        self._inside = ExitStack()
        self._limiter: PowerLimiter | None = None
        self._controller: ScriptController | None = None
        self._failed: Choice | None = None  # what an error ended
        self._events: list[dict[str, Any]] = []
        self._time_s = self._loaded_s = 0.0
        self._lowest_w = float("inf")
        self._is_told = self._gave_up = self._was_foreign = False

    # --------------------------------------------------------------------------------------- of the guard's interface

    def __call__(self, time_s: float, power_w: float, held: float | None, cap_w: float | None) -> bool:
        """Take a reading; returns true once the board is this object's. Raises: the agent's errors.

        Under a cap that another client set, nothing is chosen.
        """
        stamp = self._page.read()
        is_foreign = cap_w != self._limit.limit_w
        self._was_foreign = self._was_foreign or is_foreign
        if self._gave_up or (self._limiter is None and is_foreign):
            return False
        if self._limiter is None and stamp is None:
            self._look_for_steps(time_s, power_w)
            return False
        elapsed_s, self._time_s = time_s - self._time_s, time_s
        with unmapped():
            if self._limiter is None:
                return self._try_to_take(held)
            if cap_w != self._limiter.limit.limit_w:
                self._move_cap(self._limiter, cap_w)
            is_present = self._limiter(time_s, self._device.guarded_w(power_w))
            is_on_time = elapsed_s < max(1.0, 3 * self._device.sensor.period_s)  # else the guard itself stood still
            is_seen = is_on_time and not is_foreign
            if self._controller is not None:
                try:
                    self._look(self._controller, stamp if is_seen else None, power_w if is_present else None)
                except WattuneError:
                    raise
                except Exception as error:  # noqa: BLE001 - the limiter holds the cap: the program can go on
                    self._end_choice(self._limiter, error)
        return True

    def _look(self, controller: ScriptController, stamp: Stamp | None, power_w: float | None) -> None:
        now_s = self._device.now_s()
        if power_w is not None:
            controller.reading(now_s, power_w)
        if stamp is not None:
            controller.look(stamp.rounds, now_s - (time.monotonic() - stamp.time_s), stamp.marker, stamp.pid)

    def _end_choice(self, limiter: PowerLimiter, error: Exception) -> None:
        """Leave the board to the limiter, after an error that says nothing of the board."""
        reason = f"{type(error).__name__} while choosing: {error}"
        self._controller, self._failed = None, Choice(reason=reason)
        limiter.free()
        self._say(f"clocks are not chosen: {reason}")

    def _move_cap(self, limiter: PowerLimiter, cap_w: float | None) -> None:
        limiter.move_cap(cap_w)
        if cap_w == self._limit.limit_w:
            self._say(f"the cap is {cap_w:g} W again")
        elif self._controller is not None:
            self._controller.pause(f"another client set the cap to {cap_w:g} W")

    @property
    def stopped(self) -> str | None:
        """Why the program has to end; None while the board can be held."""
        return None if self._limiter is None else self._limiter.stopped

    @property
    def held(self) -> float | None:
        """The first knob's value; None before the board is taken."""
        return None if self._limiter is None else next(iter(self._limiter.knobs.values()), None)

    def take_events(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        limiter, events = self._limiter, self._events
        if limiter is not None:
            for one in limiter.take_events():
                at = f" to {one.setting}" if one.action != "at lowest" else " setting"
                events.append({"time_s": one.time_s, "kind": "guard", "text": f"{one.power_w:.2f} W: {one.action}{at}"})
        self._events = []
        return events

    def lower(self) -> None:
        """Bring the board to its lowest setting. Raises: the agent's errors."""
        if self._limiter is not None:
            with unmapped():
                self._limiter.lose()

    def restore(self) -> None:
        """Leave the board as the guard had it. Raises: the agent's errors."""
        with unmapped():
            self._inside.close()

    # ------------------------------------------------------------------------------------------------------- outcome

    @property
    def choice(self) -> Choice | None:
        """The outcome; None if the program made no round."""
        return self._failed if self._controller is None else self._controller.outcome()

    def state_dict(self) -> dict[str, Any] | None:
        """State for the next run of the same program; None if nothing was chosen, or not under this cap alone."""
        return None if self._controller is None or self._was_foreign else self._controller.state_dict()

    # ------------------------------------------------------------------------------------------------------ beginning

    def _try_to_take(self, held: float | None) -> bool:
        """Take the board over; leave it to the guard, as it was, if its knobs cannot all be set."""
        try:
            self._take(held)
        except (DeviceError, InputError) as error:
            self._gave_up = True
            self._inside.close()
            self._say(f"clocks are not chosen: {error}")
            if held is None:
                self._claim_again()
        return not self._gave_up

    def _claim_again(self) -> None:
        """Claim the board for the guard, which has pinned nothing yet: a failed pin has released it."""
        controller = self._device.controller
        self._device.arm_guard(self._limit)
        if controller is not None and hasattr(controller, "claim"):  # an agent's board is claimed by its guard
            controller.claim()

    def _take(self, held: float | None) -> None:
        """Hold all knobs at their highest values, the first one where the guard holds it."""
        device = self._device
        device.select(self._names)
        knobs = device.combinations()[-1]
        if held is not None and device.knobs:
            knobs = knobs.replace(**{device.knobs[0].name: held})
            device.adopt(Knobs({device.knobs[0].name: held}))  # a failure must not release what holds the cap
        deciding = self._inside.enter_context(ThreadPoolExecutor(1, "decision"))
        setting = self._inside.enter_context(device.at(knobs))  # left first: a decision may still be made
        self._limiter = PowerLimiter(device, setting, self._limit)
        self._limiter.free()  # until something is chosen, the clock goes up and down as under the guard alone

        def later(call: Callable[[], Any]) -> Callable[[], bool]:
            made = deciding.submit(call)

            def is_made() -> bool:
                if made.done():
                    made.result()
                return made.done()

            return is_made

        self._controller = ScriptController(
            device,
            self._limiter,
            expect_s=self._expect_s,
            remembered=self._remembered,
            later=later,
            say=self._say,
        )

    def _look_for_steps(self, time_s: float, power_w: float) -> None:
        elapsed_s, self._time_s = time_s - self._time_s, time_s
        self._lowest_w = min(self._lowest_w, power_w)
        self._loaded_s += elapsed_s if power_w > BUSY * self._lowest_w else 0.0
        if self._loaded_s >= UNSTAMPED_S and not self._is_told:
            self._is_told = True
            self._say("the program stamps no steps (no torch of this machine?): it is guarded, and no clock is chosen")

    def _say(self, text: str) -> None:
        self._events.append({"time_s": self._time_s, "kind": "clocks", "text": text})


# -------------------------------------------------------------------------------------------------------------- memory


class Memory:
    """Memory of what was found for a command, in the folder where it starts, on a device under a cap."""

    def __init__(self, device: Device, limit: SensorLimit, names: Sequence[str], command: Sequence[str]):
        knobs = {knob.name: list(knob.values) for knob in device.offered if knob.name in names}
        limits = [limit.limit_w, limit.window_s, limit.max_temp_c]
        folder = ""
        with suppress(OSError):  # it may have been removed
            folder = os.getcwd()
        self._is = [device.name, device.mode, *limits, knobs, folder, list(command)]
        name = hashlib.sha256(json.dumps(self._is).encode()).hexdigest()[:16]
        self._path = cache_folders()[0] / "guard" / f"{name}.json"

    def load(self) -> dict[str, Any] | None:
        """The state of the last run, with its ``time_s``; None if there is none that can be read. A file of another
        user is not read."""
        with suppress(WattuneError, OSError):
            saved = read_json(self._path) if self._path.stat().st_uid == os.getuid() else None
            if isinstance(saved, dict) and saved.get("is") == self._is and isinstance(saved.get("state"), dict):
                time_s = saved.get("time_s")
                is_time = isinstance(time_s, (int, float)) and 0 < time_s < math.inf
                return {**saved["state"], "time_s": time_s if is_time else None}
        return None

    def save(self, state: dict[str, Any], time_s: float | None) -> None:
        """Keep the state for the next run, and how long a run takes if that is known. Raises: OutputError."""
        write_json(self._path, {"is": self._is, "state": state, "time_s": time_s})
