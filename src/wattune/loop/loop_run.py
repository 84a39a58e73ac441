"""The run behind a session, as its loop sees it: which batch comes next, and how steps begin and end."""

# ruff: noqa: B027 - rank 0 decides for the others, whose runs need no method for that

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn
from typing_extensions import Self

from wattune.devices import Device
from wattune.errors import InputError
from wattune.loop.division import Verdict
from wattune.loop.fit_check import FitCheck
from wattune.loop.micro_batching import can_split, even
from wattune.loop.step_counter import StepWorkCounter
from wattune.point import BatchShape, OperatingPoint

if TYPE_CHECKING:
    from wattune.loop.request import Request


class NextStep(NamedTuple):
    """The step that comes next: its ``wanted`` row, and the ``current`` one, which batches may still have that were
    fetched before. ``probing``: the row is to be measured; ``measuring``: that has begun."""

    wanted: BatchShape
    current: BatchShape
    probing: bool = False
    measuring: bool = False


@dataclass
class StepTimes:
    """Seconds of the device's time that all steps took, by what they were spent on."""

    compute_s: float = 0.0
    waiting_s: float = 0.0
    copying_s: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``; states of before had three kinds of waiting."""
        self.compute_s, self.copying_s = state["compute_s"], state["copying_s"]
        self.waiting_s = sum(state.get(name, 0.0) for name in ("waiting_s", "starting_s", "fetching_s"))


class LoopRun(ABC):
    """A context in which ``begin`` and ``end`` bracket the steps of a loop, which another rank has chosen."""

    device: Device
    compares_gradients = True
    """True if the gradients of parts of a step, which tell the gradient noise, are at hand and wanted."""
    counter: StepWorkCounter
    fit_check: FitCheck

    def __init__(self, asked: Request, start: BatchShape):
        self.model, self.recipe = asked.sync.module, asked.recipe
        self.start = start
        """The row that training begins with; its micro-batches are known to fit."""
        self.samples = self.steps = 0
        self.notes: dict[str, None] = {}
        """Notes for the user, each of them once."""
        self.checked = False
        """True once ``check_parts`` has seen a batch."""
        self.can_split = True
        self.on_pause: Callable[[], None] = lambda: None
        """Called at the beginning of a pause under a cap that changes, before a step."""
        self.on_point: Callable[[OperatingPoint, str], None] = lambda point, reason: None
        """Called with each new operating point, and the reason for it."""
        self.on_look: Callable[[], None] = lambda: None
        """Called between two steps, once a second."""
        self.keeps_row = False
        """True if training stays at the row that it begins with, and settings alone are chosen."""
        self.times = StepTimes()
        self.on_cuda = next(self.model.parameters()).device.type == "cuda"
        self._has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.model.modules())

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    # ---------------------------------------------------------------------------------------------------------- steps

    @abstractmethod
    def next_step(self) -> NextStep:
        """The next step; to be called once for each batch that is fetched. Raises: SafetyStop."""

    @property
    @abstractmethod
    def row(self) -> BatchShape:
        """The row that the next step should have."""

    @abstractmethod
    def begin(self, row: BatchShape, samples: int, key: Hashable = None, data: Any = None) -> None:
        """Begin a step of ``samples`` samples in micro-batches of ``row``, before its first forward pass.

        ``key``: steps with equal keys, rows and samples do the same operations. ``data``: the inputs in the device's
        memory. Raises: SafetyStop, DeviceError.
        """

    @abstractmethod
    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """End the step; ``stepped``: the optimizer changed the parameters; ``usual``: its time is representative.

        Raises: SafetyStop, OutOfDeviceMemory, DeviceError.
        """

    def drop(self) -> None:
        """Drop the step under way, if there is one: its samples do not count."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context of an evaluation, also in the middle of a step: it stays below the cap.

        Raises: SafetyStop, DeviceError.
        """
        yield

    def expect(self, samples: float) -> None:
        """Set the number of samples that training still takes: a probe has to repay its time in them."""

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        """Set the relative samples (see ``SampleModel.relative``), which may make another probe worth its time."""

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when the context is entered."""

    # ------------------------------------------------------------------------------------------------- what is possible

    def fits(self, row: BatchShape) -> bool:
        """Check whether steps of this row can be trained. Raises: DeviceError."""
        return True

    @property
    def may_halve(self) -> bool:
        """True if a batch may run in two halves to compare their gradients: BatchNorm would change its statistics."""
        return self.can_split and not self._has_norm

    def parts(self, samples: int, micro: int) -> list[int]:
        """Sizes of the micro-batches of a step; BatchNorm refuses a single sample while it trains."""
        return even(samples, micro, 2 if self._has_norm and self.model.training else 1)

    def check_parts(self, data: Any, samples: int, row: BatchShape) -> None:
        """Check that a batch can be split as this row needs it. Raises: InputError if it has to be, but cannot."""
        kind = type(data).__name__
        if not self.checked:
            self.checked = True
            self.can_split = can_split(data, samples)
            if not self.can_split:
                self.note(f"batches of type {kind} cannot be split, so they are trained on whole")
        if not self.can_split and samples > row.micro:
            raise InputError(
                "batches of this type cannot be split into micro-batches",
                value=kind,
                hint="let collate_fn return tensors or lists with one entry per sample, in tuples or dictionaries",
            )

    def judge_division(self, verdict: Verdict) -> None:
        """Take in whether the gradient of a batch in parts is the gradient of the whole. Raises: InputError."""

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self.notes[text] = None
