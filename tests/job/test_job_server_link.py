"""The server's part in a run, with a fake server: which offered profiles are used, and what is reported and left."""

from __future__ import annotations

import random

import pytest
from tests.support.fake_server import Answer, faked, problem
from tests.support.server.story import own_data, small

import wattune
from wattune import profiling
from wattune.cap import SensorLimit
from wattune.devices import open_device
from wattune.errors import InputError, ServerRefused
from wattune.job import offered_profiles
from wattune.job.coercion import opened
from wattune.job.config import RunConfig
from wattune.job.offered_profiles import covers, offered_profile
from wattune.job.run import begin
from wattune.job.with_server import ServerLink
from wattune.profiling import ContradictedTable
from wattune.profiling.recheck import five
from wattune.records import AbortedProbe, Confirmation, ProfileTable, SampleEfficiency, provenance
from wattune.records.efficiency import EfficiencyPoint
from wattune.records.served import SweepRequest, SweepStatus
from wattune.remote import Client, PublishedProfile
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
        return ServerLink(begin(board, made.work, config), server, made.model, "d")

    yield make
    for one in servers:
        one.close()


def offering(tables):
    """A server that has these profiles and no more."""

    def answer(asked):
        path = asked.path.partition("?")[0]
        if path == "/v1/profiles":
            offers = [
                PublishedProfile(f"{n:032x}", "b", "w", "backprop", "simulated", f"maker {n}", 1.0) for n in tables
            ]
            return Answer(body=[offer._asdict() for offer in offers])
        return Answer(body=tables[int(path.rpartition("/")[2], 16)].dump())

    return answer


def offered(link):
    return offered_profile(link.steps, link.client)


def test_a_profile_that_lacks_a_batch_size_is_not_taken(made, link):
    largest = max(made.table.batch_sizes)
    fewer = tuple(cell for cell in made.table.cells if cell.batch_size != largest)
    stopped = AbortedProbe(batch_size=largest, clock_mhz=100.0, power_w=9.0, cap_w=CAP_W)
    with faked(offering({})) as fake:
        run = link(fake.url).steps
        assert covers(run, made.table)
        assert not covers(run, made.table.model_copy(update={"cells": fewer, "aborted": ()}))
        assert covers(run, made.table.model_copy(update={"cells": fewer, "aborted": (stopped,)}))


def test_reference_workloads_that_were_asked_for_have_to_be_in_it(made, link):
    assert made.table.reference is None
    with faked(offering({})) as fake:
        assert not covers(link(fake.url, reference=True).steps, made.table)


def test_two_profiles_of_others_are_checked_and_no_third(made, link):
    wrong = tuple(cell.model_copy(update={"step_s": 1.2 * cell.step_s}) for cell in made.table.cells)
    tables = {n: made.table.model_copy(update={"cells": wrong, "notes": (f"{n}",)}) for n in range(3)}
    with faked(offering({**tables, 3: made.table})) as fake:
        assert offered(link(fake.url)) is None
        checked = [path for _, path in fake.paths() if path.startswith("/v1/profiles/")]
        assert len(checked) == offered_profiles.MOST_CHECKED == 2


def forged(made, faster):
    """A profile as a liar would publish it, who knows the fixed rule by which cells were once checked: 20 times slower
    but for those, the cells that ``faster`` selects 10 times faster, and all of it confirmed."""
    limit_w = CAP_W / (1 + profiling.WITHIN)
    honest = {cell.point for cell in five([cell for cell in made.table.measured if cell.power_peak_w <= limit_w])}
    cells = []
    for cell in made.table.cells:
        share = 0.1 if faster(cell) else 20.0
        cells.append(cell if cell.point in honest else cell.model_copy(update={"step_s": share * cell.step_s}))
    confirmed = tuple(
        Confirmation(**cell.point.fields(), cap_w=CAP_W, cap_window_s=1.0, power_w=1.0) for cell in made.table.cells
    )
    return made.table.model_copy(update={"cells": tuple(cells), "confirmed": confirmed})


def test_probes_of_a_neighbours_profile_cannot_be_foreseen(made, link, monkeypatch):
    monkeypatch.setattr(offered_profiles, "_RANDOM", random.Random(1))
    with faked(offering({0: forged(made, lambda cell: False)})) as fake:
        assert offered(link(fake.url)) is None


def between(cell):
    """Cells that are under the cap, but too close to it to be probed."""
    return CAP_W / (1 + profiling.WITHIN) < cell.power_peak_w <= CAP_W


def close_to_the_cap(made):
    """A table that is right in all that is probed, and 10 times faster in what is not, with a note of where from."""
    cells = tuple(
        cell.model_copy(update={"step_s": 0.1 * cell.step_s}) if between(cell) else cell for cell in made.table.cells
    )
    assert cells != made.table.cells
    return made.table.model_copy(update={"cells": cells})


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


def neighbours(table, made):
    """The table as it is taken over."""
    origin = made.table.provenance.model_copy(update={"publisher": "maker 0", "profile": "0" * 32})
    return table.model_copy(update={"provenance": origin})


@pytest.mark.slow
def test_pick_that_differs_here_drops_the_neighbours_profile(made, link):
    curve = curve_of(made)
    with faked(offering({})) as fake:
        run = link(fake.url).steps
        _, plan = run.plan(neighbours(made.table, made), curve)
        assert plan.cap_w == CAP_W, "an honest one holds"
    with faked(lambda asked: Answer(201, {"id": "ab" * 16})) as fake:
        own = link(fake.url, folder="another")
        forgery = neighbours(close_to_the_cap(made), made)
        own.steps.folder.save(forgery)
        with pytest.raises(ContradictedTable, match="time"):
            own.steps.plan(forgery, curve)
        said = []
        own.steps.progress = lambda done, total, what: said.append(what)
        table = own.own_profile(forgery, ContradictedTable("it lied"))
        assert "the profile of maker 0 is dropped, this device is profiled: it lied" in said[0]
        assert own.profile_id == "ab" * 16
        assert table.provenance.profile == own.profile_id
        _, again = own.steps.plan(table, curve)
    assert again.point == plan.point


def test_what_a_neighbours_profile_cost_is_what_its_check_cost_here(made, link):
    with faked(offering({0: made.table})) as fake:
        found = offered(link(fake.url))
    assert found.provenance.profile == f"{0:032x}"
    assert 1 <= found.cost.probes <= 5 < made.table.cost.probes
    assert 0 < found.cost.energy_j < made.table.cost.energy_j
    assert 0 < found.cost.time_s < made.table.cost.time_s
    assert found.cost.cap_w == made.table.cost.cap_w


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
        table = own.published(own.steps.folder.save(made.table), is_known=False)
        assert own.profile_id == "ab" * 16
        assert own.steps.folder.load(ProfileTable) == table
        assert table.provenance.profile == own.profile_id
        assert fake.asked[-1].json == made.table.dump()
