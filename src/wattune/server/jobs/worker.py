"""Worker: claims units of work, trains them, and renews its lease meanwhile."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, stop_when_event_set, wait_fixed

from wattune.errors import InputError, OutputError, RecordError, TargetNotReached
from wattune.records import Evaluation
from wattune.server.jobs.claims import Claim
from wattune.server.jobs.store_queue import StoreQueue
from wattune.server.jobs.sweep_unit import Sweep, Train, train_here
from wattune.server.store import StoreUnavailable

POLL_S = 0.5
"""Interval in seconds at which an idle worker polls for a unit, and at which a failed call is retried."""

MAX_POLL_S = 5.0
"""Longest interval in seconds at which a worker polls during an outage."""

_LOG = logging.getLogger("wattune.server.jobs.worker")


if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]  # at run time, only from Python 3.11 on


class LeaseLost(Exception):  # control flow, not an error
    """The worker no longer holds the unit."""


class ShutdownRequested(Exception):  # control flow, not an error
    """The server is stopping."""


class Worker:
    """Processor of units, one at a time."""

    def __init__(self, queue: StoreQueue, *, train: Train = train_here):
        self.stopping = threading.Event()
        self._queue = queue
        self._train = train
        self._sweep: Sweep | None = None
        self._log = logging.LoggerAdapter(_LOG, {"worker": queue.name})

    def run(self) -> None:
        """Process units until ``stopping`` is set."""
        outage_s = POLL_S
        while not self.stopping.is_set():
            try:
                if not self.step():
                    self.stopping.wait(POLL_S)
                outage_s = POLL_S
            except StoreUnavailable as error:
                self._log.warning("%s", error)
                self.stopping.wait(outage_s)
                outage_s = min(2 * outage_s, MAX_POLL_S)

    def step(self) -> bool:
        """Claim and process one unit; False if there is none. Raises: StoreUnavailable."""
        claim = self._queue.claim()
        if claim is None:
            return False
        started_s = time.monotonic()
        with _Lease(self._queue, claim, self._log) as lease:
            try:
                self._work_on(claim, lease)
                self._log.info("%s done in %.1f s", claim, time.monotonic() - started_s)
            except LeaseLost:
                self._log.warning("%s: lease lost, result dropped", claim)
            except ShutdownRequested:
                with suppress(LeaseLost):
                    self._with_retries(claim, lambda: self._queue.release(claim))
            except Exception as error:  # noqa: BLE001  # entry point: any error ends the attempt
                self._failed(claim, error)
        return True

    def _work_on(self, claim: Claim, lease: _Lease) -> None:
        if self._sweep is None or self._sweep.job_id != claim.job_id:
            self._sweep = None
            self._sweep = Sweep(claim, self._queue.files, self._queue.work)
        sweep = self._sweep
        if claim.chooses:
            outcome = sweep.choose(claim)
            self._report(claim, lambda: self._queue.choose(claim, outcome))
            if isinstance(outcome, dict):  # the job is complete in the store
                shutil.rmtree(sweep.folder, ignore_errors=True)
            return

        def look(_: Evaluation) -> None:
            if lease.is_lost.is_set():
                raise LeaseLost
            if self.stopping.is_set():
                raise ShutdownRequested

        curve = sweep.train(claim, look, self._train)
        self._report(claim, lambda: self._queue.finish(claim, curve))
        sweep.forget(claim)

    def _failed(self, claim: Claim, error: Exception) -> None:
        # An unreadable record may be a truncated checkpoint, and a full disk may have space again.
        is_of_job = isinstance(error, (InputError, TargetNotReached))
        is_final = is_of_job and not isinstance(error, (OutputError, RecordError))
        reason = str(error) if is_of_job else f"{type(error).__name__}: {error}"
        # Neither a database nor JSON takes every character, such as NUL.
        reason = "".join(char if char.isprintable() else "?" for char in " ".join(reason.split()))[:500]
        self._log.warning("%s, attempt %d: %s", claim, claim.attempt, reason)
        if isinstance(error, RecordError) and self._sweep is not None and not claim.chooses:
            with suppress(OSError):
                self._sweep.forget(claim)
        self._sweep = None
        with suppress(LeaseLost):
            self._report(claim, lambda: self._queue.fail(claim, reason, is_final=is_final))

    def _report(self, claim: Claim, write: Callable[[], bool]) -> None:
        """Write a result. Raises: LeaseLost if it was refused, or could not be written while the lease lasts."""
        if not self._with_retries(claim, write):
            raise LeaseLost

    def _with_retries(self, claim: Claim, write: Callable[[], bool | None]) -> bool | None:
        """Write with retries until the lease would expire.

        Raises: LeaseLost if the queue stays unavailable; the unit is then processed again.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop_after_delay(claim.lease_s) | stop_when_event_set(self.stopping),
            wait=wait_fixed(POLL_S),
            after=lambda attempt: self._log.warning("%s", attempt.outcome and attempt.outcome.exception()),
            reraise=True,
        )
        try:
            return retrying(write)
        except StoreUnavailable as error:
            raise LeaseLost from error


class _Lease:
    """Context manager that renews a lease in a thread; sets ``is_lost`` when the lease is lost."""

    def __init__(self, queue: StoreQueue, claim: Claim, log: Log):
        self.is_lost = threading.Event()
        self._queue, self._claim, self._log = queue, claim, log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="wattune-lease", daemon=True)

    def __enter__(self) -> _Lease:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._done.wait(self._claim.renew_every_s):
            try:
                if not self._queue.renew(self._claim):
                    self.is_lost.set()
                    return
            except StoreUnavailable as error:
                self._log.warning("%s", error)
