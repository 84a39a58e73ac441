"""What cannot be honoured is an error of one line that says what to do."""

import pytest
import torch
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import Numbered, board, loss_of, perceptron, session_of, trained
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from wattune.cap import PowerCap
from wattune.errors import InputError, OutputError, RecordError
from wattune.goal import Goal
from wattune.records import SampleEfficiency


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(8), torch.tensor(0))] * 64)


class Pairs(SequentialSampler):
    batch_size = 2

    def __iter__(self):
        return iter([[0, 1], [2, 3]])


class Looping(DataLoader):
    def __iter__(self):
        return super().__iter__()


class Unmeasured(SequentialSampler):
    __len__ = None


class Sharpness(torch.optim.SGD):
    """As sharpness-aware minimisation is often written: its step needs a closure."""

    def step(self, closure):
        return super().step(closure)


def loader_of(*, samples=640, **options):
    return DataLoader(Numbered(samples), **{"batch_size": 32, **options})


OTHER = torch.optim.SGD(perceptron().parameters(), lr=0.1)
EITHER = r"scheduler_interval is missing: \w+ may count steps or epochs; allowed: step"
SILENT = SampleEfficiency(
    workload="w",
    reference_batch_size=8,
    points=[{"batch_size": 8, "relative_samples": None, "runs": 1, "censored": 1}],
)


@pytest.mark.parametrize("loader", [DataLoader(Endless(), batch_size=8), Looping(Numbered(), batch_size=8)])
def test_with_the_recipe_kept_it_is_taken_as_it_is(loader):
    assert trained(loader=loader, keep_recipe=True, micro_batch_size=4).samples in (64, 640)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loader": loader_of(batch_size=None)}, r"no batch size: DataLoader; use DataLoader\(.*batch_size=N"),
        ({"loader": DataLoader(Endless(), batch_size=8)}, "no samples to choose from: Endless; .*keep_recipe"),
        (
            {"loader": DataLoader(Numbered(), batch_sampler=Pairs(Numbered()))},
            "batch size of a custom batch_sampler cannot change: Pairs; give its order as sampler=.*keep_recipe=True",
        ),
        (
            {"loader": DataLoader(Numbered(), batch_sampler=BatchSampler(Pairs(Numbered()), 4, False))},
            "custom batch_sampler cannot change: BatchSampler",
        ),
        ({"loader": Looping(Numbered(), batch_size=8)}, "loader with a custom __iter__ cannot change: Looping"),
        (
            {"loader": loader_of(sampler=Unmeasured(Numbered()), drop_last=True)},
            "the sampler needs a length: Unmeasured",
        ),
        ({"loader": [1, 2, 3]}, "no batch size: list"),
        ({"loader": 7}, "loader: int; allowed: a torch DataLoader"),
        ({"scheduler": "cosine"}, "scheduler: str; allowed: schedulers of torch"),
        ({"scheduler_interval": "week"}, "scheduler_interval: week; allowed: step, epoch"),
        ({"batch_sizes": [0]}, "batch_sizes: 0"),
        ({"batch_sizes": [16], "keep_recipe": True}, "keep_recipe=True keeps the loader's batch size: 32"),
        ({"micro_batch_size": 64}, "micro_batch_size: 64; allowed: 1 to the batch size 32"),
        ({"resume": True}, "resume=True needs: checkpoint=PATH"),
        ({"cap_w": "9W@supply"}, "cap at the supply needs the losses between"),
        ({"model": lambda x: x, "optimizer": 1}, "model: function"),
        ({"optimizer": "sgd"}, "optimizer: str"),
        ({"cap_w": PowerCap(9, max_temp_c=70), "device": "real"}, "does not report its temperature"),
        ({"batch_sizes": 8}, "batch_sizes: 8; allowed: a list"),
        ({"micro_batch_size": 1.5}, "micro_batch_size: 1.5"),
        ({"efficiency": {}}, "efficiency: dict; allowed: an efficiency record"),
        ({"model": nn.Linear(8, 2, device="meta")}, "no weights yet: device meta"),
        ({"optimizer": torch.optim.SGD(nn.Linear(8, 2).parameters(), lr=0.1)}, "no parameter of the model: Sequential"),
        ({"loader": None}, "batch_size: None|batch_size; allowed"),
        ({"cap_w": True}, "cap_w: True"),
        ({"cap_w": "5W", "over": "rack"}, "over: rack"),
        ({"goal": 3}, "3"),
        ({"device": "sim:absent"}, "absent"),
        ({"device": 7}, "device: 7"),
        ({"device": None}, "device; allowed: a name"),
        ({"scheduler": [1]}, "int"),
        ({"before_step": 5}, "before_step: 5"),
        ({"scaler": 5}, "scaler: 5"),
        ({"checkpoint": 5}, "checkpoint: 5"),
        ({"record": 5}, "record: 5"),
        ({"profile": 5, "cap_w": lambda s: 5.0}, "profile: int"),
        ({"seed": -1}, "seed: -1"),
        ({"keep_recipe": "no"}, "keep_recipe: no"),
        ({"cap_w": 4500}, r"^4500 W is \d+ times what this board draws at most; 4500mW\?$"),
        ({"optimizer": torch.optim.LBFGS}, "closure: LBFGS"),
        ({"optimizer": Sharpness}, "closure: Sharpness"),
        ({"loader": loader_of(samples=0)}, "the loader gives no batch: 0 samples"),
        ({"loader": loader_of(samples=31, drop_last=True)}, "the loader gives no batch: 31 samples"),
        ({"scheduler": lr_scheduler.StepLR(OTHER, 1)}, "belongs to another optimizer: StepLR"),
        ({"scheduler": lambda own: lr_scheduler.StepLR(own, 10)}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.MultiStepLR(own, [5, 8])}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.CosineAnnealingLR(own, 10)}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.PolynomialLR(own, 5)}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.LambdaLR(own, lambda epoch: 0.5**epoch)}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.ChainedScheduler([lr_scheduler.CosineAnnealingLR(own, 10)])}, EITHER),
        ({"scheduler": lambda own: lr_scheduler.ExponentialLR(own, 0.9)}, EITHER),
        ({"efficiency": SILENT}, "every run was censored"),
        ({"efficiency": "no/curve.json"}, "no such record"),
        ({"batch_size": 64, "micro_batch_size": 16}, "batch_size: 64; allowed: 32, the loader's; give the loader the"),
        ({"goal": Goal("energy", deadline_s=60.0)}, "the goal of a session: a deadline"),
        ({"goal": Goal("energy-above-rest")}, "the goal of a session: energy-above-rest"),
        ({"log_to": 7}, r"log_to: 7; allowed: .*, a function"),
        ({"yield_to": 8002}, "yield_to: 8002; allowed: a function"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_an_argument_that_cannot_be(options, said):
    model, scheduler = options.get("model", perceptron()), options.get("scheduler")
    optimizer = options.get("optimizer", torch.optim.SGD)
    if options.get("device") == "real":
        options = {**options, "device": RealTimeDevice()}
    if isinstance(optimizer, type):
        optimizer = optimizer(model.parameters(), lr=0.1)
    if callable(scheduler):
        options = {**options, "scheduler": scheduler(optimizer)}
    with pytest.raises((InputError, RecordError), match=said) as caught:
        session_of(**{"model": model, "loader": loader_of(), **options, "optimizer": optimizer})
    assert "\n" not in str(caught.value)


def _asserts(self, closure=None):
    assert closure is not None, "Sharpness Aware Minimization requires closure"


@pytest.mark.parametrize("step", [_asserts, lambda self, closure=None: closure(), lambda self, *args: args[0]()])
def test_an_optimizer_that_calls_its_closure_untested_is_refused_at_its_first_step(step):
    model, untold = perceptron(), type("Untold", (torch.optim.SGD,), {"step": step})
    with pytest.raises(InputError, match="an optimizer that needs a closure: Untold"):
        trained(model, optimizer=untold(model.parameters(), lr=0.1))


def test_a_mistake_in_an_optimizer_at_a_later_step_is_its_own():
    class Mistaken(torch.optim.SGD):
        callback = staticmethod(lambda: None)

        def step(self, closure=None):
            self.callback()
            self.callback = None
            return super().step(closure)

    model = perceptron()
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        trained(model, optimizer=Mistaken(model.parameters(), lr=0.1))


def test_a_cap_in_another_unit_is_warned_of_on_a_board_that_nothing_is_known_of():
    with pytest.warns(UserWarning, match=r"^4500 W is \d+ times what this board draws at most; 4500mW\?$"):
        trained(device=RealTimeDevice(), cap_w=4500)


def test_a_device_that_another_session_holds():
    device = board()
    with session_of(device=device):
        with pytest.raises(InputError, match=r"another session holds this device: .*end that session first"):
            session_of(device=device).__enter__()
    with session_of(device=device):
        pass


def test_a_schedule_that_ends_before_the_training():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    with pytest.raises(InputError, match=r"OneCycleLR ends before the training run.*one step per 32 samples"):
        trained(model, optimizer=optimizer, scheduler=scheduler)


def test_a_scheduler_that_is_stepped_in_the_loop_fights_the_scaling():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    with pytest.raises(InputError, match=r"learning rate changed in the middle of a pass.*scheduler=\.\.\."):
        with session_of(model=model, optimizer=optimizer) as session:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if batch.last:
                    scheduler.step()


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_scheduler_that_the_loop_steps_between_passes_as_well(interval):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    options = {"scheduler": scheduler, "scheduler_interval": interval, "on_pass": lambda _: scheduler.step()}
    with pytest.raises(InputError, match=r"StepLR was stepped outside the session.*remove scheduler\.step\(\)"):
        trained(model, optimizer=optimizer, passes=3, **options)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda session, optimizer: optimizer.step(), r"remove optimizer.step\(\)"),
        (lambda session, optimizer: optimizer.zero_grad(), r"remove optimizer.zero_grad\(\)"),
        (lambda session, optimizer: optimizer.zero_grad(set_to_none=False), r"remove optimizer.zero_grad\(\)"),
        (
            lambda session, optimizer: nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-3),
            "changed in the middle of a step",
        ),
        (lambda session, optimizer: session.backward(torch.zeros(())), "once for each"),
        (lambda session, optimizer: next(session.batches()), "a pass is under way"),
    ],
)
def test_a_line_of_the_plain_loop_that_was_left_in(wrong, said):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=said):
        with session_of(model=model, optimizer=optimizer, micro_batch_size=8) as session:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                wrong(session, optimizer)


def test_clipping_behind_the_step_has_no_effect_and_is_refused():
    model = perceptron()
    with pytest.raises(InputError, match=r"changed after the optimizer had stepped.*before_step="):
        with session_of(model=model, keep_recipe=True) as session:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_cleared_behind_the_step(to_none):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session_of(model=model, optimizer=optimizer, keep_recipe=True) as session:
        for batch in session.batches():
            session.backward(loss_of(model, batch))
            optimizer.zero_grad(set_to_none=to_none)
    assert session.samples == 640


def test_a_loader_that_yields_whole_batches_needs_their_size():
    data = Numbered()
    batches = [(data.x[i : i + 32], data.y[i : i + 32]) for i in range(0, 640, 32)]
    loader = DataLoader(batches, batch_size=None)
    assert trained(loader=loader, keep_recipe=True, batch_size=32).samples == 640
    with pytest.raises(InputError, match=r"no batch size: DataLoader; .*batch_size= and keep_recipe=True"):
        session_of(loader=loader, keep_recipe=True)
    with pytest.raises(InputError, match="cannot change"):
        session_of(loader=loader, batch_size=32)


def test_a_batch_without_backward():
    with pytest.raises(InputError, match=r"session\.backward\(loss\) was not called for a batch"):
        with session_of() as session:
            for _ in session.batches():
                pass


def test_a_session_that_is_not_open():
    session = session_of()
    with pytest.raises(InputError, match="not open"):
        next(session.batches())


def test_batches_that_cannot_be_split():
    options = {"loader": loader_of(collate_fn=Opaque), "loss": lambda model, batch: loss_of(model, batch.data)}
    assert any("cannot be split" in note for note in trained(**options).record.notes)
    with pytest.raises(InputError, match="cannot be split into micro-batches: Opaque; let collate_fn return"):
        trained(**options, micro_batch_size=8)


class Opaque:
    def __init__(self, items):
        self.x = torch.stack([x for x, _ in items])
        self.y = torch.stack([y for _, y in items])


def test_a_batch_that_is_not_a_pair():
    with pytest.raises(InputError, match=r"not \(x, y\) pairs: Tensor; use batch.data"):
        with session_of(loader=DataLoader(Numbered().x, batch_size=32)) as session:
            _ = next(session.batches()).x


@pytest.mark.slow
def test_a_size_at_which_the_model_fails_is_left_out_with_a_note(touring):
    class Fixed(torch.nn.Module):
        """Runs with 32 and 64 samples alone."""

        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            if len(x) not in (32, 64):
                raise ValueError(f"cannot take {len(x)}")
            return self.inner(x)

    session = trained(Fixed(), passes=15)
    assert any("micro-batches of 16 are left out: ValueError: cannot take 16" in note for note in session.record.notes)
    sizes = {change.point.micro_batch_size or change.point.batch_size for change in session.record.changes}
    assert sizes == {32, 64}


def test_where_it_fails_at_the_users_own_size_the_users_error_comes_out():
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            raise ValueError("never works")

    model = Broken()
    device = board()
    before = device.current()
    with pytest.raises(ValueError, match="never works"):
        trained(model, device=device)
    assert device.current() == before


def test_a_session_that_was_never_entered_leaves_no_trace():
    """As in a notebook, where a cell is run again."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session_of(model=model, optimizer=optimizer)
    model(Numbered().x[:8]).sum().backward()
    optimizer.step()
    assert not model._forward_pre_hooks


def test_a_session_that_cannot_begin_leaves_no_trace(tmp_path):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"model": model, "optimizer": optimizer, "checkpoint": tmp_path / "c"}
    with session_of(**options):
        pass
    with pytest.raises(RecordError, match=r"batch_size \(32, not 16\)"):
        session_of(loader=loader_of(batch_size=16), resume=True, **options).__enter__()
    model(Numbered().x[:8]).sum().backward()
    optimizer.step()
    assert trained(resume=True, **options).samples == 640


def test_what_is_no_loss():
    with pytest.raises(InputError, match=r"session.backward\(loss\): float"):
        with session_of() as session:
            next(session.batches())
            session.backward(1.0)


@pytest.mark.parametrize("option", ["record", "checkpoint"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, option):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write to .*/file"):
        session_of(**{option: tmp_path / "file" / "session.json"})
    with pytest.raises(OutputError, match="a folder has the name of the file"):
        session_of(**{option: tmp_path})


def test_a_record_that_cannot_be_saved_in_the_end_is_a_warning(tmp_path):
    folder = tmp_path / "records"

    def fill(session):
        folder.rmdir()
        folder.touch()  # no file fits there any more, as on a full disk

    with pytest.warns(UserWarning, match=r"is not saved, but in `session\.record`"):
        assert trained(keep_recipe=True, record=folder / "session.json", on_pass=fill).record is not None
