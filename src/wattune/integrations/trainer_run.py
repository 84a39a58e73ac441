"""One run of a Trainer on a board: its search, and the time and energy of its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import DeviceError, RecordError
from wattune.integrations.longest_rows import Bursts, LongestRowCheck, LongestRowFigures, TokenSearch, TokenTimes
from wattune.integrations.micro_batch_passes import uncounted
from wattune.integrations.row_groups import WHOLE, Inputs, LongestRow, width
from wattune.integrations.trainer_steps import TrainerSteps
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.online.ranks.leading import Leading
from wattune.online.ranks.meeting import Ranks
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel
from wattune.online.session import Session, SessionOptions
from wattune.online.session_run import SessionRun, run_state
from wattune.point import BatchShape, OperatingPoint
from wattune.records import ProfileTable, SessionRecord
from wattune.search.search import Search


class TrainerRun(TrainerSteps):
    """A Trainer's run on the rank that chooses: the board is metered and kept under the cap.

    ``leading``: this rank chooses for others as well, which are ``ranks``, and ``device`` is that of all.
    """

    def __init__(
        self,
        trainer: Any,
        device: Device,
        loader: Any,
        options: SessionOptions,
        limit: SensorLimit,
        *,
        sync: GradientSync | None = None,
        ranks: Ranks | None = None,
        leading: Leading | None = None,
    ):
        device.only_knob("attach()", hint="train in a loop of your own, with wattune.capped")
        sync = GradientSync(trainer.model, 1) if sync is None else sync
        super().__init__(trainer, sync, ranks=1 if ranks is None else ranks.size)
        args, state = trainer.args, trainer.state
        self.device = device
        self.figures: dict[OperatingPoint, LongestRowFigures] = {}
        self.tokens = TokenTimes(device, self.passes.batch, self.count)
        self._limit, self._goal = limit, options.goal
        self._rows = [self.start]
        self._samples_left = float(max(1, state.max_steps - state.global_step) * self.start.batch)
        self._longest = LongestRow(self.passes.main, getattr(loader, "collate_fn", None))
        self._longest.scan(getattr(loader, "dataset", None), args.length_column_name)
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self.run = run = SessionRun(device, trainer.model, optimizer, self._search, self.start, limit, leading=leading)
        self._bursts = Bursts(run, optimizer, self._longest, self._burst)
        run.fit_check = self._fit_check = LongestRowCheck(run, self.start, self._bursts.once)
        self.session = Session(run, *recipe_of(optimizer, self.start), optimizer, None, options, sync=sync, ranks=ranks)
        self._is_known = False
        self._begun_s = 0.0
        self._last_log = (0.0, 0.0, 0)
        if args.fp16 and not getattr(trainer.accelerator, "native_amp", True):
            run.note("fp16 was asked for, and Transformers trains in fp32 on this processor")

    def __enter__(self) -> Self:
        super().__enter__()
        self.run.on_row = lambda row: self._bursts.at_point()
        return self

    # ---------------------------------------------------------------------------------------------------------- steps

    def begin(self, model: nn.Module, *others: Any) -> None:
        """Begin a step, before its first forward pass. Raises: SafetyStop, DeviceError, RankLost."""
        if not self._in_step:
            super().begin(model, *others)
            self._begun_s = self.device.now_s()

    def _end(self, *, stepped: bool) -> None:
        self.tokens.add(self._begun_s, self._batches, self._shapes)
        self.session.end_step(stepped=stepped)
        self.tokens.end_step()

    def _look(self, shared: Inputs | None, *, is_first: bool) -> None:
        """Note the longest row, and measure everything again when a longer one comes."""
        longest = self._longest
        seen = [(batch, tokens) for batch, (_, tokens) in zip(self._batches, self._shapes, strict=True)]
        if shared is not None:
            seen.append((shared, width(shared, self.passes.main)))
        is_longer = sum(longest.see(batch, tokens) for batch, tokens in seen) > 0
        if is_first:
            if self.passes.rule is not None:
                self._rows = [BatchShape(self.start.batch, size) for size in self._sizes()]
            self._fit_check.is_ready = True
            if not self._is_known:
                self._restart()
        elif is_longer:
            self.run.note(f"a longer row came after {self.run.samples} samples, so everything is measured again")
            self._restart()

    @property
    def _how(self) -> str:
        return self._longest.how

    def _sizes(self) -> list[int]:
        own, total = self.passes.batch, self.start.batch
        smaller = [own >> k for k in range(own.bit_length()) if own >> k]
        if self.device.shares_memory:
            # A larger one may take the memory that the system needs, and crash the board.
            self.run.note(f"the board shares its memory with the system: no micro-batch size above {own} is tried")
            return smaller
        larger = [own << k for k in range(1, total.bit_length()) if own << k < total]
        return sorted({*smaller, *larger, total})

    def _search(self, usable: Callable[[BatchShape], bool]) -> Search:
        rows = [row for row in self._rows if usable(row)] or [self.start]
        device, sensor = self.device, self.device.sensor
        search = TokenSearch(
            rows,
            device.combinations(),
            cap_w=self._limit.limit_w,
            start=min(rows, key=lambda row: abs(row.micro - self.start.micro)),
            margin_w=self._limit.margin_w,
            samples_left=max(1.0, self._samples_left - self.run.samples),
            noise_w=sensor.noise_w,
            resolution_w=sensor.resolution_w,
            window_s=sensor.window_s,
            period_s=sensor.period_s,
            settle_s=sensor.settle_s,
            cap_window_s=self._limit.window_s,
            goal=self._goal,
        )
        search.tokens, search.bursts, search.figures = self.tokens, self._bursts.peaks, self.figures
        return search

    def _restart(self) -> None:
        """Discard all measurements, and search again."""
        self._fit_check.known.clear()
        self._bursts.peaks.clear()
        self.figures.clear()
        self.run.explorer.restart(self._search(lambda row: True))

    def _burst(self, batch: Inputs) -> Tensor:
        assert self._call is not None
        model, others = self._call
        with uncounted(self._trainer):
            return self.passes.run(model, batch, *others)

    # --------------------------------------------------------------------------------------------------------- figures

    @property
    def row_note(self) -> str:
        """Sentence about the rows that the power and memory figures are valid for."""
        longest = self._longest
        if not longest.varies:
            return "all rows have the same length"
        return f"power and memory are valid up to {longest.width} tokens per row, the longest {longest.how}"

    def log_values(self, *, total: bool = False) -> dict[str, float]:
        """Values for the Trainer's log: mean power and tokens per second since the last call (``total``: of the whole
        run), the energy so far and the operating point."""
        run = self.run
        try:
            figures = run.capped.meter.figures()
        except DeviceError:  # before the sensor's first reading, or the sensor is lost
            return {}
        time_s, energy_j, count = (0.0, 0.0, 0) if total else self._last_log
        now = figures.time_s, figures.energy_j, self.count.total
        if not total:
            self._last_log = now
        point = run.explorer.current
        values = {"micro_batch_size": point.micro_batch_size, "energy_j": round(figures.energy_j, 3)}
        if now[0] > time_s:
            values["power_mean_w"] = round((now[1] - energy_j) / (now[0] - time_s), 3)
            values["tokens_per_s"] = round((now[2] - count) / (now[0] - time_s), 1)
        if total:
            values["power_peak_w"] = round(figures.power_peak_w, 3)
        values.update(run.capped.limiter.knobs)
        return values

    def record(self) -> SessionRecord | None:
        """Record of the run on this board, once ``session`` is over; None if the sensor never gave a reading."""
        record = self.session.record
        if record is None:
            return None
        table = record.table
        if table is not None:
            cells = tuple(self._cell(point) for point in self.run.explorer.cells)
            table = ProfileTable(**{**dict(table), "cells": cells, "notes": (*table.notes, self.row_note)})
        best = self.run.explorer.search.best()
        tokens = self.count.total if self._ranks == 1 else self.tokens_of_all
        more = {
            "table": table,
            "point": record.point if best is None else best,
            "notes": (*record.notes, self.row_note),
            "tokens": tokens,
            "tokens_per_s": tokens / record.time_s if tokens is not None and record.time_s else None,
            "longest_s": self._bursts.time_s,
        }
        return SessionRecord(**{**dict(record), **more})

    def _cell(self, point: OperatingPoint) -> Any:
        cell, figures = self.run.explorer.cells[point], self.figures.get(point)
        if figures is None:
            return cell
        change = {"power_peak_w": figures.power_peak_w, "tokens_per_s": figures.tokens_per_s}
        return type(cell)(**{**cell.model_dump(), **change})

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from, as JSON values."""
        return {
            "run": self.run.state_dict(),
            "ranks": self._ranks,
            "recipe": list(self.start),
            "rule": self.passes.rule,
            "longest": [self._longest.width, self._longest.how],
            "tokens": self.tokens.state_dict(),
            "bursts": [[list(p.shape), dict(p.knobs), *powers] for p, powers in self._bursts.peaks.items()],
            "figures": [[list(p.shape), dict(p.knobs), *figures] for p, figures in self.figures.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when ``run`` is entered.

        Measurements stay valid if the recipe is the same and no row of the data set is longer than before. Raises:
        RecordError for the state of another device.
        """
        run, ranks = run_state(state), state.get("ranks", 1)
        if ranks != self._ranks:
            self.run.note(f"the checkpoint is of {ranks} processes: the search, time and energy start over")
            return
        if run["name"] != self.device.name:
            raise RecordError("the checkpoint is of another device", value=run["name"], allowed=self.device.name)
        same_rows = [self._longest.width, WHOLE] == state["longest"]
        same_rows = same_rows and self._longest.how == WHOLE
        if same_rows and list(self.start) == state["recipe"] and state["rule"] is not None:
            self.passes.rule = state["rule"]
            self._rows = [BatchShape(self.start.batch, size) for size in self._sizes()]
            knobs_from = self.device.knobs_from
            self._bursts.peaks.update(
                {OperatingPoint(BatchShape(*row), knobs_from(at)): (m, p) for row, at, m, p in state["bursts"]}
            )
            self.figures.update(
                {
                    OperatingPoint(BatchShape(*row), knobs_from(at)): LongestRowFigures(*f)
                    for row, at, *f in state["figures"]
                }
            )
            self.tokens.load_state_dict(state["tokens"])
            self._is_known = True
        else:
            self.count.total = state["tokens"]["total"]
            search = self._search(lambda row: True).state_dict()
            run = {**run, "explorer": {"search": search, "cells": [], "aborted": []}}
        self.run.load_state_dict(run)


def recipe_of(optimizer: Any, start: BatchShape) -> tuple[Recipe, SampleModel]:
    """The user's recipe, which stays: the Trainer steps its schedulers itself."""
    recipe = Recipe(optimizer, start.batch, [], interval="step", keep=True)
    return recipe, SampleModel(start.batch, [start.batch], keep=True, curve=None)
