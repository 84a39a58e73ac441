"""Training beside an inference service on the same board: requests go first, between two micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from wattune.power.capped_run import CappedRun
from wattune.power.request_queue import RequestQueue

LONGEST_S: Final = 1.0
"""Seconds that one micro-batch waits for requests at most, since a service that is never idle would stop training."""

POLL_S: Final = 0.002
"""Seconds between two looks at the queue while training waits."""


class Beside:
    """Makes room for the requests of ``queue`` in a capped run: ``make_room`` is called before each micro-batch.

    A request then waits for one micro-batch at most. A service that is never idle for ``LONGEST_S`` does not stop
    training: one micro-batch runs then, and the run's events say so, as they do of a service that does not answer.

    ``waits``: how often training waited, ``waited_s``: seconds in all; ``overruns``: how often it began although
    requests waited. ``around_wait``: a context around each wait, which is not part of a step; ``on_note``: called with
    each event.
    """

    def __init__(
        self,
        capped: CappedRun,
        queue: RequestQueue,
        *,
        around_wait: Callable[[], AbstractContextManager[Any]] = nullcontext,
        on_note: Callable[[str], None] = lambda text: None,
    ):
        self.waits = self.overruns = 0
        self.waited_s = 0.0
        self._capped, self._queue, self._around = capped, queue, around_wait
        self._on_note = on_note
        self._problem: str | None = None
        self._is_busy = False

    def make_room(self) -> float:
        """Wait until no request waits or runs, or for ``LONGEST_S``. Returns: seconds that it took.

        Raises: SafetyStop, DeviceError.
        """
        waiting = self._look()
        if not waiting:
            self._note_busy(is_busy=False)
            return 0.0
        device = self._capped.device
        begun_s = device.now_s()
        with self._around():
            while waiting and device.now_s() - begun_s < LONGEST_S:
                self._queue.rest(device, POLL_S)
                self._capped.check()
                waiting = self._look()
        seconds = device.now_s() - begun_s
        self.waits, self.waited_s = self.waits + 1, self.waited_s + seconds
        self.overruns += bool(waiting)
        self._note_busy(is_busy=bool(waiting))
        return seconds

    def _look(self) -> int:
        """Requests now; 0 if unknown, since training does not stop for a service that is gone."""
        waiting, problem = self._queue.waiting(), self._queue.problem
        if problem != self._problem:
            answer = "answers again" if problem is None else f"training does not wait for requests: {problem}"
            # The reason may change while it is gone.
            if problem is None or self._problem is None:
                self._note(f"the inference service {answer}" if problem is None else answer)
            self._problem = problem
        return waiting or 0

    def _note_busy(self, *, is_busy: bool) -> None:
        if is_busy and not self._is_busy:
            self._note(f"requests waited for longer than {LONGEST_S:g} s: one micro-batch runs after each such wait")
        elif self._is_busy and not is_busy:
            self._note("the requests that training waited for are answered")
        self._is_busy = is_busy

    def _note(self, text: str) -> None:
        self._capped.monitor.note(self._capped.meter.elapsed_s, "inference", text)
        self._on_note(text)

    def close(self) -> None:
        """Release the queue."""
        self._queue.close()

    def fields(self) -> dict[str, Any]:
        """Fields of a record."""
        return {"yields": self.waits, "yielded_s": self.waited_s, "yields_cut_short": self.overruns}

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return self.fields()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self.waits, self.waited_s = state["yields"], state["yielded_s"]
        self.overruns = state["yields_cut_short"]
