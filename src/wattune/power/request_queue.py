"""The queue of an inference service on the same board: how many of its requests wait or run now."""

from __future__ import annotations

import http.client
import math
import re
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import urlsplit

from wattune.devices import Device
from wattune.errors import InputError

GAUGES: Final = frozenset(
    {
        "requests_waiting",
        "requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "nv_inference_pending_request_count",
        "tgi_queue_size",
        "tgi_batch_current_size",
        "sglang:num_queue_reqs",
        "sglang:num_running_reqs",
        "llamacpp:requests_deferred",
        "llamacpp:requests_processing",
    }
)
"""Gauges of requests that wait or run, whose sum is taken. The first two are for a service that you write yourself.

Source: the documented metrics of vLLM, NVIDIA Triton, Text Generation Inference, SGLang and llama.cpp's server.
Triton's gauge leaves out the requests that are being computed.
"""

TIMEOUT_S: Final = 0.5
RETRY_S: Final = 5.0
"""Seconds of training without another look at a service that did not answer."""

MOST_BYTES: Final = 4 * 2**20
_LINE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{.*\})?\s+(?P<value>\S+)(\s+-?\d+)?", re.ASCII)


@runtime_checkable
class RequestQueue(Protocol):
    """The requests of an inference service."""

    def waiting(self) -> int | None:
        """Number of requests that wait or run; None if it is unknown at present (``problem`` says why)."""

    def rest(self, device: Device, seconds: float) -> None:
        """Leave the device to the requests for about this long."""

    def close(self) -> None:
        """Release what is open."""

    @property
    def problem(self) -> str | None:
        """The reason why the number is unknown."""


class CalledQueue:
    """A queue in this process: ``count`` returns the number of requests that wait or run."""

    def __init__(self, count: Callable[[], int]):
        self.problem: str | None = None
        self._count = count

    def waiting(self) -> int | None:
        """The number that ``count`` returns. Raises: InputError if that is not a number."""
        count = self._count()
        if not isinstance(count, (int, float)) or math.isnan(count):
            raise InputError("the number of waiting requests", value=count, allowed="0 or more")
        return max(0, math.ceil(count))

    def rest(self, device: Device, seconds: float) -> None:
        """Wait, also in real time: the service runs in it, whatever the device's time is."""
        device.wait(seconds)
        if not device.executes_steps:
            time.sleep(seconds)

    def close(self) -> None:
        """There is nothing to release."""


class MetricsQueue(CalledQueue):
    """The queue of a service that has Prometheus metrics at ``url``, one of ``GAUGES`` among them.

    If it does not answer, or not with such a gauge, the number is unknown, and it is asked again ``RETRY_S`` later.
    Raises: InputError for an address that is not http.
    """

    def __init__(self, url: str):
        super().__init__(lambda: 0)
        self.url = url
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InputError("the metrics of the inference service", value=url, hint=str(error)) from error
        if parts.scheme != "http" or not host:
            raise InputError("the metrics of the inference service", value=url, allowed="http://HOST:PORT/metrics")
        self._path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        self._due_s = -math.inf

    def waiting(self) -> int | None:
        """The sum of the gauges now; None if the service does not tell."""
        if time.monotonic() < self._due_s:
            return None
        try:
            count = count_of(self._read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._connection.close()
            self._due_s = time.monotonic() + RETRY_S
            text = " ".join(str(error).split())[:200]
            self.problem = f"{self.url}: {text or type(error).__name__}"
            return None
        self.problem = None
        return count

    def close(self) -> None:
        """Close the connection; the next look opens another one."""
        self._connection.close()

    def _read(self) -> str:
        for attempt in (0, 1):
            is_open = self._connection.sock is not None
            try:
                self._connection.request("GET", self._path)
                response = self._connection.getresponse()
                break
            except (OSError, http.client.HTTPException):
                self._connection.close()  # a kept connection that the service has closed meanwhile
                if attempt or not is_open:
                    raise
        content = response.read(MOST_BYTES)
        if not response.isclosed():
            self._connection.close()
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}")
        return content.decode("utf-8", "replace")


def count_of(text: str) -> int:
    """Requests that wait or run, from metrics in Prometheus' text format.

    Raises: ValueError if there is no known gauge, or one that is not a number of requests.
    """
    counts = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or match["name"] not in GAUGES:
            continue
        value = float(match["value"])
        if not 0 <= value < math.inf:
            raise ValueError(f"{match['name']} is {match['value']}, not a number of requests")
        counts.append(value)
    if not counts:
        raise ValueError("no known gauge of waiting requests, such as requests_waiting")
    return math.ceil(math.fsum(counts))


def queue_of(queue: Any, *, name: str = "queue") -> RequestQueue:
    """The queue that is meant: the port or URL of metrics, an object with ``qsize`` or ``empty``, or a callable that
    returns the number of waiting requests; ``name`` is what errors call it. Raises: InputError.
    """
    if isinstance(queue, RequestQueue):
        return queue
    if isinstance(queue, str) and not queue.strip().isdecimal():
        if "://" in queue:
            return MetricsQueue(queue.strip())
    elif isinstance(queue, (int, str)) and not isinstance(queue, bool):
        if 0 < int(queue) < 2**16:
            return MetricsQueue(f"http://127.0.0.1:{int(queue)}/metrics")
    elif callable(getattr(queue, "qsize", None)):
        return CalledQueue(queue.qsize)
    elif callable(getattr(queue, "empty", None)):
        return CalledQueue(lambda: not queue.empty())
    elif callable(queue):
        return CalledQueue(queue)
    allowed = "a port from 1 to 65535, or the URL of metrics such as http://127.0.0.1:8000/metrics"
    if name == "queue":
        allowed += "; an object with qsize() or empty(); a callable that returns the number of waiting requests"
    raise InputError(name, value=queue, allowed=allowed)
