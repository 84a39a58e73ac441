"""An interruption leaves the board as it was, a checkpoint and a record; and training goes on from there."""

import random
import signal
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import torch
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import SAMPLES, Named, Numbered, board, distance, loss_of, perceptron, session_of, train
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from wattune.errors import InputError, RecordError, SafetyStop
from wattune.loop.capped import capped
from wattune.loop.order_state import OrderState
from wattune.point import Knobs
from wattune.records import SessionRecord


def loader_of(data=None, **options):
    generator = options.pop("generator", torch.Generator().manual_seed(3))
    return DataLoader(data or Numbered(), **{"batch_size": 32, "shuffle": True, "generator": generator, **options})


class Run:
    """One process's worth of training, up to an interruption in the middle of a batch."""

    def __init__(self, path, *, stop_after=None, passes=6, device=None, loader=None, resume=True, **options):
        Run.latest = self
        self.model = perceptron()
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.scheduler = lr_scheduler.StepLR(optimizer, 9, 0.8)
        self.device = device or board()
        self.seen = []
        calls = 0
        with capped(
            device=self.device,
            cap_w=4.5,
            model=self.model,
            optimizer=optimizer,
            loader=loader_of(Named()) if loader is None else loader,
            scheduler=self.scheduler,
            scheduler_interval="step",
            checkpoint=path,
            resume=resume,
            record=path.with_suffix(".json"),
            **options,
        ) as self.session:
            for _ in range(self.session.passes, passes):
                parts = []
                for batch in self.session.batches():
                    loss = functional.cross_entropy(self.model(batch.data["x"]), batch.data["y"])
                    calls += not batch.is_check
                    if calls == stop_after:
                        raise KeyboardInterrupt
                    self.session.backward(loss)
                    if batch.is_check:
                        continue
                    parts += batch.data["number"].tolist()
                    if batch.last:
                        self.seen += parts
                        parts = []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "micro", "stop_after"),
    [
        *((0, micro, stop_after) for micro in (32, 8) for stop_after in (1, 7, 75, 110)),
        (1, 8, 75),
        pytest.param(1, 32, 75, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_training_is_the_one_that_was_never_interrupted(tmp_path, workers, micro, stop_after):
    options = {"keep_recipe": True, "micro_batch_size": micro}

    def loader():
        return loader_of(Named(), num_workers=workers)

    whole = Run(tmp_path / "whole.safetensors", loader=loader(), **options)
    path = tmp_path / "checkpoint.safetensors"
    device = board()
    clock_mhz = device.current()
    with pytest.raises(KeyboardInterrupt):
        Run(path, stop_after=stop_after, device=device, loader=loader(), **options)
    assert device.current() == clock_mhz
    first = SessionRecord.load(path.with_suffix(".json"))
    assert first.ended == "interrupted"
    rest = Run(path, loader=loader(), **options)
    assert first.samples + len(rest.seen) == len(whole.seen) == 6 * 640
    assert rest.seen == whole.seen[first.samples :]
    assert distance(rest.model, whole.model) < 1e-6
    assert rest.scheduler.get_last_lr() == whole.scheduler.get_last_lr()
    assert rest.session.record.samples == 6 * 640
    assert rest.session.record.time_s >= first.time_s


@pytest.mark.slow
def test_what_was_probed_is_not_probed_again(tmp_path, touring):
    path = tmp_path / "checkpoint.safetensors"
    first = Run(path, passes=12)
    again = Run(path, passes=13)
    cells = first.session.record.table.cells
    assert len(cells) > 3
    assert again.session.record.table.cells[: len(cells)] == cells
    probes = [change for change in again.session.record.changes if change.why == "probe"]
    places = [change.point for change in probes]
    assert len(set(places)) >= len(places) - 1  # the one that was under way begins anew


@pytest.mark.slow
def test_each_sample_is_seen_once_although_the_sizes_change_and_it_was_interrupted(tmp_path, touring):
    path = tmp_path / "checkpoint.safetensors"
    seen, stops = [], iter([30, 90, 200, None])
    for stop in stops:
        run = Run.__new__(Run)
        with suppress(KeyboardInterrupt):
            run.__init__(path, stop_after=stop, passes=5)
        seen += run.seen
    for number in range(5):
        assert sorted(seen[640 * number : 640 * (number + 1)]) == list(range(640))


def test_any_other_error_leaves_the_same_behind(tmp_path):
    device, model = board(), perceptron()
    clock_mhz = device.current()
    path = tmp_path / "c.safetensors"
    with pytest.raises(ZeroDivisionError):
        with session_of(model, device=device, checkpoint=path) as session:
            for number, batch in enumerate(session.batches()):
                session.backward(loss_of(model, batch) / (7 - number if number < 8 else 1))
                if number == 7:
                    1 / 0  # noqa: B018
    assert session.record.ended == "failed"
    assert session.record.reason == "division by zero"
    assert path.exists()
    assert device.current() == clock_mhz


def test_a_checkpoint_of_another_recipe_or_model(tmp_path):
    path = tmp_path / "c.safetensors"
    Run(path, passes=1)
    with pytest.raises(RecordError, match="of a different session, which differs in: keep_recipe"):
        Run(path, passes=2, keep_recipe=True)
    model = perceptron(width=3)
    with pytest.raises(RecordError, match="does not fit model, optimizer or scheduler"):
        session_of(model, optimizer=torch.optim.Adam(model.parameters()), checkpoint=path, resume=True).__enter__()


def test_a_scheduler_that_cannot_be_saved(tmp_path):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 3)
    scheduler.mine = object()
    options = {"scheduler": scheduler, "scheduler_interval": "step", "checkpoint": tmp_path / "c.safetensors"}
    with pytest.raises(InputError, match="cannot be saved"):
        session_of(model, optimizer=optimizer, **options).__enter__()


@pytest.mark.slow
def test_training_resumes_after_a_safety_stop(tmp_path):
    device = RealTimeDevice()
    path = tmp_path / "c.safetensors"
    readings = iter(range(10**9))

    def power_w(clock_mhz):
        if next(readings) > 5:
            from wattune.errors import SensorError

            raise SensorError("unplugged")
        return 2.0

    device._power_w = power_w
    with pytest.raises(SafetyStop, match="sensor stopped responding"):
        Run(path, passes=10**6, device=device)
    assert device.current() == Knobs(clock_mhz=150.0)
    record = SessionRecord.load(path.with_suffix(".json"))
    assert record.ended == "stopped for safety"
    assert "unplugged" in record.board_events[0].text
    rest = Run(path, passes=record.passes + 1, device=RealTimeDevice())
    assert rest.session.record.passes == record.passes + 1


class Shuffled(Sampler[int]):
    """An order that Python's random numbers decide, or those of a generator of its own."""

    def __init__(self, samples, draw=random):
        self.samples, self.draw = samples, draw

    def __len__(self):
        return self.samples

    def __iter__(self):
        order = list(range(self.samples))
        self.draw.shuffle(order)
        return iter(order)


class ShuffledByNumpy(Shuffled):
    def __iter__(self):
        return iter(np.random.permutation(self.samples).tolist())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["python", "numpy", "two generators", "torch", "by epoch"])
@pytest.mark.parametrize("workers", [0, 1, "persistent 2"])
@pytest.mark.parametrize("stop_after", [13, 31])
def test_whatever_the_order_follows_from_no_sample_is_seen_twice(tmp_path, kind, workers, stop_after):
    count = workers if isinstance(workers, int) else int(workers.removeprefix("persistent "))
    options = {"num_workers": count, "persistent_workers": workers != count}

    def loader(seed):
        """Of another process, whose random numbers are others."""
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        data = Named()
        generators = [torch.Generator().manual_seed(seed + n) for n in (1, 2)]
        sampler = {
            "python": Shuffled(len(data)),
            "numpy": ShuffledByNumpy(len(data)),
            "two generators": RandomSampler(data, generator=generators[0]),
            "torch": RandomSampler(data),
            "by epoch": DistributedSampler(data, num_replicas=1, rank=0, seed=5),
        }[kind]
        own = generators[1] if kind == "two generators" else None
        return DataLoader(data, batch_size=32, sampler=sampler, generator=own, **options)

    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "c", passes=2, stop_after=stop_after, loader=loader(1))
    seen = list(Run.latest.seen)
    assert 0 < len(seen) < 2 * SAMPLES
    rest = Run(tmp_path / "c", passes=2, loader=loader(50))
    seen += rest.seen
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))


class Counting(Shuffled):
    """An order that follows from the number of passes that the sampler has begun."""

    def __init__(self, samples):
        super().__init__(samples)
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        self.draw = random.Random(self.passes)
        return super().__iter__()


class Batches(Counting):
    """Batches of one's own."""

    batch_size = 32

    def __len__(self):
        return self.samples // self.batch_size

    def __iter__(self):
        order = list(super().__iter__())
        return iter([order[begin : begin + 32] for begin in range(0, self.samples, 32)])


class ShuffledByOwn(Shuffled):
    def __iter__(self):
        draw = self.draw() if callable(self.draw) else self.draw
        return iter(draw.permutation(self.samples).tolist())


class Stream(IterableDataset):
    """Samples without indices, by the number of the pass."""

    def __init__(self):
        self.samples, self.order = Named(), Counting(SAMPLES)
        self.passes = 0

    def __iter__(self):
        self.order.passes, self.passes = self.passes, self.passes + 1
        return (self.samples[index] for index in self.order)


class Wrapping(Sampler[int]):
    """An order of another sampler, and of numbers in containers, slots and arrays."""

    __slots__ = ("draw", "inner", "past", "shift")

    def __init__(self, inner):
        self.inner, self.draw, self.past = inner, {"own": [np.random.default_rng(3)]}, []
        self.shift = torch.tensor([0])

    def __len__(self):
        return len(self.inner)

    def __iter__(self):
        order = np.roll(list(self.inner), int(self.shift))[self.draw["own"][0].permutation(SAMPLES)]
        self.past, self.shift = [*self.past, len(self.past)], self.shift + len(self.past)
        return iter(order.tolist())


class Loader:
    """A loader of one's own, with a flag that changes from pass to pass."""

    batch_size = 32

    def __init__(self):
        self.inner, self.is_odd = Wrapping(Counting(SAMPLES)), False

    def __iter__(self):
        self.is_odd = not self.is_odd
        order = list(self.inner)[:: -1 if self.is_odd else 1]
        return iter(DataLoader(Named(), batch_size=32, sampler=order))


def hidden(generator):
    return lambda: generator


def own_generator():
    return RandomSampler(Named(), generator=torch.Generator().manual_seed(3))


ORDERS = {
    "wrapped": lambda: {"sampler": Wrapping(own_generator()), "batch_size": 32},
    "plain batches": lambda: {"batch_sampler": BatchSampler(Wrapping(own_generator()), 32, False)},
    "loader": None,
    "counter": lambda: {"sampler": Counting(SAMPLES), "batch_size": 32},
    "python": lambda: {"sampler": Shuffled(SAMPLES, random.Random(3)), "batch_size": 32},
    "numpy": lambda: {"sampler": ShuffledByOwn(SAMPLES, np.random.default_rng(3)), "batch_size": 32},
    "numpy before": lambda: {"sampler": ShuffledByOwn(SAMPLES, np.random.RandomState(3)), "batch_size": 32},
    "in a lambda": lambda: {"sampler": ShuffledByOwn(SAMPLES, hidden(np.random.default_rng(3))), "batch_size": 32},
    "batches": lambda: {"batch_sampler": Batches(SAMPLES)},
    "stream": lambda: {"dataset": Stream(), "batch_size": 32},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stop_after", [None, 1, 21, 27])
def test_a_position_that_a_sampler_keeps_itself_is_resumed(tmp_path, order, stop_after):
    """At the end of a pass, where nothing could notice, before a first step, and in the middle."""

    def loader():
        return DataLoader(**{"dataset": Named(), **ORDERS[order]()}) if ORDERS[order] else Loader()

    whole = Run(tmp_path / "whole", passes=4, loader=loader(), keep_recipe=True)
    with nullcontext() if stop_after is None else pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "c", passes=2, stop_after=stop_after, loader=loader(), keep_recipe=True)
    seen = list(Run.latest.seen)
    seen += Run(tmp_path / "c", passes=4, loader=loader(), keep_recipe=True).seen
    assert len(set(map(tuple, np.reshape(seen, (4, SAMPLES)).tolist()))) == 4
    assert seen == whole.seen


@pytest.mark.parametrize("own", [False, True])
def test_an_order_that_cannot_be_brought_back_is_refused(tmp_path, own):
    """Rather than that samples are seen twice."""

    def loader():
        sampler = Shuffled(SAMPLES, random.SystemRandom())
        if own:
            return DataLoader(Named(), batch_sampler=BatchSampler(sampler, 32, False))
        return DataLoader(Named(), batch_size=32, sampler=sampler)

    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "c", stop_after=13, loader=loader(), keep_recipe=own)
    name = "BatchSampler" if own else "Shuffled"
    with pytest.raises(RecordError, match=f"another order than in the interrupted pass: {name}"):
        Run(tmp_path / "c", loader=loader(), keep_recipe=own)


def test_a_position_that_workers_keep_is_refused_before_anything_runs(tmp_path):
    loader = DataLoader(Stream(), batch_size=32, num_workers=1, persistent_workers=True)
    with pytest.raises(InputError, match="an IterableDataset without persistent_workers"):
        session_of(loader=loader, keep_recipe=True, checkpoint=tmp_path / "c")
    own = Loader()
    own.dataset = Stream()
    session_of(loader=own, keep_recipe=True, checkpoint=tmp_path / "c")


def test_a_list_of_samples_is_no_position():
    """The sampler refers to it, and it may be large."""
    samples = [[1.0, 2.0], [3.0, 4.0]]
    order = OrderState(DataLoader(samples, shuffle=True))
    samples[0][0] = 9.0
    assert order.state_dict() == {}


def test_a_position_without_a_place_is_refused_and_any_other_is_put_back():
    """A number that was none or has become a fraction, and a tensor that another object refers to."""

    def parts():
        sampler = Counting(4)
        sampler.past, sampler.begun, sampler.share, sampler.shift = None, None, 1, torch.zeros(2)
        return sampler, OrderState(DataLoader(Named(), sampler=sampler))

    sampler, order = parts()
    sampler.begun, sampler.share, sampler.shift[1] = 7, 0.5, 3.0
    saved = order.state_dict()
    again, other = parts()
    shift = again.shift
    other.load_state_dict(saved)
    assert (again.begun, again.share, shift.tolist()) == (7, 0.5, [0.0, 3.0])
    sampler.past = [3, 1]
    with pytest.raises(RecordError, match=r"no place for a position .*: sampler\.past; allowed"):
        parts()[1].load_state_dict(order.state_dict())


@pytest.fixture
def ctrl_c():
    """Python's own answer to SIGINT, which a shell turns off for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("stop_after", [1, 5, 21])
def test_an_interrupt_in_the_middle_of_the_optimizers_step_waits_for_its_end(tmp_path, stop_after, ctrl_c):
    """So that no checkpoint holds half a step."""

    class Interrupted(torch.optim.Adam):
        left = 10**9

        def step(self, closure=None):
            Interrupted.left -= 1
            if Interrupted.left == 0:
                signal.raise_signal(signal.SIGINT)
            return super().step(closure)

    def interrupted(path, left):
        model = perceptron()
        optimizer, Interrupted.left = Interrupted(model.parameters(), lr=1e-2), left
        seen = []
        options = {"loader": loader_of(), "keep_recipe": True, "checkpoint": path, "resume": True}
        try:
            with session_of(model, optimizer=optimizer, **options) as session:
                train(session, model, 2 - session.passes)
        except KeyboardInterrupt:
            seen.append(session.run.steps)
        return model, seen

    whole, _ = interrupted(tmp_path / "whole", 10**9)
    _, seen = interrupted(tmp_path / "c", stop_after)
    assert seen == [stop_after]
    resumed, _ = interrupted(tmp_path / "c", 10**9)
    assert distance(resumed, whole) == 0
