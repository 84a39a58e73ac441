"""Every board record of the test data, as the agent sees it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from wattune_agent.capture import capture, materialise
from wattune_agent.discovery import families, find_board
from wattune_agent.tree import Tree

RECORDS = sorted((Path(__file__).parent.parent / "boards").glob("*.json"))
KNOWN = {"record", "version", "name", "source", "l4t", "kernel", "expect", "files", "links", "modes", "outputs", "note"}
KNOWN |= {"unread", "figures"}  # of one that was read off a board


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
            highest = self.read_number(path.replace("energy_uj", "max_energy_range_uj"))
            energy_uj = self._energies[path] + 1e6 * power_w * self._past_s
            self.write(path, str(int(energy_uj) % int(highest + 1)))


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return loaded


def test_there_are_twelve_layouts_and_more() -> None:
    assert len(RECORDS) >= 12


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
    assert not board.problems
    assert board.clock is not None
    assert list(board.clock.settings_mhz) == expect["clocks_mhz"]
    assert board.clock.unit == {"jetson": "gpu", "cpu": "cpu"}[expect["family"]]
    assert board.sensor is not None
    assert "+" in board.sensor.rail if expect["rail"] == "sum" else expect["rail"] in board.sensor.rail
    tree.sleep(0.1)
    reading = board.sensor.read()
    assert reading.power_w == pytest.approx(expect["power_w"], rel=1e-3)
    for rail, power_w in expect["rails_w"].items():
        assert reading.rails_w[rail] == pytest.approx(power_w, rel=2e-3, abs=2e-4)
    said = [re.split(r"[\s,:()]+", text) for text in board.mode.values()]
    for part in expect["mode"]:
        assert any(part in words for words in said), (part, board.mode)


def test_every_clock_pins_at_both_ends_and_comes_back(record: dict[str, Any], tmp_path: Path) -> None:
    tree = Tree(materialise(record, str(tmp_path / "board")))
    clock = find_board(tree, record["expect"]["family"]).clock
    assert clock is not None
    before = {path: tree.read(path) for path in clock.files()}
    for mhz in (clock.settings_mhz[-1], clock.settings_mhz[0]):
        clock.pin(mhz)
        assert clock.pinned_mhz() == mhz
    assert {path: tree.read(path) for path in clock.files()} != before
    clock.restore(before)
    assert {path: tree.read(path) for path in clock.files()} == before


def test_a_jetson_trains_on_its_cpu_as_well(record: dict[str, Any], tmp_path: Path) -> None:
    if record["expect"]["family"] != "jetson":
        pytest.skip("not a Jetson")
    board = find_board(Tree(materialise(record, str(tmp_path / "board"))), "cpu")
    assert board.clock is not None
    assert board.clock.unit == "cpu"
    assert board.sensor is not None
    assert board.sensor.read().power_w == pytest.approx(record["expect"]["power_w"], rel=1e-3)


def test_a_record_is_the_same_after_a_way_through_a_tree(record: dict[str, Any], tmp_path: Path) -> None:
    again = capture(Tree(materialise(record, str(tmp_path / "board"))))
    assert not again["unread"]
    assert again["l4t"] == record["l4t"]
    assert again["kernel"] == record["kernel"]
    assert again["name"] in (record["name"], record["name"].partition(" ")[2])
    assert again["outputs"] == record.get("outputs", {})
    for path, text in again["files"].items():
        # A driver ends some of its lists with a blank.
        assert text.rstrip() == record["files"][path].rstrip(), path
    board = find_board(Tree(materialise(again, str(tmp_path / "again"))), record["expect"]["family"])
    assert board.clock is not None
    assert list(board.clock.settings_mhz) == record["expect"]["clocks_mhz"]
