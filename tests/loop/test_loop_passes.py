"""Passes as a loop counts and shows them: broken off, with a progress bar, and at the end of a session."""

import shutil
import warnings
from functools import partial

import pytest
import torch
from tests.support.sessions import (
    Numbered,
    OwnTimeDevice,
    distance,
    loss_of,
    perceptron,
    plain,
    session_of,
    train,
    trained,
)
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

session_of = partial(session_of, keep_recipe=True)


def test_a_pass_that_the_loop_breaks_off_counts_as_one():
    model = perceptron()
    with session_of(model) as session:
        while session.passes < 3:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if session.progress.samples == 5 * 32:
                    break
    assert (session.passes, session.record.passes, session.samples) == (3, 3, 3 * 5 * 32)


def test_a_scheduler_by_epochs_steps_after_a_pass_that_was_broken_off():
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with session_of(model, optimizer=optimizer, scheduler=scheduler, scheduler_interval="epoch") as session:
        for _ in range(3):
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                if not batch.is_check:
                    break
        assert session.passes == 3
    assert scheduler.get_last_lr() == [0.1 / 8]


def test_a_pass_broken_off_before_the_end_is_not_resumed(tmp_path):
    model = perceptron()
    with session_of(model, checkpoint=tmp_path / "c") as session:
        for batch in session.batches():
            session.backward(loss_of(model, batch))
            break
        assert session.passes == 1
    with session_of(model, checkpoint=tmp_path / "c", resume=True) as session:
        assert session.passes == 1
        assert train(session, model) == 640


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("micro", [32, 8, 5])
def test_a_progress_bar_ends_at_its_total_with_a_rest_as_well(drops, micro):
    model = perceptron()
    loader = DataLoader(Numbered(90), batch_size=32, drop_last=drops)
    with session_of(model, loader=loader, micro_batch_size=micro, keep_recipe=True) as session:
        batches = session.batches()
        length, seen = len(batches), 0
        for batch in batches:
            session.backward(loss_of(model, batch))
            seen += not batch.is_check
        assert (seen, session.progress.total) == (length, 64 if drops else 90)


def test_the_length_counts_from_where_the_pass_is():
    model = perceptron()
    with session_of(model, micro_batch_size=8) as session:
        batches = session.batches()
        while session.progress.samples < 64:
            session.backward(loss_of(model, next(batches)))
        assert (session.progress, len(batches)) == ((64, 640), 72)


def test_a_checkpoint_that_cannot_be_saved_at_the_end_is_a_warning(tmp_path):
    plain_model, folder = perceptron(), tmp_path / "checkpoints"

    def fill(session):
        if not folder.is_file():
            shutil.rmtree(folder)
            folder.touch()  # no file fits there any more, as on a full disk

    with pytest.warns(UserWarning, match=r"cannot write .*checkpoints") as caught:
        session = trained(checkpoint=folder / "c", keep_recipe=True, on_batch=fill)
    assert session.ended == "finished"
    assert len(caught) == 2  # after the pass, and at the end
    plain(plain_model, torch.optim.SGD(plain_model.parameters(), lr=0.1), DataLoader(Numbered(), batch_size=32), 1)
    assert distance(session.run.model, plain_model) < 1e-6


class Hungry(OwnTimeDevice):
    def power_w(self) -> float:
        return 9.0


def test_readings_above_the_cap_are_warned_of_at_the_end():
    with pytest.warns(UserWarning, match=r"\d+ of \d+ readings exceeded the cap of 6 W"):
        trained(device=Hungry(), cap_w=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(device=OwnTimeDevice(), cap_w=6)


class Gpu(OwnTimeDevice):
    trains_on = "gpu"


class Metered(Gpu):
    """A meter alone: there is no clock to set."""

    knobs = ()

    def current(self):
        return None


@pytest.mark.parametrize(("device", "is_said"), [(Gpu, True), (Metered, False)])
def test_the_clock_of_a_gpu_is_spoken_of_if_it_is_set(device, is_said):
    with session_of(perceptron(), device=device(), cap_w=6) as session:
        pass
    assert ("clock that is set is the GPU's" in session.explain()) is is_said


def test_no_micro_batch_of_one_sample_reaches_a_training_batchnorm():
    """521 samples leave 9 behind batches of 16: in micro-batches of 2, the last one would be a single sample."""
    options = {"loader": DataLoader(Numbered(521), batch_size=16), "micro_batch_size": 2, "keep_recipe": True}
    with pytest.warns(UserWarning, match="BatchNorm1d, whose statistics are those of a micro-batch"):
        session = trained(perceptron(norm=True), **options)
    assert session.samples == 521
