"""Sessions of several ranks: one decision for all, the same trajectory as the plain loop, and clear ends."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.agent_trees import texts
from tests.support.board_records import unpack
from tests.support.live_board import wait_for
from tests.support.ranks import Ended, Job, apart, job, refusal, small, values, weights
from tests.support.sessions import (
    Tour,
    board,
    convolutional,
    loss_of,
    loss_over,
    perceptron,
    pictures,
    plain,
    regression,
    train,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wattune
from wattune.cap_source import CapTrace
from wattune.devices import Device
from wattune.loop.ranks import meeting
from wattune.loop.ranks.channel import RAISE_WITHIN_S
from wattune_agent.folders import board_lock
from wattune_agent.tree import Tree

pytestmark = pytest.mark.slow


def own_part(data: TensorDataset, batch_size: int = 16) -> DataLoader[Any]:
    """The loader of this rank's part of the data set."""
    return DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data, seed=1))


def wrapped(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(model)


def own_device(rank: int) -> Device | str:
    return board() if rank == 0 else "auto"


def session_of(rank: int, model: nn.Module, **options: Any) -> Any:
    """A session of this rank under 5 W."""
    usual: dict[str, Any] = {} if "batch_size" in options else {"loader": own_part(pictures(512))}
    usual |= {"device": own_device(rank), "cap_w": 5.0, "optimizer": torch.optim.SGD(model.parameters(), lr=0.05)}
    return wattune.capped(model=model, **{**usual, **options})


def train_rows(rank: int, passes: int, options: dict[str, Any]) -> tuple[Any, ...]:
    """A session of this rank: samples and rows of its steps, its weights, and what rank 0 recorded."""
    model = wrapped(convolutional())
    loader = own_part(pictures(512))
    rows, samples, step = [], 0, 0
    with session_of(rank, model, loader=loader, **options) as session:
        for number in range(passes):
            loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if batch.is_check:
                    continue
                samples, step = samples + batch.samples, step + batch.samples
                if batch.last:
                    rows, step = [*rows, step], 0
    record = session.record
    return rows, samples, weights(model), None if record is None else (record.samples, record.steps, record.above_cap_s)


def train_raised(rank: int) -> tuple[float, list[float], list[str], float]:
    """Least squares, for which the larger batch scales the learning rate to beyond what is stable."""
    sys.modules["wattune.loop.session_run"].Search = Tour  # type: ignore[attr-defined]
    data = regression()
    model = wrapped(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.35)
    given = {"device": own_device(rank), "cap_w": None, "batch_sizes": [16, 128]}
    loader = own_part(data)
    with wattune.capped(model=model, optimizer=optimizer, loader=loader, **given) as session:
        for number in range(40):
            loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
            for batch in session.batches():
                session.backward(nn.functional.mse_loss(model(batch.x), batch.y))
    return loss_over(model, data), weights(model), list(session.run.notes), session.recipe.factor


def test_all_ranks_go_back_before_a_raised_rate_ruins_training() -> None:
    first, second = values(job(train_raised, 2))
    assert first[0] < 0.05
    assert apart(first[1], second[1]) == 0.0
    assert any("and training went back to before that" in note for note in first[2])
    assert first[3] == second[3] == 1.0


def train_under(rank: int, cap: CapTrace, passes: int) -> tuple[Any, ...] | None:
    """A session under a cap that changes, on one board for each rank."""
    model = wrapped(convolutional())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader, given = own_part(pictures(512)), {"device": "sim:jetson-nano", "cap_w": cap, "over": "node"}
    with wattune.capped(model=model, optimizer=optimizer, loader=loader, **given) as session:
        train(session, model, passes)
    record = session.record
    if record is None:
        return None
    assert record.exact is not None
    pauses = [(interval.asked_w, interval.pause) for interval in record.cap_intervals or ()]
    return record.exact.above_cap_s, record.paused_s, pauses, {str(change.point.knobs) for change in record.changes}


def test_all_ranks_follow_a_cap_that_changes() -> None:
    trace = CapTrace(times_s=(0.0, 2.0, 3.0, 5.0, 7.0), caps_w=(10.0, 8.0, 0.0, 12.0, 8.4))
    first, second = values(job(train_under, 2, trace, 20))
    assert second is None
    above_s, paused_s, intervals, settings = first
    assert above_s == 0.0
    assert paused_s >= 2.0
    assert {watts for watts, pause in intervals if pause is None} >= {10.0, 12.0, 8.4}
    assert (0.0, "the cap is 0 W") in intervals
    assert len(settings) > 1


def test_caps_that_leave_nothing_end_all_ranks_at_once() -> None:
    ends = job(train_under, 2, CapTrace(times_s=(0.0, 3.0), caps_w=(10.0, 0.0)), 100)
    assert [end.code for end in ends] == [2, 2]
    assert ends[0].stderr.startswith("error: the caps leave nothing to train with any more: 0 W from now on")
    assert ends[0].stderr.count("\n") == 1
    # torch may warn of the store, which ends with rank 0.
    assert [line for line in ends[1].stderr.splitlines() if line.startswith("error:")] == []


def train_plain(rank: int, passes: int) -> list[float]:
    model = wrapped(convolutional())
    loader = own_part(pictures(512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epochs = iter(range(1, passes + 1))
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    plain(model, optimizer, loader, passes, after_pass=lambda: loader.sampler.set_epoch(next(epochs)))  # type: ignore[attr-defined]
    return weights(model)


def test_all_ranks_take_the_same_steps() -> None:
    first, second = values(job(train_rows, 2, 25, {}))
    assert first[0] == second[0]
    assert len(set(first[0])) > 1  # several batch sizes were tried
    assert first[1] == second[1] == 25 * 256
    assert apart(first[2], second[2]) == 0.0
    assert first[3] == (2 * first[1], len(first[0]), 0.0)
    assert second[3] is None


@pytest.mark.parametrize("micro", [None, 12])
def test_with_the_recipe_kept_it_is_the_plain_loop(micro: int | None) -> None:
    alone = values(job(train_plain, 2, 3))
    ours = values(job(train_rows, 2, 3, {"keep_recipe": True, "micro_batch_size": micro}))
    assert apart(ours[0][2], alone[0]) < 1e-5
    assert apart(ours[1][2], alone[0]) < 1e-5


def train_unequal(rank: int, cap_w: float) -> tuple[Any, ...] | None:
    """A fast board on rank 0 and a slow one under one budget."""
    device = ("sim:jetson-tx2-nx", "sim:jetson-nano")[rank]
    given = {"cap_w": cap_w, "over": "node", "keep_recipe": True, "micro_batch_size": 64}
    model = wrapped(convolutional())
    with session_of(rank, model, loader=own_part(pictures(2048), 64), device=device, **given) as session:
        train(session, model, 60)
    if session.record is None:
        return None
    group = session.run.device
    record, last = session.record, group.compute_s
    assert record.exact is not None
    settings = [point.knobs["clock_mhz"] for point in [change.point for change in record.changes]]
    return record.device, record.over, record.exact.above_cap_s, record.readings_above_cap, last, settings


def test_unequal_boards_share_a_budget_at_equal_times() -> None:
    first, second = values(job(train_unequal, 2, 11.0))
    assert second is None
    device, over, above_s, above, times_s, settings = first
    assert device == "1 x sim:jetson-tx2-nx + 1 x sim:jetson-nano"
    assert over == "node"
    assert (above_s, above) == (0.0, 0)
    assert len(set(settings)) > 2
    assert times_s[0] <= 1.02 * times_s[1]


def train_long(rank: int, folder: Path, options: dict[str, Any] | None = None) -> None:
    """A session that does not end; each rank leaves a file when it trains. Without a device it is simulated."""
    boards = {name: value.format(rank=rank) for name, value in (options or {}).items() if name == "device"}
    model, opened = small(rank, **{**(options or {}), **boards})
    with opened as session:
        train(session, model, 100_000, on_batch=lambda _: (folder / f"rank{rank}").touch())


def started(folder: Path, ranks: int, *arguments: Any) -> Job:
    """A job of ``train_long`` whose ranks train."""
    running = Job(train_long, ranks, folder, *arguments)
    for rank in range(ranks):
        assert wait_for((folder / f"rank{rank}").exists, 60.0)
    return running


def restore_slowly(rank: int, folder: Path) -> None:
    model, opened = small(rank)
    with opened as session:
        restore = session.run.__exit__

        def restore_later(*error: Any) -> None:
            time.sleep(RAISE_WITHIN_S + 1.0)
            restore(*error)
            (folder / f"rank{rank}").touch()

        session.run.__exit__ = restore_later
        train(session, model, on_batch=lambda _: os._exit(1) if rank == 1 else None)


def test_a_board_that_takes_long_to_be_restored_is_restored_before_the_loss_is_raised(tmp_path: Path) -> None:
    running = Job(restore_slowly, 2, tmp_path)
    assert running.ended(within_s=60.0)[0].kind == "RankLost"
    assert (tmp_path / "rank0").exists()


def interrupt(rank: int, path: Path, at: int) -> tuple[int, int]:
    """A session that ends in the middle of a pass, at its step ``at``."""
    loader = own_part(pictures(512))
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]

    def stop(session: Any) -> None:
        if session.run.steps == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model = wrapped(convolutional())
        with session_of(rank, model, loader=loader, keep_recipe=True, checkpoint=path) as session:
            train(session, model, on_batch=stop)
    return session.run.steps, session.samples


def resume(rank: int, path: Path, batch_size: int) -> tuple[int, list[float]]:
    """The rest of that pass. Returns: samples of all ranks, and weights."""
    loader = own_part(pictures(512), batch_size)
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    model = wrapped(convolutional())
    with session_of(rank, model, loader=loader, keep_recipe=True, checkpoint=path, resume=True) as session:
        train(session, model)
    return session.samples, weights(model)


def test_it_resumes_with_as_many_ranks(tmp_path: Path) -> None:
    path = tmp_path / "session"
    assert values(job(interrupt, 2, path, 5)) == [(5, 160)] * 2
    alone = values(job(train_plain, 2, 1))
    ends = values(job(resume, 2, path, 16))
    assert {end[0] for end in ends} == {512}
    assert apart(ends[0][1], alone[0]) < 1e-5


@pytest.mark.parametrize(("ranks", "batch_size", "what"), [(1, 16, "ranks"), (2, 8, "batch_size")])
def test_a_checkpoint_of_other_ranks_or_batches_is_refused(
    tmp_path: Path, ranks: int, batch_size: int, what: str
) -> None:
    """In one line of rank 0."""
    values(job(interrupt, ranks, tmp_path / "session", 2))
    said = refusal(job(resume, 2, tmp_path / "session", batch_size))
    assert "is of a different session, which differs in: " in said
    assert f"{what} (" in said


def train_sharded(rank: int, options: dict[str, Any]) -> float:
    """The difference of a session from the plain loop, for a model in shards."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    def whole(model: nn.Module) -> list[float]:
        parts = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
        return [value for p in parts for value in p.detach().flatten().tolist()]

    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    results = []
    for is_ours in (False, True):
        model = convolutional()
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = own_part(pictures(256))
        loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
        if is_ours:
            with session_of(rank, model, optimizer=optimizer, loader=loader, **options) as session:
                train(session, model)
        else:
            plain(model, optimizer, loader, 1)
        results.append(whole(model))
    return apart(*results)


@pytest.mark.parametrize("micro", [None, 6])
def test_a_model_in_shards_is_trained_as_in_the_plain_loop(micro: int | None) -> None:
    for difference in values(job(train_sharded, 2, {"keep_recipe": True, "micro_batch_size": micro})):
        assert difference < 1e-5


def step_oneself(rank: int, passes: int) -> tuple[list[tuple[int, int]], int, list[float], Any]:
    """A loop that fetches and steps itself. Rank 0 alone also reads the row to print it, at other places."""
    model, data, generator = wrapped(convolutional()), pictures(512), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows, samples = [], 0
    options = {"batch_size": 16, "device": own_device(rank)}
    with wattune.capped(cap_w=5.0, model=model, optimizer=optimizer, **options) as session:
        while samples < passes * 256:
            if rank == 0:
                assert session.row.batch > 0
            batch, micro = session.row
            picks = torch.randint(0, 512, (batch,), generator=generator)
            x, y = data.tensors[0][picks], data.tensors[1][picks]
            session.begin_step()
            assert session.row == (batch, micro)
            optimizer.zero_grad()
            begins = range(0, batch, micro)
            for begin in begins:
                part = slice(begin, min(batch, begin + micro))
                with nullcontext() if begin == begins[-1] else model.no_sync():
                    loss = nn.functional.cross_entropy(model(x[part]), y[part])
                    (loss * len(y[part]) / batch).backward()
            optimizer.step()
            session.end_step()
            rows, samples = [*rows, (batch, micro)], samples + batch
        if rank == 0:
            assert session.row.batch > 0  # and again after the last step
    return rows, samples, weights(model), None if session.record is None else session.record.samples


def test_loops_that_step_themselves_get_the_same_row_at_the_same_step() -> None:
    first, second = values(job(step_oneself, 2, 25))
    assert first[0] == second[0]
    assert len(set(first[0])) > 1
    assert apart(first[2], second[2]) == 0.0
    assert first[3] == 2 * first[1]
    assert second[3] is None


def refused(ends: list[Ended]) -> str:
    """The line of a job that was refused, and nothing else on stderr."""
    line = refusal(ends)
    assert [end.stderr for end in ends] == [line + "\n", *[""] * (len(ends) - 1)]
    assert {end.kind for end in ends} == {"JobRefused"}
    return line


def refuse(rank: int, by_rank: dict[int, dict[str, Any]], wraps: str = "ddp", version: str = "") -> None:
    if version and rank == 1:
        meeting.__version__ = version  # type: ignore[attr-defined]
    model: nn.Module = perceptron()
    model = wrapped(model) if wraps == "ddp" else nn.DataParallel(model) if wraps == "dp" else model
    with session_of(rank, model, **{"device": "sim:jetson-nano", "batch_size": 8, **by_rank.get(rank, {})}):
        raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({1: {"cap_w": 6.0}},), "error: rank 1 has another cap_w: "),
        (({1: {"batch_size": 0}},), "error: rank 1: batch_size: 0"),
        (({0: {"over": "rack"}, 1: {"over": "rack"}},), "error: over: rack; allowed: device, node, job"),
        (({}, "none"), "error: the job has 2 processes, but the model does not average its gradients"),
        (({}, "dp"), "error: nn.DataParallel has one process for all GPUs"),
        (({1: {"device": "sim:no-such-board"}},), "error: "),
        (({1: {"device": "jetson?root=/nowhere"}},), "error: rank 1 (process "),
        (({}, "ddp", "0.0.9"), "error: rank 1 has another wattune: 0.0.9, not "),
        (({r: {"yield_to": bool} for r in (0, 1)},), "error: yield_to: a job of 2 ranks; allowed: one process"),
    ],
)
def test_bad_input_is_one_line_of_rank_0(arguments: tuple[Any, ...], said: str) -> None:
    assert refused(job(refuse, 2, *arguments)).startswith(said)


def test_a_second_job_on_the_same_board_is_one_line(tmp_path: Path) -> None:
    tree = unpack("orin-nano-jp6", tmp_path / "board")
    given = {"device": f"jetson?root={tree}", "cap_w": 100.0}
    first = started(tmp_path, 2, given)
    try:
        said = refusal(job(train_long, 2, tmp_path / "nowhere", given))
        assert f"process {first.processes[0].pid} " in said  # the one that holds the board
    finally:
        for process in first.processes:
            process.kill()
        first.ended()


def starve(rank: int, cap_w: float, over: str, device: str) -> None:
    model = wrapped(convolutional())
    with session_of(rank, model, device=device.format(rank=rank), cap_w=cap_w, over=over) as session:
        train(session, model, 1000)


@pytest.mark.parametrize(
    ("device", "cap_w", "over"),
    [("sim:jetson-nano", 2.5, "device"), ("jetson?root={folder}/board{rank}", 5.0, "node")],
)
def test_a_cap_below_the_lowest_settings_is_one_line_of_rank_0_and_restores_the_boards(
    tmp_path: Path, device: str, cap_w: float, over: str
) -> None:
    """Both ranks leave at once, and rank 0 restores no board of a rank that has left."""
    trees = [unpack("orin-nano-jp6", tmp_path / f"board{rank}") for rank in range(2)]
    before = [texts(tree) for tree in trees]
    ends = job(starve, 2, cap_w, over, device.replace("{folder}", str(tmp_path)))
    said = f"error: the cap is below what training draws at the lowest settings: {cap_w:g} W; allowed: above "
    assert {end.kind for end in ends} == {"JobRefused"}
    assert refusal(ends).startswith(said)
    assert [texts(tree) for tree in trees] == before


def test_a_job_without_a_process_group_is_one_line() -> None:
    said = refusal(job(refuse, 2, {}, "none", init=False))
    assert said.startswith("error: the job has several processes, but no process group")


@pytest.mark.parametrize("killed", [0, 1, 2])
def test_a_rank_that_is_killed_ends_the_others_with_a_clear_error_and_all_boards_are_restored(
    tmp_path: Path, killed: int
) -> None:
    trees = [unpack("orin-nano-jp6", tmp_path / f"board{rank}") for rank in range(3)]
    before = [texts(tree) for tree in trees]
    running = started(tmp_path, 3, {"device": f"jetson?root={tmp_path}/board{{rank}}", "cap_w": 100.0, "over": "job"})
    for tree, one, process in zip(trees, before, running.processes, strict=True):
        assert texts(tree) != one
        assert board_lock(Tree(str(tree)), "jetson").holder().startswith(f"process {process.pid} ")
    time.sleep(random.Random(killed).uniform(0.0, 0.5))
    process = running.processes[killed]
    process.kill()
    ends = running.ended(within_s=60.0)
    for rank, end in enumerate(ends):
        if rank != killed:
            assert end.kind == "RankLost", end.error
            assert f"rank {killed} (process {process.pid} on " in str(end.error)
            assert "was killed or ended without a word" in str(end.error)
    assert wait_for(lambda: [texts(tree) for tree in trees] == before, 30.0)


class CapThatFalls:
    """A cap that falls to nothing once there is a file ``pause``, for good or for some seconds."""

    def __init__(self, folder: Path, for_s: float = math.inf):
        self.folder, self.for_s = folder, for_s
        self.until_s: float | None = None

    def __call__(self, time_s: float) -> float | None:
        if not (self.folder / "pause").exists():
            return 100.0
        (self.folder / "paused").touch()
        self.until_s = time_s + self.for_s if self.until_s is None else self.until_s
        return None if time_s < self.until_s else 100.0


def pause_long(rank: int, folder: Path) -> int:
    cap = CapThatFalls(folder, for_s=12.0)
    device = f"jetson?root={folder / 'board'}"
    model, opened = small(rank, device=device, cap_w=cap, keep_recipe=False, rank_timeout_s=10.0)
    with opened as session:
        train(session, model)
        (folder / "pause").touch()
        train(session, model)
    return session.run.samples


def test_a_pause_may_take_longer_than_others_would_wait_for_a_rank(tmp_path: Path) -> None:
    unpack("orin-nano-jp6", tmp_path / "board")
    assert values(job(pause_long, 2, tmp_path)) == [512, 512]
    assert (tmp_path / "paused").exists()


def test_a_rank_that_is_killed_in_a_pause_ends_the_others(tmp_path: Path) -> None:
    unpack("orin-nano-jp6", tmp_path / "board")
    given = {"device": f"jetson?root={tmp_path / 'board'}", "cap_w": CapThatFalls(tmp_path), "keep_recipe": False}
    running = started(tmp_path, 2, given)
    (tmp_path / "pause").touch()
    assert wait_for((tmp_path / "paused").exists, 60.0)
    running.processes[1].kill()
    assert running.ended(within_s=60.0)[0].kind == "RankLost"


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_ends_the_others_and_their_boards_are_restored(tmp_path: Path, stopped: int) -> None:
    """Also rank 0, which serves the store of a job without ``torchrun``."""
    trees = [unpack("orin-nano-jp6", tmp_path / f"board{rank}") for rank in range(2)]
    before = [texts(tree) for tree in trees]
    given = {"device": f"jetson?root={tmp_path}/board{{rank}}", "cap_w": 100.0, "over": "job"}
    running = started(tmp_path, 2, given)
    process, other = running.processes[stopped], running.processes[1 - stopped]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        other.join(40.0)
        assert other.exitcode == 1  # it waited in a collective, which nothing interrupts
        assert wait_for(lambda: texts(trees[1 - stopped]) == before[1 - stopped], 30.0)
    finally:
        process.kill()
    assert wait_for(lambda: [texts(tree) for tree in trees] == before, 30.0)
    end = running.ended(within_s=60.0)[1 - stopped]
    assert end.kind == "RankLost" or end.error == "it ended without a word"  # the store may tell it first


def fail(rank: int) -> None:
    def mistake(session: Any) -> None:
        if rank == 1 and session.run.steps == 5:
            raise ValueError("this rank's own mistake")

    model, opened = small(rank)
    with opened as session:
        train(session, model, on_batch=mistake)


def test_an_error_of_one_rank_is_the_reason_of_the_others_end() -> None:
    ends = job(fail, 2)
    assert [end.kind for end in ends] == ["RankLost", "ValueError"]
    assert "ended with an error: this rank's own mistake" in str(ends[0].error)
