from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, put

from wattune_agent.errors import NotKept
from wattune_agent.figures import files, load, save
from wattune_agent.tree import Tree

FILE = "switch.json"


def saved(tree: Tree, name: str, shows_s: float, takes_s: float) -> str:
    return save(tree, FILE, name, {"shows_s": shows_s, "takes_s": takes_s})


def loaded(tree: Tree, name: str) -> list[float] | None:
    return load(tree, FILE, name, ["shows_s", "takes_s"])


def test_what_is_kept_is_found_again_by_the_boards_name(tmp_path: Path) -> None:
    tree = TimedTree(tmp_path)
    assert loaded(tree, "a nano") is None
    assert saved(tree, "a nano", 1.5, 0.88) == f"{tmp_path}/etc/wattune/switch.json"
    saved(tree, "an orin", 2.0, 0.9)
    saved(tree, "a nano", 1.6, 0.87)
    assert loaded(tree, "a nano") == [1.6, 0.87]
    assert loaded(tree, "an orin") == [2.0, 0.9]
    assert loaded(tree, "another") is None


def test_the_users_file_goes_before_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own, system = files(Tree(), "switch.json")
    assert own == f"{tmp_path}/wattune/switch.json"
    assert system == "/etc/wattune/switch.json"
    put(tmp_path, "/wattune/switch.json", '{"a nano": {"shows_s": 1, "takes_s": 0.5}}')
    assert loaded(Tree(), "a nano") == [1.0, 0.5]
    assert saved(Tree(), "a nano", 2.0, 0.6) == own  # where it was found
    assert loaded(Tree(), "a nano") == [2.0, 0.6]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a nano": {"shows_s": 1}}',
        '{"a nano": {"shows_s": 1' + 400 * "0" + ', "takes_s": 1}}',
        '{"a nano": 1}',
        100_000 * "[",
        '{"a": ' * 100_000 + "1" + "}" * 100_000,
        "\udcff",
    ],
    ids=range(8),
)
def test_a_file_with_something_else_is_said(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/etc/wattune/switch.json", "")
    (tmp_path / "etc/wattune/switch.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(NotKept, match=r"switch\.json") as raised:
        loaded(TimedTree(tmp_path), "a nano")
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 300
