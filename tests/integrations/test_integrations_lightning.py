"""PowerCapCallback in the real library: the same trainings below the cap, with the steps that the user asked for."""

import csv
import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    Checkpoint,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from lightning.pytorch.plugins import MixedPrecision
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.support.device_examples import FileDevice
from tests.support.sessions import Tour, distance
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from wattune.devices import SimulatedDevice, builtin_board
from wattune.errors import InputError, SafetyStop
from wattune.goal import Goal
from wattune.integrations.lightning import PowerCapCallback
from wattune.online import capped
from wattune.point import Knobs
from wattune.records import SessionRecord
from wattune.sample_efficiency.prior import GradientNorms

pytestmark = [
    pytest.mark.slow,
    # What the library says of a loader without workers, of few batches to log, and of its own parts.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec."),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*is supported for historical reasons"),
    pytest.mark.filterwarnings("ignore:.*fit.ckpt_path=None.. was called without a model"),
    pytest.mark.filterwarnings("ignore:.*fit.ckpt_path=.last.. is set, but there is no last checkpoint"),
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint need to be provided"),
    pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor"),
    pytest.mark.filterwarnings("ignore:.*Using .NativeMixedPrecisionPlugin"),
]

CAP_W = 6.0

PAGE = Path(__file__).parent.parent.parent / "docs" / "lightning.md"


def slow():
    """A board on which a small model takes long, so that few steps are seconds of its time; and that knows bf16."""
    found = builtin_board("jetson-nano")
    gpu = found.gpu.model_copy(update={"peak_gflops": {**found.gpu.peak_gflops, "bf16": 471.8}})
    host = found.host.model_copy(update={"s_per_operation": 1e-3, "s_per_optimizer_operation": 1e-3})
    sensor = found.sensor.model_copy(update={"period_s": 0.02, "window_s": 0.02, "noise_w": 0.03})
    return SimulatedDevice(found.model_copy(update={"gpu": gpu, "host": host, "sensor": sensor}))


class Module(lightning.LightningModule):
    """A small network that writes down what it is given."""

    def __init__(self, width=32, scheduler=None, fail_at=None, interval="step", frequency=1):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
        self.scheduler, self.fail_at, self.interval, self.frequency = scheduler, fail_at, interval, frequency
        self.sizes, self.numbers, self.validated, self.rates = [], [], [], []

    def training_step(self, batch, batch_idx):
        x, y, number = batch
        if self.fail_at is not None and len(self.sizes) == self.fail_at[0]:
            raise self.fail_at[1]
        self.sizes.append(len(x))
        self.numbers += number.tolist()
        loss = functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 and not self.trainer.sanity_checking:
            self.validated.append(len(self.numbers))
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.scheduler is None:
            return optimizer
        made = self.scheduler(optimizer, self.trainer)
        return [optimizer], [{"scheduler": made, "interval": self.interval, "frequency": self.frequency}]

    def on_before_zero_grad(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def data(samples=640):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, (3 * torch.rand(samples, generator=generator)).long(), torch.arange(samples))


def loader(dataset, batch_size=16, **options):
    generator = torch.Generator().manual_seed(5)
    return DataLoader(dataset, **{"batch_size": batch_size, "shuffle": True, "generator": generator, **options})


def fit(module, *callbacks, samples=640, load=None, ckpt_path=None, **options):
    plain = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(c, Checkpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(callbacks=list(callbacks), **{**plain, **options})
    dataset = data(samples)
    trainer.fit(
        module, loader(dataset) if load is None else load, DataLoader(dataset, batch_size=320), ckpt_path=ckpt_path
    )
    return trainer


def fit_alone(module, *callbacks, **options):
    """Three epochs of a module that brings its own loaders."""
    usual = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(callbacks=list(callbacks), **{**usual, **options}).fit(module)


def cosine(optimizer, trainer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)


def one_cycle(optimizer, trainer):
    steps = trainer.estimated_stepping_batches
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


# ------------------------------------------------------------------------------------------------- the recipe is kept


@pytest.mark.parametrize(
    ("scheduler", "options", "load"),
    [
        (cosine, {}, {}),
        (cosine, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, {}),
        (one_cycle, {"accumulate_grad_batches": 4, "val_check_interval": 0.25}, {"batch_size": 8}),
        (None, {"limit_train_batches": 13, "val_check_interval": 5}, {"drop_last": True}),
        (None, {"max_steps": 47, "max_epochs": -1}, {"shuffle": False}),
        pytest.param(
            *(None, {"check_val_every_n_epoch": None, "val_check_interval": 30}, {"num_workers": 1}),
        ),
        (cosine, {"precision": "bf16-mixed"}, {}),
    ],
)
def test_the_same_training_as_without_it(scheduler, options, load):
    samples = 632 if "drop_last" in load else 640
    modules = [Module(scheduler=scheduler) for _ in range(2)]
    cap = PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    trainers = [
        fit(module, *callbacks, samples=samples, load=loader(data(samples), **load), **{"max_epochs": 6, **options})
        for module, callbacks in zip(modules, ([], [cap]), strict=True)
    ]
    plain, capped = modules
    assert trainers[0].global_step == trainers[1].global_step
    assert sum(plain.sizes) == sum(capped.sizes) == cap.record.samples
    assert plain.numbers == capped.numbers
    assert plain.validated == capped.validated
    assert plain.rates == capped.rates
    assert distance(plain, capped) < (5e-3 if "precision" in options else 1e-5)
    assert cap.record.readings_above_cap == 0
    assert trainers[1].accumulate_grad_batches == options.get("accumulate_grad_batches", 1)


def test_two_hundred_steps_in_micro_batches_change_nothing():
    modules = [Module(scheduler=cosine), Module(scheduler=cosine)]
    cap = PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    fit(modules[0], max_epochs=20, load=loader(data(), 64))
    fit(modules[1], cap, max_epochs=20, load=loader(data(), 64))
    assert cap.record.steps == 200
    assert len(set(modules[1].sizes)) > 1
    assert distance(*modules) < 1e-5
    assert modules[0].rates == modules[1].rates
    assert len(cap.record.table.cells) > 2
    assert {cell.batch_size for cell in cap.record.table.cells} == {64}


def test_a_loader_that_cannot_be_resized_is_taken_as_it_is():
    def made():
        sampler = RandomSampler(data(), generator=torch.Generator().manual_seed(5))
        return DataLoader(data(), batch_sampler=Batches(sampler, 16, drop_last=False))

    modules = [Module(), Module()]
    cap = PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    fit(modules[0], load=made(), accumulate_grad_batches=2)
    fit(modules[1], cap, load=made(), accumulate_grad_batches=2)
    assert modules[0].numbers == modules[1].numbers
    assert distance(*modules) < 1e-5
    assert cap.record.steps == 40


def test_a_loader_that_cannot_be_resized_may_be_rebuilt_each_epoch():
    class Own(Module):
        def train_dataloader(self):
            return DataLoader(data(), batch_sampler=Batches(range(640), 16, drop_last=False))

        def val_dataloader(self):
            return loader(data(32), shuffle=False)

    modules = [Own(), Own()]
    cap = PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    for module, callbacks in zip(modules, ([], [cap]), strict=True):
        fit_alone(module, *callbacks, accumulate_grad_batches=2, reload_dataloaders_every_n_epochs=1)
    assert modules[0].numbers == modules[1].numbers
    assert distance(*modules) < 1e-5
    assert cap.record.steps == 3 * 20


class Batches(BatchSampler):
    """A batch sampler of somebody's own."""


class Stream(IterableDataset):
    """Samples in a row, which nobody can count."""

    def __iter__(self):
        return iter(list(data(160)))


def test_a_stream_ends_where_it_ends():
    modules = [Module(), Module()]
    fit(modules[0], load=DataLoader(Stream(), batch_size=16))
    fit(modules[1], PowerCapCallback(CAP_W, device=slow(), keep_recipe=True), load=DataLoader(Stream(), batch_size=16))
    assert modules[0].numbers == modules[1].numbers
    assert modules[0].validated == modules[1].validated
    assert distance(*modules) < 1e-6


# ------------------------------------------------------------------------------------------- the batch size is chosen


def test_every_sample_once_an_epoch_and_the_cap_is_never_read_above():
    module, cap = Module(scheduler=one_cycle), PowerCapCallback(CAP_W, device=slow())
    trainer = fit(module, cap, max_epochs=12, samples=1000)
    for epoch in range(12):
        assert sorted(module.numbers[1000 * epoch : 1000 * epoch + 1000]) == list(range(1000))
    assert module.validated == [1000 * n for n in range(1, 13)]
    record = cap.record
    assert record.samples == 12_000
    assert record.passes == 12
    assert record.ended == "finished"
    assert record.readings > 40
    assert record.readings_above_cap == 0
    assert record.exact.above_cap_s == 0
    assert len({change.point.batch_size for change in record.changes}) > 2
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 12 * 63  # one for each batch of 16
    assert "sqrt" in record.recipe.learning_rate_rule or "proportion" in record.recipe.learning_rate_rule


@pytest.mark.parametrize("scaled", [False, True])
def test_the_noise_of_the_gradients_is_that_of_the_samples(scaled):
    plugins = [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))] if scaled else []
    module, cap = Module(), PowerCapCallback(CAP_W, device=slow())
    fit(module, cap, max_steps=1, plugins=plugins)
    numbers, squares = module.numbers[:16], []
    assert module.sizes == [8, 8]
    for samples in (8, 16):
        x, y, _ = data()[numbers[:samples]]
        fresh = Module().net
        functional.cross_entropy(fresh(x), y).backward()
        squares.append(sum(float(p.grad.square().sum()) for p in fresh.parameters()))
    expected = GradientNorms()
    expected.add(8, squares[0], 16, squares[1])
    found = cap.session.sample_model.norms.state_dict()["pairs"]
    assert found == [pytest.approx(pair, rel=0.05 if scaled else 1e-4) for pair in expected.state_dict()["pairs"]]


def test_what_was_given_in_batches_keeps_its_samples():
    module, cap = Module(), PowerCapCallback(CAP_W, device=slow(), batch_sizes=[8, 16, 64])
    fit(module, cap, max_epochs=-1, max_steps=100, limit_train_batches=30, val_check_interval=10)
    assert len(module.numbers) == 100 * 16
    for begin, end in ((0, 480), (480, 960), (960, 1440), (1440, 1600)):
        assert len(set(module.numbers[begin:end])) == end - begin
    # With the first step that ends behind 10 batches of 16.
    assert all(0 <= a % 480 - b < 64 for a, b in zip(module.validated, [160, 320, 0] * 3, strict=False))
    assert len(module.validated) == 9 + 1


def test_the_loader_may_come_from_the_module_and_change():
    class Own(Module):
        made = 0

        def train_dataloader(self):
            self.made += 1
            return loader(data(160 * self.made))

        def val_dataloader(self):
            return loader(data(32), shuffle=False)

    module, cap = Own(), PowerCapCallback(CAP_W, device=slow())
    fit_alone(module, cap, reload_dataloaders_every_n_epochs=1)
    assert len(module.numbers) == cap.record.samples == 160 + 320 + 480
    assert cap.record.passes == 3


def test_a_goal_is_searched_for():
    cap = PowerCapCallback(CAP_W, goal="edp", device=slow())
    fit(Module(), cap, max_epochs=2)
    assert cap.record.goal == Goal("edp")
    with pytest.raises(InputError, match="goal"):
        PowerCapCallback(CAP_W, goal="joy")


def test_it_logs_through_the_logger_of_the_user(tmp_path):
    logger = CSVLogger(tmp_path)
    cap = PowerCapCallback(CAP_W, device=slow(), record=tmp_path / "session.json")
    fit(Module(), cap, logger=logger, log_every_n_steps=10, max_epochs=8)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        all_rows = list(csv.DictReader(file))
    rows = [row for row in all_rows if row["wattune/power_w"]]
    assert len(rows) > 5
    assert {row["step"] for row in rows} == {row["step"] for row in all_rows if row["loss"]}
    assert all(3 < float(row["wattune/power_w"]) < CAP_W for row in rows)
    energies = [float(row["wattune/energy_j"]) for row in rows]
    assert energies == sorted(energies)
    assert {"wattune/batch_size", "wattune/clock_mhz"} < set(rows[0])
    assert SessionRecord.load(tmp_path / "session.json") == cap.record


def test_trackers_get_the_updates_of_a_session(tmp_path):
    updates = []
    cap = PowerCapCallback(CAP_W, device=slow(), log_to=[f"tensorboard:{tmp_path}/events", updates.append])
    fit(Module(), cap, max_epochs=2)
    assert updates[-1].reason == "finished"
    assert updates[-1].energy_j == pytest.approx(cap.record.energy_j)
    assert updates[-1].time_s == pytest.approx(cap.record.time_s)
    events = EventAccumulator(f"{tmp_path}/events")
    events.Reload()
    assert [event.step for event in events.Tensors("system/energy_j")] == [update.steps for update in updates]
    with pytest.raises(InputError, match="log_to: 'tensorbord'"):
        fit(Module(), PowerCapCallback(CAP_W, device=slow(), log_to="tensorbord"))


@pytest.mark.filterwarnings("default")
def test_mlflow_has_the_figures_in_the_run_of_the_users_logger(tmp_path):
    logger = MLFlowLogger("ours", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    for _ in range(2):
        fit(Module(), PowerCapCallback(CAP_W, device=slow(), log_to="mlflow"), logger=logger, log_every_n_steps=10)
    (run,) = logger.experiment.search_runs([logger.experiment_id])
    assert {"loss", "wattune/power_w", "system/gpu_0_power_usage_watts"} < set(run.data.metrics)
    assert run.data.tags["wattune.kind"] == "simulated"


# ---------------------------------------------------------------------------------------------- when something happens


def test_an_interrupted_training_run_restores_the_board_and_resumes(tmp_path):
    device = slow()
    before, handler = device.current(), signal.getsignal(signal.SIGINT)
    cap = PowerCapCallback(CAP_W, device=device)
    module = Module(fail_at=(45, KeyboardInterrupt()))
    try:
        with pytest.raises(SystemExit):  # how Lightning itself ends then
            fit(module, cap, OnExceptionCheckpoint(tmp_path), max_epochs=4)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert device.current() == before
    assert cap.record.ended == "interrupted"
    trained = cap.record.samples
    assert trained % 640

    later, again = Module(), PowerCapCallback(CAP_W, device=slow())
    fit(later, again, max_epochs=4, ckpt_path=tmp_path / "on_exception.ckpt")
    epochs = module.numbers[:trained] + later.numbers
    assert [sorted(epochs[640 * n : 640 * n + 640]) for n in range(4)] == [list(range(640))] * 4
    assert again.record.samples == 4 * 640
    assert again.record.time_s > cap.record.time_s
    assert again.record.changes[: len(cap.record.changes)] == cap.record.changes
    assert again.record.readings_above_cap == 0


def test_a_checkpoint_between_two_steps_leads_to_the_same_end(tmp_path):
    def run(*callbacks, ckpt_path=None, stop=None):
        module = Module(scheduler=cosine, fail_at=stop)
        torch.manual_seed(0)
        fit(
            module,
            PowerCapCallback(CAP_W, device=slow(), keep_recipe=True),
            *callbacks,
            max_epochs=3,
            val_check_interval=10,
            ckpt_path=ckpt_path,
        )
        return module

    whole = run()
    saving = ModelCheckpoint(tmp_path, save_top_k=-1, monitor="val_loss", filename="{step}")
    with pytest.raises(RuntimeError, match="here"):
        run(saving, stop=(80, RuntimeError("here")))
    for path in sorted(tmp_path.glob("*.ckpt")):
        step = int(path.stem.split("=")[1].split("-")[0])
        rest = run(ckpt_path=path)
        left = (
            -16 * step % 640
        )  # of the epoch under way: the order of a later one is drawn anew, as without PowerCapCallback
        assert rest.numbers[:left] == whole.numbers[16 * step : 16 * step + left]
        assert len(rest.numbers) == len(whole.numbers) - 16 * step
        assert whole.validated[-3:] == [16 * step + at for at in rest.validated[-3:]]


def test_a_module_that_fails_leaves_the_board_as_it_was(tmp_path):
    device = FileDevice(tmp_path)
    cap = PowerCapCallback(9.0, device=device)
    with pytest.raises(RuntimeError, match="training"):
        fit(Module(fail_at=(7, RuntimeError("training"))), cap)
    assert device.current() == Knobs(clock_mhz=200.0)
    assert cap.record.ended == "failed"
    with pytest.raises(RuntimeError, match="validation"):
        fit(Failing(), cap)
    assert cap.record.ended == "failed"
    del cap
    gc.collect()  # what is let go of later changes nothing
    assert device.current() == Knobs(clock_mhz=200.0)


class Failing(Module):
    """Fails where the cap guard has an evaluation under way."""

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            raise RuntimeError("validation")


def test_on_a_board_that_trains_itself(tmp_path):
    device = FileDevice(tmp_path)
    modules, seen = [Module(), Module()], []

    class Look(lightning.Callback):
        def on_validation_batch_start(self, *_):
            seen.append(device.current())

    fit(modules[0], max_epochs=3)
    cap = PowerCapCallback(9.0, device=device, keep_recipe=True)
    fit(modules[1], cap, Look(), max_epochs=3)
    assert seen[0] == Knobs(clock_mhz=100.0)  # the sanity check, with nothing known yet
    assert device.current() == Knobs(clock_mhz=200.0)
    assert distance(*modules) < 1e-5
    assert cap.record.compute_s > 0
    assert cap.record.energy_j == pytest.approx(4.321 * cap.record.time_s, rel=0.05)


def test_a_cap_that_cannot_be_kept_ends_the_training():
    device = slow()
    cap = PowerCapCallback(2.0, device=device)
    with pytest.raises(SafetyStop, match="lowest setting"):
        fit(Module(), cap, max_epochs=50)
    assert device.current() == device.combinations()[-1]
    assert cap.record.ended == "stopped for safety"


def test_gradient_scaling_that_overflows_again_and_again():
    class Infinite(Module):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) * float("inf")

    scaler = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(InputError, match="25 consecutive steps were skipped"):
        fit(Infinite(), PowerCapCallback(CAP_W, device=slow()), plugins=[scaler])


def test_a_scaler_changes_nothing():
    modules = [Module(), Module()]
    for module, callbacks in zip(
        modules, ([], [PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)]), strict=True
    ):
        scaler = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))
        fit(module, *callbacks, plugins=[scaler], gradient_clip_val=0.3)
    assert distance(*modules) < 5e-3


def test_the_work_of_a_step_is_seen_for_what_it_is():
    module, cap = Module(), PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    fit(module, cap, max_steps=3)
    plain = Module()
    optimizer = plain.configure_optimizers()
    with capped(
        device=slow(), cap_w=CAP_W, model=plain.net, optimizer=optimizer, loader=loader(data()), keep_recipe=True
    ) as session:
        for batch in session.batches():
            session.backward(functional.cross_entropy(plain.net(batch.data[0]), batch.data[1]))
            if session.run.steps == 3:
                break
    steps = [
        {phase.phase: sum(operation.flops for operation in phase.operations) for phase in work.phases}
        for counter in (cap.session.run.counter, session.run.counter)
        for work in list(counter._works.values())[:2]
    ]
    # What Lightning logs is a little more.
    assert steps[:2] == [pytest.approx(step, abs=10) for step in steps[2:]]


# -------------------------------------------------------------------------------------------- what cannot be honoured


class Manual(Module):
    """Steps for itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Fetching(Module):
    """Fetches for itself."""

    def training_step(self, dataloader_iter):
        raise AssertionError("never called")


class Closure(Module):
    """Its optimizer calls the model several times a step."""

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


@pytest.mark.parametrize(
    ("module", "load", "callbacks", "text"),
    [
        (Manual(), None, [], "manual optimization"),
        (Fetching(), None, [], "fetches its own batches"),
        (Closure(), None, [], "closure"),
        (Module(), DataLoader(Stream(), batch_size=16), [], "IterableDataset.*keep_recipe=True"),
        (Module(), [loader(data()), loader(data())], [], "several training loaders"),
        (
            Module(),
            DataLoader(data(), batch_sampler=Batches(range(640), 16, False)),
            [],
            "custom batch_sampler cannot change",
        ),
        (Module(), DataLoader(data(), batch_size=None), [], "no batch size"),
        (Module(), None, [GradientAccumulationScheduler({2: 2})], "GradientAccumulationScheduler"),
    ],
)
def test_one_line_says_what_cannot_be_honoured(module, load, callbacks, text):
    device = slow()
    with pytest.raises(InputError, match=text) as caught:
        fit(module, PowerCapCallback(CAP_W, device=device), *callbacks, load=load)
    assert "\n" not in str(caught.value)
    assert device.current() == device.combinations()[-1]


class Regression(lightning.LightningModule):
    """Least squares at a learning rate that is stable at a batch size of 32, and not at that scaled to 256."""

    def __init__(self, dataset):
        super().__init__()
        self.net, self.dataset = nn.Linear(8, 1), dataset

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.35)

    def train_dataloader(self):
        return loader(self.dataset, batch_size=32)

    def over_all(self):
        with torch.no_grad():
            return float(functional.mse_loss(self.net(self.dataset.tensors[0]), self.dataset.tensors[1]))


def test_training_that_lightning_alone_finishes_does_not_diverge(monkeypatch):
    monkeypatch.setattr(sys.modules["wattune.online.capped"], "Search", Tour)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 8, generator=generator)
    y = x @ torch.randn(8, 1, generator=generator) + 0.1 * torch.randn(2048, 1, generator=generator)
    torch.manual_seed(0)
    module = Regression(TensorDataset(x, y))
    capped_by = PowerCapCallback(None, device=slow(), batch_sizes=[32, 256])
    fit_alone(module, capped_by, max_epochs=40)
    assert 256 in {change.point.batch_size for change in capped_by.record.changes}
    assert module.over_all() < 0.05
    assert sum("batch sizes above 32 are left out" in note for note in capped_by.record.notes) == 1
    assert capped_by.record.changes[-1].point.batch_size == 32


def test_nothing_is_left_in_the_trainer():
    cap = PowerCapCallback(CAP_W, device=slow(), keep_recipe=True)
    module = Module(scheduler=cosine)
    trainer = fit(module, cap, accumulate_grad_batches=2, max_steps=10)
    assert trainer.accumulate_grad_batches == 2
    assert trainer.max_steps == 10
    assert trainer.lr_scheduler_configs[0].frequency == 1
    assert type(trainer.fit_loop._data_source).__name__ == "_DataLoaderSource"
    trainer.validate(module, DataLoader(data(), batch_size=320), verbose=False)


def test_nothing_to_train_on():
    fit(Module(), PowerCapCallback(CAP_W, device=slow()), limit_train_batches=0)


def test_the_example_in_the_documentation_runs(tmp_path):
    (tmp_path / "example.py").write_text(re.search(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1))
    ignored = ("`isinstance(treespec", "The 'train_dataloader' does not have many")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": ",".join(["error", *(f"ignore:{text}" for text in ignored)]),
    }
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
