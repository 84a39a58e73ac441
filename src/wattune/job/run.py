"""A run that can be resumed: each step returns the record that is in the run's folder, or makes and saves it.

Each step passes a record on to the next, and saves it in the run's folder as soon as it is made. An interrupted run
skips the records that exist and continues inside the step that was not finished.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattune import planning, profiling, reporting
from wattune.cap import PowerCap, SensorLimit
from wattune.cap_source import CapSource, check_scale
from wattune.devices import Device
from wattune.errors import DeviceError, WorkloadError
from wattune.job import steps
from wattune.job.checks import (
    algorithm_of,
    check_cap,
    check_moving_cap,
    check_profile,
    check_run,
    check_workload,
    fingerprint,
)
from wattune.job.coercion import Progress, as_record, as_workload, opened
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments, RunFolder
from wattune.power.capped_run import Readings
from wattune.records import Comparison, Evaluation, Plan, ProfileTable, SampleEfficiency, TrainingRecord

if TYPE_CHECKING:
    from wattune.workloads import Workload

SEEDS = 3
"""Training runs per batch size of a comparison, by default."""

REST_S = 3600.0
"""Seconds that a simulated board rests before the pick is measured again."""


@dataclass
class ResumableRun:
    """One run: its device, its workload, its folder and its arguments."""

    board: Device
    work: Workload
    folder: RunFolder
    config: RunConfig
    cap: PowerCap
    """The cap, or the highest of the caps of one that changes."""
    given: ProfileTable | None = None
    progress: Progress | None = None
    on_evaluation: Callable[[Evaluation, Readings], None] | None = None
    yield_to: Callable[[], bool] | None = None
    start: dict[str, Any] | None = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.board.state_dict()

    @property
    def algorithm(self) -> str:
        """The training algorithm."""
        return self.config.algorithm or "backprop"

    def profile(self) -> ProfileTable:
        """Time and power per batch size and clock; ``given`` is used instead, if there is one.

        Raises: InputError and its kinds, DeviceError; the folder is then emptied if nothing was done yet.
        """
        table = self.folder.load(ProfileTable)
        if table is None:
            try:
                table = self.given or self._profiled()
            except (DeviceError, WorkloadError):
                self.folder.abandon()
                raise
            if table.supply is None:  # a given profile may be older than what is known of the supply
                table = table.model_copy(update={"supply": self.board.supply})
            self.folder.save(table)
        self.folder.partial.unlink(missing_ok=True)
        self._check(table)
        check_scale(self.config.whole_cap, table.highest_w)
        return table

    def _check(self, table: ProfileTable) -> None:
        """Check that the profile is of this workload on this board. Raises: RecordError."""
        check_profile(table, self.board, self.work)

    def _profiled(self) -> ProfileTable:
        return steps.profile(
            self.board,
            self.work,
            cap_w=self.cap,
            goal=self.config.whole_goal,
            strategy=self.config.strategy,
            reference=self.config.reference,
            algorithm=self.algorithm,
            partial=self.folder.partial,
            progress=self.progress_of("profile"),
        )

    def estimate(self, table: ProfileTable) -> SampleEfficiency:
        """Samples to target per batch size, from the proxy.

        Unless the number of seeds is given, as few runs as tell the best batch size are made, at those that may be it.
        """
        return self.folder.load(SampleEfficiency) or self.folder.save(self._estimated(table))

    def _estimated(self, table: ProfileTable) -> SampleEfficiency:
        return self._learned(self.work, table)

    def _learned(self, work: Workload, table: ProfileTable) -> SampleEfficiency:
        seeds, step_times = self.config.seeds, None
        if seeds is None:
            step_times = planning.log_step_times(table, self.limit(table), self.config.whole_goal) or None
        return steps.estimate(
            work,
            seeds=seeds,
            step_times=step_times,
            algorithm=planning.learns_as(table.algorithm),
            folder=self.folder.proxy_curves,
            processes=self.config.processes,
            progress=self.progress_of("estimate"),
        )

    def plan(self, table: ProfileTable, curve: SampleEfficiency) -> tuple[ProfileTable, Plan]:
        """A plan whose pick stays under the cap also when it is measured again, for longer; and the table with that."""
        plan = self.folder.load(Plan)
        if plan is None:
            # Later than the training run, whose noise would otherwise be the noise that is seen here.
            self._back_to_start(rest_s=REST_S)
            table, plan = self._confirmed(table, curve)
            plan = self._with_evaluations(plan)
            self.folder.save(table)
            self.folder.save(plan)
        return table, plan

    def train(self, plan: Plan) -> TrainingRecord:
        """Training at the planned point."""
        self._back_to_start()
        record = self.folder.load(TrainingRecord)
        # One that was stopped for safety continues from its checkpoint: the user has removed the cause by now.
        if record is not None and not (self.config.resume and record.ended == "stopped for safety"):
            return record
        record = steps.train(
            self.board,
            self.work,
            plan,
            cap_w=self.config.moving_cap,
            yield_to=self.yield_to,
            max_temp_c=self.config.max_temp,
            seed=self.config.seed,
            checkpoint=self.folder.checkpoint,
            resume=self.config.resume,
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
            cap_w=self.config.whole_cap,
            goal=self.config.whole_goal,
            seeds=self.config.seeds or SEEDS,
            folder=self.folder.target_curves,
            processes=self.config.processes,
            progress=self.progress_of("compare"),
            price=self._price_of(),
        )
        return self.folder.save(comparison)

    def _price_of(self) -> Callable[..., TrainingRecord] | None:
        """Function that prices a learning curve on the board; None for that of a workload."""
        return None

    def limit(self, table: ProfileTable | None = None) -> SensorLimit:
        """The limit at the sensor, by the supply that the table was measured with, or else by the board's."""
        supply, averaging_s = self.board.supply, self.board.sensor.window_s
        if table is not None:
            supply, averaging_s = table.supply, table.sensor_window_s or averaging_s
        return self.cap.at_sensor(supply, averaging_s)

    def progress_of(self, step: str) -> Progress | None:
        """The same progress, with the name of the step before each text; called at once for the step's beginning."""
        progress = self.progress
        if progress is None:
            return None
        progress(0, 0, f"{step}: started")
        return lambda done, total, what: progress(done, total, f"{step}: {what}")

    def warn(self, text: str) -> None:
        """Pass a warning to the caller's progress."""
        if self.progress is not None:
            self.progress(0, 0, f"warning: {text}")

    def _confirmed(self, table: ProfileTable, curve: SampleEfficiency) -> tuple[ProfileTable, Plan]:
        limit, progress = self.limit(table), self.progress_of("plan")
        asked = self.config
        choose = partial(steps.plan, cap_w=asked.whole_cap, goal=asked.whole_goal, carbon=asked.intensity)
        while True:
            plan = choose(table, curve)
            if limit.limit_w is None or not self._can_confirm:
                return table, plan
            if progress is not None:
                progress(0, 1, f"measuring batch size {plan.batch_size} again, for longer")
            table = profiling.confirm(self.board, self.work, table, plan.point, limit)
            confirmed = choose(table, curve)
            if confirmed.point == plan.point:
                return table, confirmed

    @property
    def _can_confirm(self) -> bool:
        """True if the pick can be measured again: on a real board, no probe follows a cap that changes."""
        return self.config.moving_cap is None or not self.board.executes_steps

    def _with_evaluations(self, plan: Plan) -> Plan:
        from wattune import training  # with torch

        costs = None if plan.caps or plan.schedule else training.evaluation_costs(self.board, self.work, plan)
        if costs is None:
            return plan
        evaluation_s, checkpoint_s = costs
        return planning.with_evaluations(
            plan, every_samples=self.work.evaluate_every, evaluation_s=evaluation_s, checkpoint_s=checkpoint_s
        )

    def _back_to_start(self, rest_s: float = 0.0) -> None:
        # A simulated board begins each step in the state of the first, so that a resumed run ends with equal figures.
        if self.start is not None:
            self.board.load_state_dict(self.start)
            if rest_s:
                self.board.wait(rest_s)


def begin(
    board: Device,
    work: Workload,
    config: RunConfig,
    folder: RunFolder,
    progress: Progress | None = None,
    yield_to: Callable[[], bool] | None = None,
) -> ResumableRun:
    """Check what can be checked before anything has cost time, and claim the run's folder.

    Raises: InputError and its kinds.
    """
    before = folder.arguments if config.resume else None
    check_workload(work, board, needs_proxy=config.server is None)
    given = None if config.profile is None else as_record(ProfileTable, config.profile)
    cap, strategy = config.whole_cap, config.strategy
    if isinstance(cap, CapSource):
        check_moving_cap(cap, board, has_profile=given is not None or config.resume)
        strategy = strategy or ("full" if given is None else None)  # each of its caps has points of its own
        # A file that is watched has other watts by now.
        cap = cap.highest() if before is None else replace(cap.form, limit_w=before.highest_w)
    check_run(board, work, cap, given)
    algorithm = algorithm_of(given, config.algorithm)
    config = config.model_copy(update={"device": board, "strategy": strategy, "algorithm": algorithm})
    arguments = RunArguments(arguments=config.saved(), highest_w=cap.limit_w, fingerprint=fingerprint(work))
    folder.claim(arguments, resume=config.resume)
    return ResumableRun(board, work, folder, config, cap, given, progress, yield_to=yield_to)


def run(
    device: str | Device | None = None,
    workload: str | Path | Workload | None = None,
    *,
    progress: Progress | None = None,
    token: str | None = None,
    yield_to: Callable[[], bool] | None = None,
    **arguments: Any,
) -> TrainingRecord:
    """Profile, estimate, plan, train and report under a power cap, in a folder of its own.

    ``device`` is a spec such as ``"sim:jetson-nano"`` or an open device; ``workload`` an object, the path of a workload
    file, or None for the built-in example. ``arguments`` are those of ``RunConfig``, such as ``cap_w``, ``goal``,
    ``output``: texts as on the command line, numbers in W, s, J and degrees Celsius, or objects (a ``PowerCap``, a
    callable from seconds to watts, a ``Goal``, a ``ProfileTable``, ``Data``). Under a cap that changes, the device is
    profiled under the highest of its caps, at every point, and the time of the caps begins with training.

    With ``resume``, the run in the folder ``output`` is continued: its arguments are remembered. With ``server``, the
    URL of a wattune server, its ``model`` is trained on ``data``, which never leaves this machine, and the server
    trains the proxy while this device is profiled; ``token`` is by default that in ``token_file`` or the environment
    variable ``WATTUNE_TOKEN``. Records that cannot be delivered are saved and delivered later. ``yield_to``: see
    ``train``.

    ``progress`` is called with how much of how much is done, and a text that begins with its step; with a server also
    from another thread, with a text that begins with "warning: ". A target that was not reached raises nothing: the
    record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError, ServerError.
    """
    named = {"device": device, "workload": workload}
    given = {key: value for key, value in named.items() if value is not None} | arguments
    return run_as(RunConfig.of_run(given), progress=progress, token=token, yield_to=yield_to)


def run_as(
    config: RunConfig,
    *,
    progress: Progress | None = None,
    token: str | None = None,
    yield_to: Callable[[], bool] | None = None,
) -> TrainingRecord:
    """Do all steps of ``run`` by these arguments. Raises: as ``run``."""
    has_plan = config.resume and config.output is not None and (config.output / "plan.json").is_file()
    # Read now, since planning comes late; a plan has its times, and needs the forecast no more.
    if not has_plan and (intensity := config.intensity) is not None:
        planning.check_intensity(intensity, config.whole_goal)
    assert config.output is not None
    with opened(config.device, seed=config.seed) as board, closing(RunFolder(config.output)) as folder:
        check_scale(config.whole_cap, board.highest_w)
        if config.server is not None:
            from wattune.job.with_server import run_with_server

            job, record = run_with_server(board, config, folder, progress, token, yield_to)
        else:
            if config.program is None:
                job = begin(board, as_workload(config.workload, progress), config, folder, progress, yield_to)
            else:
                from wattune.job.program_job import begin_program

                job = begin_program(board, config.program, config, folder, progress)
            table = job.profile()
            check_cap(table, job.cap)
            curve = job.estimate(table)
            table, plan = job.plan(table, curve)
            record = job.train(plan)
            if config.compare:
                job.compare(table, curve)
        reporting.write_report(job.folder.path, job.folder.report)
    return record
