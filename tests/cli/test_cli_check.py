"""A profile of another mode: one line with the command that tells by five cells whether it still holds."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from wattune.records import ProfileTable

SMALL = Path(__file__).with_name("small.toml")
DEVICE = ["--device", "sim:jetson-nano"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    from wattune.cli import main

    path = tmp_path_factory.mktemp("check") / "profile.json"
    assert main(["profile", str(SMALL), *DEVICE, "-o", str(path)]) == 0
    return path


def changed(profile, path, **key):
    record = json.loads(profile.read_text())
    record["key"] |= key
    path.write_text(json.dumps(record))
    return path


def test_the_refusal_names_the_command_and_the_command_works(wattune, profile, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stale = changed(profile, tmp_path / "stale.json", mode="5W")
    code, _, err = wattune("profile", SMALL, *DEVICE, "-o", stale, "--resume")
    assert (code, len(err)) == (2, 1)
    assert "5W" in err[0]
    command = err[0][err[0].index("wattune profile") :]
    arguments = shlex.split(command)[1:]
    assert "--check" in arguments

    meant = {"PROFILE": stale, "DEVICE": DEVICE[1], "WORKLOAD": SMALL}
    arguments = [meant.get(argument, argument) for argument in arguments]
    code, out, err = wattune(*arguments, *([] if {SMALL, str(SMALL)} & set(arguments) else [SMALL]))
    assert code == 0, err
    assert "the profile still holds" in out
    kept = ProfileTable.load(tmp_path / "stale-checked.json")
    assert kept.key == ProfileTable.load(profile).key
    assert kept.notes
    code, _, err = wattune("profile", SMALL, *DEVICE, "-o", tmp_path / "stale-checked.json", "--resume")
    assert code == 0, err
