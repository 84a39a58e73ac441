"""A run's folder is resumed from anywhere, wherever it has moved, and by one process at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from wattune.errors import OutputError
from wattune.job.config import RunConfig
from wattune.job.folder import RunArguments, RunFolder

SMALL = Path(__file__).parents[1] / "cli" / "small.toml"


def begun(folder: Path, **given: object) -> RunFolder:
    """A folder in which a run with these arguments has begun, and its process has ended."""
    config = RunConfig.of_run({"device": "sim:jetson-nano", "cap": "4.5W", "output": folder, **given})
    made = RunFolder(config.output)
    made.claim(RunArguments(arguments=config.saved()), resume=False)
    made.close()
    return made


def test_relative_paths_are_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL, "small.toml")
    Path("caps.csv").write_text("seconds,watts\n0,4.5\n")
    begun(Path("run"), workload="small.toml", cap="caps.csv")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    again = RunConfig.of_run({"output": "../run", "resume": True})
    assert Path(str(again.workload)).samefile(tmp_path / "small.toml")
    assert again.moving_cap is not None
    assert again.output is not None
    RunFolder(again.output).claim(RunArguments(arguments=again.saved()), resume=True)


def test_files_in_the_folder_move_with_it(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    config = RunConfig.of_run({"device": "sim:jetson-nano", "cap": "4.5W", "output": folder})
    RunFolder(folder).claim(RunArguments(arguments=config.saved()), resume=False)
    shutil.copy(SMALL, folder / "small.toml")
    saved = config.model_copy(update={"workload": str(folder / "small.toml")}).saved()
    assert saved["workload"] == "small.toml"
    written = json.loads((folder / "run.json").read_text())
    written["arguments"] = saved
    (folder / "run.json").write_text(json.dumps(written))
    (folder / ".run.json.lock").unlink()
    moved = tmp_path / "moved"
    folder.rename(moved)
    again = RunConfig.of_run({"output": moved, "resume": True})
    assert again.workload == str(moved / "small.toml")


def test_one_process_has_a_folder(tmp_path):
    made = begun(tmp_path / "run")
    arguments = made.arguments
    assert arguments is not None
    made.claim(arguments, resume=True)
    with pytest.raises(OutputError, match="another process works on this"):
        RunFolder(made.path).claim(arguments, resume=True)
    made.close()
    RunFolder(made.path).claim(arguments, resume=True)


def test_a_name_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("auto").mkdir()
    config = RunConfig.of_run({"device": "auto", "cap": "4.5W", "output": "run"})
    assert config.saved()["device"] == "auto"


def test_a_program_is_resumed_where_its_command_was_given(tmp_path):
    """Its command may name files by paths from there; a folder that is gone may have moved."""
    first, elsewhere = tmp_path / "first", tmp_path / "elsewhere"
    for folder in (first, elsewhere):
        folder.mkdir()
    made = RunFolder(tmp_path / "run")
    config = RunConfig.of_run({"device": "sim:jetson-nano", "cap": "4.5W", "output": made.path})
    made.claim(RunArguments(arguments=config.saved(), working_folder=str(first)), resume=False)
    there = RunArguments(arguments=config.saved(), working_folder=str(elsewhere))
    with pytest.raises(OutputError, match=f"from another working folder, .*{elsewhere}; allowed: {first}; cd {first}"):
        made.claim(there, resume=True)
    first.rmdir()
    made.claim(there, resume=True)
