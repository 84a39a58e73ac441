"""A recorder of what device and server exchange, and a search for samples of a data set in it."""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

import numpy as np
from numpy.typing import NDArray

WINDOW = 16
"""Bytes of a sample in a row that are looked for, beginning at any of its values."""

NUMBERS = 8
"""Decimal numbers of a sample in a row that are looked for."""

DISTINCT = 4
"""Different values that such a part has at least: a stretch of black says nothing."""


@dataclass
class Wire:
    """Both directions of all connections, byte for byte."""

    url: str = ""
    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    connections: int = 0


@contextmanager
def recorded(server: str) -> Iterator[Wire]:
    """A TCP proxy before a server, which keeps every byte."""
    parts = urlsplit(server)
    wire = Wire()
    turn = threading.Lock()
    ended = threading.Event()

    def pump(source: socket.socket, drain: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                with turn:
                    kept.extend(content)
                drain.sendall(content)
        with suppress(OSError):
            drain.shutdown(socket.SHUT_WR)

    def join(device: socket.socket) -> None:
        with device, socket.create_connection((parts.hostname, parts.port)) as upstream:
            back = threading.Thread(target=pump, args=(upstream, device, wire.down), daemon=True)
            back.start()
            pump(device, upstream, wire.up)
            back.join(10)

    def accept(listening: socket.socket) -> None:
        while not ended.is_set():
            with suppress(OSError):
                device, _ = listening.accept()
                wire.connections += 1
                threading.Thread(target=join, args=(device,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        wire.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=accept, args=(listening,), daemon=True)
        thread.start()
        try:
            yield wire
        finally:
            ended.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


class Detector:
    """Finds parts of samples, as numbers of every usual type, as decimals, and either of them in base64.

    ``samples``: (N, ...) numbers as the device has them; ``whole``: what they are as images of 0 to 255.
    """

    def __init__(self, samples: NDArray[np.generic]):
        flat = samples.reshape(len(samples), -1).astype(np.float64)
        forms = [flat, np.rint(flat * 255)] if float(flat.max()) <= 1 else [flat, flat / 255]
        self._bytes: set[bytes] = set()
        self._numbers: set[tuple[int, ...]] = set()
        for values in forms:
            is_whole = bool((values == np.rint(values)).all())
            kinds = ["<f2", "<f4", ">f4", "<f8", *(["u1", "<i2", "<i4", "<i8"] if is_whole else [])]
            for kind in kinds:
                for sample in values.astype(kind):
                    self._bytes.update(_windows(sample.tobytes(), sample.itemsize))
            scaled = np.rint(values * (1 if is_whole else 1000)).astype(np.int64)
            for sample in scaled:
                self._numbers.update(_runs(sample.tolist()))

    def finds(self, content: bytes) -> list[str]:
        """How samples stand in this content; empty where none does."""
        found = []
        texts = [content, unquote_to_bytes(content)]
        for name, one in (("as it is", content), *_decoded(texts)):
            if any(one[at : at + WINDOW] in self._bytes for at in range(len(one) - WINDOW + 1)):
                found.append(f"bytes, {name}")
        for one in texts:
            numbers = [float(number) for number in re.findall(rb"-?\d+\.?\d*(?:[eE][-+]?\d+)?", one)]
            for scale in (1, 1000):
                rounded = [round(n * scale) if abs(n) < 1e12 else 0 for n in numbers]
                if any(tuple(rounded[at : at + NUMBERS]) in self._numbers for at in range(len(rounded) - NUMBERS + 1)):
                    found.append("decimal numbers")
        return list(dict.fromkeys(found))


def _windows(content: bytes, size: int) -> Iterable[bytes]:
    for at in range(0, len(content) - WINDOW + 1, size):
        window = content[at : at + WINDOW]
        if len({window[i : i + size] for i in range(0, WINDOW, size)}) >= min(DISTINCT, WINDOW // size):
            yield window


def _runs(numbers: list[int]) -> Iterable[tuple[int, ...]]:
    for at in range(len(numbers) - NUMBERS + 1):
        run = tuple(numbers[at : at + NUMBERS])
        if len(set(run)) >= DISTINCT:
            yield run


def _decoded(texts: list[bytes]) -> Iterator[tuple[str, bytes]]:
    for text in texts:
        for run in re.findall(rb"[A-Za-z0-9+/_-]{24,}", text):
            plain = run.replace(b"-", b"+").replace(b"_", b"/")
            for begin in range(4):
                part = plain[begin:]
                yield "in base64", base64.b64decode(part[: len(part) // 4 * 4])
