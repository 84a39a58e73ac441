"""Measuring where rows vary in length: time by the token, power and memory at the longest row."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from wattune.algorithms import shortage_said
from wattune.decisions.search import Point, Row, Search
from wattune.devices import Device
from wattune.integrations.lengths import Longest
from wattune.integrations.regrouping import Inputs, masked, tokens
from wattune.records import StepWork
from wattune.session.governor import Governor
from wattune.session.timing import WORTH_SAYING
from wattune.session.trial import Trial, put_back
from wattune.session.work import WorkBook

STEPS_KEPT = 4096
"""Steps whose shapes are remembered, for the mean over those of one probe."""

MASKS_KEPT = 256
"""Attention masks that wait until they are counted, all at once."""


@dataclass
class Step:
    """When a step began and ended, its tokens without padding, and rows and width of each batch that it took in."""

    begun_s: float
    ended_s: float
    tokens: int
    shapes: list[tuple[int, int]]


class Figures(NamedTuple):
    """Of one point: tokens a second in training, mean and highest reading at the longest row (else in training)."""

    tokens_per_s: float
    power_mean_w: float
    power_peak_w: float


class Tokens:
    """What the steps of a training held, and how long they took: a step of another length is priced from those.

    ``own`` is the user's micro-batch, ``main`` the model's main input.
    """

    def __init__(self, device: Device, own: int, main: str):
        self._total = 0
        self._masks: list[Tensor] = []
        self._main = main
        self._device = device
        self._own = own
        self._steps: deque[Step] = deque(maxlen=STEPS_KEPT)
        self._usual: tuple[Step, ...] = ()

    @property
    def total(self) -> int:
        """All tokens but padding."""
        self._count()
        return self._total

    def add(self, begun_s: float, batches: Sequence[Inputs], shapes: list[tuple[int, int]]) -> None:
        """A step with these batches that began then and is about to end; ``shapes``: rows and width of each."""
        count = 0
        if self._usual:
            # Nobody asks for the tokens of one step any more, and a count is an operation that a GPU is waited for.
            for batch in batches:
                mask = masked(batch)
                if mask is None:
                    self._total += tokens(batch, self._main)
                else:
                    self._masks.append(mask)
            if len(self._masks) >= MASKS_KEPT:
                self._count()
        else:
            count = sum(tokens(batch, self._main) for batch in batches)
            self._total += count
        self._steps.append(Step(begun_s, math.nan, count, shapes))

    def ended(self) -> None:
        """The latest step is over."""
        self._steps[-1].ended_s = self._device.now_s()

    def usual(self, size: int, step_s: float, seconds: float) -> tuple[float, float]:
        """Steps in micro-batches of ``size`` rows took ``step_s`` seconds over the last ``seconds``: how long the usual
        one would take (the median of those until the first time), and the tokens a second then.

        A step takes some time, and more with each token that it computes, padding included. How much more is seen in
        the steps themselves; no less than nothing, and no more than in proportion.
        """
        self.ended()
        if not self._usual:
            self._usual = tuple(self._steps)
        since_s = self._device.now_s() - seconds - 1e-9
        found = [step for step in self._steps if step.begun_s >= since_s] or [self._steps[-1]]
        held = [self.computed(step.shapes, size) for step in found]
        took = [step.ended_s - step.begun_s for step in found]
        middle, usual = mean(held), median(self.computed(step.shapes, size) for step in self._usual)
        spread = sum((h - middle) ** 2 for h in held)
        slope = sum((h - middle) * t for h, t in zip(held, took, strict=True)) / spread if spread else 0.0
        slope = min(max(slope, 0.0), step_s / middle)
        expected_s = step_s + slope * (usual - middle)
        return expected_s, median(step.tokens for step in self._usual) / expected_s

    def _count(self) -> None:
        if self._masks:
            self._total += int(torch.cat([mask.flatten() for mask in self._masks]).count_nonzero())
            self._masks.clear()

    def computed(self, shapes: Sequence[tuple[int, int]], size: int) -> int:
        """Tokens that a step goes through in micro-batches of so many rows: batches put together have one width."""
        at_once = max(1, size // self._own)
        groups = [shapes[i : i + at_once] for i in range(0, len(shapes), at_once)]
        return sum(sum(rows for rows, _ in group) * max(width for _, width in group) for group in groups)

    def state_dict(self) -> dict[str, Any]:
        """What later ones need, as JSON values."""
        return {"total": self.total, "usual": [list(astuple(step)) for step in self._usual]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.go_on(state["total"])
        self._usual = tuple(
            Step(begun_s, ended_s, tokens, [(rows, width) for rows, width in shapes])
            for begun_s, ended_s, tokens, shapes in state["usual"]
        )

    def go_on(self, total: int) -> None:
        """So many tokens were trained on before; nothing else is known."""
        self._total = total


class TokenSearch(Search):
    """Is told the time of usual steps, whatever those of a probe held, and the power at the longest row."""

    tokens: Tokens
    bursts: dict[Point, tuple[float, float]]
    figures: dict[Point, Figures]

    def tell(self, point: Point, step_s: float, power_mean_w: float, power_peak_w: float, seconds: float) -> None:
        """What ``seconds`` of training showed at this point."""
        expected_s, tokens_per_s = self.tokens.usual(point.row.micro_batch_size, step_s, seconds)
        mean_w, peak_w = self.bursts.get(point, (0.0, 0.0))
        found = Figures(tokens_per_s, max(power_mean_w, mean_w), max(power_peak_w, peak_w))
        self.figures[point] = found
        super().tell(point, expected_s, found.power_mean_w, found.power_peak_w, seconds)


class LongestTrial(Trial):
    """Whether a micro-batch of the longest rows can be run, found out by one pass at the lowest setting."""

    def __init__(self, governor: Governor, start: Row, run: Callable[[int], None]):
        super().__init__(governor.device, governor.model, start.micro_batch_size)
        self.is_ready = False
        """Whether there is anything to run yet."""
        self._governor = governor
        self._run = run

    def open(self) -> None:
        """It need not see how the model is called."""

    def fits(self, row: Row, book: WorkBook) -> bool:
        """Whether steps of this row can be trained. Why not stands in ``failures``. Raises: DeviceError."""
        size = row.micro_batch_size
        if size in self.failures:
            return False
        if size in self.known or not self.is_ready:
            return True
        keeper = self._governor.keeper
        if keeper.value != keeper.lowest:
            keeper.move(keeper.lowest)
        return self.runs(size, lambda: self._run(size))


class Bursts:
    """Passes of micro-batches of the longest row, whose results are thrown away.

    ``run`` is one forward and backward pass of the user's own training step. ``peaks`` has the mean and the highest
    reading at each point where there was a burst.
    """

    def __init__(self, governor: Governor, optimizer: Optimizer, longest: Longest, run: Callable[[Inputs], Tensor]):
        self.peaks: dict[Point, tuple[float, float]] = {}
        self.time_s = 0.0
        self._governor = governor
        self._optimizer = optimizer
        self._longest = longest
        self._run = run
        self._works: dict[tuple[int, int, bool], StepWork] = {}
        self._probe = -1

    def at_point(self) -> None:
        """Where a probe has just begun: the power at the longest row, as no training step may show it.

        There is nothing to be done without a cap, and where all rows are as long as the longest, unless training waits
        for its data.
        """
        governor = self._governor
        probe, prober = len(governor.changes), governor.prober
        if not prober.probing or prober.wanted != prober.in_force or probe == self._probe or not self._needed:
            return
        self._probe = probe
        device, keeper, size = governor.device, governor.keeper, prober.in_force.row.micro_batch_size
        begun_s = device.now_s()
        batch = self._longest.batch(size)
        for seconds in (device.sensor.settle_s, prober.window_s):
            keeper.forget()
            keeper.collect()
            since_s = device.now_s()
            while keeper.crossed_w is None and device.now_s() - since_s < seconds:
                self._pass(size, batch)
                governor.check()
        if keeper.readings:
            self.peaks[prober.in_force] = mean(keeper.readings), max(keeper.readings)
        keeper.forget()
        self.time_s += device.now_s() - begun_s

    def once(self, size: int) -> None:
        """A single pass of so many of the longest rows. Raises: OutOfDeviceMemory and whatever the model raises."""
        begun_s = self._governor.device.now_s()
        self._pass(size, self._longest.batch(size))
        self.time_s += self._governor.device.now_s() - begun_s

    @property
    def _needed(self) -> bool:
        if self._governor.cap_w is None:
            return False
        times = self._governor.times
        total_s = times.compute_s + times.waiting_s
        return self._longest.varies or times.waiting_s > WORTH_SAYING * total_s > 0

    @contextmanager
    def _reserved(self) -> Iterator[list[Tensor]]:
        """The memory that the optimizer will take with its first step: two values a parameter, where it has moments."""
        optimizer = self._optimizer
        taken: list[Tensor] = []
        if not optimizer.state and "betas" in optimizer.defaults:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            taken = [torch.empty_like(p) for p in weights for _ in range(2)]
        yield taken

    def _pass(self, size: int, batch: Inputs) -> None:
        governor, book = self._governor, self._governor.book
        device = governor.device
        key = size, self._longest.width, governor.steps > 0  # the optimizer's state takes memory, too
        if key in self._works:
            with device.step(self._works[key]):
                return
        timed = nullcontext() if book.counts else device.step(book.plain(size, size))
        what = f"a micro-batch of {size} rows of {self._longest.width} tokens"
        with timed, shortage_said(what), put_back(governor.model), self._reserved() as reserved:
            book.begin(("longest", *key), [batch, reserved])
            try:
                self._run(batch)
                if book.counts:
                    self._works[key] = book.end(size, size)
            finally:
                book.drop()
            if governor.on_cuda:
                torch.cuda.synchronize()
        if book.counts:
            with device.step(self._works[key]):
                pass
