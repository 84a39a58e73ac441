"""Jobs of several ranks in which one dies, hangs, ends early or has fewer batches: all ranks end, and say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.ranks import apart, job, refusal, small, values, weights
from tests.support.sessions import loss_of, train
from torch.utils.data import DataLoader, IterableDataset

import wattune

pytestmark = pytest.mark.slow


# ----------------------------------------------------------------------------------------------------------- restarted


def test_torchrun_restarts_a_job_whose_rank_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal
            import torch.distributed as dist
            from tests.support.ranks import small
            from tests.support.sessions import loss_of

            # Of torchrun's own store, which all attempts share: without the prefix gloo meets ranks that are dead.
            attempt, place = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["MASTER_ADDR"]
            store = dist.TCPStore(place, int(os.environ["MASTER_PORT"]), 2, False)
            rank = int(os.environ["RANK"])
            dist.init_process_group("gloo", store=dist.PrefixStore(f"{attempt}", store), rank=rank, world_size=2)
            model, opened = small(rank)
            with opened as session:
                for batch in session.batches():
                    session.backward(loss_of(model, batch))
                    if attempt < 2 and rank == 1 and session.run.steps == 3:
                        os.kill(os.getpid(), signal.SIGKILL)
            print("rank", rank, "attempt", attempt, "samples", session.samples, flush=True)
            dist.destroy_process_group()
            """
        )
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([*torchrun, str(script)], capture_output=True, text=True, timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} attempt 2 samples 512" for rank in range(2)]


# ------------------------------------------------------------------------------------------------- ranks that stay away


def stay_away(rank: int) -> None:
    if rank == 1:
        wattune.capped = lambda **given: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    small(rank, rank_timeout_s=10.0)


def test_a_rank_that_is_killed_before_it_meets_the_others_ends_them_with_one_line() -> None:
    first, _, last = job(stay_away, 3)
    for end in (first, last):
        assert end.code == 2
        assert end.stderr.startswith("error: rank 1 has not called wattune.capped within 10 s; ")
        assert "rank_timeout_s=" in end.stderr
        assert end.stderr.count("\n") == 1


# ---------------------------------------------------------------------------------------- ranks that others wait for


def stop_going_on(rank: int, how: str) -> None:
    model, opened = small(rank, rank_timeout_s=10.0)

    def on_batch(session: Any) -> None:
        if rank == 1 and session.run.steps == 5 and how == "sleep":
            time.sleep(600.0)
        while rank == 1 and session.run.steps == 5 and how == "spin":
            pass

    with opened as session:
        train(session, model, 3, on_batch=on_batch)


@pytest.mark.parametrize("how", ["sleep", "spin"])
def test_a_rank_that_does_not_go_on_ends_all_ranks_and_is_named(how: str) -> None:
    begun_s = time.monotonic()
    for end in job(stop_going_on, 2, how):
        assert end.kind == "RankLost" or "is ended" in str(end.stderr), end
        said = str(end.error).splitlines()[-1] if end.error else end.stderr
        assert "rank 1 (process " in said
        assert "does not go on after 5 steps, and others wait for it for 10 s" in said
    assert time.monotonic() - begun_s < 90.0  # and not gloo's half an hour


def break_out(rank: int) -> None:
    model, opened = small(rank)
    with opened as session:
        for batch in session.batches():
            session.backward(loss_of(model, batch))
            if rank == 1 and session.run.steps == 5:
                break
        train(session, model)


def test_a_rank_that_breaks_out_of_its_loop_ends_all_ranks_and_is_named() -> None:
    for end in job(break_out, 2):
        assert end.kind == "RankLost"
        said = str(end.error).splitlines()[-1]
        assert "rank 1 (process " in said
        assert "has come to the begin of pass 2 after 5 steps, and rank 0 (process " in said


def leave_early(rank: int) -> None:
    model, opened = small(rank)
    with opened as session:
        train(session, model, 2 - rank)


def test_a_rank_that_makes_fewer_passes_ends_all_ranks_and_is_named() -> None:
    for end in job(leave_early, 2):
        assert end.kind == "RankLost"
        assert "the end of its session after 16 steps" in str(end.error)
        assert "the begin of pass 2 after 16 steps" in str(end.error)


def evaluate_long(rank: int) -> int:
    model, opened = small(rank, rank_timeout_s=10.0)
    with opened as session:
        train(session, model)
        if rank == 0:
            with session.evaluation():
                time.sleep(12.0)
        train(session, model)
    return int(session.samples)


def test_an_evaluation_of_one_rank_alone_takes_its_time() -> None:
    assert values(job(evaluate_long, 2)) == [1024, 1024]


# -------------------------------------------------------------------------------------------- gradients that stay apart


def look_between(rank: int, where: str) -> tuple[list[float], bool]:
    """Forward passes with gradients and no backward pass between the steps, of which rank 0 halves some."""
    model, opened = small(rank, keep_recipe=False)
    x, halved = torch.ones(4, 8), []
    with opened as session:
        for _ in range(3):
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                halved.append(not batch.last and not batch.is_check)
                with session.evaluation() if where == "evaluation" else nullcontext():
                    model(x)
    assert model.require_backward_grad_sync  # as it was
    return weights(model), any(halved)


@pytest.mark.parametrize("where", ["evaluation", "loop"])
def test_a_forward_pass_without_a_backward_pass_mixes_no_gradients(where: str) -> None:
    first, second = values(job(look_between, 2, where))
    assert (first[1], second[1]) == (True, False)
    assert apart(first[0], second[0]) == 0.0


def without_averages(rank: int, around: str) -> None:
    model, opened = small(rank)
    with opened as session:
        for batch in session.batches():
            if around == "forward":
                with model.no_sync():  # type: ignore[operator]
                    loss = loss_of(model, batch)
                session.backward(loss)
            else:
                loss = loss_of(model, batch)
                with model.no_sync():  # type: ignore[operator]
                    session.backward(loss)


@pytest.mark.parametrize("around", ["forward", "backward"])
def test_no_sync_around_a_pass_is_refused(around: str) -> None:
    for end in job(without_averages, 2, around):
        assert end.kind == "InputError"
        assert "model.no_sync() around a pass of the session; allowed: session.backward(loss) alone" in str(end.error)


class Shard(IterableDataset[Any]):
    """A shard of a stream whose length nobody knows, as in pytorch/pytorch#38174."""

    def __init__(self, rank: int, samples: int):
        self.rank, self.samples = rank, samples

    def __iter__(self) -> Iterator[Any]:
        drawn = torch.Generator().manual_seed(self.rank)
        for _ in range(self.samples):
            yield torch.randn(8, generator=drawn), int(torch.randint(2, (), generator=drawn))


def train_shards(rank: int, samples: tuple[int, int], options: dict[str, Any]) -> tuple[int, list[int], list[float]]:
    model, opened = small(rank, loader=DataLoader(Shard(rank, samples[rank]), batch_size=8), **options)
    done = []
    with opened as session:
        for _ in range(2):
            train(session, model)
            done.append(session.run.samples)
    return session.passes, done, weights(model)


def test_streams_of_unequal_lengths_end_before_passes_are_mixed() -> None:
    said = refusal(job(train_shards, 2, (24, 56), {}))
    assert said.startswith("error: rank 0's loader ended after 3 batches, rank 1 has more")


@pytest.mark.parametrize(("samples", "options", "each"), [((24, 56), {"even": "stop"}, 24), ((40, 40), {}, 40)])
def test_streams_end_at_the_same_step_of_all_ranks(
    samples: tuple[int, int], options: dict[str, Any], each: int
) -> None:
    first, second = values(job(train_shards, 2, samples, options))
    assert first[:2] == second[:2] == (2, [each, 2 * each])
    assert apart(first[2], second[2]) == 0.0
