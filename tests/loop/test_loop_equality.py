"""A session trains as the plain loop does: the same samples in the same order, the same trajectory."""

import pytest
import torch
from tests.support import sessions
from tests.support.sessions import Named, Numbered, distance, perceptron, plain, session_of
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler

from wattune.loop.batch_source import BatchSource

ADAM = {"lr": 1e-2}


def loader_of(data=None, *, seed=3, **options):
    options = {"batch_size": 32, "shuffle": True, **options}
    return DataLoader(data or Numbered(), generator=torch.Generator().manual_seed(seed), **options)


def trained(loader, passes, *, model=None, **options):
    """A model that a session trained with the recipe kept, and the session."""
    model = model or perceptron()
    options = {"optimizer": torch.optim.Adam(model.parameters(), **ADAM), **options}
    return model, sessions.trained(model, passes=passes, loader=loader, keep_recipe=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("micro", [32, 8, 5])
def test_with_the_recipe_kept_200_steps_end_where_those_of_the_plain_loop_do(micro):
    mine, session = trained(loader_of(), 10, micro_batch_size=micro)
    other = perceptron()
    plain(other, torch.optim.Adam(other.parameters(), **ADAM), loader_of(), 10)
    assert session.record.steps == 200
    assert distance(mine, other) < 1e-5
    if micro < 32:
        assert any(change.point.micro_batch_size for change in session.record.changes)


@pytest.mark.slow
@pytest.mark.parametrize("micro", [32, 8])
def test_sparse_gradients_are_counted_and_added_as_dense_ones(micro):
    """An embedding of many words is updated where a batch has words alone."""

    def words():
        torch.manual_seed(1)
        texts = torch.utils.data.TensorDataset(torch.randint(500, (512, 6)), torch.randint(4, (512,)))
        bag = torch.nn.EmbeddingBag(500, 16, sparse=True)
        return torch.nn.Sequential(bag, torch.nn.Linear(16, 4)), DataLoader(texts, batch_size=32)

    (model, loader), (other, _) = words(), words()
    optimizer, plainly = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, other))
    _, session = trained(loader, 10, model=model, optimizer=optimizer, micro_batch_size=micro)
    plain(other, plainly, loader, 10)
    assert session.record.steps == 160
    assert distance(model, other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"batch_size": 48},
        {"batch_size": 48, "drop_last": True},
        {"num_workers": 2},
        {"num_workers": 1, "persistent_workers": True, "batch_size": 48},
        {"shuffle": False, "sampler": "weighted"},
    ],
    ids=str,
)
def test_the_order_is_that_of_the_users_loader(options):
    def made():
        known = dict(options)
        if known.get("sampler"):
            generator = torch.Generator().manual_seed(5)
            known["sampler"] = WeightedRandomSampler(torch.rand(640, generator=generator), 640, generator=generator)
        return loader_of(**known)

    with_session, session = trained(made(), 3, micro_batch_size=16)
    other = perceptron()
    losses = plain(other, torch.optim.Adam(other.parameters(), **ADAM), made(), 3)
    assert session.record.steps == len(losses)
    assert distance(with_session, other) < 1e-5


def test_without_a_generator_it_follows_from_the_seed():
    torch.manual_seed(11)
    mine, _ = trained(DataLoader(Numbered(), batch_size=32, shuffle=True), 4)
    torch.manual_seed(11)
    other = perceptron()
    plain(other, torch.optim.Adam(other.parameters(), **ADAM), DataLoader(Numbered(), batch_size=32, shuffle=True), 4)
    assert distance(mine, other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"drop_last": True, "batch_size": 48}],
    ids=str,
)
def test_each_sample_is_seen_once_a_pass_whatever_the_sizes_do(options, touring):
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    loader = loader_of(Named(), **options)
    sizes = set()
    with session_of(model, optimizer=optimizer, loader=loader) as session:
        for _ in range(12):
            seen = []
            for batch in session.batches():
                assert len(batch.data["name"]) == batch.samples
                assert batch.data["name"][0] == f"sample {batch.data['number'][0]}"
                seen += [] if batch.is_check else batch.data["number"].tolist()
                session.backward(functional.cross_entropy(model(batch.data["x"]), batch.data["y"]))
                sizes.add(session.point.batch_size)
            assert len(seen) == len(set(seen)) == (624 if options.get("drop_last") else 640)
    assert len(sizes) > 1
    assert session.record.samples == 12 * (624 if options.get("drop_last") else 640)


@pytest.mark.slow
def test_probing_leaves_no_trace_in_the_losses(touring):
    """The same sequence of batches, replayed by a plain loop without profiling, gives the same losses."""
    mine, model = [], perceptron()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    steps, present = [], []  # samples, labels and learning rate of each step
    with session_of(model, optimizer=optimizer, loader=loader_of(Named())) as session:
        for _ in range(8):
            loss = 0.0
            for batch in session.batches():
                part = functional.cross_entropy(model(batch.data["x"]), batch.data["y"])
                factor = session.recipe.factor
                session.backward(part)
                if batch.is_check:
                    continue
                present.append((batch.data["x"], batch.data["y"]))
                loss += float(part.detach()) * batch.share
                if batch.last:
                    steps.append((*map(torch.cat, zip(*present, strict=True)), factor))
                    mine.append(loss)
                    present.clear()
                    loss = 0.0
    assert len({factor for *_, factor in steps}) > 1
    other, losses = perceptron(), []
    optimizer = torch.optim.Adam(other.parameters(), **ADAM)
    for x, y, factor in steps:
        optimizer.param_groups[0]["lr"] = ADAM["lr"] * factor
        optimizer.zero_grad()
        loss = functional.cross_entropy(other(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert mine == pytest.approx(losses, abs=1e-5)
    assert distance(model, other) < 1e-5


def test_a_loader_that_is_no_dataloader_is_taken_as_it_is_with_the_recipe_kept():
    class Mine:
        batch_size = 32

        def __iter__(self):
            return iter(DataLoader(Numbered(), batch_size=32))

    mine, session = trained(Mine(), 2, micro_batch_size=8)
    other = perceptron()
    plain(other, torch.optim.Adam(other.parameters(), **ADAM), DataLoader(Numbered(), batch_size=32), 2)
    assert session.record.samples == 1280
    assert distance(mine, other) < 1e-5


class Tens(DataLoader):
    def _get_iterator(self):
        return ([10 * batch[0]] for batch in super()._get_iterator())


class Ranges(BatchSampler):
    def __iter__(self):
        return (map(int, batch) for batch in super().__iter__())


@pytest.mark.parametrize("loader", [Tens, DataLoader])
def test_a_loader_of_ones_own_batches_is_used_as_it_is(loader):
    """Batches that its own iterator changes, and lists of indices that can be read only once."""
    loader = loader(TensorDataset(torch.arange(8)), batch_sampler=Ranges(range(8), 4, False))
    source = BatchSource(loader, keep=True)
    source.start()
    assert [source.fetch().data[0].tolist() for _ in range(2)] == [batch[0].tolist() for batch in loader]
