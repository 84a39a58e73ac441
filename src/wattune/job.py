"""The steps of one run: each gives the record that is in the run's folder, and makes it where it is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from wattune import comparison, efficiency, planning, profiling, training
from wattune.devices import Device, SimulatedDevice
from wattune.errors import DeviceError, WorkloadError
from wattune.folder import RunArguments, RunFolder
from wattune.preflight import check_command
from wattune.records import Comparison, EfficiencyCurve, Evaluation, Plan, ProfileTable, TrainingRecord
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]

SEEDS = 3
"""Trainings per batch size, unless it is said."""

REST_S = 3600.0
"""How long a simulated board rests before the pick is measured again."""


@dataclass
class Job:
    """A run: its device, what is trained there, the folder that its records go to, and what it was asked for."""

    board: Device
    work: Workload
    folder: RunFolder
    asked: RunArguments
    processes: int | None = None
    resume: bool = False
    progress: Progress | None = None
    on_evaluation: Callable[[Evaluation, float | None], None] | None = None
    start: dict[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.board.state_dict()

    @contextmanager
    def around(self) -> Iterator[None]:
        """The run, from its first step to its last."""
        yield

    def profile(self, known: ProfileTable | None) -> ProfileTable:
        """Time and power per batch size and clock; ``known`` is taken where it is given.

        Raises: InputError and its kinds, DeviceError; the folder is given back where nothing was done yet.
        """
        table = self.folder.load(ProfileTable)
        if table is None:
            try:
                table = known or profiling.profile(
                    self.board,
                    self.work,
                    algorithm=self.asked.algorithm,
                    strategy=self.asked.strategy,
                    reference=self.asked.reference,
                    cap_w=self._limit_w(None),
                    partial=self.folder.partial,
                    progress=self._in("profile"),
                )
            except (DeviceError, WorkloadError):
                self.folder.abandon()
                raise
            if table.supply is None:  # a profile from before may be older than what is known of the supply
                table = table.model_copy(update={"supply": self.board.supply})
            self.folder.save(table)
        self.folder.partial.unlink(missing_ok=True)
        key = profiling.profile_key(self.board, self.work, table.algorithm)
        command = check_command(self.board, self.folder.path / "profile.json", self.asked.workload)
        planning.check_profile(table, key, kind=self.board.kind, command=command)
        return table

    def estimate(self, table: ProfileTable) -> EfficiencyCurve:
        """Samples needed per batch size, from the proxy; with a guided profile from a few runs, too, at the batch sizes
        that may still be the best by what that measured."""
        how: dict[str, Any] = {"seeds": self.asked.seeds or SEEDS}
        if self.asked.strategy == "guided":
            how = {"log_step_times": planning.log_step_times(table, self._limit_w(table)) or None}
        return self.folder.load(EfficiencyCurve) or self.folder.save(
            efficiency.estimate(
                self.work,
                **how,
                algorithm=planning.learns_as(table.algorithm),
                folder=self.folder.proxy_curves,
                processes=self.processes,
                progress=self._in("estimate"),
            )
        )

    def plan(self, table: ProfileTable, curve: EfficiencyCurve) -> tuple[ProfileTable, Plan]:
        """A plan whose pick keeps the cap also when it is measured again, for longer; and the table with what that
        gave."""
        plan = self.folder.load(Plan)
        if plan is None:
            # Later than the training will be, whose noise would else be that which is seen here.
            self._from_start(rest_s=REST_S)
            table, plan = self._confirmed(table, curve)
            plan = self._on_other_boards(plan, curve)
            self.folder.save(table)
            self.folder.save(plan)
        return table, plan

    def train(self, plan: Plan) -> TrainingRecord:
        """The training at the planned point."""
        self._from_start()
        record = self.folder.load(TrainingRecord)
        # One that was stopped for safety goes on from its checkpoint: whoever resumes it has seen to the reason.
        if record is not None and not (self.resume and record.ended == "stopped for safety"):
            return record
        return self.folder.save(
            training.train(
                self.board,
                self.work,
                plan,
                seed=self.asked.seed,
                checkpoint=self.folder.checkpoint,
                resume=self.resume,
                key=profiling.profile_key(self.board, self.work, plan.algorithm),
                max_temp_c=self.asked.max_temp_c,
                weights=self.folder.weights,
                progress=self._in("train"),
                on_evaluation=self.on_evaluation,
            )
        )

    def compare(self, table: ProfileTable, curve: EfficiencyCurve) -> Comparison:
        """Every rule's pick, trained on the target."""
        self._from_start()
        return self.folder.load(Comparison) or self.folder.save(
            comparison.compare(
                self.board,
                self.work,
                table,
                curve,
                cap_w=self.asked.cap_w,
                cap_side=self.asked.cap_side,
                margin_w=self.asked.margin_w,
                seeds=range(self.asked.seeds or SEEDS),
                folder=self.folder.target_curves,
                processes=self.processes,
                progress=self._in("compare"),
            )
        )

    def _limit_w(self, table: ProfileTable | None) -> float | None:
        """What no reading may be above: the cap as far as it is the module's, less the margin."""
        supply = self.board.supply if table is None else table.supply
        cap_w = planning.module_cap(self.asked.cap_w, self.asked.cap_side, supply)
        return None if cap_w is None else cap_w - self.asked.margin_w

    def _confirmed(self, table: ProfileTable, curve: EfficiencyCurve) -> tuple[ProfileTable, Plan]:
        asked, limit_w, tell = self.asked, self._limit_w(table), self._in("plan")
        choose = partial(planning.plan, cap_w=asked.cap_w, cap_side=asked.cap_side, margin_w=asked.margin_w)
        while True:
            plan = choose(table, curve)
            if limit_w is None:
                return table, plan
            if tell is not None:
                tell(0, 1, f"measuring batch size {plan.batch_size} again, for longer")
            table = profiling.confirm(self.board, self.work, table, plan.point, cap_w=limit_w)
            confirmed = choose(table, curve)
            if confirmed.point == plan.point:
                return table, confirmed

    def _on_other_boards(self, plan: Plan, curve: EfficiencyCurve) -> Plan:
        if not isinstance(self.board, SimulatedDevice) or not self.board.board.ranges:
            return plan
        if (tell := self._in("plan")) is not None:
            tell(0, 1, "the same choice on other boards that the board's file allows")
        others = profiling.drawn_tables(self.board, self.work, plan.algorithm)
        return plan.model_copy(update={"robustness": planning.robustness(plan, others, curve)})

    def _from_start(self, rest_s: float = 0.0) -> None:
        # A simulated board begins each step as it began the first, so that a resumed run ends with the same figures.
        if self.start is not None:
            self.board.load_state_dict(self.start)
            if rest_s:
                self.board.wait(rest_s)

    def _in(self, step: str) -> Progress | None:
        """The same progress, its texts beginning with the step that they are of; it says at once that it begins."""
        progress = self.progress
        if progress is None:
            return None
        progress(0, 0, f"{step}: begins")
        return lambda done, total, what: progress(done, total, f"{step}: {what}")
