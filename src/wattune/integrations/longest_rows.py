"""Measurement of training on rows of varying length: time per token, power and memory at the longest row."""

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

from wattune.algorithms import memory_errors
from wattune.devices import Device
from wattune.integrations.row_groups import Inputs, LongestRow, masked, tokens
from wattune.online.fit_check import FitCheck, unchanged
from wattune.online.session_run import SessionRun
from wattune.online.step_counter import StepWorkCounter
from wattune.online.step_timing import WORTH_SAYING
from wattune.point import BatchShape, OperatingPoint
from wattune.records import StepWork
from wattune.search.observation import Stretch
from wattune.search.search import Search

MAX_STEPS = 4096
"""Steps whose shapes are stored, for the mean over the steps of one probe."""

MAX_MASKS = 256
"""Attention masks that are collected before their tokens are counted in one operation."""


@dataclass
class RowStep:
    """One step: its begin and end, its tokens without padding, and rows and width of each of its batches."""

    begun_s: float
    ended_s: float
    tokens: int
    shapes: list[tuple[int, int]]


class LongestRowFigures(NamedTuple):
    """Figures of a point: tokens per second in training, mean and peak power at the longest row (else in training)."""

    tokens_per_s: float
    power_mean_w: float
    power_peak_w: float


class TokenCount:
    """Number of tokens without padding; those of attention masks are counted in bulk, since each count would wait for
    the GPU. ``main``: the name of the model's main input."""

    def __init__(self, main: str):
        self._main = main
        self._total = 0
        self._masks: list[Tensor] = []

    @property
    def total(self) -> int:
        """Tokens so far."""
        if self._masks:
            self._total += int(torch.cat([mask.flatten() for mask in self._masks]).count_nonzero())
            self._masks.clear()
        return self._total

    @total.setter
    def total(self, count: int) -> None:
        self._masks.clear()
        self._total = count

    def add(self, batches: Sequence[Inputs]) -> None:
        """Add the tokens of these batches."""
        for batch in batches:
            mask = masked(batch)
            if mask is None:
                self._total += tokens(batch, self._main)
            else:
                self._masks.append(mask)
        if len(self._masks) >= MAX_MASKS:
            self._total = self.total

    def add_now(self, batches: Sequence[Inputs]) -> int:
        """Add the tokens of these batches, and return their number."""
        count = sum(tokens(batch, self._main) for batch in batches)
        self._total += count
        return count


class TokenTimes:
    """Tokens and times of the steps of a run, from which the time of a step of another length is estimated.

    ``own`` is the user's micro-batch size.
    """

    def __init__(self, device: Device, own: int, count: TokenCount):
        self._count = count
        self._device = device
        self._own = own
        self._steps: deque[RowStep] = deque(maxlen=MAX_STEPS)
        self._usual: tuple[RowStep, ...] = ()

    def add(self, begun_s: float, batches: Sequence[Inputs], shapes: list[tuple[int, int]]) -> None:
        """Add a step with these batches that is about to end; ``shapes``: rows and width of each."""
        count = 0
        if self._usual:  # the tokens of a single step are no longer needed
            self._count.add(batches)
        else:
            count = self._count.add_now(batches)
        self._steps.append(RowStep(begun_s, math.nan, count, shapes))

    def end_step(self) -> None:
        """Record the end of the latest step."""
        self._steps[-1].ended_s = self._device.now_s()

    def usual(self, size: int, step_s: float, seconds: float) -> tuple[float, float]:
        """Time in seconds of the usual step in micro-batches of ``size`` rows, and its tokens per second.

        The usual step has the median number of tokens of all steps before the first call. The steps of the last
        ``seconds`` took ``step_s`` on average. A step takes a fixed time, and more with each token that it computes,
        padding included: that slope is fitted to these steps, between 0 and proportional.
        """
        self.end_step()
        if not self._usual:
            self._usual = tuple(self._steps)
        since_s = self._device.now_s() - seconds - 1e-9
        steps = [step for step in self._steps if step.begun_s >= since_s] or [self._steps[-1]]
        counts = [self.computed(step.shapes, size) for step in steps]
        times_s = [step.ended_s - step.begun_s for step in steps]
        mean_count, usual = mean(counts), median(self.computed(step.shapes, size) for step in self._usual)
        spread = sum((n - mean_count) ** 2 for n in counts)
        slope = sum((n - mean_count) * t for n, t in zip(counts, times_s, strict=True)) / spread if spread else 0.0
        slope = min(max(slope, 0.0), step_s / mean_count)
        expected_s = step_s + slope * (usual - mean_count)
        return expected_s, median(step.tokens for step in self._usual) / expected_s

    def computed(self, shapes: Sequence[tuple[int, int]], size: int) -> int:
        """Tokens that a step computes in micro-batches of ``size`` rows: batches that are joined share one width."""
        per_group = max(1, size // self._own)
        groups = [shapes[i : i + per_group] for i in range(0, len(shapes), per_group)]
        return sum(sum(rows for rows, _ in group) * max(width for _, width in group) for group in groups)

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from, as JSON values."""
        return {"total": self._count.total, "usual": [list(astuple(step)) for step in self._usual]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self._count.total = state["total"]
        self._usual = tuple(
            RowStep(begun_s, ended_s, tokens, [(rows, width) for rows, width in shapes])
            for begun_s, ended_s, tokens, shapes in state["usual"]
        )


class TokenSearch(Search):
    """Search over the times of usual steps, whatever the steps of a probe held, and the power at the longest row."""

    tokens: TokenTimes
    bursts: dict[OperatingPoint, tuple[float, float]]
    figures: dict[OperatingPoint, LongestRowFigures]

    def tell(self, point: OperatingPoint, stretch: Stretch) -> None:
        """Add the figures of a stretch of training at this point."""
        expected_s, tokens_per_s = self.tokens.usual(point.micro_batch_size, stretch.step_s, stretch.seconds)
        mean_w, peak_w = self.bursts.get(point, (0.0, 0.0))
        mean_w, peak_w = max(stretch.power_mean_w, mean_w), max(stretch.power_peak_w, peak_w)
        self.figures[point] = LongestRowFigures(tokens_per_s, mean_w, peak_w)
        super().tell(point, stretch._replace(step_s=expected_s, power_mean_w=mean_w, power_peak_w=peak_w))


class LongestRowCheck(FitCheck):
    """Check that a micro-batch of the longest rows fits in memory, by one pass at the lowest setting."""

    def __init__(self, run: SessionRun, start: BatchShape, run_pass: Callable[[int], None]):
        super().__init__(run.device, run.model, start.micro)
        self.is_ready = False
        """True once there is a batch to run."""
        self._run, self._run_pass = run, run_pass

    def open(self) -> None:
        """Do nothing: this check does not need to observe how the model is called."""

    def fits(self, row: BatchShape, counter: StepWorkCounter) -> bool:
        """Check that steps of this row fit in memory; ``failures`` has the reason if not. Raises: DeviceError."""
        size = row.micro
        if size in self.failures:
            return False
        if size in self.known or not self.is_ready:
            return True
        self._run.explorer.to_safest()
        return self.runs(size, lambda: self._run_pass(size))


class Bursts:
    """Passes of micro-batches of the longest row, whose results are discarded.

    ``run_pass`` is one forward and backward pass of the user's training step. ``peaks`` has the mean and the highest
    reading in watts at each point that had a burst.
    """

    def __init__(
        self, run: SessionRun, optimizer: Optimizer, longest: LongestRow, run_pass: Callable[[Inputs], Tensor]
    ):
        self.peaks: dict[OperatingPoint, tuple[float, float]] = {}
        self.time_s = 0.0
        self._run = run
        self._optimizer = optimizer
        self._longest = longest
        self._run_pass = run_pass
        self._works: dict[tuple[int, int, bool], StepWork] = {}
        self._probe = -1

    def at_point(self) -> None:
        """Measure the power at the longest row if a probe has just begun, since training steps may not show it.

        Nothing is done without a cap, or if all rows are as long as the longest, unless training waits for its data.
        """
        run = self._run
        probe, explorer = len(run.changes), run.explorer
        if not explorer.probing or explorer.wanted != explorer.current or probe == self._probe or not self._needed:
            return
        self._probe = probe
        device, readings, size = run.device, explorer.readings, explorer.current.micro_batch_size
        begun_s = device.now_s()
        batch = self._longest.batch(size)
        for seconds in (device.sensor.settle_s, explorer.window_s):
            readings.clear()
            readings.collect()
            since_s = device.now_s()
            while run.capped.limiter.crossed_w is None and device.now_s() - since_s < seconds:
                self._pass(size, batch)
                run.check()
        if watts := readings.first():
            self.peaks[explorer.current] = mean(watts), max(watts)
        readings.clear()
        self.time_s += device.now_s() - begun_s

    def once(self, size: int) -> None:
        """Run a single pass of ``size`` longest rows. Raises: OutOfDeviceMemory, and any exception of the model."""
        begun_s = self._run.device.now_s()
        self._pass(size, self._longest.batch(size))
        self.time_s += self._run.device.now_s() - begun_s

    @property
    def _needed(self) -> bool:
        if self._run.limit.limit_w is None:
            return False
        times = self._run.times
        total_s = times.compute_s + times.waiting_s
        return self._longest.varies or times.waiting_s > WORTH_SAYING * total_s > 0

    @contextmanager
    def _reserved(self) -> Iterator[list[Tensor]]:
        """The memory of the optimizer's state before its first step: two values per parameter if it has moments."""
        optimizer = self._optimizer
        moments: list[Tensor] = []
        if not optimizer.state and "betas" in optimizer.defaults:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            moments = [torch.empty_like(p) for p in weights for _ in range(2)]
        yield moments

    def _pass(self, size: int, batch: Inputs) -> None:
        run, counter = self._run, self._run.counter
        device = run.device
        key = size, self._longest.width, run.steps > 0  # the optimizer's state takes memory, too
        if key in self._works:
            with device.step(self._works[key]):
                return
        timer = nullcontext() if counter.counts else device.step(counter.placeholder(size, size))
        what = f"a micro-batch of {size} rows of {self._longest.width} tokens"
        with timer, memory_errors(what), unchanged(run.model), self._reserved() as reserved:
            counter.begin(("longest", *key), [batch, reserved])
            try:
                self._run_pass(batch)
                if counter.counts:
                    self._works[key] = counter.end(size, size)
            finally:
                counter.drop()
            if run.on_cuda:
                torch.cuda.synchronize()
        if counter.counts:
            with device.step(self._works[key]):
                pass
