"""A rehearsal of ``wattune guard`` in one process: a Python program whose steps a simulated or replayed board takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import SafetyStop, SensorError
from wattune.point import BatchShape
from wattune.power.capped_run import CappedRun
from wattune.program.hook.sitecustomize import Rounds
from wattune.program.in_process import in_process
from wattune.script.controller import ROW, Choice, ScriptController
from wattune_agent.guarded import SAFETY_EXIT
from wattune_agent.outcome import Report


class Rehearsal:
    """The ``command``, a Python program, on a device that executes no steps. Each round is counted while it runs here,
    which takes about ten times as long as the program alone; then it takes its time on the device.

    ``expect_s``, ``remembered``: as ``ScriptController`` has them.
    """

    def __init__(
        self,
        device: Device,
        limit: SensorLimit,
        command: Sequence[str],
        *,
        expect_s: float | None = None,
        remembered: dict[str, Any] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ):
        self._run_program = in_process(command)
        self._device, self._say = device, say
        self._events: list[dict[str, Any]] = []
        self._rounds, self._peak_bytes = 0, 0.0
        table = device.replayed_table
        self._shape: BatchShape = ROW if table is None else table.measured[0].shape
        self._run = CappedRun(device, limit, device.combinations()[-1], on_reading=self._reading)
        self._controller: ScriptController | None = None
        self._given = expect_s, remembered

    @property
    def choice(self) -> Choice | None:
        """The outcome of choosing; None if the program made no round."""
        return self._controller.outcome() if self._controller is not None and self._rounds else None

    def state_dict(self) -> dict[str, Any] | None:
        """State for the next run of the same program; None if nothing was chosen."""
        return None if self._controller is None else self._controller.state_dict()

    def run(self) -> Report:
        """Run the program to its end. Raises: DeviceError, InputError, and nothing that the program raises."""
        from wattune.algorithms.counting.counter import Counter, counted_steps

        device, run = self._device, self._run
        expect_s, remembered = self._given
        ended, code = "finished", 0
        with ExitStack() as stack:
            stack.enter_context(run)
            self._controller = ScriptController(
                device, run.limiter, expect_s=expect_s, remembered=remembered, say=self._tell
            )
            run.start()
            counter = self._counter = Counter()
            rounds = Rounds(self._round)
            try:
                with counted_steps(counter, rounds.count):
                    code = self._run_program()
            except SafetyStop as stop:
                ended, code = "stopped for safety", SAFETY_EXIT
                self._tell(str(stop), kind="stopped for safety")
        return self._report(ended, code)

    def _round(self, marker: int) -> None:
        """Let the device take what was counted since the last round."""
        counter, shape, device = self._counter, self._shape, self._device
        work = counter.work(shape.batch, shape.micro)
        self._peak_bytes = max(self._peak_bytes, work.peak_memory_bytes)
        work = work.model_copy(update={"peak_memory_bytes": self._peak_bytes})
        counter.tally.clear()
        counter.memory_bytes.clear()
        with device.step(work):
            pass
        self._rounds += 1
        assert self._controller is not None
        self._controller.look(self._rounds, device.now_s(), marker)
        self._run.check()

    def _reading(self, time_s: float, power_w: float) -> None:
        if self._controller is not None:
            self._controller.reading(self._device.now_s(), power_w)

    def _tell(self, text: str, kind: str = "clocks") -> None:
        self._events.append({"time_s": max(0.0, self._run.meter.elapsed_s), "kind": kind, "text": text})
        self._say(f"{self._events[-1]['time_s']:.1f} s: {kind}: {text}")

    def _report(self, ended: str, code: int) -> Report:
        figures = None
        with suppress(SensorError):  # a program without a step on a replayed board
            figures = self._run.meter.figures()
        return Report(
            time_s=self._run.meter.elapsed_s,
            energy_j=figures.energy_j if figures else 0.0,
            power_mean_w=figures.power_mean_w if figures else 0.0,
            power_peak_w=figures.power_peak_w if figures else 0.0,
            above_cap_s=figures.above_cap_s if figures else 0.0,
            hottest_c=self._run.monitor.temperature_c,
            readings=figures.readings if figures else 0,
            events=self._events,
            exit_code=code,
            ended=ended,
        )
