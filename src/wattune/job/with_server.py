"""A run with a server, which has the model and trains the proxy meanwhile.

The training data is read here alone: only requests, states and records are sent, and their schemas say all they hold.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune import planning
from wattune.devices import Device
from wattune.errors import DeviceError, InputError, ServerUnavailable, WorkloadError
from wattune.job.checks import check_cap
from wattune.job.coercion import Progress
from wattune.job.config import RunConfig
from wattune.job.folder import RunFolder
from wattune.job.run import ResumableRun, begin
from wattune.power.capped_run import Readings
from wattune.records import Evaluation, Plan, ProfileTable, SampleEfficiency, TrainingRecord
from wattune.records.served import DEVICE_NAME, DeviceStatus, ServedModel, SweepRequest
from wattune.remote import Client, Reporter
from wattune.workloads import Workload, device_workload


def run_with_server(
    board: Device,
    config: RunConfig,
    folder: RunFolder,
    progress: Progress | None = None,
    token: str | None = None,
    yield_to: Callable[[], bool] | None = None,
) -> tuple[ResumableRun, TrainingRecord]:
    """Do all steps of a run with a model of a server, on local data.

    The server trains the proxy while this device is profiled: pooled, or with ``seeds`` each batch size that often.

    Raises: InputError and its kinds for what cannot be done as asked, DeviceError, ServerError.
    """
    assert config.server is not None
    assert config.model is not None
    assert config.data is not None
    device_name = _checked_name(config.name) or own_name()
    if token is None and config.token_file is not None:
        token = token_in(config.token_file)

    def warn(text: str) -> None:
        if progress is not None:
            progress(0, 0, f"warning: {text}")

    with Client(config.server, token=token, notify=warn) as client:
        client.deliver()
        served_model = folder.load(ServedModel) if config.resume else None
        served_model = served_model or client.model(config.model)
        weights = client.weights(served_model)
        work = _fitting(device_workload(served_model, weights, config.data, target=config.target), warn)
        steps = begin(board, work, config, folder, progress, yield_to)
        steps.folder.save(served_model)
        link = ServerLink(steps, client, served_model, device_name)
        with link.reporter:
            link.begin()
            table = link.published(steps.profile())
            check_cap(table, steps.cap)
            curve = link.estimate()
            table, plan = steps.plan(table, curve)
            link.tell_plan(plan)
            record = steps.train(plan)
            link.deliver(record)
            if config.compare:
                steps.compare(table, curve)
            link.tell_end(record)
    return steps, record


def token_in(path: Path) -> str:
    """The token in a file. Raises: InputError."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:  # not its content: that is a secret
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError("token_file cannot be read", value=str(path), hint=why) from error


class ServerLink:
    """The server's part in one run: the sweep, and what the run reports to it.

    It takes over the progress and the evaluations of ``steps``, and passes the progress on.
    """

    def __init__(self, steps: ResumableRun, client: Client, served_model: ServedModel, device_name: str):
        self.steps = steps
        self.client = client
        self.served_model = served_model
        self.device_name = device_name
        self.profile_id: str | None = None
        work, config = steps.work, steps.config
        self.request = SweepRequest(
            model=served_model.model,
            algorithm=planning.learns_as(steps.algorithm),
            strategy="pooled" if config.seeds is None else "full",
            seeds=config.seeds,
            # None is all of them: devices that leave none out share one job.
            batch_sizes=None if work.batch_sizes == served_model.batch_sizes else work.batch_sizes,
        )
        first = DeviceStatus(
            device=device_name,
            board=steps.board.name[:200],
            kind=steps.board.kind,
            model=served_model.model,
            run=uuid.uuid4().hex[:12],  # not the folder, whose name may give something away
            step="waiting",
            cap_w=steps.cap.limit_w,
            cap_side=steps.cap.side,
            target=work.target,
            metric_name=work.metric.name[:200],
        )
        self.reporter = Reporter(client, first)
        self._progress = steps.progress
        steps.progress = self._report
        steps.on_evaluation = self._report_evaluation

    def begin(self) -> None:
        """Start the sweep on the server.

        Raises: ServerRefused, DeviceError; InputError if the server's model has changed. The folder is then emptied.
        """
        folder = self.steps.folder
        if folder.load(ProfileTable) is not None and folder.load(SampleEfficiency) is not None:
            return
        try:
            self._begin_sweep()
        except (DeviceError, InputError):
            folder.abandon()
            raise

    def published(self, table: ProfileTable) -> ProfileTable:
        """The table, with its name on the server; one that was measured here is published there first."""
        self.profile_id = getattr(table.provenance, "profile", None)
        if self.profile_id is not None or self.steps.given is not None or self.steps.board.kind == "replayed":
            return table
        if self.steps.folder.load(Plan) is not None:  # by then it is another, with the pick measured again
            return table
        self.profile_id = self.client.publish_profile(table, device=self.device_name)
        if self.profile_id is None:
            return table
        # A run that is resumed finds the name there.
        origin = table.provenance.model_copy(update={"profile": self.profile_id})
        return self.steps.folder.save(table.model_copy(update={"provenance": origin}))

    def estimate(self) -> SampleEfficiency:
        """The server's curve, awaited if necessary. Raises: ServerError, InputError."""
        folder = self.steps.folder
        curve = folder.load(SampleEfficiency)
        if curve is not None:
            return curve
        return folder.save(self.client.sweep(self.request, self.served_model, self.steps.progress_of("estimate")))

    def tell_plan(self, plan: Plan) -> None:
        """Report the plan, with the names of the profile and the job that it comes from."""
        job = self.request.key(self.served_model.digest)
        self.reporter.update(batch_size=plan.batch_size, clock_mhz=plan.clock_mhz, profile=self.profile_id, job=job)

    def deliver(self, record: TrainingRecord) -> None:
        """Deliver the record, now or when the server can be reached again."""
        self.client.upload_training(record, device=self.device_name, model=self.served_model.model)
        values = {"samples": record.samples, "power_w": record.power_mean_w, "above_cap_s": record.above_cap_s}
        self.reporter.update(**values)

    def tell_end(self, record: TrainingRecord) -> None:
        """Report how the run ended."""
        is_bad = record.ended in ("diverged", "stopped for safety")
        self.reporter.update(step="failed" if is_bad else "done", share=1.0, says=record.ended)

    def _begin_sweep(self) -> None:
        try:
            status = self.client.start(self.request, self.served_model)
        except ServerUnavailable:
            return  # the client has warned; it asks again when the curve is needed
        self._report(0, 0, f"estimate: on the server, {status.state}")

    def _report(self, done: int, total: int, what: str) -> None:
        step, _, text = what.partition(": ")
        if not text.startswith("warning: ") and step in ("profile", "estimate", "plan", "train", "compare"):
            # Evaluations report the readings of training, whose sensor another thread reads meanwhile.
            state = {} if step == "train" else self._board_state()
            self.reporter.update(step=step, share=done / total if total else 0.0, says=text, **state)
        if self._progress is not None:
            self._progress(done, total, what)

    def _report_evaluation(self, evaluation: Evaluation, readings: Readings) -> None:
        throttled = self.steps.board.conditions().throttled
        values = {"metric": evaluation.metric, "samples": evaluation.samples, "throttled": throttled}
        self.reporter.update(**values, **readings._asdict())

    def _board_state(self) -> dict[str, Any]:
        """Present power, temperature and throttling of the board."""
        board = self.steps.board
        now = board.conditions()
        state: dict[str, Any] = {"temperature_c": now.temperature_c, "throttled": now.throttled}
        with suppress(DeviceError):  # no reading: what the run measures decides what that means
            state["power_w"] = board.guarded_w(board.power_w())
        return state


def own_name() -> str:
    """The name of this machine, with the characters that the server accepts."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:64]
    return name or "device"


def _checked_name(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(DEVICE_NAME, name):
        raise InputError("name of the device", value=name, allowed="letters, digits, dots, dashes and underscores")
    return name


def _fitting(work: Workload, warn: Callable[[str], None]) -> Workload:
    """Without the batch sizes that are larger than all the training samples. Raises: WorkloadError."""
    sizes = tuple(size for size in work.batch_sizes if size <= work.train_samples)
    if sizes == work.batch_sizes:
        return work
    if not sizes:
        raise WorkloadError(
            "too few training samples", value=work.train_samples, allowed=f"at least {work.batch_sizes[0]}"
        )
    omitted = ", ".join(str(size) for size in work.batch_sizes if size not in sizes)
    warn(f"batch sizes {omitted} are left out: there are {work.train_samples} training samples")
    return replace(work, batch_sizes=sizes)
