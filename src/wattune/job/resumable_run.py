"""A run that can be resumed: each step returns the record that is in the run's folder, or makes and saves it.

Each step passes a record on to the next, and saves it in the run's folder as soon as it is made. An interrupted run
skips the records that exist and continues inside the step that was not finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from wattune import planning, profiling, reporting, training
from wattune.cap import PowerCap, SensorLimit
from wattune.cap_trace import MovingCap, cap_of, check_scale
from wattune.devices import Device
from wattune.errors import DeviceError, InputError, WorkloadError
from wattune.goal import TIME, Goal
from wattune.job import steps
from wattune.job.checks import (
    algorithm_of,
    check_cap,
    check_command,
    check_moving_cap,
    check_profile,
    check_run,
    check_workload,
    fingerprint,
)
from wattune.job.coercion import as_record, as_workload, opened
from wattune.job.folder import RunArguments, RunFolder, free_folder
from wattune.job.steps import AnyCap, Progress
from wattune.power.capped_run import Readings
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
    on_evaluation: Callable[[Evaluation, Readings], None] | None = None
    moving: MovingCap | None = None
    yield_to: Callable[[], bool] | None = None
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
                    goal=self.arguments.goal,
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
        is_guided = self.arguments.strategy == "guided" or (table.strategy == "guided" and not self.arguments.seeds)
        curve = steps.estimate(
            self.work,
            seeds=None if is_guided else self.arguments.seeds or SEEDS,
            step_times=planning.log_step_times(table, self.limit(table), self.arguments.goal) or None
            if is_guided
            else None,
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
            plan = self._with_evaluations(plan)
            if self.moving is None:  # which is that of a point under one cap
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
            cap_w=self.moving,
            yield_to=self.yield_to,
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
            goal=self.arguments.goal,
            seeds=self.arguments.seeds or SEEDS,
            folder=self.folder.target_curves,
            processes=self.processes,
            progress=self.progress_of("compare"),
        )
        return self.folder.save(comparison)

    def limit(self, table: ProfileTable | None = None) -> SensorLimit:
        """The limit at the sensor, by the supply that the table was measured with, or else by the board's."""
        supply, averaging_s = self.board.supply, self.board.sensor.window_s
        if table is not None:
            supply, averaging_s = table.supply, table.sensor_window_s or averaging_s
        return self.arguments.cap.at_sensor(supply, averaging_s)

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
        cap = self.arguments.cap if self.moving is None else self.moving
        asked = self.arguments
        choose = partial(steps.plan, cap_w=cap, goal=asked.goal, carbon=asked.carbon, tariff=asked.tariff)
        while True:
            plan = choose(table, curve)
            # On a real board, no probe follows a cap that changes.
            if limit.limit_w is None or (self.moving is not None and self.board.executes_steps):
                return table, plan
            if progress is not None:
                progress(0, 1, f"measuring batch size {plan.batch_size} again, for longer")
            table = profiling.confirm(self.board, self.work, table, plan.point, limit)
            confirmed = choose(table, curve)
            if confirmed.point == plan.point:
                return table, confirmed

    def _with_evaluations(self, plan: Plan) -> Plan:
        costs = None if plan.caps or plan.schedule else training.evaluation_costs(self.board, self.work, plan)
        if costs is None:
            return plan
        evaluation_s, checkpoint_s = costs
        return planning.with_evaluations(
            plan, every_samples=self.work.evaluate_every, evaluation_s=evaluation_s, checkpoint_s=checkpoint_s
        )

    def _with_robustness(self, plan: Plan, curve: SampleEfficiency) -> Plan:
        if not self.arguments.goal.is_time or not self.board.variants(1):
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


def _caps(cap_w: AnyCap, before: RunArguments | None) -> tuple[MovingCap | None, PowerCap]:
    """The cap if it changes, and the constant one, or the highest; ``before``: the arguments of a run that resumes."""
    cap = cap_of(cap_w)
    if isinstance(cap, PowerCap):
        return None, cap
    return cap, cap.highest() if before is None or before.caps is None else before.cap


def run(
    device: str | Device,
    workload: str | Path | Workload | None = None,
    *,
    cap_w: AnyCap,
    goal: Goal | str = TIME,
    yield_to: Callable[[], bool] | None = None,
    output: str | Path | None = None,
    seeds: int | None = None,
    seed: int = 0,
    strategy: str | None = None,
    reference: bool | None = None,
    algorithm: str | None = None,
    profile: str | Path | ProfileTable | None = None,
    carbon: str | Path | None = None,
    tariff: str | Path | None = None,
    compare: bool = False,
    resume: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> TrainingRecord:
    """Profile, estimate, plan, train and report under a power cap, in a folder of its own.

    ``device`` is a spec such as ``"sim:jetson-nano"`` or an open device; ``workload`` an object, the path of a workload
    file, or None for the built-in example. ``cap_w``: watts at the power sensor, a text such as "10W" or "12W@supply",
    a ``PowerCap`` (which may have a margin and a highest temperature of the board), or None for no cap; or a cap that
    changes, as in ``plan``: the device is then profiled under the highest of its caps, at every point, and the time of
    the caps begins with training. ``goal``, ``carbon``, ``tariff``: see ``plan``. ``yield_to``: see ``train``.

    ``output`` is a new or empty folder, by default the first free ``wattune-run-N``; with ``resume`` it is the folder
    of a run that was interrupted. ``profile`` is one that was measured before with this device and model, under any
    cap; it is then not measured again. ``seeds``: how often each batch size is trained on the proxy (and with
    ``compare`` on the target); None: with a guided profile only as often as necessary, see ``estimate``,
    "pooled"; otherwise 3. ``seed``: the seed of the training run. ``strategy``: see ``profile``. ``reference``: also
    measure the reference workloads, as ``profile`` does. ``algorithm``: which one trains, with its options, as in
    "async-fgd:modules=4"; None is that of the given profile, or backprop.

    ``progress`` is called with how much of how much is done, and a text that begins with its step. A target that was
    not reached raises nothing: the record's ``reached`` is False.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError.
    """
    moving, cap = _caps(cap_w, RunFolder(Path(output)).arguments if resume and output else None)
    if moving is not None and compare:
        raise InputError("a comparison of rules with a cap that changes", allowed="a constant cap")
    has_plan = resume and output is not None and (Path(output) / "plan.json").is_file()
    # Read now, since planning comes late; a plan has its times, and needs the forecast no more.
    if not has_plan and (intensity := steps.intensity_of(carbon, tariff)) is not None:
        planning.check_intensity(intensity, Goal.of(goal), is_moving=moving is not None)
    if moving is not None and not Goal.of(goal).is_time:
        raise InputError("a goal with a cap that changes", value=Goal.of(goal).aim, allowed="time")
    if moving is not None and strategy is None and profile is None:
        strategy = "full"  # each of its caps has points of its own
    with opened(device, seed=seed) as board:
        check_scale(moving or cap, board.highest_w)
        work = as_workload(workload, progress)
        check_workload(work, board)
        check_moving_cap(moving, board, has_profile=profile is not None or resume)
        given_profile = None if profile is None else as_record(ProfileTable, profile)
        arguments = RunArguments.check(
            cap,
            caps=None if moving is None else str(moving),
            cap_range=None if moving is None else moving.range_text,
            device=board.spec or board.name,
            workload=work.name if isinstance(workload, Workload) else workload and str(workload),
            goal=Goal.of(goal),
            carbon=None if carbon is None else str(carbon),
            tariff=None if tariff is None else str(tariff),
            seeds=seeds,
            seed=seed,
            strategy=strategy,
            reference=reference,
            compare=compare,
            algorithm=algorithm_of(given_profile, algorithm),
            fingerprint=fingerprint(work),
        )
        check_run(arguments, board, work, given_profile, command=check_command(board, profile, workload))
        folder = RunFolder.open(Path(output or free_folder()), arguments, resume=resume)
        job = ResumableRun(
            board,
            work,
            folder,
            arguments,
            resume,
            processes,
            progress,
            moving=moving,
            yield_to=yield_to,
        )
        table = job.profile(given_profile)
        check_scale(moving or cap, table.highest_w)
        check_cap(table, cap)
        curve = job.estimate(table)
        table, plan = job.plan(table, curve)
        record = job.train(plan)
        if compare:
            job.compare(table, curve)
    reporting.write_report(folder.path, folder.report)
    return record
