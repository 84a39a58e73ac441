"""Loops whose model, optimizer and loader Hugging Face Accelerate has prepared, in one process and in several."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.ranks import apart, job, refusal, values, weights
from tests.support.sessions import Numbered, Tour, board, loss_of, perceptron
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import wattune
from wattune.errors import InputError
from wattune.loop.accelerate_parts import own_loader

pytestmark = pytest.mark.slow

SAMPLES = 300


def prepared(options: dict[str, Any], load: dict[str, Any]) -> tuple[Any, ...]:
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import set_seed

    set_seed(3)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(Numbered(SAMPLES), **{"batch_size": 16, "shuffle": True, **load})
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def compare(rank: int, options: dict[str, Any], load: dict[str, Any]) -> tuple[Any, ...]:
    """Three epochs of Accelerate's own loop, and of a session that keeps the recipe."""
    accelerator, model, optimizer, loader = prepared(options, load)
    order: list[int] = []
    for _ in range(3):
        for x, y in loader:
            order += x[:, 0].tolist()
            accelerator.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    plain = weights(model)
    _, model, optimizer, loader = prepared(options, load)
    ours: list[int] = []
    given = {"device": board() if rank == 0 else "auto", "cap_w": 5.0, "keep_recipe": True, "micro_batch_size": 8}
    with wattune.capped(model=model, optimizer=optimizer, loader=loader, **given) as session:
        for _ in range(3):
            for batch in session.batches():
                ours += [] if batch.is_check else batch.x[:, 0].tolist()
                session.backward(loss_of(model, batch))
    record = session.record
    return apart(plain, weights(model)), order == ours, session.passes, None if record is None else record.samples


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"use_seedable_sampler": True}, {"num_workers": 1}),
    ({}, {"drop_last": True}),
    ({"split_batches": True}, {}),
]


@pytest.mark.parametrize(("options", "load"), CASES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_with_the_recipe_kept_it_is_accelerates_loop(ranks: int, options: dict[str, Any], load: dict[str, Any]) -> None:
    ends = values(job(compare, ranks, options, load, init=False))
    for distance, same_order, passes, _ in ends:
        assert distance < 1e-5
        assert same_order
        assert passes == 3
    per_pass = 288 if load.get("drop_last") else 304 if options and "split_batches" in options and ranks == 2 else None
    if per_pass is not None:
        assert ends[0][3] == 3 * per_pass


def choose(rank: int) -> tuple[Any, ...]:
    sys.modules["wattune.loop.session_run"].Search = Tour  # type: ignore[attr-defined]
    _, model, optimizer, loader = prepared({}, {})
    sizes, step, samples = set(), 0, []
    given = {"device": board() if rank == 0 else "auto", "cap_w": 5.0}
    with wattune.capped(model=model, optimizer=optimizer, loader=loader, **given) as session:
        for _ in range(20):
            seen = []
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if batch.is_check:
                    continue
                step += batch.samples
                if batch.last:
                    sizes.add(step)
                    step = 0
                seen += batch.x[:, 0].tolist()
            samples.append(seen)
    return sizes, samples, weights(model)


def test_the_batch_size_of_its_loader_can_change() -> None:
    ((sizes, epochs, _),) = values(job(choose, 1, init=False))
    assert len(sizes) > 2
    assert all(len(epoch) == len(set(epoch)) == SAMPLES for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_ranks_see_their_own_parts_at_any_batch_size() -> None:
    first, second = values(job(choose, 2, init=False))
    assert first[0] == second[0]
    assert len(first[0]) > 2
    assert apart(first[2], second[2]) == 0.0
    for one, other in zip(first[1], second[1], strict=True):
        assert len(one) == len(other)
        assert len({*one, *other}) == SAMPLES  # a few are seen twice, to make the parts equal, as in Accelerate


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("samples", [7, 32, 45, 48])
def test_the_number_of_samples_of_a_rank(samples: int, drop_last: bool, splits: bool, even: bool) -> None:
    from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
    from accelerate.state import PartialState

    PartialState(cpu=True)
    data = Numbered(samples)
    for rank in range(3):
        whole = BatchSampler(RandomSampler(data), 6, drop_last)
        shard = BatchSamplerShard(whole, 3, rank, split_batches=splits, even_batches=even)
        if samples < 18 and even and not drop_last:
            continue  # Accelerate repeats the samples
        order = own_loader(DataLoaderShard(data, batch_sampler=shard)).sampler
        assert len(order) == len(list(order))


def test_its_scheduler_that_steps_once_per_rank_is_refused() -> None:
    said = refusal(job(schedule, 2, init=False))
    assert said.startswith("error: Accelerate's scheduler takes 2 steps for each one of the optimizer: StepLR")


def schedule(rank: int) -> None:
    accelerator, model, optimizer, loader = prepared({}, {})
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 10))
    given = {"device": "sim:jetson-nano", "cap_w": 5.0, "scheduler": scheduler, "scheduler_interval": "step"}
    wattune.capped(model=model, optimizer=optimizer, loader=loader, **given)


def test_accumulation_by_accelerate_is_refused() -> None:
    """The session would step at each batch, four times as often as the plain loop."""
    from accelerate import Accelerator

    model = perceptron()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    parts = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Numbered(), 16))
    try:
        with pytest.raises(
            InputError, match="Accelerate's gradient_accumulation_steps: 4; allowed: 1; give the loader"
        ):
            wattune.capped(device=board(), cap_w=5.0, **dict(zip(("model", "optimizer", "loader"), parts, strict=True)))
    finally:
        Accelerator(cpu=True, gradient_accumulation_steps=1)  # the state is shared by the process


def resumed(path: Path, stop_after: int | None) -> tuple[list[int], list[float]]:
    """The order of the samples, and the weights after three passes or ``stop_after`` steps."""
    _, model, optimizer, loader = prepared({"use_seedable_sampler": True}, {})
    order: list[int] = []
    given = {"device": board(), "cap_w": 5.0, "keep_recipe": True, "checkpoint": path, "resume": True}
    with suppress(KeyboardInterrupt):
        with wattune.capped(model=model, optimizer=optimizer, loader=loader, **given) as session:
            while session.passes < 3:
                for batch in session.batches():
                    session.backward(loss_of(model, batch))
                    order += batch.x[:, 0].tolist() if not batch.is_check else []
                    if stop_after is not None and batch.last and session.run.steps == stop_after:
                        raise KeyboardInterrupt
    return order, weights(model)


@pytest.mark.parametrize("stop_after", [19, 27])
def test_the_order_of_a_seedable_sampler_is_resumed(tmp_path: Path, stop_after: int) -> None:
    """Its epoch is no random state: it is seeded by a number that the loader keeps."""
    whole, end = resumed(tmp_path / "whole", None)
    first, _ = resumed(tmp_path / "parts", stop_after)
    rest, last = resumed(tmp_path / "parts", None)
    assert first + rest == whole
    assert apart(end, last) < 1e-6
