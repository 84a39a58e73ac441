"""One run of a program to its target: the metric in its output, and the samples that it has trained by then."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from wattune.errors import WorkloadError
from wattune.program.process import Process
from wattune.program.rounds import StepPage
from wattune.program.workload import ProgramWorkload, one_group
from wattune.records import Evaluation

TICK_S: Final = 0.1

END_S: Final = 10.0
"""Time that a program has to save what it has learned, after it was asked to end."""

UNSEEN: Final = 3
"""Metrics in the output without any step, after which the steps count as unseen."""

HINT = "the pattern may not fit; give --samples REGEX if the program trains without torch"

_look: ContextVar[Callable[[], None]] = ContextVar("look", default=lambda: None)


@contextmanager
def watched(look: Callable[[], None]) -> Iterator[None]:
    """Context in which ``look`` is called ten times a second while a program learns; it may raise to end the run."""
    before = _look.set(look)
    try:
        yield
    finally:
        _look.reset(before)


Ended = Literal["target reached", "budget used up", "diverged"]


class Learned(NamedTuple):
    """Outcome of a run: ``evaluations`` are the metrics that were printed, with the samples until then."""

    ended: Ended
    samples: int
    evaluations: tuple[Evaluation, ...]


@dataclass
class ProgramLearning:
    """Learning of one run, as far as its output and its steps show it.

    ``ended``: None while the program trains, or why nothing can be learned from it. ``listen`` is called before lines
    are read, and ``hear`` with each, from the thread that reads the output.
    """

    workload: ProgramWorkload
    batch_size: int
    page: StepPage
    budget_samples: int | None = None
    on_evaluation: Callable[[Evaluation], None] | None = None
    evaluations: list[Evaluation] = field(default_factory=list)
    ended: Ended | WorkloadError | None = None
    _printed_samples: int = 0
    _rounds: int = 0
    _unseen: int = 0

    def __post_init__(self) -> None:
        self._metric = one_group(self.workload.metric, "the pattern of the metric", "")
        self._samples = self.workload.samples and one_group(self.workload.samples, "the pattern of the samples", "")

    @property
    def samples(self) -> int:
        """Training samples so far: those that the program prints, else its steps times the batch size."""
        if self._samples:
            return self._printed_samples
        return self.page.most_rounds * self.batch_size

    def check_budget(self) -> None:
        """End the run if it has used its budget up."""
        if self.ended is None and self.budget_samples is not None and self.samples > self.budget_samples:
            self.ended = "budget used up"

    def listen(self) -> None:
        """Look how many steps there were before the next lines; the program waits with its next one."""
        self._rounds = self.page.most_rounds

    def hear(self, time_s: float, line: str) -> None:
        """Take a line of the output."""
        if self.ended is not None:
            return
        try:
            if self._samples and (found := self._samples.search(line)):
                self._take_samples(_number(found, "the samples"))
            metrics = list(self._metric.finditer(line))
            if len(metrics) > 1:
                raise WorkloadError(
                    "the program prints several metrics in one line", value=line[-80:], allowed="a line for each"
                )
            if metrics:
                self._take(time_s, _number(metrics[0], "the metric"))
        except WorkloadError as error:
            self.ended = error

    def _take_samples(self, samples: float) -> None:
        if not math.isfinite(samples):
            raise WorkloadError("the samples that the program prints", value=f"{samples:g}", allowed="a finite number")
        self._printed_samples = max(self._printed_samples, round(samples))

    def _take(self, time_s: float, metric: float) -> None:
        samples = self._printed_samples if self._samples else self._rounds * self.batch_size
        is_reached = self.workload.reached(metric)
        if not math.isfinite(metric):
            self.ended = "diverged"
        elif samples == 0:  # many programs evaluate before they train
            self._unseen += 1
            if is_reached or self._unseen == UNSEEN:
                what = "the target is reached before the first step" if is_reached else "no step of the program is seen"
                self.ended = WorkloadError(what, value=f"{metric:g}", allowed="steps of torch", hint=HINT)
        else:
            if self.evaluations and self.evaluations[-1].samples >= samples:
                self.evaluations.pop()  # the same evaluation, printed again
            self.evaluations.append(Evaluation(samples=samples, metric=metric, time_s=max(0.0, time_s)))
            self.ended = "target reached" if is_reached else None
            if self.on_evaluation is not None:
                self.on_evaluation(self.evaluations[-1])


def learn(
    workload: ProgramWorkload,
    batch_size: int,
    *,
    seed: int = 0,
    budget_samples: int | None = None,
    now_s: Callable[[], float] = time.monotonic,
    on_evaluation: Callable[[Evaluation], None] | None = None,
) -> Learned:
    """Run a program until its target, a metric that is not finite, or its end; after ``budget_samples`` it cannot win.

    ``now_s``: the clock of the evaluations' times. At the target the program gets SIGTERM, and ``END_S`` seconds to
    save what it has learned.

    Raises: InputError if it cannot be started; WorkloadError if it fails, prints no metric, or its steps are not seen;
    OutOfDeviceMemory; what the one who ``watched`` it raises.
    """
    look = _look.get()
    with StepPage() as page, page.stamped():
        learning = ProgramLearning(workload, batch_size, page, budget_samples, on_evaluation)
        words = workload.words(batch_size, seed=seed)
        with Process(words, now_s=now_s, before_lines=learning.listen, on_line=learning.hear, kill_s=END_S) as program:
            while learning.ended is None and not program.over.wait(TICK_S):
                look()
                learning.check_budget()
        if isinstance(learning.ended, WorkloadError):
            raise learning.ended
        if learning.ended is None:
            program.check_ending(f"at batch size {batch_size}")
            if not learning.evaluations:
                what = "no step of the program is seen" if learning._unseen else "no line has the metric"
                raise WorkloadError(f"{what}; the program's last line", value=program.last_line, hint=HINT)
        evaluations = tuple(learning.evaluations)
        samples = evaluations[-1].samples if learning.ended == "target reached" else learning.samples
        return Learned(learning.ended or "budget used up", samples, evaluations)


def _number(found: re.Match[str], what: str) -> float:
    text: str = found[1] or found[0]  # the group may take no part in the match
    try:
        return float(text)
    except ValueError as error:
        raise WorkloadError(f"the pattern of {what} finds no number", value=text) from error
