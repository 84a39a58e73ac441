"""``log_to=`` by each tracker's real library, offline, with the updates of a real session on a simulated board."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.support.sessions import board, convolutional, loss_of, pictures
from torch.utils.data import DataLoader

from wattune.errors import InputError
from wattune.loop.capped import capped
from wattune.tracking.trackers import trackers_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flat(pairs):
    return [value for pair in pairs for value in pair]


def trained(*log_to, passes=2, **options):
    """A short session; returns all updates that it sent, and its record."""
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(pictures(), batch_size=64, shuffle=True)
    updates = []
    options = {"device": board(), "cap_w": 4.5, "log_to": [*log_to, updates.append], **options}
    with capped(model=model, optimizer=optimizer, loader=loader, **options) as session:
        for _ in range(passes):
            for batch in session.batches():
                session.backward(loss_of(model, batch))
    return updates, session.record


# ---------------------------------------------------------------------------------------------------------- TensorBoard


def scalars(folder):
    """Tag -> [(step, value)] of the event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


@pytest.mark.slow
def test_tensorboard_reads_back_what_was_logged(folder):
    updates, _ = trained("tensorboard")
    (run,) = (folder / "runs").iterdir()
    assert run.name.endswith("-simulated")
    read = scalars(run)
    assert flat(read["wattune/energy_j"]) == pytest.approx(flat((u.steps, u.energy_j) for u in updates), rel=1e-6)
    assert read["wattune/cap_w"] == [(u.steps, 4.5) for u in updates]
    assert "wattune/temperature_c" not in read  # this board has no thermometer


@pytest.mark.slow
def test_tensorboard_beside_the_users_own_events(folder):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder / "mine") as writer:
        writer.add_scalar("loss", 0.5, 1)
    trained("tensorboard:mine", passes=1)
    assert {"loss", "wattune/power_w"} <= scalars(folder / "mine").keys() | {"loss"}
    assert len(list((folder / "mine").iterdir())) == 2


# ------------------------------------------------------------------------------------------------------------------ W&B


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    yield wandb
    wandb.teardown()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_gets_a_run_of_its_own(offline):
    seen = []
    updates, _ = trained("wandb", lambda update: offline.run and seen.append((offline.run.config, offline.run.summary)))
    assert offline.run is None
    assert len(seen) == len(updates) - 1
    assert seen[0][0]["wattune/kind"] == "simulated"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_joins_the_rows_of_the_users_own_run(offline):
    with offline.init(project="mine") as run:
        updates, _ = trained("wandb", lambda update: run.log({"loss": update.steps}, step=update.steps + 1))
        assert offline.run is run
        logged = dict(run.summary)
    assert logged["loss"] in [update.steps for update in updates[-2:]]  # no row of an earlier step was dropped
    assert logged["wattune/energy_j"] in [pytest.approx(update.energy_j) for update in updates[-2:]]
    assert logged["wattune/batch_size"] == updates[-1].batch_size
    assert logged["wattune/power_w"] > 1


# -------------------------------------------------------------------------------------------------------------- Trackio


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_own", [True, False])
def test_trackio_gets_a_run_of_its_own_or_the_users(folder, monkeypatch, is_own):
    monkeypatch.setenv("TRACKIO_DIR", str(folder / "trackio"))  # is read when it is imported
    import trackio

    project = "wattune" if is_own else "mine"
    if not is_own:
        trackio.init(project="mine", embed=False)
    updates, _ = trained("trackio", passes=1)
    assert (trackio.context_vars.current_run.get() is None) is is_own
    if not is_own:
        trackio.finish()
    (run,) = trackio.Api().runs(project)
    rows = trackio.SQLiteStorage.get_logs(project, run.name)
    assert [row["wattune/energy_j"] for row in rows] == [u.energy_j for u in updates if u.energy_j is not None]
    assert {row["wattune/cap_w"] for row in rows} == {4.5}


# --------------------------------------------------------------------------------------------------------------- MLflow


@pytest.fixture
def store(folder, monkeypatch):
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_gets_a_run_of_its_own(store):
    updates, _ = trained("mlflow")
    assert store.active_run() is None
    client = store.MlflowClient()
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["wattune.kind"] == "simulated"

    powers = client.get_metric_history(run.info.run_id, "wattune/power_w")
    expected = sorted((u.steps, u.power_w) for u in updates if u.power_w is not None)
    assert flat(sorted((metric.step, metric.value) for metric in powers)) == pytest.approx(flat(expected))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_logs_to_the_users_own_run_and_leaves_it_open(store):
    with store.start_run() as run:
        store.log_metric("loss", 0.5)
        trained("mlflow", passes=1)
        assert store.active_run().info.run_id == run.info.run_id
    metrics = store.MlflowClient().get_run(run.info.run_id).data.metrics
    assert metrics["loss"] == 0.5
    assert metrics["wattune/power_w"] > 1


def fail_after_a_pass(session, model, error):
    with session:
        for batch in session.batches():
            session.backward(loss_of(model, batch))
        raise error


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "KILLED"), (ZeroDivisionError, "FAILED")])
def test_a_run_that_ends_early_does_not_count_as_finished(store, error, status):
    model = convolutional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(pictures(), batch_size=64)
    session = capped(model=model, optimizer=optimizer, loader=loader, device=board(), cap_w=4.5, log_to="mlflow")
    with pytest.raises(error):
        fail_after_a_pass(session, model, error)
    (run,) = store.MlflowClient().search_runs(["0"])
    assert run.info.status == status


# ------------------------------------------------------------------------------------------------------ what is asked


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_library_is_one_line_that_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(
        InputError, match=rf'log_to: {name} cannot be imported.*pip install "wattune\[{name}\]"'
    ) as caught:
        trackers_of(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wanted", ["tensorbord", 3, "wandb:mine", "tensorboard:", [print, 3]])
def test_anything_else_is_refused(wanted):
    with pytest.raises(InputError, match=r"log_to.*allowed: mlflow, tensorboard, trackio, wandb, tensorboard:FOLDER"):
        trackers_of(wanted)


def test_nothing_and_functions():
    assert trackers_of(None) == ()
    assert trackers_of([print, repr]) == (print, repr)
