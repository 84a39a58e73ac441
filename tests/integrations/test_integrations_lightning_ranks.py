"""PowerCapCallback in several processes, as Lightning and torchrun start them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.ranks import apart, job, refusal, values, weights
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.slow

CAP_W = 6.0


def slow() -> Any:
    """A board on which few steps of a small model are seconds of its time."""
    from wattune.devices import SimulatedDevice, builtin_board

    found = builtin_board("jetson-nano")
    host = found.host.model_copy(update={"s_per_operation": 1e-3, "s_per_optimizer_operation": 1e-3})
    sensor = found.sensor.model_copy(update={"period_s": 0.02, "window_s": 0.02, "noise_w": 0.03})
    return SimulatedDevice(found.model_copy(update={"host": host, "sensor": sensor}))


def data(samples: int = 640) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, (3 * torch.rand(samples, generator=generator)).long(), torch.arange(samples))


def module(fail_at: int | None = None) -> Any:
    import lightning
    from torch import nn

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
            self.sizes: list[int] = []
            self.numbers: list[int] = []
            self.validated: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y, number = batch
            if fail_at is not None and len(self.numbers) >= fail_at:
                raise KeyError("a mistake of the module")
            self.sizes.append(len(x))
            self.numbers += number.tolist()
            loss = functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 0 and not self.trainer.sanity_checking:
                self.validated.append(len(self.numbers))
            self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    return Module()


def quiet() -> None:
    # What the library says of a loader without workers, of few batches to log, and of its own parts.
    for text in (
        ".*does not have many workers",
        "The number of training batches",
        ".*isinstance.treespec, LeafSpec.",
        ".*is supported for historical reasons",
        ".*Checkpoint directory .* exists and is not empty",
        ".*callbacks used to create the checkpoint need to be provided",
        ".*barrier\\(\\): using the device under current context",
        ".*No device id is provided via",
    ):
        warnings.filterwarnings("ignore", text)


def fit(made: Any, *callbacks: Any, load: dict[str, Any] | None = None, ckpt_path: Any = None, **options: Any) -> Any:
    import lightning
    from lightning.pytorch.callbacks import Checkpoint

    quiet()
    plain = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "strategy": "ddp",
        "devices": 2,
        "logger": False,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(callbacks=list(callbacks), **{**plain, **options})
    loader = DataLoader(data(), **{"batch_size": 16, "shuffle": True, **(load or {})})
    trainer.fit(made, loader, DataLoader(data(), batch_size=320), ckpt_path=ckpt_path)
    return trainer


def callback(rank: int, **options: Any) -> Any:
    from wattune.integrations.lightning import PowerCapCallback

    return PowerCapCallback(CAP_W, device=slow() if rank == 0 else "auto", **options)


def compare(rank: int, options: dict[str, Any], load: dict[str, Any]) -> tuple[Any, ...]:
    """The same run without and with the callback."""
    alone, ours, cap = module(), module(), callback(rank, keep_recipe=True)
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
        ({"max_epochs": 10}, {"batch_size": 64}),
        ({"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "val_check_interval": 0.5}, {}),
        ({"limit_train_batches": 13, "max_steps": 33, "max_epochs": -1}, {"num_workers": 1}),
    ],
)
def test_with_the_recipe_kept_it_is_the_ddp_run(options: dict[str, Any], load: dict[str, Any]) -> None:
    first, second = values(job(compare, 2, options, load, init=False))
    for distance, same, *_ in (first, second):
        assert same == (True, True, True)
        assert distance < 1e-5
    assert first[2] == second[2]  # the same micro-batches
    assert not set(first[3][:160]) & set(second[3][:160])  # of different samples
    assert apart(first[4], second[4]) == 0.0
    assert first[5] == (2 * sum(first[2]), 0)
    assert second[5] is None
    if load.get("batch_size") == 64:
        assert len(set(first[2])) > 1  # several micro-batch sizes were tried


def choose(rank: int, load: dict[str, Any]) -> tuple[Any, ...]:
    made, cap = module(), callback(rank)
    fit(made, cap, load=load, max_epochs=12)
    record = cap.record
    summary = None if record is None else (record.samples, record.passes, record.readings_above_cap, record.ended)
    return made.sizes, made.numbers, made.validated, weights(made), summary, cap.session.explain()


@pytest.mark.parametrize("workers", [0, 2])
def test_all_ranks_take_the_same_steps_of_the_chosen_size(workers: int) -> None:
    first, second = values(job(choose, 2, {"num_workers": workers}, init=False))
    assert first[0] == second[0]
    assert len(set(first[0])) > 2
    for epoch in range(12):
        seen = [rank[1][320 * epoch : 320 * epoch + 320] for rank in (first, second)]
        assert sorted(seen[0] + seen[1]) == list(range(640))
    assert first[2] == second[2] == [320 * n for n in range(1, 13)]
    assert apart(first[3], second[3]) == 0.0
    assert first[4] == (12 * 640, 12, 0, "finished")
    assert second[4] is None
    assert " on each of 2 ranks (global batch size " in first[5]
    assert "rank 0 chooses" in second[5]


def interrupt(rank: int, folder: Path, fail_at: int | None, epochs: int, keep: bool) -> tuple[Any, ...]:
    """A run that saves a checkpoint every 7 steps, and resumes from the last one."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from wattune.online.ranks.channel import RankLost

    cap, made = callback(rank, keep_recipe=keep), module(fail_at)
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=7, save_top_k=1, monitor=None, save_last="link")
    last = folder / "last.ckpt"
    try:
        trainer = fit(made, cap, saving, max_epochs=epochs, ckpt_path=last if last.exists() else None)
    except (KeyError, RankLost):  # both ranks fail, and each is a loss to the other
        return made.numbers, None, None, None
    return made.numbers, trainer.global_step, weights(made), None if cap.record is None else cap.record.samples


def test_it_resumes_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    whole = values(job(interrupt, 2, tmp_path / "whole", None, 3, True, init=False))
    torn = job(interrupt, 2, tmp_path / "torn", 15 * 16, 3, True, init=False)
    assert [len(end.value[0]) for end in torn] == [15 * 16] * 2
    ends = values(job(interrupt, 2, tmp_path / "torn", None, 3, True, init=False))
    for rank in range(2):
        assert torn[rank].value[0][: 14 * 16] + ends[rank][0] == whole[rank][0]
        assert apart(ends[rank][2], whole[rank][2]) < 1e-5
    assert ends[0][3] == 3 * 640


def test_a_checkpoint_of_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    job(interrupt, 2, tmp_path, 15 * 16, 3, True, init=False)
    ends = job(resume_alone, 1, tmp_path, init=False)
    assert "the checkpoint is of another number of processes: 2, not 1" in str(ends[0].error)


def resume_alone(rank: int, folder: Path) -> None:
    fit(module(), callback(rank, keep_recipe=True), devices=1, strategy="auto", ckpt_path=folder / "last.ckpt")


def refuse(rank: int, by_rank: dict[int, dict[str, Any]]) -> None:
    from wattune.integrations.lightning import PowerCapCallback

    options = {"device": "sim:jetson-nano", **by_rank.get(rank, {})}
    fit(module(), PowerCapCallback(options.pop("cap_w", CAP_W), **options))


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ({1: {"cap_w": 5.0}}, "error: rank 1 has another cap_w: "),
        ({0: {"over": "rack"}, 1: {"over": "rack"}}, "error: over: rack; allowed: device, node, job"),
        ({r: {"device": "sim:no-such-board"} for r in (0, 1)}, "error: "),
        ({r: {"batch_sizes": 16} for r in (0, 1)}, "error: batch_sizes: 16"),
    ],
)
def test_bad_input_is_one_line_of_rank_0(by_rank: dict[int, dict[str, Any]], said: str) -> None:
    assert refusal(job(refuse, 2, by_rank, init=False)).startswith(said)


SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from tests.integrations import test_integrations_lightning_ranks as ranks
from wattune.integrations.lightning import PowerCapCallback

if __name__ == "__main__":
    cap = PowerCapCallback(6, device="sim:jetson-nano", keep_recipe=True, record="session.json", over="job")
    trainer = ranks.fit(ranks.module(), cap, **{options!r})
    if trainer.is_global_zero:
        print("samples", cap.record.samples)
"""

ROOT = str(Path(__file__).parents[2])


def run(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT.format(root=ROOT, options=options))
    return subprocess.run(
        [sys.executable, *command, "train.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_lightning_starts_the_processes_itself(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert "samples 1920" in done.stdout, done.stderr
    assert (tmp_path / "session.json").exists()


def test_torchrun_starts_the_processes(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert "samples 1920" in done.stdout, done.stderr


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
    from wattune.integrations.lightning_setup import check_trainer

    trainer = SimpleNamespace(world_size=2, strategy=FSDPStrategy(), callbacks=[])  # it needs a GPU to be made
    with pytest.raises(InputError, match='2 processes: FSDPStrategy; allowed: strategy="ddp"'):
        check_trainer(trainer, module())


def fail(rank: int) -> None:
    fit(module(fail_at=160 if rank == 1 else None), callback(rank))


def test_an_error_of_one_rank_ends_the_others() -> None:
    ends = job(fail, 2, init=False)
    assert [end.kind for end in ends] == ["RankLost", "KeyError"]
    assert "a mistake of the module" in str(ends[0].error)
