"""``wattune serve --demo``: simulated boards as devices of the server, so that its pages have something to show.

Each board is a process of its own that does what any device does, over HTTP: the model and its weights from the server,
a profile (virtual time), the curve from the server's proxy runs, and a real training at the chosen point, again and
again under other caps. All of it is marked as simulated.
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
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

MODEL = "resnet8-digits"

PAUSE_S = 10.0
"""Between two runs of a board, so that what came of one can be seen."""

LATER_S = 15.0
"""How much later a board begins that takes another one's profile."""

STARTS_S = 120.0
"""How long a board waits for the server, which may be making its first model."""

ENDS_S = 5.0
"""How long a board has to end before it is killed."""


@dataclass(frozen=True)
class Board:
    """A simulated board, and the caps that it trains under, one run after the other.

    ``profiles``: whether it measures its whole grid first; the first cap is the highest, above which nothing is probed.
    Else it looks for a profile on the server, and begins later, so that there is one.
    """

    name: str
    device: str
    caps_w: tuple[float, ...]
    profiles: bool = True


BOARDS = (
    Board("demo-nano-1", "sim:jetson-nano", (5.5, 4.5, 4.2)),
    Board("demo-tx2nx", "sim:jetson-tx2-nx", (6.8, 6.2, 5.8)),
    Board("demo-nano-2", "sim:jetson-nano", (4.2, 5.0, 4.6), profiles=False),
)


@contextmanager
def start(url: str, token: str | None, boards: tuple[Board, ...] = BOARDS) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process for each board, from now until this is left or this process dies; gives the processes.

    ``url``: of the server, which may answer later. ``token``: one with the scope "device", where it asks for one.
    """
    with tempfile.TemporaryDirectory(prefix="wattune-demo-boards-", ignore_cleanup_errors=True) as folder:
        # What devices keep of servers, and their runs: not in the user's own folders.
        environment = {**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if token is not None:
            environment["WATTUNE_TOKEN"] = token
        running = []
        try:
            for index, board in enumerate(boards):
                command = [sys.executable, "-m", __name__, url, str(index), str(Path(folder) / board.name)]
                running.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, cwd=folder))
            yield running
        finally:
            for process in running:
                assert process.stdin is not None
                process.stdin.close()  # what it watches
            until = time.monotonic() + ENDS_S
            for process in running:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def play(url: str, board: Board, folder: Path, *, runs: int | None = None) -> None:
    """What the process of a board does: ``runs`` runs, by default without end.

    A run that fails is said, and the next one tried.
    """
    import torch

    from wattune.errors import WattuneError
    from wattune.pipeline import run
    from wattune.workloads.sources import Digits

    torch.set_num_threads(1)
    # The data of the built-in example, which this "device" alone has.
    data = Digits(classes=(5, 6, 7, 8, 9), invert=True, noise=0.3)()
    _wait_for_model(url)
    turns = count() if runs is None else range(runs)
    if not board.profiles:
        time.sleep(LATER_S)
    for turn, cap_w in zip(turns, cycle(board.caps_w), strict=False):
        output = folder / f"{turn}-{time.time_ns()}"
        strategy = "full" if board.profiles and turn == 0 else None
        try:
            run(
                board.device,
                server=url,
                model=MODEL,
                data=data,
                cap_w=cap_w,
                device_name=board.name,
                output=output,
                strategy=strategy,
                seed=turn,
            )
        except WattuneError as error:
            print(f"wattune demo: {board.name}: {error}", file=sys.stderr)
        time.sleep(PAUSE_S if runs is None else 0)


def _wait_for_model(url: str) -> None:
    """Until the server answers and has it. Raises: ServerAway, ServerRefused after ``STARTS_S``."""
    from wattune.errors import ServerAway, ServerRefused
    from wattune.remote import Server

    until = time.monotonic() + STARTS_S
    with Server(url) as server:
        while True:
            try:
                server.model(MODEL)
                return
            except (ServerAway, ServerRefused):  # it is starting, or makes the model
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)


def _end_with_parent() -> None:
    """End at once when the other end of stdin is closed, however the parent ended."""

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(url: str, index: str, folder: str) -> None:
    """Of the process of one board: ``BOARDS[index]``."""
    from wattune.errors import WattuneError

    _end_with_parent()
    # The server, its workers and whoever looks at the pages come first.
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
