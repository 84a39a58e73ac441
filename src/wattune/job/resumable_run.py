"""A run that can be resumed: each step returns the record that is in the run's folder, or makes and saves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from wattune import planning, profiling
from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import DeviceError, WorkloadError
from wattune.job import steps
from wattune.job.checks import check_command, check_profile
from wattune.job.folder import RunArguments, RunFolder
from wattune.job.steps import Progress
from wattune.records import Comparison, Evaluation, Plan, ProfileTable, SampleEfficiency, TrainingRecord
from wattune.workloads import Workload

SEEDS = 3
"""Training runs per batch size, by default."""

REST_S = 3600.0
"""Seconds that a simulated board rests before the pick is measured again."""


@dataclass
class ResumableRun:
    """One run: its device, its workload, its folder and its arguments."""

    board: Device
    work: Workload
    folder: RunFolder
    arguments: RunArguments
    resume: bool = False
    processes: int | None = None
    progress: Progress | None = None
    on_evaluation: Callable[[Evaluation, float | None], None] | None = None
    start: dict[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.board.state_dict()

    def profile(self, given: ProfileTable | None) -> ProfileTable:
        """Time and power per batch size and clock; ``given`` is used instead, if there is one.

        Raises: InputError and its kinds, DeviceError; the folder is then emptied if nothing was done yet.
        """
        table = self.folder.load(ProfileTable)
        if table is None:
            try:
                table = given or steps.profile(
                    self.board,
                    self.work,
                    cap_w=self.arguments.cap,
                    strategy=self.arguments.strategy,
                    reference=self.arguments.reference,
                    algorithm=self.arguments.algorithm,
                    partial=self.folder.partial,
                    progress=self.progress_of("profile"),
                )
            except (DeviceError, WorkloadError):
                self.folder.abandon()
                raise
            if table.supply is None:  # a given profile may be older than what is known of the supply
                table = table.model_copy(update={"supply": self.board.supply})
            self.folder.save(table)
        self.folder.partial.unlink(missing_ok=True)
        command = check_command(self.board, self.folder.path / "profile.json", self.arguments.workload)
        check_profile(table, self.board, self.work, command=command)
        return table

    def estimate(self, table: ProfileTable) -> SampleEfficiency:
        """Samples to target per batch size, from the proxy.

        With a guided profile only a few runs are made, at the batch sizes that may still be the best by that profile.
        """
        curve = self.folder.load(SampleEfficiency)
        if curve is not None:
            return curve
        is_guided = self.arguments.strategy == "guided"
        curve = steps.estimate(
            self.work,
            seeds=None if is_guided else self.arguments.seeds or SEEDS,
            step_times=planning.log_step_times(table, self.limit(table)) or None if is_guided else None,
            algorithm=planning.learns_as(table.algorithm),
            folder=self.folder.proxy_curves,
            processes=self.processes,
            progress=self.progress_of("estimate"),
        )
        return self.folder.save(curve)

    def plan(self, table: ProfileTable, curve: SampleEfficiency) -> tuple[ProfileTable, Plan]:
        """A plan whose pick stays under the cap also when it is measured again, for longer; and the table with that."""
        plan = self.folder.load(Plan)
        if plan is None:
            # Later than the training run, whose noise would otherwise be the noise that is seen here.
            self._back_to_start(rest_s=REST_S)
            table, plan = self._confirmed(table, curve)
            plan = self._with_robustness(plan, curve)
            self.folder.save(table)
            self.folder.save(plan)
        return table, plan

    def train(self, plan: Plan) -> TrainingRecord:
        """Training at the planned point."""
        self._back_to_start()
        record = self.folder.load(TrainingRecord)
        # One that was stopped for safety continues from its checkpoint: the user has removed the cause by now.
        if record is not None and not (self.resume and record.ended == "stopped for safety"):
            return record
        record = steps.train(
            self.board,
            self.work,
            plan,
            max_temp_c=self.arguments.max_temp_c,
            seed=self.arguments.seed,
            checkpoint=self.folder.checkpoint,
            resume=self.resume,
            weights=self.folder.weights,
            progress=self.progress_of("train"),
            on_evaluation=self.on_evaluation,
        )
        return self.folder.save(record)

    def compare(self, table: ProfileTable, curve: SampleEfficiency) -> Comparison:
        """The pick of every rule, trained on the target."""
        self._back_to_start()
        comparison = self.folder.load(Comparison)
        if comparison is not None:
            return comparison
        comparison = steps.compare(
            self.board,
            self.work,
            table,
            curve,
            cap_w=self.arguments.cap,
            seeds=self.arguments.seeds or SEEDS,
            folder=self.folder.target_curves,
            processes=self.processes,
            progress=self.progress_of("compare"),
        )
        return self.folder.save(comparison)

    def limit(self, table: ProfileTable | None = None) -> SensorLimit:
        """The limit at the sensor, by the supply that the table was measured with, or else by the board's."""
        return self.arguments.cap.at_sensor(self.board.supply if table is None else table.supply)

    def progress_of(self, step: str) -> Progress | None:
        """The same progress, with the name of the step before each text; called at once for the step's beginning."""
        progress = self.progress
        if progress is None:
            return None
        progress(0, 0, f"{step}: begins")
        return lambda done, total, what: progress(done, total, f"{step}: {what}")

    def warn(self, text: str) -> None:
        """Pass a warning to the caller's progress."""
        if self.progress is not None:
            self.progress(0, 0, f"warning: {text}")

    def _confirmed(self, table: ProfileTable, curve: SampleEfficiency) -> tuple[ProfileTable, Plan]:
        limit, progress = self.limit(table), self.progress_of("plan")
        choose = partial(steps.plan, cap_w=self.arguments.cap)
        while True:
            plan = choose(table, curve)
            if limit.limit_w is None:
                return table, plan
            if progress is not None:
                progress(0, 1, f"measuring batch size {plan.batch_size} again, for longer")
            table = profiling.confirm(self.board, self.work, table, plan.point, limit)
            confirmed = choose(table, curve)
            if confirmed.point == plan.point:
                return table, confirmed

    def _with_robustness(self, plan: Plan, curve: SampleEfficiency) -> Plan:
        if not self.board.variants(1):
            return plan
        if (progress := self.progress_of("plan")) is not None:
            progress(0, 1, "checking the choice on other boards that the board file allows")
        others = profiling.drawn_tables(self.board, self.work, plan.algorithm)
        return plan.model_copy(update={"robustness": planning.robustness(plan, others, curve)})

    def _back_to_start(self, rest_s: float = 0.0) -> None:
        # A simulated board begins each step in the state of the first, so that a resumed run ends with equal figures.
        if self.start is not None:
            self.board.load_state_dict(self.start)
            if rest_s:
                self.board.wait(rest_s)
