"""A session's run on the ranks that follow the leader: the same steps, on a device that the leader controls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from typing_extensions import Self

from wattune.devices.base import Sensor
from wattune.devices.real_time import UncontrolledDevice
from wattune.errors import SensorError, WattuneError
from wattune.loop.fit_check import FitCheck
from wattune.loop.loop_run import LoopRun, NextStep
from wattune.loop.ranks.channel import LEADER, Channel
from wattune.loop.ranks.compute_timer import ComputeTimer
from wattune.loop.ranks.meeting import Ranks, raise_stop
from wattune.loop.ranks.remote_board import ServedBoard
from wattune.loop.request import Request
from wattune.loop.session import Session
from wattune.loop.step_counter import StepWorkCounter
from wattune.point import BatchShape, Knobs, OperatingPoint


class DeviceOutOfReach(UncontrolledDevice):
    """A rank's own device, which rank 0 sets and reads."""

    kind = "measured"
    mode = "controlled by another process"
    sensor = Sensor(rail="read by another process")
    memory_bytes = None
    data_types = frozenset({"fp32", "tf32", "fp16", "bf16"})

    def __init__(self, name: str):
        self.name = name
        super().__init__()

    def _read_w(self) -> float:
        raise SensorError(f"{self.name} is read by another process")


class FollowingRun(LoopRun):
    """The run of a rank other than 0: each step is the one that rank 0 has chosen."""

    def __init__(self, channel: Channel, asked: Request, *, name: str):
        super().__init__(asked, asked.start)
        self.device = DeviceOutOfReach(name)
        self.channel = channel
        self.counter = StepWorkCounter(self.model, None, counts=False)
        self.fit_check = FitCheck(self.device, self.model, asked.start.micro)  # never opened: rank 0 tries for all
        self._timer = ComputeTimer(self.model, channel.passed)
        self.board: ServedBoard | None = None
        """This rank's own board, which rank 0 reads and sets; None if it is simulated, or another rank has it."""
        self._step = NextStep(asked.start, asked.start)
        self._left = 0
        self._kind: tuple[BatchShape, int] | None = None

    compares_gradients = False

    def __enter__(self) -> Self:
        self._timer.open()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.close()
        if self.board is not None:
            self.board.close(waits=error is None)

    # ---------------------------------------------------------------------------------------------------------- steps

    def next_step(self) -> NextStep:
        """The step that rank 0 has chosen. Raises: SafetyStop, JobRefused; RankLost if rank 0 is gone."""
        self.channel.reach(1)
        self._left -= 1
        if self._left > 0:
            return self._step
        message = self.channel.receive("all")
        raise_stop(message)
        if "at" in message:
            names = self.channel.names
            self.channel.lose(
                f"{names[LEADER]} has come to {message['at']}, and {names[self.channel.rank]} to another step"
            )
            self.channel.check()
        self._step, self._left = message["step"], message["times"]
        return self._step

    @property
    def row(self) -> BatchShape:
        """The row that the next step should have."""
        return self._step.wanted

    def begin(self, row: BatchShape, samples: int, key: Hashable = None, data: Any = None) -> None:
        """Begin a step."""
        if (row, samples) != self._kind:
            self._kind = row, samples
            self.recipe.use(row.batch)
            self.fit_check.known.add(row.micro)
        self._samples, self._begun_s = samples, self.device.now_s()
        self.channel.reach(2)
        self._timer.begin()

    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """End the step."""
        self.samples += self._samples
        self.steps += 1
        self.times.compute_s += self.device.now_s() - self._begun_s
        self.channel.stepped()
        if self._left <= 1 and (seconds := self._timer.end()) is not None:
            self.channel.send(f"computed_s/{self.channel.rank}", seconds)  # before the next agreement
        self.channel.reach(0)


def follow(ranks: Ranks, asked: Request) -> FollowingRun:
    """A run that follows rank 0, once that has prepared the session. Raises: JobRefused if it cannot; RankLost."""
    run = FollowingRun(ranks.channel, asked, name=ranks.specs[ranks.rank] or "a device")
    if asked.closes and ranks.serves_itself(ranks.rank):
        try:
            run.board = ServedBoard(ranks.channel, ranks.spec(ranks.rank), seed=asked.given.seed + ranks.rank)
        except WattuneError as error:
            ranks.channel.send(f"board/{ranks.rank}", str(error))  # which rank 0 refuses
    try:
        raise_stop(ranks.channel.receive("all"))
    except WattuneError:
        if run.board is not None:
            run.board.close(waits=False)
        ranks.channel.close()
        raise
    return run


class FollowingSession(Session):
    """The session of a rank that follows rank 0, which alone has the record."""

    def __init__(self, run: FollowingRun, *arguments: Any, **options: Any):
        super().__init__(cast(Any, run), *arguments, **options)

    @property
    def point(self) -> OperatingPoint:
        """The row of training at present; rank 0 alone knows the setting of the device."""
        return OperatingPoint(self.run.row, Knobs())

    def explain(self) -> str:
        """Name the rank that can explain the choice."""
        return f"rank 0 chooses the point of this rank, which has trained on {self.run.samples} samples"

    def _give_up_raising(self, reason: str) -> None:
        self.sample_model.leave_out_above(self.recipe.batch_size)  # rank 0 chooses, and tells why

    def _new_record(self) -> None:
        return None
