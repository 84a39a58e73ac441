"""Backends that run the modules of a pipeline in one tick: one after another, or in a thread each."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
Call = Callable[[], Result]


class Backend(ABC):
    """Runner of one call for each module, inside the caller's ``forward_ad.level``."""

    @abstractmethod
    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run all calls, and return their results in order. Calls may wait for the result of the last one;
        ``last_failed`` is called if there will be none.

        All calls have ended when it returns or raises; it raises the error of the first call that failed.
        """

    def close(self) -> None:
        """Release its resources."""
        return


class Sequential(Backend):
    """Run the last module first: each takes its input before the module in front of it produces the next one, so that
    at most one pair of activations and tangent waits between two modules."""

    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run one after another in the caller's thread."""
        return [call() for call in reversed(calls)][::-1]


class Threads(Backend):
    """A thread for each module but the last, which runs in the caller's thread.

    PyTorch's operations release Python's global lock, so modules overlap to the extent that their time is in
    operations. Each gets its share of the threads that one operation may use. Between two calls of ``run`` the threads
    wait; ``close`` ends them.
    """

    def __init__(self, modules: int):
        self._share = max(1, torch.get_num_threads() // modules)
        self._results: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._calls: list[SimpleQueue[Call[Any] | None]] = [SimpleQueue() for _ in range(modules - 1)]
        self._threads = [
            threading.Thread(target=self._work, args=(place,), name=f"module {place + 1}", daemon=True)
            for place in range(modules - 1)
        ]
        threads = torch.get_num_threads()
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._results.get()
        torch.set_num_threads(threads)  # a thread that sets its number also changes that of future threads

    def run(self, calls: Sequence[Call[Result]], last_failed: Callable[[], None]) -> list[Result]:
        """Run all concurrently."""
        *others, last = calls
        results: list[Any] = [None] * len(calls)
        failures: dict[int, BaseException] = {}
        waiting = 0
        try:
            for place, call in enumerate(others):
                self._calls[place].put(call)
                waiting += 1
            results[-1] = self._with_share(last)
        except BaseException:
            last_failed()
            raise
        finally:
            for _ in range(waiting):
                place, results[place], failure = self._results.get()
                if failure is not None:
                    failures[place] = failure
        if failures:
            raise failures[min(failures)]
        return results

    def close(self) -> None:
        """End the threads."""
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            thread.join()

    def _with_share(self, call: Call[Any]) -> Any:
        threads = torch.get_num_threads()
        if threads == self._share:
            return call()
        torch.set_num_threads(self._share)
        try:
            return call()
        finally:
            torch.set_num_threads(threads)

    def _work(self, place: int) -> None:
        torch.set_num_threads(self._share)
        self._results.put((place, None, None))
        with torch.no_grad():  # per thread: the caller's does not apply here
            while (call := self._calls[place].get()) is not None:
                try:
                    self._results.put((place, call(), None))
                except BaseException as failure:  # noqa: BLE001 - raised again in the caller's thread
                    self._results.put((place, None, failure))
                del call


BACKENDS = ("sequential", "threads")


def backend(name: str, modules: int) -> Backend:
    """Open the backend of this name."""
    return Threads(modules) if name == "threads" and modules > 1 else Sequential()
