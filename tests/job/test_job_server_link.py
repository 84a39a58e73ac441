"""The server's part in a run, with a fake server: what is reported and what is left."""

from __future__ import annotations

import pytest
from tests.support.fake_server import Answer, faked, problem
from tests.support.server.story import own_data, small

import wattune
from wattune import profiling
from wattune.cap import SensorLimit
from wattune.devices import Conditions, open_device
from wattune.errors import InputError, ServerRefused
from wattune.job.coercion import opened
from wattune.job.config import RunConfig
from wattune.job.folder import RunFolder
from wattune.job.run import begin
from wattune.job.with_server import ServerLink
from wattune.records import ProfileTable
from wattune.records.served import SweepRequest, SweepStatus
from wattune.remote import Client
from wattune.workloads import device_workload

CAP_W = 4.3
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


def test_the_name_of_the_folder_is_not_told(link):
    with faked(lambda asked: Answer(204)) as fake:
        status = link(fake.url).reporter.status
    assert "secret" not in status.model_dump_json()
    assert len(status.run) == 12


def test_power_and_throttling_are_told_while_the_device_profiles(link, monkeypatch):
    own = link("http://127.0.0.1:9")
    board = own.steps.board
    monkeypatch.setattr(board, "conditions", lambda: Conditions(71.0, ("gpu-alert",)))
    own.steps.progress(1, 4, "profile: batch size 8")
    status = own.reporter.status
    assert (status.power_w, status.temperature_c, status.throttled) == (board.power_w(), 71.0, ("gpu-alert",))


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
