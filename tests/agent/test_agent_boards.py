"""Every board record of the test data, as the agent sees it."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.board_records import materialise

from wattune.doctor.capture import capture
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board
from wattune_agent.errors import BadRequest
from wattune_agent.mode import mode
from wattune_agent.tree import Tree

RECORDS = sorted((Path(__file__).parent.parent / "boards").glob("*.json"))
KNOWN = {"record", "version", "name", "source", "l4t", "kernel", "expect", "files", "links", "note"}
KNOWN |= {"unread"}  # of one that was read off a board


class Counting(Tree):
    """The energy counters of a record go on while time passes: by ``watts``, over their end as well."""

    def __init__(self, root: str, watts: dict[str, float]) -> None:
        super().__init__(root)
        self._watts = watts
        self._energies = {path: self.read_number(path) for path in watts}
        self._past_s = 0.0

    def now_s(self) -> float:
        return self._past_s

    def sleep(self, seconds: float) -> None:
        self._past_s += seconds
        for path, power_w in self._watts.items():
            end = path.replace("energy_uj", "max_energy_range_uj")
            highest = self.read_number(end) if end != path else math.inf
            energy_uj = self._energies[path] + 1e6 * power_w * self._past_s
            self.write(path, str(int(energy_uj % (highest + 1))))


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> Any:
    return loaded(request.param)


def test_a_record_says_where_it_is_from_and_what_was_filled_in(record: dict[str, Any]) -> None:
    assert set(record) <= KNOWN
    assert isinstance(record["source"], list)
    assert record["source"]
    assert all(isinstance(line, str) and line for line in record["source"])
    assert record["note"]
    if "unread" not in record:
        assert "Read in sources:" in record["note"]
        assert "Filled in:" in record["note"]


def test_a_board_is_found_as_its_record_says(record: dict[str, Any], tmp_path: Path) -> None:
    expect = record["expect"]
    tree = Counting(materialise(record, str(tmp_path / "board")), expect.get("watts", {}))
    assert expect["family"] in families(tree)

    board = find_board(tree, expect["family"])

    assert board.name == expect["name"]
    assert board.problems == expect.get("problems", [])
    assert board.clock is not None
    assert list(board.clock.settings_mhz) == expect["clocks_mhz"]
    assert board.clock.unit == ("cpu" if expect["family"] == "cpu" else "gpu")
    assert (board.sensor is None) == (expect["rail"] is None)
    if board.sensor is not None:
        assert "+" in board.sensor.rail if expect["rail"] == "sum" else expect["rail"] in board.sensor.rail
        tree.sleep(0.1)
        assert board.sensor.read() == pytest.approx(expect["power_w"], rel=1e-3)
    now = mode(tree, expect["family"])
    said = [re.split(r"[\s,:()]+", text) for text in now.values()]
    for part in expect["mode"]:
        assert any(part in words for words in said), (part, now)


def test_every_clock_pins_at_both_ends_and_comes_back(record: dict[str, Any], tmp_path: Path) -> None:
    tree = Tree(materialise(record, str(tmp_path / "board")))
    assert ("jetson" in families(tree)) == (record["expect"]["family"] == "jetson")
    for clock in [board.clock for board in (find_board(tree, family) for family in families(tree))]:
        assert clock is not None
        before = {path: tree.read(path) for path in clock.files()}
        for mhz in (clock.settings_mhz[-1], clock.settings_mhz[0]):
            clock.pin(mhz)
            assert clock.pinned_mhz() == mhz
        assert {path: tree.read(path) for path in before} != before
        clock.restore(before)
        assert {path: tree.read(path) for path in before} == before


def test_a_jetson_trains_on_its_cpu_as_well(record: dict[str, Any], tmp_path: Path) -> None:
    if record["expect"]["family"] != "jetson":
        pytest.skip("not a Jetson")
    board = find_board(Tree(materialise(record, str(tmp_path / "board"))), "cpu")
    assert board.clock is not None
    assert board.clock.unit == "cpu"
    assert board.sensor is not None
    assert board.sensor.read() == pytest.approx(record["expect"]["power_w"], rel=1e-3)


def test_a_record_is_the_same_after_a_way_through_a_tree(record: dict[str, Any], tmp_path: Path) -> None:
    again = capture(Tree(materialise(record, str(tmp_path / "board"))))
    assert not again["unread"]
    assert again["l4t"] == record["l4t"]
    assert again["kernel"] == record["kernel"]
    assert again["name"] == record["expect"]["name"]
    for path, text in again["files"].items():
        # A driver ends some of its lists with a blank.
        assert text.rstrip() == record["files"][path].rstrip(), path
    board = find_board(Tree(materialise(again, str(tmp_path / "again"))), record["expect"]["family"])
    assert board.clock is not None
    assert list(board.clock.settings_mhz) == record["expect"]["clocks_mhz"]


THORS = [path for path in RECORDS if "thor" in path.stem]


class Suspended(Tree):
    """A Thor whose GPU has no power: it takes limits and sets no clock, until its power is switched on."""

    def write(self, path: str, text: str) -> None:
        super().write(path, text)
        if path.endswith("power/control"):
            super().write(path.replace("control", "runtime_status"), "active" if text == "on" else "suspended")
        folder = path.rpartition("/")[0]
        if path.endswith("max_freq") and self.is_awake:
            super().write(folder + "/cur_freq", text)

    @property
    def is_awake(self) -> bool:
        (status,) = self.glob("/sys/devices/platform/bus@0/*/*/*/0000:01:00.0/power/runtime_status")
        return self.read(status) == "active"


@pytest.mark.parametrize("path", THORS, ids=lambda path: path.stem)
def test_a_thor_at_rest_is_woken_for_its_pin_and_may_sleep_again_afterwards(path: Path, tmp_path: Path) -> None:
    tree = Suspended(materialise(loaded(path), str(tmp_path / "board")))
    board = find_board(tree, "jetson")
    assert board.clock is not None
    before = {file: tree.read(file) for file in board.clock.files()}
    assert [text for text in before.values() if text in ("auto", "on")] == ["auto"]
    with Controller(board) as controller:
        low, *_, high = controller.describe()["settings_mhz"]
        controller.pin(high)
        controller.pin(low)
        assert tree.is_awake
        assert controller.read()["clock_mhz"] == low
        assert controller.check() == []
    assert {file: tree.read(file) for file in board.clock.files()} == before
    assert not tree.is_awake


def test_the_limits_of_a_suspended_gpu_are_believed(tmp_path: Path) -> None:
    """As where its power is not ours to switch: a driver before 595 then reports the clock of before."""
    (path,) = [path for path in THORS if "r38" in path.stem]
    record = loaded(path)
    record["files"] = {name: text for name, text in record["files"].items() if not name.endswith("power/control")}
    tree = Tree(materialise(record, str(tmp_path / "board")))
    with Controller(find_board(tree, "jetson")) as controller:
        low, *_ = controller.describe()["settings_mhz"]
        began_s = tree.now_s()
        assert controller.pin(low) == {"mhz": low}
        assert controller.read()["clock_mhz"] > low
        for _ in range(3):
            assert controller.check() == []
        assert tree.now_s() - began_s < 60.0


def test_a_long_list_of_clocks_is_offered_as_sixteen_and_the_limit_of_the_mode(tmp_path: Path) -> None:
    listed = {path.stem: loaded(path)["expect"]["clocks_mhz"] for path in RECORDS}
    assert max(len(clocks) for stem, clocks in listed.items() if "thor" not in stem and "laptop" not in stem) < 30
    assert (len(listed["agx-thor-r39"]), len(listed["agx-thor-r38"])) == (16, 17)
    assert 1387.5 in listed["agx-thor-r38"]


def test_the_power_mode_limits_the_clocks_that_are_offered(tmp_path: Path) -> None:
    (path,) = [path for path in THORS if "r38" in path.stem]
    tree = Suspended(materialise(loaded(path), str(tmp_path / "board")))
    with Controller(find_board(tree, "jetson")) as controller:
        assert controller.describe()["settings_mhz"][-1] == 1387.5
        before = {file: tree.read(file) for file in controller.board.clock.files()}  # type: ignore[union-attr]
        with pytest.raises(BadRequest, match=r"1575 MHz is above 1387.5 MHz, the limit .* in its present power mode"):
            controller.pin(1575.0)
        assert {file: tree.read(file) for file in before} == before
        controller.pin(307.5)
        assert controller.describe()["settings_mhz"][-1] == 1387.5  # its own pin is no limit
        with pytest.raises(BadRequest):
            controller.pin(1575.0)
        other = Controller(find_board(tree, "jetson"))
        assert 1300.0 < other.describe()["settings_mhz"][-1] <= 1387.5


def test_a_limit_that_may_be_that_of_heat_is_none(tmp_path: Path) -> None:
    record = loaded(RECORDS[0].parent / "orin-nano-jp6.json")
    files = record["files"]
    (high,) = [name for name in files if name.endswith("17000000.gpu/max_freq")]
    (kind,) = [name for name, text in files.items() if text == "gpu-throttle-alert\n"]
    top = record["expect"]["clocks_mhz"][-1]
    files[high] = files[high.replace("max_freq", "min_freq")]
    board = find_board(Tree(materialise(record, str(tmp_path / "cool"))), "jetson")
    assert len(Controller(board).describe()["settings_mhz"]) == 1
    files[kind.replace("type", "cur_state")] = "1\n"
    board = find_board(Tree(materialise(record, str(tmp_path / "hot"))), "jetson")
    assert Controller(board).describe()["settings_mhz"][-1] == top
