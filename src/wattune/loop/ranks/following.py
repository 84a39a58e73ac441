"""A session on the ranks that follow the leader: the same steps, on a device that the leader controls."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from typing_extensions import Self

from wattune.devices.base import Sensor
from wattune.devices.real_time import UncontrolledDevice
from wattune.errors import SensorError, WattuneError
from wattune.loop.fit_check import FitCheck
from wattune.loop.loop_run import LoopRun, NextStep
from wattune.loop.ranks.agreement import Ranks
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
    name = "a rank's device"

    def _read_w(self) -> float:
        raise SensorError("rank 0 reads this device")


class FollowingRun(LoopRun):
    """The run of a rank other than 0: each step is the one that rank 0 has chosen.

    Raises: JobRefused if rank 0 cannot prepare the session; RankLost.
    """

    compares_gradients = False

    def __init__(self, ranks: Ranks, asked: Request):
        super().__init__(asked, asked.start)
        self.device = DeviceOutOfReach()
        self.ranks = ranks
        self.counter = StepWorkCounter(self.model, None, counts=False)
        self.fit_check = FitCheck(self.device, self.model, asked.start.micro)  # never opened: rank 0 tries for all
        self._step = NextStep(asked.start, asked.start)
        self._kind: tuple[BatchShape, int] | None = None
        self._board: ServedBoard | None = None  # unless it is simulated, or another rank has it
        channel, rank = ranks.channel, ranks.rank
        if asked.closes and ranks.serves_itself(rank):
            try:
                self._board = ServedBoard(channel, ranks.spec(rank), seed=asked.given.seed + rank)
            except WattuneError as error:
                channel.send(f"board/{rank}", str(error))  # which rank 0 refuses
        try:
            ranks.told()
        except WattuneError:
            if self._board is not None:
                self._board.close(waits=False)
            channel.close()
            raise

    def __enter__(self) -> Self:
        self.ranks.timer.open()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.ranks.timer.close()
        if self._board is not None:
            self._board.close(waits=error is None)

    def next_step(self) -> NextStep:
        """The step that rank 0 has chosen. Raises: SafetyStop, JobRefused; RankLost if rank 0 is gone."""
        self._step = self.ranks.next_step()
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
        self.ranks.channel.reach(2)
        self.ranks.timer.begin()

    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """End the step."""
        self.samples += self._samples
        self.steps += 1
        self.times.compute_s += self.device.now_s() - self._begun_s
        self.ranks.end_step()
        self.ranks.channel.reach(0)


class FollowingSession(Session):
    """The session of a rank that follows rank 0, which alone has the record."""

    def __init__(self, run: FollowingRun, asked: Request):
        super().__init__(cast(Any, run), asked, run.ranks)

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
