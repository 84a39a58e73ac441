"""The part of a server in a run: its model, its curve, other devices' profiles; and what is told to it.

The server trains the proxy while the device is profiled. The data of the training is read here alone: what goes out are
requests, states, and records, of which the schemas say all that they hold.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from wattune import planning, profiling
from wattune.devices import RecordedDevice
from wattune.errors import DeviceError, InputError, ServerAway, ServerError, ServerRefused, WorkloadError
from wattune.folder import RunFolder
from wattune.job import Job
from wattune.records import EfficiencyCurve, Evaluation, Plan, ProfileTable, TrainingRecord
from wattune.records.served import DEVICE_NAME, DeviceStatus, ServedModel, SweepRequest
from wattune.remote import Offer, Reporter, Server
from wattune.workloads import Data, Loaders, Workload, device_workload

Progress = Callable[[int, int, str], None]

MOST_CHECKED = 2
"""Profiles of other devices that are checked by probes here, before the device measures one of its own."""


@dataclass
class Source:
    """A model of a server for a device's own data: what stands in place of a workload of one's own."""

    server: Server
    model: ServedModel
    work: Workload
    device_name: str


@contextmanager
def joined(
    *,
    server: str | None,
    model: str | None,
    data: str | Path | Data | Loaders | None,
    target: float | None,
    device_name: str | None,
    token: str | None,
    kept: Path | None,
    progress: Progress | None,
) -> Iterator[Source | None]:
    """Take the model from the server, if there is one. ``kept``: the folder of a run that goes on, whose model it is.

    Raises: InputError and its kinds; ServerError where the server is away and the model was not kept.
    """
    if server is None:
        yield None
        return
    assert model is not None  # held by check_source
    assert data is not None
    name = device_name or own_name()
    if not re.fullmatch(DEVICE_NAME, name):
        raise InputError("name of the device", value=name, allowed="letters, digits, dots, dashes and underscores")

    def tell(text: str) -> None:
        if progress is not None:
            progress(0, 0, f"warning: {text}")

    with Server(server, token=token, tell=tell) as found:
        found.deliver()
        before = None if kept is None else RunFolder(kept).load(ServedModel)
        served = found.model(model) if before is None else before
        work = device_workload(served, found.weights(served), data, target=target)
        yield Source(found, served, _fitting(work, tell), name)


def own_name() -> str:
    """The name of this machine, as far as a server takes it."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:64]
    return name or "device"


@dataclass(kw_only=True)
class FleetJob(Job):
    """The steps of a run with a server: the same records, of which the efficiency comes from there."""

    source: Source
    request: SweepRequest = field(init=False)
    reporter: Reporter = field(init=False)
    profile_id: str | None = field(init=False, default=None)
    _ended: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder.save(self.source.model)
        work, asked, model = self.work, self.asked, self.source.model
        self.request = SweepRequest(
            model=model.model,
            algorithm=planning.learns_as(asked.algorithm),
            strategy="pooled" if asked.seeds is None else "full",
            seeds=asked.seeds,
            # None is all of them: devices that leave none out share one job.
            batch_sizes=None if work.batch_sizes == model.batch_sizes else work.batch_sizes,
        )
        first = DeviceStatus(
            device=self.source.device_name,
            board=self.board.name[:200],
            kind=self.board.kind,
            model=model.model,
            run=uuid.uuid4().hex[:12],  # not the folder, whose name may tell something
            step="waiting",
            cap_w=asked.cap_w,
            cap_side=asked.cap_side,
            target=work.target,
            metric_name=work.metric.name[:200],
        )
        self.reporter = Reporter(self.source.server, first)
        self.progress = self._told(self.progress)
        self.on_evaluation = self._evaluated

    @contextmanager
    def around(self) -> Iterator[None]:
        """The run: how it is doing is told meanwhile."""
        with self.reporter:
            yield
            is_bad = self._ended in ("diverged", "stopped for safety")
            self.reporter.tell(step="failed" if is_bad else "done", share=1.0, says=self._ended)

    def profile(self, known: ProfileTable | None) -> ProfileTable:
        """Start the sweep on the server, then as without one; another device's profile is taken where it holds here.

        Raises: ServerRefused besides.
        """
        is_new, is_known = self.folder.load(ProfileTable) is None, known is not None
        try:
            if is_new or self.folder.load(EfficiencyCurve) is None:
                self._begin_sweep()
            if is_new and known is None:
                known = self._neighbours()
        except (DeviceError, InputError):
            self.folder.abandon()
            raise
        table = super().profile(known)
        self.profile_id = getattr(table.provenance, "profile", None)
        if self.profile_id is None and not is_known and not isinstance(self.board, RecordedDevice):
            table = self._published(table)
        return table

    def estimate(self, table: ProfileTable) -> EfficiencyCurve:
        """The server's curve. Raises: ServerError, InputError."""
        curve = self.folder.load(EfficiencyCurve)
        if curve is not None:
            return curve
        return self.folder.save(self.source.server.sweep(self.request, self.source.model, self._in("estimate")))

    def plan(self, table: ProfileTable, curve: EfficiencyCurve) -> tuple[ProfileTable, Plan]:
        """As without a server, and told to it."""
        table, plan = super().plan(table, curve)
        job = self.request.key(self.source.model.digest)
        self.reporter.tell_plan(plan, profile=self.profile_id, job=job)
        return table, plan

    def train(self, plan: Plan) -> TrainingRecord:
        """As without a server; the record is delivered, now or when the server is back."""
        record = super().train(plan)
        source = self.source
        source.server.upload_training(record, device=source.device_name, model=source.model.model)
        self._ended = record.ended
        self.reporter.tell(samples=record.samples, power_w=record.power_mean_w)
        return record

    # -------------------------------------------------------------------------------------------------------- inside

    def _published(self, table: ProfileTable) -> ProfileTable:
        """The table with its name on the server, which a run that is resumed finds there."""
        if self.folder.load(Plan) is not None:  # by then it is another, with the pick measured again
            return table
        self.profile_id = self.source.server.publish_profile(table, device=self.source.device_name)
        if self.profile_id is None:
            return table
        made = table.provenance.model_copy(update={"profile": self.profile_id})
        return self.folder.save(table.model_copy(update={"provenance": made}))

    def _begin_sweep(self) -> None:
        """Raises: ServerError, ServerRefused; InputError where the server's model is another by now."""
        try:
            status = self.source.server.start(self.request, self.source.model)
        except ServerAway:
            return  # said; it is asked again when the curve is needed
        if (progress := self.progress) is not None:
            progress(0, 0, f"estimate: on the server, {status.state}")

    def _neighbours(self) -> ProfileTable | None:
        """The newest profile that the server has of this very board and model, if it holds here."""
        if isinstance(self.board, RecordedDevice) or self.asked.strategy is not None:
            return None
        key = profiling.profile_key(self.board, self.work, self.asked.algorithm)
        checked = 0
        try:
            for offer in self.source.server.profiles(key):
                table = self.source.server.profile(offer.id)
                if not self._covers(table):
                    continue
                if (found := self._checked(table, offer)) is not None:
                    return found
                checked += 1
                if checked == MOST_CHECKED:
                    break
        except (ServerError, ServerRefused) as error:
            self._warn(f"no profile of another device is used: {error}")
        return None

    def _covers(self, table: ProfileTable) -> bool:
        """Whether its cells are those that a profile of our own would have: another cap leads to others."""
        tried = {cell.batch_size for cell in (*table.cells, *table.aborted)}
        if tried != set(self.work.batch_sizes) or table.provenance.kind_on(self.board.kind):
            return False
        if self.asked.reference is True and table.reference is None:
            return False
        cap_w, limit_w = table.cost.cap_w if table.cost else None, self._limit_w(None)
        if table.strategy == "full":  # what is above its cap was not measured to the end
            return cap_w is None or (limit_w is not None and limit_w <= cap_w)
        return table.strategy == "staircase" and cap_w == limit_w

    def _checked(self, table: ProfileTable, offer: Offer) -> ProfileTable | None:
        """The table with a few of its cells measured here and a note of where it is from; None where it does not hold.

        Only cells that keep the cap even where they draw as much more as is tolerated are measured.
        """
        limit_w = self._limit_w(table)
        kept = [
            c for c in table.cells if limit_w is None or (c.power_peak_w or 0.0) * (1 + profiling.WITHIN) <= limit_w
        ]
        cost = None if table.cost is None else table.cost.model_copy(update={"cap_w": limit_w})
        try:
            again, found = profiling.check(
                self.board,
                self.work,
                table.model_copy(update={"cells": tuple(kept), "cost": cost, "notes": ()}),
                progress=self._in("profile"),
            )
        except InputError as error:
            self._warn(f"the profile of {offer.publisher} is not used: {error}")
            return None
        day = datetime.fromtimestamp(offer.created_s, timezone.utc).date()
        note = (
            f"measured by {offer.publisher} on {day}, checked here by {len(found.cells)} probes: none differs by more "
            f"than {found.largest:.1%} in time or power"
        )
        fresh = {cell.point: cell for cell in again.cells}
        made = again.provenance.model_copy(update={"publisher": offer.publisher, "profile": offer.id})
        # What it cost this device; the cap is that under which it was measured, and says how far it goes.
        spent = found.cost and found.cost.model_copy(update={"cap_w": table.cost.cap_w if table.cost else None})
        return again.model_copy(
            update={
                "cells": tuple(fresh.get(cell.point, cell) for cell in table.cells),
                "cost": spent,
                "notes": (*table.notes, note),
                "provenance": made,
            }
        )

    def _told(self, progress: Progress | None) -> Progress:
        def tell(done: int, total: int, what: str) -> None:
            step, _, text = what.partition(": ")
            if not text.startswith("warning: ") and step in ("profile", "estimate", "plan", "train", "compare"):
                self.reporter.tell(step=step, share=done / total if total else 0.0, says=text)
            if progress is not None:
                progress(done, total, what)

        return tell

    def _evaluated(self, now: Evaluation, power_w: float | None) -> None:
        self.reporter.tell(metric=now.metric, samples=now.samples, power_w=power_w)

    def _warn(self, text: str) -> None:
        if self.progress is not None:
            self.progress(0, 0, f"warning: {text}")


def _fitting(work: Workload, tell: Callable[[str], None]) -> Workload:
    """Without the batch sizes that are larger than all the training samples. Raises: WorkloadError."""
    sizes = tuple(size for size in work.batch_sizes if size <= work.train_samples)
    if sizes == work.batch_sizes:
        return work
    if not sizes:
        raise WorkloadError(
            "too few training samples", value=work.train_samples, allowed=f"at least {work.batch_sizes[0]}"
        )
    left = ", ".join(str(size) for size in work.batch_sizes if size not in sizes)
    tell(f"batch sizes {left} are left out: there are {work.train_samples} training samples")
    return replace(work, batch_sizes=sizes)
