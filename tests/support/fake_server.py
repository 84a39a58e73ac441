"""A small HTTP server that answers as a test wants, faults included, and remembers its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from wattune.records.served import ServedModel

MODEL = ServedModel(
    model="made",
    factory="small-cnn",
    input_shape=(1, 8, 8),
    budget_samples=64,
    batch_sizes=(4, 8),
    proxy={"data": {"source": "digits"}},
)


@dataclass
class Asked:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """``cut``: so many bytes of the body are sent, and then the connection is closed. None: all of them."""

    status: int = 200
    body: bytes | str | dict[str, Any] | list[Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


@dataclass
class Fake:
    """``asked``: every request so far. ``answer``: gives the answer to one."""

    url: str
    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def faked(answer: Callable[[Asked], Answer]) -> Iterator[Fake]:
    """A server whose every request ``answer`` answers."""
    fake = Fake("", answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            fake.asked.append(asked)
            given = fake.answer(asked)
            content = given.body if isinstance(given.body, bytes) else _bytes(given.body)
            self.send_response(given.status)
            for name, value in {"Content-Length": str(len(content)), **given.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content if given.cut is None else content[: given.cut])
            self.wfile.flush()
            if given.cut is not None:
                self.close_connection = True

        do_GET = do_PUT = do_POST = handle_any

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join(5)


def problem(status: int, detail: str, **headers: str) -> Answer:
    """An error as RFC 9457 has it."""
    content = {"type": "about:blank", "title": "no", "status": status, "detail": detail}
    return Answer(status, content, {"Content-Type": "application/problem+json", **headers})


def _bytes(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
