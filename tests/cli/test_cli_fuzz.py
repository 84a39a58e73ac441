"""Records, workload files and board files with damage of every kind: an answer, or one line; never a traceback."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.cli_records import EFFICIENCY, PROFILE, SMALL

from wattune.devices.simulator.board_file import BOARDS

NASTY_JSON = [None, -1, 0, 1e308, 1e-308, "", "NaN", "ü\u0000", [], {}, True, 2**70, [[[]]], "x" * 10_000]
NASTY_TOML = [
    "-1",
    "0",
    "nan",
    "inf",
    '""',
    '"ü"',
    "[]",
    "{}",
    "true",
    "1e300",
    "9223372036854775807",
    "[[1]]",
    "2020-01-01",
]

chances = st.randoms(use_true_random=False)
reproducible = settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""The same damage in every run: a change answers for its own faults alone."""


def damaged_record(chance: random.Random) -> tuple[str, str]:
    """The text of a profile and of an efficiency record, one of them damaged."""
    records = [json.loads(json.dumps(PROFILE)), json.loads(json.dumps(EFFICIENCY))]
    which = chance.randrange(2)
    how = chance.choice(["value", "value", "value", "lost", "cut", "bytes"])
    if how in ("value", "lost"):
        place = records[which]
        while True:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or chance.random() < 0.2:
                break
            place = place[key]
        if how == "lost":
            del place[key]
        else:
            place[key] = chance.choice(NASTY_JSON)
    texts = [json.dumps(record) for record in records]
    text = texts[which]
    if how == "cut":
        texts[which] = text[: chance.randrange(len(text))]
    elif how == "bytes":
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice('{}[],:"\\0-e\t') + text[at + 1 :]
        texts[which] = text
    return texts[0], texts[1]


def damaged_toml(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    how = chance.choice(["value", "value", "value", "lost", "twice", "cut", "bytes"])
    at = chance.choice([i for i, line in enumerate(lines) if "=" in line and not line.startswith("#")])
    if how == "value":
        key = lines[at].partition("=")[0]
        lines[at] = f"{key}= {chance.choice(NASTY_TOML)}"
    elif how == "lost":
        del lines[at]
    elif how == "twice":
        lines.insert(at, lines[at])
    text = "\n".join(lines) + "\n"
    if how == "cut":
        return text[: chance.randrange(len(text))]
    if how == "bytes":
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(text))
            text = text[:place] + chance.choice('[]=",.#{}-0e\n') + text[place + 1 :]
    return text


def answered(code: int, out: str, err: list[str]) -> None:
    if code == 0:
        assert json.loads(out)["record"]
    else:
        assert code == 2, err
        assert json.loads(out)["error"]["exit_code"] == 2
    told = [line for line in err if not line.startswith("wattune: warning:")]
    assert len(told) == (code != 0), err
    assert all(line.startswith("wattune: ") and len(line) < 1000 for line in err), err


@pytest.mark.slow
@reproducible
@given(chances)
def test_records(wattune, tmp_path, chance):
    profile, efficiency = damaged_record(chance)
    (tmp_path / "p.json").write_text(profile)
    (tmp_path / "e.json").write_text(efficiency)
    answered(*wattune("plan", tmp_path / "p.json", tmp_path / "e.json", "--cap", "4.5", "--json"))


def without_progress(code: int, out: str, err: list[str]) -> tuple[int, str, list[str]]:
    return code, out, [line for line in err if not line.removeprefix("wattune: ")[:1].isdigit()]


@pytest.mark.slow
@settings(reproducible, max_examples=30)
@given(chances)
def test_board_files(wattune, tmp_path, chance):
    board = BOARDS / "jetson-nano.toml"
    path = tmp_path / "board.toml"
    path.write_text(damaged_toml(board.read_text(), chance))
    arguments = ["profile", SMALL, "--device", path, "--cap", "4.2", "--json"]
    answered(*without_progress(*wattune(*arguments)))
