"""The choice of clocks in ``wattune guard``: beside the guard of a real board, or as a rehearsal; and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from typing_extensions import Self

from wattune.cap import SensorLimit
from wattune.cli.output import note
from wattune.cli.rehearsal import Rehearsal
from wattune.devices import Device
from wattune.errors import OutputError
from wattune.program.printed import printed_steps
from wattune.program.rounds import StepPage
from wattune.script.controller import Choice
from wattune.script.program import Memory, ProgramClocks
from wattune_agent.outcome import Report


class Choosing:
    """Context in which programs stamp their steps, with ``clocks`` for the guard; without it, ``rehearse``.

    Raises: InputError for a ``step_time`` that cannot be compiled, and for a rehearsal of anything but Python.
    """

    def __init__(
        self,
        board: Device,
        limit: SensorLimit,
        command: Sequence[str],
        clocks: str,
        *,
        fresh: bool,
        expect_s: float | None,
        step_time: str | None,
    ):
        self.names = [knob.name for knob in (board.offered if clocks == "all" else board.offered[:1])]
        self._memory = Memory(board, limit, self.names, command)
        self._pattern = None
        if step_time is not None:
            from wattune.profiling.program.step_times import compiled

            self._pattern = compiled(step_time)
        remembered = None if fresh else self._memory.load()
        self._usual_s = None if remembered is None else remembered["time_s"]
        expect_s = self._usual_s if expect_s is None else expect_s
        self._page, self._inside = StepPage(), ExitStack()
        self.clocks = ProgramClocks(
            board, limit, self._page, names=self.names, expect_s=expect_s, remembered=remembered
        )
        self._rehearsal: Rehearsal | None = None
        if not board.executes_steps:
            board.select(self.names)
            self._rehearsal = Rehearsal(board, limit, command, expect_s=expect_s, remembered=remembered, say=note)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._page)
            pattern = self._pattern
            stack.enter_context(self._page.stamped() if pattern is None else printed_steps(pattern, self._page))
            self._inside = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._inside.close()

    def rehearse(self) -> Report:
        """Run the program here, on a device that executes no steps. Raises: DeviceError, InputError."""
        assert self._rehearsal is not None
        return self._rehearsal.run()

    def keep(self, report: Report) -> None:
        """Remember what was found, for the next run of the command; and how long it took, unless it was cut short."""
        is_whole = report.ended == "finished" and report.exit_code == 0
        if (state := self._made.state_dict()) is not None:
            try:
                self._memory.save(state, report.time_s if is_whole else self._usual_s)
            except OutputError as error:
                note(f"what was found is not remembered: {error}")

    @property
    def choice(self) -> Choice | None:
        """The outcome; None if the program made no step."""
        return self._made.choice

    @property
    def _made(self) -> Rehearsal | ProgramClocks:
        return self.clocks if self._rehearsal is None else self._rehearsal
