"""The run of a program that trains: profile, estimate, plan, train and report, as for a workload."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from wattune import planning, profiling
from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, RecordError, SafetyStop
from wattune.job.coercion import Progress, as_record
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments, RunFolder
from wattune.job.run import ResumableRun
from wattune.point import Knobs, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.power.limiter import check_limit
from wattune.profiling.program.counted import counted_work
from wattune.profiling.program.profile_command import program_key
from wattune.program.learning import learn, watched
from wattune.program.workload import ProgramWorkload
from wattune.proxy.program_run import ProgramRun
from wattune.records import (
    EfficiencyPoint,
    Ending,
    Evaluation,
    LearningCurve,
    Plan,
    ProfileTable,
    SampleEfficiency,
    StepWork,
    TrainingRecord,
    provenance,
)
from wattune.search.observation import capped_powers


@dataclass
class ProgramJob(ResumableRun):
    """The run of a program: its steps make the same records as those of a workload."""

    works: dict[int, StepWork] = field(default_factory=dict, init=False)
    """The work of a step by its batch size, as counted for a simulated board."""

    @property
    def program(self) -> ProgramWorkload:
        """The program."""
        assert self.config.program is not None
        return self.config.program

    _can_confirm = False  # a program was measured for as long as that takes

    def _check(self, table: ProfileTable) -> None:
        """A given profile was checked before the folder was claimed."""

    def _with_evaluations(self, plan: Plan) -> Plan:
        return plan  # a program evaluates as it likes

    def _profiled(self) -> ProfileTable:
        return profiling.profile_command(
            self.board,
            self.program,
            strategy=self.config.strategy,
            limit=self.limit(),
            partial=self.folder.partial,
            progress=self.progress_of("profile"),
        )

    def _estimated(self, table: ProfileTable) -> SampleEfficiency:
        """Samples to target per batch size. On a board its runs stay below the cap, as training does.

        All run at the lowest of the batch sizes' highest settings below it, or lower. A batch size without such a
        setting is not trained, and has no samples. Raises: SafetyStop.
        """
        if not self.board.executes_steps:
            return super()._estimated(table)
        limit, highest = self.limit(table), dict[int, Knobs]()
        capped_w = capped_powers(table, limit.window_s)
        for cell in sorted(table.measured, key=lambda cell: cell.knobs.order):
            if limit.allows(capped_w(cell)):
                highest[cell.batch_size] = cell.knobs
        sizes = tuple(highest) if self.config.seeds else self.program.batch_sizes
        work = replace(self.program, batch_sizes=sizes)
        with self._capped(limit, min(highest.values(), key=lambda knobs: knobs.order)):
            curve = self._learned(cast(Any, work), table)
        known = {point.batch_size for point in curve.points}
        others = (
            EfficiencyPoint(batch_size=b, relative_samples=None) for b in self.program.batch_sizes if b not in known
        )
        return curve.model_copy(update={"points": (*curve.points, *others)})

    @contextmanager
    def _capped(self, limit: SensorLimit, knobs: Knobs) -> Iterator[CappedRun]:
        """Context in which programs run at this setting or lower, below the limit and the highest temperature."""

        def look() -> None:
            run.check()
            run.monitor.look(run.meter.elapsed_s)

        with CappedRun(self.board, replace(limit, max_temp_c=self.cap.max_temp_c), knobs) as run, watched(look):
            run.start()
            yield run

    def train(self, plan: Plan) -> TrainingRecord:
        """The program, run to its target at the planned point."""
        record = self.folder.load(TrainingRecord)
        if record is not None and record.ended != "stopped for safety":
            return record
        if self.board.executes_steps:
            return self.folder.save(self._made(plan, self.config.seed, partial(self._train, plan)))
        program, folder = self.program, self.folder.target_curves
        run = ProgramRun(program.fingerprint(), plan.batch_size, self.config.seed, "backprop", folder)
        curve = run.finished(program) or run.train(program)
        self._back_to_start()
        return self.folder.save(self._made(plan, curve.seed, partial(self._price, curve)))

    def _price_of(self) -> Callable[..., TrainingRecord]:
        def price(
            run: LearningCurve, _: object, __: object, point: OperatingPoint, *, cap_w: float | None, **___: object
        ) -> TrainingRecord:
            plan = Plan(**point.fields(), cap_w=cap_w, workload=run.workload, target=run.target)
            return self._made(plan, run.seed, partial(self._price, run))

        return price

    def _train(self, plan: Plan, run: CappedRun, evaluated: Callable[[Evaluation], None]) -> tuple[Ending, int]:
        """Run the program on the board."""
        progress = self.progress_of("train")

        def told(at: Evaluation) -> None:
            evaluated(at)
            if progress is not None:
                expected = round(plan.expected_samples or at.samples)
                progress(at.samples, expected, f"metric {at.metric:.4g} after {at.samples:,} samples")

        learned = learn(
            self.program,
            plan.batch_size,
            seed=self.config.seed,
            now_s=lambda: run.meter.elapsed_s,
            on_evaluation=told,
        )
        return learned.ended, learned.samples

    def _price(
        self, curve: LearningCurve, run: CappedRun, evaluated: Callable[[Evaluation], None]
    ) -> tuple[Ending, int]:
        """Let the simulated board make the steps of the run that gave ``curve``."""
        size, samples = curve.batch_size, 0
        work = self.works[size] = self.works.get(size) or counted_work(self.program.words(size), size)
        for at in curve.evaluations:
            while samples < at.samples:
                with self.board.step(work):
                    samples += size
                run.check()
            evaluated(at)
        return "target reached" if curve.reached else "budget used up", samples

    def _made(
        self,
        plan: Plan,
        seed: int,
        make: Callable[[CappedRun, Callable[[Evaluation], None]], tuple[Ending, int]],
    ) -> TrainingRecord:
        """The record of a run at the plan's point, under its cap."""
        board, program, cost = self.board, self.program, plan.profile_cost
        evaluations: list[Evaluation] = []
        ended: Ending = "stopped for safety"
        samples, reason = 0, None
        board.select(plan.knobs)
        with self._capped(plan.limit, plan.knobs) as run:
            try:
                ended, samples = make(run, lambda at: evaluations.append(_costed(at, run)))
            except SafetyStop as stop:
                reason = str(stop)
                samples = evaluations[-1].samples if evaluations else 0
        figures = run.meter.figures()
        same = "time_s", "energy_j", "power_mean_w", "power_peak_w", "above_cap_s", "readings", "readings_above_cap"
        left_out = {} if board.executes_steps else {"left_out": "evaluations, which were not counted"}
        return TrainingRecord(
            plan=plan,
            metric=program.metric,
            target=program.target,
            reached=ended == "target reached",
            ended=ended,
            reason=reason,
            samples=samples,
            **{name: getattr(figures, name) for name in same},
            power_window_w=figures.power_window_w if plan.cap_w is not None else None,
            evaluations=tuple(evaluations),
            max_temp_c=self.cap.max_temp_c,
            temperature_max_c=run.monitor.temperature_max_c,
            guard=run.limiter.events,
            board_events=run.board_events,
            exact=None if run.truth is None else run.truth.figures(),
            profiling_share=cost.time_s / figures.time_s if cost is not None and figures.time_s else None,
            provenance=provenance(
                board.kind, device=board.name, model=program.command, data=program.data, seed=seed, **left_out
            ),
        )


def _costed(at: Evaluation, run: CappedRun) -> Evaluation:
    """The evaluation with time and energy until now, once the sensor was read."""
    if not run.limiter.has_read:
        return at
    figures = run.meter.figures()
    return at.model_copy(update={"time_s": figures.time_s, "energy_j": figures.energy_j})


def begin_program(
    board: Device, program: ProgramWorkload, config: RunConfig, folder: RunFolder, progress: Progress | None
) -> ProgramJob:
    """Check what can be checked before anything has cost time, and claim the run's folder.

    Raises: InputError and its kinds.
    """
    cap = config.constant_cap
    program.check()
    check_limit(board, cap.max_temp_c)
    cap.at_sensor(board.supply, board.sensor.window_s)
    if not board.executes_steps:
        import torch  # noqa: F401 - counts the program's steps: a missing one is told before a folder is made
    elif config.compare:
        raise InputError("compare", value=board.name, allowed="a simulated board, which prices the pick of every rule")
    given = None if config.profile is None else as_record(ProfileTable, config.profile)
    if given is not None:
        planning.check_profile(given, program_key(board, program.template), kind=board.kind)
        if others := sorted({cell.batch_size for cell in given.measured} - set(program.batch_sizes)):
            raise RecordError(
                "the profile has other batch sizes than the program",
                value=", ".join(map(str, others)),
                allowed=", ".join(map(str, program.batch_sizes)),
                hint="give those of the profile",
            )
    config = config.model_copy(update={"device": board})
    fingerprint = f"{program.fingerprint()} {program.proxy.fingerprint()}"
    arguments = RunArguments(
        arguments=config.saved(), highest_w=cap.limit_w, fingerprint=fingerprint, working_folder=os.getcwd()
    )
    folder.claim(arguments, resume=config.resume)
    return ProgramJob(board, cast(Any, program), folder, config, cap, given, progress)
