"""The command as a process: killed, interrupted, short of disk, and going on afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.cli_records import SMALL
from tests.support.forked import forked_command

from wattune.algorithms import load_checkpoint
from wattune.records import TrainingRecord

COMMAND = [sys.executable, "-m", "wattune"]
HERE = ["--set", "processes=1"]  # others would load torch anew
RUN = ["run", str(SMALL), "--device", "sim:jetson-nano", "--cap", "4.2W", "--set", "seeds=2", *HERE, "--compare"]
RECORDS = ("profile", "efficiency", "plan", "training", "comparison")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="needs signals")]


def call(*arguments, **options):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


def resumed(*arguments):
    """Let the command come to its end; what it said on stderr."""
    process = forked_command(*arguments, *HERE)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return err


def timeless(data):
    if isinstance(data, dict):
        return {key: timeless(value) for key, value in data.items() if key != "created_at"}
    return [timeless(value) for value in data] if isinstance(data, list) else data


def contents(folder):
    return {name: timeless(json.loads((folder / f"{name}.json").read_text())) for name in RECORDS}


def written(folder):
    """Every file that is there, with its time: a new set for each write."""
    found = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_mtime_ns))
    return found


def started(*arguments):
    """The command as a new process, with all that it loads."""
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def watched(folder, arguments=RUN, writes=float("inf"), seen=frozenset(), start=started):
    """Start a run, and leave it as soon as so many writes have been seen: moments by what is done, not by the clock."""
    process, seen = start(*arguments, "-o", str(folder)), set(seen)
    while process.poll() is None and len(seen) < writes:
        seen |= written(folder)
        time.sleep(0.01)
    return process, seen


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its records, how many writes were seen, and what it said."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process, seen = watched(folder)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return contents(folder), len(seen), (out, err)


def test_a_run_ends_with_a_table_and_the_report(whole):
    _, _, (out, err) = whole
    assert "Batch size " in out
    assert "[simulated" in out
    assert "largest batch, fixed clock" in out
    assert "Profiling took" in out
    assert out.splitlines()[-1].startswith("report: ")
    assert Path(out.splitlines()[-1].removeprefix("report: ")).is_file()
    assert all(line.startswith("wattune: ") for line in err.splitlines())


def state(folder):
    """What is finished: records and curves with their times; and how far profile and training have come."""
    finished = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json") if not path.name.startswith(".")}
    partial, checkpoint = folder / "profile-partial.json", folder / "checkpoint" / "training.safetensors"
    for path in finished.keys() - {partial}:
        json.loads(path.read_text())  # never half of one
    probes = partial.read_text().count("\n") - 1 if partial.exists() else 0  # a line each, and perhaps a cut off one
    samples = load_checkpoint(checkpoint)[1]["so_far"]["samples"] if checkpoint.exists() else 0
    # The plan's pick is measured again before the plan is written, and what that gave stands in the profile.
    passing = {"run.json", "profile-partial.json"} | (
        {"profile.json"} if not (folder / "plan.json").exists() else set()
    )
    return {p: t for p, t in finished.items() if p.name not in passing}, probes, samples


def first_count(stderr, step):
    """The first number of "step: DONE/TOTAL ..." in the lines of progress; None where the step is not in them."""
    counts = re.findall(rf"^wattune: {step}: (\d+)/", stderr, re.MULTILINE)
    return int(counts[0]) if counts else None


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(more, marks=pytest.mark.exhaustive) for more in (1, 2, 4))])
def test_a_run_killed_at_any_moment_resumes(whole, tmp_path, seed):
    """Five seeds, each killed twice: one moment in every tenth of a run, the beginning as likely as the end."""
    expected, writes, _ = whole
    folder, chance, seen, finished = tmp_path / "run", random.Random(seed), set(), {}
    for tenth in (seed, seed + 5):
        begun = (folder / "run.json").exists()
        arguments = ["run", "--resume", *HERE] if begun else [*RUN, "--resume"]
        moment = writes * (tenth + chance.random()) / 10
        process, seen = watched(folder, arguments, moment, seen, start=forked_command)
        process.kill()
        process.communicate()
        before, (finished, probes, samples) = finished, state(folder) if folder.exists() else ({}, 0, 0)
        assert before.items() <= finished.items()
    stderr = resumed("run", "-o", folder, "--resume")
    assert contents(folder) == expected
    # Nothing that was finished was made again, and what was not went on from the last probe and the last evaluation.
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    assert first_count(stderr, "profile") in (None, probes)
    assert (first_count(stderr, "train") or samples) >= samples
    assert not list(folder.rglob(".*"))


@pytest.mark.parametrize(
    ("number", "share"),
    [(signal.SIGINT, 0.15), (signal.SIGTERM, 0.4)],
    ids=lambda value: getattr(value, "name", value),
)
def test_an_interrupted_run_names_the_command_that_resumes_it(whole, tmp_path, number, share):
    expected, writes, _ = whole
    folder = tmp_path / "run"
    process, _ = watched(folder, writes=writes * share)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    said = [line for line in err.splitlines() if "interrupted" in line]
    assert len(said) == 1
    assert "Traceback" not in err
    command = shlex.split(said[0].partition("continue with: ")[2])
    assert command == ["wattune", "run", "--output", str(folder), "--resume"]
    resumed(*command[1:])
    assert contents(folder) == expected


def test_ctrl_c_while_source_text_runs_has_its_exit_code(tmp_path):
    """A module that is loaded may run texts, as each definition of a dataclass does."""
    (tmp_path / "interrupting.py").write_text("def make(model, batch_size):\n    exec('raise KeyboardInterrupt')\n")
    optimizer = 'optimizer = { factory = "interrupting:make" }\n'
    text = re.sub(r"optimizer = .*\n", optimizer, SMALL.read_text())
    (tmp_path / "small.toml").write_text(text)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = call("estimate", tmp_path / "small.toml", *HERE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths})
    assert "interrupted" in done.stderr.splitlines()[-1]
    assert done.returncode == 130, done.stderr


def test_interrupted_steps_name_their_command(tmp_path):
    hard = tmp_path / "hard.toml"
    hard.write_text(SMALL.read_text().replace("target = 0.93", "target = 1.0").replace("3200", "3200000"))
    arguments = ["estimate", str(hard), "--processes", "2", "-o", str(tmp_path / "e.json"), "--json"]
    # A terminal sends Ctrl-C to all the processes of a command.
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("e-curves/*.checkpoint")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    first, *_, last = err.splitlines()  # on a busy machine there are lines of progress in between
    assert first.startswith("wattune: 0/12 about 6 proxy runs (12 at most)")
    assert shlex.split(last.partition("continue with: ")[2]) == ["wattune", *arguments, "--resume"]
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert json.loads(out)["error"]["exit_code"] == 130


def test_a_disk_that_fills_up_is_one_line_and_resumable(whole, tmp_path):
    """A limit on the size of files stands for a full disk: a write that goes beyond fails."""
    expected, _, _ = whole
    folder = tmp_path / "run"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    done = call(*RUN, "-o", folder, preexec_fn=limit)
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    resumed("run", "-o", folder, "--resume")
    assert contents(folder) == expected


def test_the_first_free_folder_here_and_json_on_stdout(tmp_path):
    arguments = [a for a in RUN if a != "--compare"]
    done = call(*arguments, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == TrainingRecord.load(tmp_path / "wattune-run-1" / "training.json").dump()
