"""PowerCapCallback in the real library: the same trainings below the cap, with the steps that the user asked for."""

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
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.exceptions import SIGTERMException
from tests.support.device_examples import FileDevice
from tests.support.sessions import distance
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from wattune.devices import SimulatedDevice, builtin_board
from wattune.errors import InputError, SafetyStop
from wattune.integrations.lightning import PowerCapCallback
from wattune.loop.interrupts import Ended, Shield
from wattune.point import Knobs

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
    pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch ended"),
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

    def __init__(self, width=32, scheduler=None, fail_at=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 3))
        self.scheduler, self.fail_at = scheduler, fail_at
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
        return [optimizer], [{"scheduler": self.scheduler(optimizer, self.trainer), "interval": "step"}]

    def on_before_zero_grad(self, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])


def data(samples=640):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, (3 * torch.rand(samples, generator=generator)).long(), torch.arange(samples))


def loader(dataset, batch_size=16, **options):
    generator = torch.Generator().manual_seed(5)
    return DataLoader(dataset, **{"batch_size": batch_size, "shuffle": True, "generator": generator, **options})


def trainer_of(*callbacks, **options):
    plain = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(c, Checkpoint) for c in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(callbacks=list(callbacks), **{**plain, **options})


def fit(module, *callbacks, samples=640, load=None, ckpt_path=None, **options):
    trainer, dataset = trainer_of(*callbacks, **options), data(samples)
    trainer.fit(
        module, loader(dataset) if load is None else load, DataLoader(dataset, batch_size=320), ckpt_path=ckpt_path
    )
    return trainer


def cosine(optimizer, trainer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)


def one_cycle(optimizer, trainer):
    steps = trainer.estimated_stepping_batches
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


# ------------------------------------------------------------------------------------------------- the recipe is kept


@pytest.mark.parametrize(
    ("scheduler", "options", "load", "samples"),
    [
        (cosine, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, {}, 640),
        (one_cycle, {"accumulate_grad_batches": 4, "val_check_interval": 0.25}, {"batch_size": 8}, 640),
        (None, {}, {"drop_last": True}, 644),
        (None, {"max_steps": 47, "max_epochs": -1}, {"shuffle": False}, 640),
        (one_cycle, {}, {"num_workers": 1, "persistent_workers": True}, 640),
        (cosine, {"precision": "bf16-mixed"}, {}, 640),
        (None, {"plugins": "scaler", "gradient_clip_val": 0.3}, {}, 640),
        (None, {"limit_train_batches": 13}, {}, 640),
        (None, {"check_val_every_n_epoch": None, "val_check_interval": 30}, {}, 640),
        (one_cycle, {"reload_dataloaders_every_n_epochs": 1}, {"num_workers": 1}, 640),
        (None, {"accumulate_grad_batches": 4}, {}, 650),
    ],
)
def test_the_same_training_as_without_it(scheduler, options, load, samples):
    modules = [Module(scheduler=scheduler) for _ in range(2)]
    cap, trainers = PowerCapCallback(CAP_W, device=slow()), []
    for module, callbacks in zip(modules, ([], [cap]), strict=True):
        if "plugins" in options:
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            options = {**options, "plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
        of = loader(data(samples), **load)
        trainers.append(fit(module, *callbacks, samples=samples, load=of, **{"max_epochs": 4, **options}))
    plain, capped = modules
    assert trainers[0].global_step == trainers[1].global_step == cap.record.steps
    assert sum(capped.sizes) == cap.record.samples
    assert (plain.sizes, plain.numbers) == (capped.sizes, capped.numbers)
    assert plain.validated == capped.validated
    assert plain.rates == capped.rates
    assert distance(plain, capped) == 0
    assert cap.record.readings_above_cap == 0


class SameLength(BatchSampler):
    """Batches of 10 and 22 samples in turn."""

    def __init__(self, sampler):
        super().__init__(sampler, 32, drop_last=False)

    def __iter__(self):
        for batch in super().__iter__():
            yield from (batch[:10], batch[10:])

    def __len__(self):
        return 2 * super().__len__()


def test_a_loader_with_batches_of_several_sizes():
    def load():
        order = RandomSampler(data(), generator=torch.Generator().manual_seed(5))
        return DataLoader(data(), batch_sampler=SameLength(order))

    modules, cap = [Module(), Module()], PowerCapCallback(CAP_W, device=slow())
    for module, callbacks in zip(modules, ([], [cap]), strict=True):
        fit(module, *callbacks, load=load(), accumulate_grad_batches=2, max_epochs=6)
    assert modules[0].numbers == modules[1].numbers
    assert modules[0].validated == modules[1].validated
    assert distance(*modules) == 0
    assert cap.record.samples == len(modules[1].numbers)
    assert len(cap.record.table.cells) > 1  # clocks are chosen


# ---------------------------------------------------------------------------------------------- when something happens


def test_an_interrupted_training_run_restores_the_board_and_resumes(tmp_path):
    device = slow()
    before, handler = device.current(), signal.getsignal(signal.SIGINT)
    cap = PowerCapCallback(CAP_W, device=device)
    try:
        with pytest.raises(SystemExit):  # how Lightning itself ends then
            fit(Module(fail_at=(46, KeyboardInterrupt())), cap, OnExceptionCheckpoint(tmp_path), max_epochs=4)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert device.current() == before
    assert cap.record.ended == "interrupted"

    module, again = Module(), PowerCapCallback(CAP_W, device=slow())
    fit(module, again, max_epochs=4, ckpt_path=tmp_path / "on_exception.ckpt")
    assert again.record.samples == cap.record.samples + len(module.numbers)
    assert again.record.time_s > cap.record.time_s
    assert again.record.changes[: len(cap.record.changes)] == cap.record.changes
    assert again.record.readings_above_cap == 0


class Ending(Module):
    """Gets SIGTERM in its 20th batch."""

    def training_step(self, batch, batch_idx):
        if len(self.sizes) == 20:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(batch, batch_idx)


def test_lightning_saves_when_the_process_is_told_to_end(tmp_path):
    device, module = slow(), Ending()
    before = device.current()
    cap = PowerCapCallback(CAP_W, device=device)
    with pytest.raises(SIGTERMException):
        fit(module, cap, OnExceptionCheckpoint(tmp_path), max_epochs=40)
    assert len(module.sizes) == 21
    assert (tmp_path / "on_exception.ckpt").exists()
    assert device.current() == before
    assert (cap.record.ended, cap.record.reason) == ("interrupted", "the process got SIGTERM")
    with Shield(ends=True), pytest.raises(Ended):  # the next session is told as well
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_it_resumes_as_lightning_alone_does(tmp_path):
    def run(*callbacks, ckpt_path=None, stop=None):
        module = Module(scheduler=cosine, fail_at=stop)
        torch.manual_seed(0)
        cap = [PowerCapCallback(CAP_W, device=slow())] * (callbacks[0] == "capped")
        fit(module, *cap, *callbacks[1:], max_epochs=3, val_check_interval=0.25, ckpt_path=ckpt_path)
        return module

    rests = []
    for kind in ("plain", "capped"):
        saving = ModelCheckpoint(tmp_path / kind, save_top_k=-1, monitor="val_loss", filename="{step}")
        with pytest.raises(RuntimeError, match="here"):
            run(kind, saving, stop=(80, RuntimeError("here")))
        paths = sorted((tmp_path / kind).glob("*.ckpt"), key=lambda path: int(re.findall(r"\d+", path.stem)[0]))
        assert len(paths) == 8
        rests.append([run(kind, ckpt_path=path) for path in paths])
    for plain, capped in zip(*rests, strict=True):
        assert plain.numbers == capped.numbers
        assert plain.validated == capped.validated
        assert plain.rates == capped.rates
        assert distance(plain, capped) == 0


def test_a_checkpoint_of_another_recipe_starts_over(tmp_path):
    first, again = PowerCapCallback(CAP_W, device=slow()), PowerCapCallback(CAP_W, device=slow())
    trainer = fit(Module(), first, load=loader(data(64), 32), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    fit(Module(), again, load=loader(data(64), 16), max_epochs=2, ckpt_path=tmp_path / "end.ckpt")
    assert [note for note in again.record.notes if "checkpoint" in note] == [
        "the checkpoint is of another board, batch size or number of processes: the search starts over"
    ]


class Failing(Module):
    """Fails where an evaluation is under way."""

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            raise RuntimeError("validation")


def test_a_module_that_fails_leaves_the_board_as_it_was(tmp_path):
    device = FileDevice(tmp_path)
    cap = PowerCapCallback(9.0, device=device)
    for module, said in ((Module(fail_at=(7, RuntimeError("training"))), "training"), (Failing(), "validation")):
        with pytest.raises(RuntimeError, match=said):
            fit(module, cap)
        assert device.current() == Knobs(clock_mhz=200.0)
        assert cap.record.ended == "failed"
    del cap
    gc.collect()  # what is let go of later changes nothing
    assert device.current() == Knobs(clock_mhz=200.0)


def test_on_a_board_that_trains_itself(tmp_path):
    device = FileDevice(tmp_path)
    modules, seen = [Module(), Module()], []

    class Look(lightning.Callback):
        def on_validation_batch_start(self, *_):
            seen.append(device.current())

    fit(modules[0], max_epochs=3)
    cap = PowerCapCallback(9.0, device=device)
    fit(modules[1], cap, Look(), max_epochs=3)
    assert seen[0] == Knobs(clock_mhz=100.0)  # the sanity check, with nothing known yet
    assert device.current() == Knobs(clock_mhz=200.0)
    assert distance(*modules) == 0
    assert cap.record.compute_s > 0
    assert cap.record.energy_j == pytest.approx(4.321 * cap.record.time_s, rel=0.05)


def test_a_cap_that_cannot_be_kept_ends_the_training():
    device = slow()
    cap = PowerCapCallback(2.0, device=device)
    with pytest.raises(SafetyStop, match="lowest setting"):
        fit(Module(), cap, max_epochs=50)
    assert device.current() == device.combinations()[-1]
    assert cap.record.ended == "stopped for safety"


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
        (Module(), [loader(data()), loader(data())], [], "several training loaders"),
        (Module(), None, [GradientAccumulationScheduler({2: 2})], "GradientAccumulationScheduler"),
        (Module(), None, [LearningRateFinder()], "a finder would run steps without a cap.*Tuner"),
    ],
)
def test_one_line_says_what_cannot_be_honoured(module, load, callbacks, text):
    device, module.lr = slow(), 0.1
    with pytest.raises(InputError, match=text) as caught:
        fit(module, PowerCapCallback(CAP_W, device=device), *callbacks, load=load)
    assert "\n" not in str(caught.value)
    assert device.current() == device.combinations()[-1]


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
