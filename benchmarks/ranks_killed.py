"""A rank of a job is killed at any moment: the boards are restored, and the other ranks end with a clear error.

Three ranks train on boards that are folders with the files of real ones, each rank on its own. One of them gets SIGKILL
at a seeded moment. Timed are, from then on: until every file of every board is as it was before the job, and
until the other ranks have ended.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.agent_trees import texts
from tests.support.board_records import unpack
from tests.support.ranks import Job, small
from tests.support.sessions import loss_of

from benchmarks.timing import keep

RANKS = 3
MOMENTS = 20
LATEST_S = 3.0
"""Latest moment after the first steps of all ranks."""

WITHIN_S = 60.0
BOARDS = ("orin-nano-jp6", "nano-jp4", "orin-nano-jp6")


def train(rank: int, folder: Path) -> None:
    """Train until the end of the process."""
    model, opened = small(rank, device=f"jetson?root={folder / f'board{rank}'}", cap_w=100.0, over="job")
    with opened as session:
        while True:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                (folder / f"rank{rank}").touch()


def measure(seed: int) -> dict[str, object]:
    """Kill one rank once."""
    draw = random.Random(seed)
    killed, after_s = draw.randrange(RANKS), draw.uniform(0.0, LATEST_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = [unpack(board, folder / f"board{rank}") for rank, board in enumerate(BOARDS)]
        before = [texts(tree) for tree in trees]
        job = Job(train, RANKS, folder)
        while not all((folder / f"rank{rank}").exists() for rank in range(RANKS)):
            time.sleep(0.01)
        time.sleep(after_s)
        was_changed = [texts(tree) for tree in trees] != before
        begun_s = time.monotonic()
        job.processes[killed].kill()
        restored_s = ended_s = None
        while (restored_s is None or ended_s is None) and time.monotonic() - begun_s < WITHIN_S:
            passed_s = time.monotonic() - begun_s
            if restored_s is None and [texts(tree) for tree in trees] == before:
                restored_s = passed_s
            if ended_s is None and not any(process.is_alive() for process in job.processes):
                ended_s = passed_s
            time.sleep(0.01)
        others = [end for rank, end in enumerate(job.ended(within_s=1.0)) if rank != killed]
        return {
            "seed": seed,
            "killed": killed,
            "was_changed": was_changed,
            "restored_s": restored_s,
            "ended_s": ended_s,
            "clear": all(end.kind == "RankLost" and f"rank {killed} (process" in str(end.error) for end in others),
        }


def main(_: Sequence[str] = ()) -> None:
    """Kill a rank at each moment, and store the results."""
    runs = [measure(seed) for seed in range(MOMENTS)]
    summary = {
        "moments": len(runs),
        "restored": sum(run["restored_s"] is not None for run in runs),
        "ended_clearly": sum(bool(run["clear"]) and run["ended_s"] is not None for run in runs),
    }
    for name in ("restored_s", "ended_s"):
        times_s = [float(str(run[name])) for run in runs if run[name] is not None]
        summary |= {f"{name}_median": statistics.median(times_s), f"{name}_longest": max(times_s)}
    keep("ranks_killed", {"ranks": RANKS, "summary": summary, "runs": runs})
