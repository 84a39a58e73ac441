"""PowerCapCallback in several processes, as Lightning and torchrun start them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.test_integrations_lightning import CAP_W, Module, cosine, data, slow, trainer_of
from tests.support.ranks import apart, job, refusal, values, weights
from torch.utils.data import DataLoader

from wattune.integrations.lightning import PowerCapCallback

pytestmark = pytest.mark.slow


def module(fail_at: int | None = None) -> Module:
    return Module(scheduler=cosine, fail_at=fail_at and (fail_at, KeyError("a mistake of the module")))


def quiet() -> None:
    # What the library says of a loader without workers, of few batches to log, and of its own parts.
    for text in (
        ".*does not have many workers",
        "The number of training batches",
        ".*isinstance.treespec, LeafSpec.",
        ".*is supported for historical reasons",
        "You're resuming from a checkpoint that ended before the epoch ended",
        "It is recommended to use .*sync_dist=True",
        ".*Checkpoint directory .* exists and is not empty",
        ".*callbacks used to create the checkpoint need to be provided",
        ".*barrier\\(\\): using the device under current context",
        ".*No device id is provided via",
    ):
        warnings.filterwarnings("ignore", text)


def fit(made: Any, *callbacks: Any, load: dict[str, Any] | None = None, ckpt_path: Any = None, **options: Any) -> Any:
    quiet()
    trainer = trainer_of(*callbacks, **{"max_epochs": 3, "strategy": "ddp", "devices": 2, **options})
    loader = DataLoader(data(), **{"batch_size": 16, "shuffle": True, **(load or {})})
    trainer.fit(made, loader, DataLoader(data(), batch_size=320), ckpt_path=ckpt_path)
    return trainer


def callback(rank: int) -> PowerCapCallback:
    return PowerCapCallback(CAP_W, device=slow() if rank == 0 else "auto")


def compare(rank: int, options: dict[str, Any], load: dict[str, Any]) -> tuple[Any, ...]:
    """The same run without and with the callback."""
    alone, ours, cap = module(), module(), callback(rank)
    trainers = [fit(alone, load=load, **options), fit(ours, cap, load=load, **options)]
    same = (
        alone.numbers == ours.numbers,
        alone.validated == ours.validated,
        trainers[0].global_step == trainers[1].global_step,
    )
    record = cap.record
    summary = None if record is None else (record.samples, record.readings_above_cap)
    return apart(weights(alone), weights(ours)), same, ours.sizes, ours.numbers, weights(ours), summary


@pytest.mark.parametrize(
    ("options", "load"),
    [
        ({}, {"batch_size": 64, "num_workers": 1}),
        ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "val_check_interval": 0.5}, {}),
        ({"limit_train_batches": 13, "max_steps": 33, "max_epochs": -1}, {}),
    ],
)
def test_with_the_recipe_kept_it_is_the_ddp_run(options: dict[str, Any], load: dict[str, Any]) -> None:
    first, second = values(job(compare, 2, options, load, init=False))
    for distance, same, *_ in (first, second):
        assert same == (True, True, True)
        assert distance == 0
    assert first[2] == second[2]  # the same micro-batches
    assert not set(first[3][:160]) & set(second[3][:160])  # of different samples
    assert apart(first[4], second[4]) == 0.0
    assert first[5] == (2 * sum(first[2]), 0)
    assert second[5] is None


def interrupt(rank: int, folder: Path, fail_at: int | None) -> tuple[Any, ...]:
    """A run that saves a checkpoint every 7 steps, and resumes from the last one."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wattune.loop.ranks.channel import RankLost

    cap, made = callback(rank), module(fail_at)
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=7, save_top_k=1, monitor=None, save_last="link")
    last = folder / "last.ckpt"
    try:
        trainer = fit(made, cap, saving, ckpt_path=last if last.exists() else None)
    except (KeyError, RankLost):  # both ranks fail, and each is a loss to the other
        return made.numbers, None, None, None
    return made.numbers, trainer.global_step, weights(made), None if cap.record is None else cap.record.samples


def test_it_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    torn = job(interrupt, 2, tmp_path, 15, init=False)
    assert [len(end.value[0]) for end in torn] == [15 * 16] * 2
    first, second = values(job(interrupt, 2, tmp_path, None, init=False))
    assert [len(first[0]), len(second[0])] == [(60 - 14) * 16] * 2  # as Lightning alone
    assert first[1] == second[1] == 60
    assert apart(first[2], second[2]) == 0.0
    assert first[3] == 3 * 640


SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.integrations import test_integrations_lightning_ranks as ranks

if __name__ == "__main__":
    cap = ranks.PowerCapCallback(6, device="sim:jetson-nano", record="session.json", over="job")
    trainer = ranks.fit(ranks.module(), cap)
    if trainer.is_global_zero:
        print("samples", cap.record.samples)
"""

ROOT = str(Path(__file__).parents[2])


@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]])
def test_lightning_or_torchrun_starts_the_processes(launcher: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(root=ROOT))
    command = [sys.executable, *launcher, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "samples 1920" in done.stdout, done.stderr
    assert (tmp_path / "session.json").exists()


def spawned(rank: int) -> None:
    from lightning.pytorch.strategies import DDPStrategy

    strategy = DDPStrategy(start_method="spawn")
    strategy._configure_launcher = lambda: None  # type: ignore[method-assign] # these processes are the spawned ones
    fit(module(), callback(rank), strategy=strategy)


def test_processes_that_lightning_spawns_are_one_line_of_rank_0() -> None:
    assert refusal(job(spawned, 2, init=False)) == (
        "error: PowerCapCallback does not return from processes that Lightning forks or spawns: ddp_spawn; "
        'allowed: strategy="ddp", or torchrun'
    )


def test_a_strategy_that_shards_is_refused() -> None:
    from types import SimpleNamespace

    from lightning.pytorch.strategies import FSDPStrategy

    from wattune.errors import InputError
    from wattune.integrations.lightning import check_trainer

    trainer = SimpleNamespace(world_size=2, strategy=FSDPStrategy(), callbacks=[])  # it needs a GPU to be made
    with pytest.raises(InputError, match='2 processes: FSDPStrategy; allowed: strategy="ddp"'):
        check_trainer(trainer, module())
