"""The server's part in a run, with a fake server: which offered profiles are used, and what is reported and left."""

from __future__ import annotations

import pytest
from tests.support.fake_server import Answer, faked, problem
from tests.support.server.story import own_data, small

import wattune
from wattune import profiling
from wattune.cap import SensorLimit
from wattune.devices import open_device
from wattune.errors import InputError, ServerRefused
from wattune.job.coercion import opened
from wattune.job.config import RunConfig
from wattune.job.folder import RunFolder
from wattune.job.offered_profiles import offered_prior
from wattune.job.run import begin
from wattune.job.with_server import ServerLink
from wattune.records import ProfileTable, SampleEfficiency, provenance
from wattune.records.efficiency import EfficiencyPoint
from wattune.records.served import SweepRequest, SweepStatus
from wattune.remote import Client
from wattune.workloads import device_workload

CAP_W = 4.3
HIGHEST_MHZ = 921.6
COOL = {"power_peak_w": 0.1, "power_mean_w": 0.1}
OTHER = SweepStatus(job="0" * 32, request=SweepRequest(model="small-digits"), state="waiting", created_s=1.0)
"""What a server says that has another model under this name by now."""


class Board:
    """A board to be opened anew for each test, what is trained there, and a profile of it."""

    def __init__(self, folder):
        model, weights = small()
        (folder / "weights.safetensors").write_bytes(weights)
        self.model = model
        self.weights = weights
        self.data = own_data(folder / "my.npz")
        self.work = device_workload(model, folder / "weights.safetensors", self.data)
        with opened("sim:jetson-nano", seed=0) as board:
            self.table = profiling.profile(board, self.work, limit=SensorLimit(CAP_W), reference=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Board(tmp_path_factory.mktemp("board"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("WATTUNE_TOKEN", raising=False)


@pytest.fixture
def link(made, tmp_path):
    """Gives the link of a run on a board of its own to the server at ``url``."""
    servers = []

    def make(url, folder="a secret project", **asked):
        board = open_device("sim:jetson-nano")
        server = Client(url, cache=tmp_path / "cache", backoff_s=())
        servers.append(server)
        served = {"server": url, "model": made.model.model, "data": "my.npz"}
        config = RunConfig.of_run({"device": board, "cap_w": CAP_W, "output": tmp_path / folder, **served, **asked})
        return ServerLink(begin(board, made.work, config, RunFolder(config.output)), server, made.model, "d")

    yield make
    for one in servers:
        one.close()


def offering(tables):
    """A server that has these profiles and no more."""

    def answer(asked):
        path = asked.path.partition("?")[0]
        if path == "/v1/profiles":
            return Answer(body=[{"id": f"{n:032x}", "publisher": f"maker {n}"} for n in tables])
        return Answer(body=tables[int(path.rpartition("/")[2], 16)].dump())

    return answer


def curve_of(made):
    """A curve on which all batch sizes need the same samples."""
    points = tuple(
        EfficiencyPoint(batch_size=size, relative_samples=1.0, samples=1000.0) for size in made.work.batch_sizes
    )
    return SampleEfficiency(
        workload=made.table.workload,
        algorithm="backprop",
        target=0.9,
        reference_batch_size=made.work.batch_sizes[0],
        points=points,
        provenance=provenance("measured"),
    )


def too_hot(cell, made):
    """Slow cells stay as they are, and all others are said to be above the cap."""
    slowest = min(other.clock_mhz for other in made.table.measured if other.shape == cell.shape)
    return {} if cell.clock_mhz == slowest else {"power_peak_w": 2 * CAP_W, "power_mean_w": 2 * CAP_W}


FORGED = {
    "all but slow cells are too hot": too_hot,
    "slow": lambda cell, made: {"step_s": 20 * cell.step_s},
    "large batches are fast": lambda cell, made: {"step_s": cell.step_s / (10 if cell.batch_size >= 32 else 1)},
    "cool at the highest clock": lambda cell, made: {
        "clock_mhz": HIGHEST_MHZ,
        "power_peak_w": 0.1,
        "power_mean_w": 0.1,
    },
}


def chosen(link, made, tables, folder):
    """What a device measures and plans to whom the server offers these profiles."""
    with faked(offering(tables)) as fake:
        own = link(fake.url, folder=folder)
        own.steps.prior = offered_prior(own.steps, own.client)
        assert (own.steps.prior is not None) == bool(tables)
        table = own.steps.profile()
        return table, own.steps.plan(table, curve_of(made))[1]


@pytest.mark.parametrize("lie", FORGED)
def test_forged_profile_costs_probes_and_not_the_choice(made, link, lie):
    cells = {}
    for cell in made.table.cells:
        changed = cell.model_copy(update=FORGED[lie](cell, made))
        cells[changed.point] = changed
    forgery = made.table.model_copy(update={"cells": tuple(cells.values()), "aborted": ()})
    own, plan = chosen(link, made, {}, "own")
    table, misled = chosen(link, made, {0: forgery}, "misled")
    assert misled.predicted_s <= 1.03 * plan.predicted_s
    assert misled.point == plan.point
    assert table.cost.probes <= own.cost.probes + 2
    times_s = {cell.point: cell.step_s for cell in own.cells}
    assert all(cell.step_s == pytest.approx(times_s.get(cell.point, cell.step_s), rel=0.05) for cell in table.cells)


def test_true_profile_saves_probes(made, link):
    own, plan = chosen(link, made, {}, "own")
    table, same = chosen(link, made, {0: made.table}, "helped")
    assert same.point == plan.point
    assert table.cost.probes < own.cost.probes


def test_the_name_of_the_folder_is_not_told(link):
    with faked(offering({})) as fake:
        status = link(fake.url).reporter.status
    assert "secret" not in status.model_dump_json()
    assert len(status.run) == 12


def serving(made, post):
    def answer(asked):
        path = asked.path.partition("?")[0]
        if path.endswith("/weights"):
            return Answer(body=made.weights)
        if path.startswith("/v1/models/"):
            return Answer(body=made.model.dump())
        return post if path == "/v1/jobs" else Answer(204)

    return answer


@pytest.mark.parametrize(
    ("post", "error", "said"),
    [
        (problem(422, "no such model"), ServerRefused, "no such model"),
        (Answer(201, OTHER.model_dump(mode="json")), InputError, "has changed since this run began"),
    ],
)
def test_a_sweep_that_is_refused_gives_the_folder_back(made, tmp_path, post, error, said):
    with faked(serving(made, post)) as fake, pytest.raises(error, match=said):
        wattune.run(
            "sim:jetson-nano", server=fake.url, model="small-digits", data=made.data, cap_w=CAP_W, output=tmp_path / "o"
        )
    assert list((tmp_path / "o").iterdir()) == []


def test_a_published_profile_is_known_by_name_when_the_run_resumes(made, link, tmp_path):
    with faked(lambda asked: Answer(201, {"id": "ab" * 16})) as fake:
        own = link(fake.url)
        table = own.published(own.steps.folder.save(made.table))
        assert own.profile_id == "ab" * 16
        assert own.steps.folder.load(ProfileTable) == table
        assert table.provenance.profile == own.profile_id
        assert fake.asked[-1].json == made.table.dump()
