"""A whole run with a server: what comes from it, what goes to it, and what happens where it is away."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.support.fake_server import Answer, faked
from tests.support.server.serving import serving
from tests.support.server.story import ENVIRONMENT, but_data, offer, own_data, small

import wattune
from wattune.errors import InputError, ServerRefused, ServerUnavailable
from wattune.job.folder import RunFolder
from wattune.records import Plan, ProfileTable, SampleEfficiency, TrainingRecord
from wattune.records.served import ServedModel, digest
from wattune_server.store.schema import DeviceRow, JobRow, ProfileRow, TrainingRow

CAP_W = 4.2
NOBODY = "http://127.0.0.1:9"
"""Nobody listens there."""


class Stop(Exception):
    """Stands for whatever ends a run in the middle."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return own_data(tmp_path_factory.mktemp("data") / "my.npz")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "store"
    offer(folder, *small())
    with serving(folder) as process:
        yield process


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Each test is a machine of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WATTUNE_TOKEN", raising=False)
    return tmp_path / "cache"


def run(server, output, data, **changes):
    values = {"device": "sim:jetson-nano", "cap_w": CAP_W, "model": "small-digits", "device_name": "nano"}
    url = server if isinstance(server, str) else server.url
    return wattune.run(**{**values, "server": url, "data": data, "output": output, **changes})


def newest(server, device):
    rows = server.rows(TrainingRow, device=device)
    return [TrainingRecord.parse(server.json(f"/v1/trainings/{row.id}")) for row in rows]


def status_of(server, device):
    server.get("/")  # whose statuses are written by then
    return server.rows(DeviceRow, name=device)[0].status


@pytest.mark.slow
def test_the_server_gives_model_and_curve_and_gets_the_records(server, tmp_path, data):
    said = []
    record = run(server, tmp_path / "run", data, progress=lambda *what: said.append(what[2]), device_name="whole")
    assert record.reached
    assert record.provenance.kind == "simulated"
    folder = RunFolder(tmp_path / "run")
    assert folder.load(ServedModel) == small()[0]
    curve, plan = folder.load(SampleEfficiency), folder.load(Plan)
    assert curve.strategy == "pooled"
    (training,) = newest(server, "whole")
    assert but_data(training) == but_data(record)
    table = folder.load(ProfileTable)
    (profile,) = server.rows(ProfileRow, publisher="whole")
    published = ProfileTable.parse(server.json(f"/v1/profiles/{profile.id}"))
    assert {c.point for c in published.cells} == {c.point for c in table.cells}
    state = status_of(server, "whole")
    assert (state["step"], state["kind"]) == ("done", "simulated")
    assert state["metric"] == record.evaluations[-1].metric
    assert (state["batch_size"], state["clock_mhz"]) == (plan.batch_size, plan.clock_mhz)
    assert state["profile"] == profile.id
    job = server.json(f"/v1/jobs/{state['job']}")
    assert (job["state"], job["request"]["strategy"]) == ("done", "pooled")
    steps = list(dict.fromkeys(text.partition(":")[0] for text in said))
    assert steps == ["estimate", "profile", "plan", "train"]  # the sweep is asked for first


@pytest.mark.slow
def test_it_needs_no_server_any_more_once_the_curve_is_there(server, tmp_path, data):
    # By name: the second run is the cache's and the outbox's alone.
    run(server, tmp_path / "first", data, device_name="often")
    away, said = tmp_path / "away", []
    folder = next((tmp_path / "cache").glob("wattune/servers/*"))
    folder.rename(folder.with_name("127.0.0.1-9"))
    record = run(NOBODY, away, data, progress=lambda *what: said.append(what[2]), device_name="often")
    assert record.reached
    assert [text for text in said if "cannot be reached" in text] == [
        text for text in said if f"the server {NOBODY} cannot be reached" in text
    ][:1]
    for what in ("using the model small-digits cached on", "using the curve cached on", "is stored and will be"):
        assert any(what in text for text in said), what
    before = len(newest(server, "often"))
    # The server is back, under its own address.
    folder.with_name("127.0.0.1-9").rename(folder)
    with wattune.remote.Client(server.url) as client:
        assert client.pending >= 1
        assert client.deliver() == 0
        assert client.deliver() == 0
    assert len(newest(server, "often")) == before + 1
    assert but_data(newest(server, "often")[0]) == but_data(record)


@pytest.mark.slow
def test_a_stopped_run_resumes_with_what_it_has(server, tmp_path, data):
    def stop(done, total, what):
        if what.startswith("train") and done >= 512:
            raise Stop

    with pytest.raises(Stop):
        run(server, tmp_path / "run", data, device_name="stopped", progress=stop)
    state = status_of(server, "stopped")
    assert (state["step"], state["says"]) == ("failed", "ended by Stop")
    kept = RunFolder(tmp_path / "run").arguments.arguments
    assert (kept["server"], kept["model"]) == (server.url, "small-digits")
    assert (kept["data"], kept["name"]) == (str(data), "stopped")
    assert "token" not in json.dumps(json.loads((tmp_path / "run" / "run.json").read_text()))
    record = run(server, tmp_path / "run", data, device_name="stopped", resume=True)
    whole = run(server, tmp_path / "whole", data, device_name="stopped")
    assert record.evaluations == whole.evaluations
    assert len(newest(server, "stopped")) == 2


@pytest.mark.slow
def test_a_record_that_was_not_delivered_before_the_end_is_delivered_by_resuming(server, tmp_path, data):
    record = run(server, tmp_path / "run", data, device_name="again")
    for _ in range(2):  # by its key it is the same
        run(server, tmp_path / "run", data, device_name="again", resume=True)
    assert [but_data(one) for one in newest(server, "again")] == [but_data(record)]


@pytest.mark.slow
def test_with_seeds_every_batch_size_is_trained_so_often(server, tmp_path, data):
    run(server, tmp_path / "run", data, seeds=1, target=0.8, device_name="full")
    curve = RunFolder(tmp_path / "run").load(SampleEfficiency)
    assert curve.strategy == "full"
    assert [point.runs for point in curve.points] == [1, 1]
    assert RunFolder(tmp_path / "run").load(TrainingRecord).target == 0.8
    request = next(row.request for row in server.rows(JobRow) if row.request["strategy"] == "full")
    assert request["seeds"] == 1


@pytest.mark.slow
def test_a_server_with_tokens_wants_one_of_the_scope_device(tmp_path, data):
    offer(tmp_path / "store", *small())
    with serving(tmp_path / "store") as server:
        tokens = {}
        for scope, name in (("read", "page"), ("device", "nano")):
            made = [sys.executable, "-m", "wattune_server", "token", "make", name, "--scope", scope]
            made += ["--store", str(tmp_path / "store")]
            out = subprocess.run(made, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
            tokens[scope] = re.search(r"wt_\S+", out)[0]
        with pytest.raises(ServerRefused, match=r"give a token by WATTUNE_TOKEN|wattune-server token make"):
            run(server, tmp_path / "none", data)
        with pytest.raises(ServerRefused, match="scope"):
            run(server, tmp_path / "read", data, token=tokens["read"])
        assert not (tmp_path / "read" / "profile.json").exists()  # it is said before anything is measured
        assert run(server, tmp_path / "device", data, token=tokens["device"], seeds=1).reached
        for file in (tmp_path / "device").rglob("*.json"):
            assert tokens["device"] not in file.read_text()
        with wattune.remote.Client(server.url, token=tokens["device"]) as client:
            assert client.pending == 0


@pytest.mark.slow
def test_caps_that_change_and_a_forecast_go_with_a_server(server, tmp_path, data):
    caps, grid = tmp_path / "caps.csv", tmp_path / "grid.csv"
    caps.write_text("seconds,watts\n0,4.2\n20,3.9\n40,4.2\n")
    grid.write_text("seconds,gco2_per_kwh\n0,420\n30,90\n60,250\n90,400\n")
    asked = {"cap_w": caps, "carbon": grid, "goal": "energy-above-rest", "deadline": "90s", "device_name": "caps"}
    record = run(server, tmp_path / "run", data, **asked)
    assert [one.asked_w for one in record.plan.caps] == [3.9, 4.2]
    assert record.plan.schedule.times[0].from_s == 30.0
    assert record.above_cap_s == 0
    (delivered,) = newest(server, "caps")
    assert delivered.plan.schedule == record.plan.schedule
    assert (delivered.plan.caps, delivered.cap_intervals) == (record.plan.caps, record.cap_intervals)


def test_few_samples_leave_the_large_batches_out(server, tmp_path):
    said = []
    few = own_data(tmp_path / "few.npz", samples=30)
    run(server, tmp_path / "run", few, target=0.01, device_name="few", progress=lambda *what: said.append(what[2]))
    assert any("batch sizes 32 are left out: there are 24 training samples" in text for text in said)
    assert RunFolder(tmp_path / "run").load(ProfileTable).batch_sizes == (8,)


def test_a_model_that_the_server_does_not_have_is_refused(tmp_path, data):
    with faked(lambda asked: Answer(404, {"detail": "no such model: other"})) as fake:
        with pytest.raises(ServerRefused, match="no such model: other"):
            run(fake.url, tmp_path / "run", data, model="other")
    assert not (tmp_path / "run").exists()


def test_a_server_that_is_away_from_the_beginning_leaves_no_folder(tmp_path, data, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(ServerUnavailable, match="cannot be reached"):
        run(NOBODY, tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


def test_a_name_that_no_server_takes_is_refused_before_anything_is_done(tmp_path):
    with pytest.raises(InputError, match="name of the device"):
        run(NOBODY, tmp_path / "run", "my.npz", device_name="no/name")
    assert not (tmp_path / "run").exists()


def test_a_jobs_name_is_the_same_on_both_sides():
    model, _ = small()
    assert ServedModel.parse(model.dump()).digest == model.digest
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})
