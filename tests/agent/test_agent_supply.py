from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, put

from wattune_agent.errors import BadRequest, NotKept
from wattune_agent.figures import files
from wattune_agent.supply import load_supply, save_supply
from wattune_agent.tree import Tree


def test_what_is_kept_is_found_again_by_the_boards_name(tmp_path: Path) -> None:
    tree = TimedTree(tmp_path)
    assert load_supply(tree, "a nano") is None
    assert save_supply(tree, "a nano", 1.5, 0.88) == f"{tmp_path}/etc/wattune/supply.json"
    save_supply(tree, "an orin", 2.0, 0.9)
    save_supply(tree, "a nano", 1.6, 0.87)
    assert load_supply(tree, "a nano") == (1.6, 0.87)
    assert load_supply(tree, "an orin") == (2.0, 0.9)
    assert load_supply(tree, "another") is None


def test_the_users_file_goes_before_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own, system = files(Tree(), "supply.json")
    assert own == f"{tmp_path}/wattune/supply.json"
    assert system == "/etc/wattune/supply.json"
    put(tmp_path, "/wattune/supply.json", '{"a nano": {"other_w": 1, "efficiency": 0.5}}')
    assert load_supply(Tree(), "a nano") == (1.0, 0.5)
    assert save_supply(Tree(), "a nano", 2.0, 0.6) == own  # where it was found
    assert load_supply(Tree(), "a nano") == (2.0, 0.6)


@pytest.mark.parametrize(("other_w", "efficiency"), [(-1.0, 0.9), (1.0, 0.0), (1.0, 1.1), (float("nan"), 0.9)])
def test_figures_that_cannot_be(tmp_path: Path, other_w: float, efficiency: float) -> None:
    with pytest.raises(BadRequest):
        save_supply(TimedTree(tmp_path), "a nano", other_w, efficiency)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a nano": {"other_w": 1}}',
        '{"a nano": {"other_w": 1, "efficiency": 7}}',
        '{"a nano": {"other_w": 1' + 400 * "0" + ', "efficiency": 1}}',
        '{"a nano": 1}',
        100_000 * "[",
        '{"a": ' * 100_000 + "1" + "}" * 100_000,
        "\udcff",
    ],
    ids=range(9),
)
def test_a_file_with_something_else_is_said(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/etc/wattune/supply.json", "")
    (tmp_path / "etc/wattune/supply.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NotKept, match=r"supply\.json") as raised:
        load_supply(TimedTree(tmp_path), "a nano")
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 300
