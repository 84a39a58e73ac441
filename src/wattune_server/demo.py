"""Simulated devices for ``wattune serve --demo``, so that the pages have something to show.

Each board is a process that acts like any device, over HTTP: it fetches the model and its weights, measures a profile
(in virtual time), waits for the curve of the server's proxy runs, and really trains at the chosen point, repeatedly
under different caps. All records are marked as simulated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

MODEL = "resnet8-digits"

PAUSE_S = 10.0
"""Pause between two runs of a board, so that the result can be seen."""

STARTUP_S = 120.0
"""Timeout of a board that waits for the server, which may still be training its first model."""

SHUTDOWN_S = 5.0
"""Timeout in seconds after which a board is killed on shutdown."""


class DemoBoard(NamedTuple):
    """A simulated board, and the caps that it trains under, one run after the other."""

    name: str
    device: str
    caps_w: tuple[float, ...]


BOARDS = (
    DemoBoard("demo-nano-1", "sim:jetson-nano", (5.5, 4.5, 4.2)),
    DemoBoard("demo-tx2nx", "sim:jetson-tx2-nx", (6.8, 5.6, 5.0)),
    DemoBoard("demo-nano-2", "sim:jetson-nano", (4.2, 5.0, 4.6)),
)


@contextmanager
def start(url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run one process per board until the context is left or this process dies; yield the processes.

    ``url``: URL of the server, which may become ready later.
    """
    with tempfile.TemporaryDirectory(prefix="wattune-demo-boards-", ignore_cleanup_errors=True) as folder:
        # Caches and runs of the devices do not belong in the user's own folders.
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        running = []
        try:
            for index, board in enumerate(BOARDS):
                command = [sys.executable, "-m", __name__, url, str(index), str(Path(folder) / board.name)]
                running.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, cwd=folder))
            yield running
        finally:
            for process in running:
                assert process.stdin is not None
                process.stdin.close()  # which makes the board exit
            until = time.monotonic() + SHUTDOWN_S
            for process in running:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def play(url: str, board: DemoBoard, folder: Path, *, runs: int | None = None) -> None:
    """Run a board: ``runs`` runs, by default endlessly. A failed run is reported, and the next one starts."""
    import torch

    from wattune.errors import WattuneError
    from wattune.job.run import run
    from wattune.workloads.example import Digits

    torch.set_num_threads(1)
    # Data of the built-in example that only this "device" has.
    data = Digits(classes=(5, 6, 7, 8, 9), invert=True, noise=0.3)()
    _wait_for_model(url)
    turns = count() if runs is None else range(runs)
    for turn, cap_w in zip(turns, cycle(board.caps_w), strict=False):
        more: dict[str, Any] = {"strategy": "full" if turn == 0 else None, "seed": turn, "device_name": board.name}
        more["output"] = folder / f"{turn}-{time.time_ns()}"
        try:
            run(board.device, server=url, model=MODEL, data=data, cap_w=cap_w, **more)
        except WattuneError as error:
            print(f"wattune demo: {board.name}: {error}", file=sys.stderr)
        time.sleep(PAUSE_S if runs is None else 0)


def _wait_for_model(url: str) -> None:
    """Wait until the server has the model. Raises: ServerUnavailable, ServerRefused after ``STARTUP_S``."""
    from wattune.errors import ServerRefused, ServerUnavailable
    from wattune.remote import Client

    until_s = time.monotonic() + STARTUP_S
    with Client(url, backoff_s=()) as server:
        while True:
            try:
                server.model(MODEL)
                return
            except (ServerUnavailable, ServerRefused):  # it is starting, or training the model
                if time.monotonic() > until_s:
                    raise
            time.sleep(0.5)


def _end_with_parent() -> None:
    """Exit when stdin is closed, however the parent ended."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(url: str, index: str, folder: str) -> None:
    """Entry point of the process of one board, ``BOARDS[index]``."""
    from wattune.errors import WattuneError

    _end_with_parent()
    # Lower priority than the server, its workers and the browser.
    os.nice(10)
    board = BOARDS[int(index)]
    try:
        play(url, board, Path(folder))
    except WattuneError as error:
        print(f"wattune demo: {board.name}: {error}", file=sys.stderr)
    except KeyboardInterrupt:  # Ctrl-C in the terminal goes to all processes of the server
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
