"""One training of a Trainer on a board: what each of its steps is made of, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from wattune.decisions.search import Point, Row, Search
from wattune.devices import Device
from wattune.errors import DeviceError
from wattune.integrations.lengths import Longest
from wattune.integrations.longest import Bursts, Figures, LongestTrial, Tokens, TokenSearch
from wattune.integrations.passes import Passes
from wattune.integrations.regrouping import Inputs, rows, width
from wattune.records import ProfileTable, SessionRecord
from wattune.session.batch import shapes
from wattune.session.governor import Governor
from wattune.session.knowledge import Knowledge
from wattune.session.optimizing import Overflows
from wattune.session.recipe import Recipe
from wattune.session.session import Options, Session


class Training:
    """Between ``begin`` and ``end`` of each optimizer step the board is metered and guarded, and afterwards as before.

    The recipe is the user's: ``start`` has the rows of his optimizer step and of his micro-batch. The instance is a
    context, in which the board is held.
    """

    def __init__(
        self,
        trainer: Any,
        device: Device,
        loader: Any,
        options: Options,
        *,
        cap_w: float | None,
        max_temp_c: float | None,
    ):
        args, state = trainer.args, trainer.state
        self.device = device
        self.passes = Passes(trainer)
        self.start = Row(self.passes.batch * args.gradient_accumulation_steps, self.passes.batch)
        self.figures: dict[Point, Figures] = {}
        self.tokens = Tokens(device, self.passes.batch, self.passes.main)
        self._trainer = trainer
        self._cap_w, self._margin_w = cap_w, options.margin_w
        self._rows = [self.start]
        self._samples_left = float(max(1, state.max_steps - state.global_step) * self.start.batch_size)
        self._longest = Longest(self.passes.main, getattr(loader, "collate_fn", None))
        self._longest.look(getattr(loader, "dataset", None), args.length_column_name)
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self.governor = governor = Governor(
            device, trainer.model, optimizer, self._search, self.start, cap_w=cap_w, max_temp_c=max_temp_c
        )
        self._bursts = Bursts(governor, optimizer, self._longest, self._burst)
        governor.trial = self._trial = LongestTrial(governor, self.start, self._bursts.once)
        self.session = Session(
            governor,
            Recipe(optimizer, self.start.batch_size, [], interval="step", keep=True),
            Knowledge(self.start.batch_size, [self.start.batch_size], keep=True, curve=None),
            optimizer,
            None,
            options,
        )
        self._batches: Sequence[Inputs] = ()
        self._shapes: list[tuple[int, int]] = []
        self._call: tuple[nn.Module, tuple[Any, ...]] | None = None
        self._is_ready = self._is_known = False
        self._in_step = False
        self._begun_s = 0.0
        self._overflows = Overflows()
        self._logged = (0.0, 0.0, 0)
        if args.fp16 and not getattr(trainer.accelerator, "native_amp", True):
            governor.note("fp16 was asked for, and Transformers trains in fp32 on this processor")

    def __enter__(self) -> Self:
        self.session.__enter__()
        self.governor.on_row = lambda row: self._bursts.at_point()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.session.__exit__(kind, error, trace)

    # ---------------------------------------------------------------------------------------------------------- steps

    def fetched(self, batches: Sequence[Inputs], seconds: float, *, first: bool) -> None:
        """The batches of the next optimizer step, and how long they took; ``first`` of a pass."""
        self._batches = batches
        self.passes.begin(len(batches))
        times = self.governor.times
        if first:
            times.starting_s += seconds
        else:
            times.waiting_s += seconds

    def begin(self, model: nn.Module, *others: Any) -> None:
        """The first of its forward passes is about to come. Raises: SafetyStop, DeviceError."""
        if self._in_step:
            return
        governor, batches = self.governor, self._batches
        self._call = model, others
        self._shapes = [(rows(batch) or 1, width(batch, self.passes.main)) for batch in batches]
        longer = [self._longest.see(batch, held) for batch, (_, held) in zip(batches, self._shapes, strict=True)]
        if not self._is_ready:
            self._prepare(model, batches, *others)
        elif any(longer):
            governor.note(f"a longer row came after {governor.samples} samples: everything was measured anew")
            self._restart()
        self.passes.size = governor.row.micro_batch_size
        samples = round(sum(count for count, _ in self._shapes) * self._samples_a_row)
        key = tuple(shapes(batch) for batch in batches) if governor.book.counts else None
        self.session.begin_step(samples, key=key, data=list(batches))
        self._in_step, self._begun_s = True, self.device.now_s()

    def end(self, *, stepped: bool) -> None:
        """The optimizer has stepped, or scaling skipped the step. Raises: SafetyStop, DeviceError, InputError."""
        if not self._in_step:
            return
        self._in_step = False
        self.tokens.add(self._begun_s, self._batches, self._shapes)
        self.session.end_step(stepped=stepped)
        self.tokens.ended()
        self._overflows.count(skipped=not stepped)

    def drop(self) -> None:
        """Give up the step under way, if there is one."""
        self._in_step = False
        self.session.drop_step()

    def _prepare(self, model: nn.Module, batches: Sequence[Inputs], *others: Any) -> None:
        """The first step: which micro-batches there are to choose from."""
        governor, passes, start = self.governor, self.passes, self.start
        found = rows(batches[0])
        self._samples_a_row = passes.batch / found if found else float(passes.batch)
        if start.batch_size > 1 and passes.rule is None:
            if found == passes.batch:
                with governor.evaluation():
                    passes.try_out(model, batches, *others)
            if passes.rule is None:
                what = "its loss is not made up of those of its parts" if found == passes.batch else "it cannot be cut"
                governor.note(f"the micro-batch stays at {passes.batch}: {what}")
        if passes.rule is not None:
            self._rows = [Row(start.batch_size, size) for size in self._sizes()]
        self._is_ready = self._trial.is_ready = True
        if not self._is_known:
            self._restart()

    def _sizes(self) -> list[int]:
        own, total = self.passes.batch, self.start.batch_size
        smaller = [own >> k for k in range(own.bit_length()) if own >> k]
        if self.device.shares_memory:
            # More than the user's own may take the memory that the system needs: nobody would be left to say so.
            self.governor.note(f"the board shares its memory with the system: no micro-batch above {own} is tried")
            return smaller
        larger = [own << k for k in range(1, total.bit_length()) if own << k < total]
        return sorted({*smaller, *larger, total})

    def _search(self, without: set[Row]) -> Search:
        left = [row for row in self._rows if row not in without] or [self.start]
        device, sensor = self.device, self.device.sensor
        search = TokenSearch(
            left,
            device.settings,
            cap_w=self._cap_w,
            start=min(left, key=lambda row: abs(row.micro_batch_size - self.start.micro_batch_size)),
            margin_w=self._margin_w,
            samples_left=max(1.0, self._samples_left - self.governor.samples),
            noise_w=sensor.noise_w,
            resolution_w=sensor.resolution_w,
            window_s=sensor.window_s,
            period_s=sensor.period_s,
            settle_s=sensor.settle_s,
        )
        search.tokens, search.bursts, search.figures = self.tokens, self._bursts.peaks, self.figures
        return search

    def _restart(self) -> None:
        """Nothing that was measured holds any more."""
        governor = self.governor
        governor.keeper.move(governor.keeper.lowest)
        self._trial.known.clear()
        self._bursts.peaks.clear()
        self.figures.clear()
        governor.prober.cells.clear()
        governor.prober.search = self._search(set())
        governor.prober.choose()

    def _burst(self, batch: Inputs) -> Tensor:
        assert self._call is not None
        model, others = self._call
        return self.passes.run(model, batch, *others)

    # --------------------------------------------------------------------------------------------------------- figures

    @property
    def held_at(self) -> str:
        """For which rows power and memory hold, in words."""
        longest = self._longest
        if not longest.varies:
            return "all rows are of the same length"
        return f"power and memory hold at {longest.width} tokens a row, the longest {longest.how}"

    def logged(self, *, total: bool = False) -> dict[str, float]:
        """For the Trainer's log: power, energy, tokens a second since the last time (or of all), and the point."""
        governor = self.governor
        try:
            figures = governor.meter.figures()
        except DeviceError:  # shorter than the sensor's first reading, or the sensor is gone
            return {}
        time_s, energy_j, count = (0.0, 0.0, 0) if total else self._logged
        now = figures.time_s, figures.energy_j, self.tokens.total
        if not total:
            self._logged = now
        point = governor.prober.in_force
        found = {"micro_batch_size": point.row.micro_batch_size, "energy_j": round(figures.energy_j, 3)}
        if now[0] > time_s:
            found["power_mean_w"] = round((now[1] - energy_j) / (now[0] - time_s), 3)
            found["tokens_per_s"] = round((now[2] - count) / (now[0] - time_s), 1)
        if total:
            found["power_peak_w"] = round(figures.power_peak_w, 3)
        if self.device.actuator is not None and governor.keeper.value is not None:
            found[self.device.actuator] = governor.keeper.value
        return found

    def record(self) -> SessionRecord | None:
        """What the training was on this board, once ``session`` is over; None where nothing was ever read."""
        found = self.session.record
        if found is None:
            return None
        table = found.table
        if table is not None:
            cells = tuple(self._cell(point) for point in self.governor.prober.cells)
            table = ProfileTable(**{**dict(table), "cells": cells, "notes": (*table.notes, self.held_at)})
        chosen = self.governor.prober.search.best()
        more = {
            "table": table,
            "point": found.point if chosen is None else self.governor.prober.place(chosen),
            "notes": (*found.notes, self.held_at),
            "tokens": self.tokens.total,
            "tokens_per_s": self.tokens.total / found.time_s if found.time_s else None,
            "longest_s": self._bursts.time_s,
        }
        return SessionRecord(**{**dict(found), **more})

    def _cell(self, point: Point) -> Any:
        cell, found = self.governor.prober.cells[point], self.figures.get(point)
        if found is None:
            return cell
        change = {"power_peak_w": found.power_peak_w, "tokens_per_s": found.tokens_per_s}
        return type(cell)(**{**cell.model_dump(), **change})

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What a later training needs to go on from here, as JSON values."""
        return {
            "governor": self.governor.state_dict(),
            "recipe": list(self.start),
            "rule": self.passes.rule,
            "longest": [self._longest.width, self._longest.how],
            "tokens": self.tokens.state_dict(),
            "bursts": [[list(p.row), p.setting, *found] for p, found in self._bursts.peaks.items()],
            "figures": [[list(p.row), p.setting, *found] for p, found in self.figures.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict`` when ``governor`` is entered.

        What was measured still counts where the recipe is the same and no row of the data set is longer than then.
        """
        kept = state["governor"]
        known = [self._longest.width, "in the data set"] == state["longest"] and self._longest.how == "in the data set"
        if known and list(self.start) == state["recipe"] and state["rule"] is not None:
            self.passes.rule = state["rule"]
            self._rows = [Row(self.start.batch_size, size) for size in self._sizes()]
            self._bursts.peaks.update({Point(Row(*row), at): (m, p) for row, at, m, p in state["bursts"]})
            self.figures.update({Point(Row(*row), at): Figures(*found) for row, at, *found in state["figures"]})
            self.tokens.load_state_dict(state["tokens"])
            self._is_known = True
        else:
            self.tokens.go_on(state["tokens"]["total"])
            kept = {**kept, "prober": {"search": self._search(set()).state_dict(), "cells": [], "aborted": []}}
        self.governor.load_state_dict(kept)
