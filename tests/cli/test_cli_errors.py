"""Bad input of every kind: one line on stderr, the exit code, an object on stdout with --json, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.support.cli_records import EFFICIENCY, PROFILE, written


def plan_files(folder, profile=PROFILE, efficiency=EFFICIENCY):
    return written(folder, "profile.json", profile), written(folder, "efficiency.json", efficiency)


def test_a_cap_under_every_measured_power_names_the_lowest(wattune, tmp_path):
    code, out, err = wattune("plan", *plan_files(tmp_path), "--cap", "2W", "--json")
    assert (code, len(err)) == (2, 1)
    assert "the lowest measured mean over 1 s is 2.556 W, with batch size 8 at 200 MHz" in err[0]
    error = json.loads(out)["error"]
    assert error["type"] == "CapError"
    assert error["exit_code"] == 2
    assert f"wattune: {error['message']}" == err[0]
    assert error["value"] == "2 W"


def test_nothing_asked_shows_the_help(wattune):
    code, out, err = wattune()
    assert (code, err) == (0, [])
    assert "Exit codes" in out


def test_a_place_that_cannot_be_written(refused, tmp_path):
    records = plan_files(tmp_path)
    for place in (f"{records[0]}/below/plan.json", tmp_path, tmp_path / ("long" * 100) / "plan.json"):
        assert str(tmp_path) in refused("plan", *records, "--cap", "4", "-o", place)


def call(arguments, **options):
    return subprocess.run([sys.executable, "-m", "wattune", *arguments], stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_stdout(tmp_path):
    records = plan_files(tmp_path)
    for extra in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            done = call(["plan", *records, "--cap", "4", *extra, "-o", str(tmp_path / f"p{extra}")], stdout=full)
        named, error = done.stderr.splitlines()
        assert done.returncode == 2
        assert "the plan record is in" in named
        assert "No space left" in error


@pytest.mark.slow
def test_a_reader_that_leaves(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = call(["plan", *plan_files(tmp_path), "--cap", "4", "--json"], stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_unexpected_error_says_how_to_get_a_traceback(wattune, monkeypatch, tmp_path):
    def explode(*_, **__):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("wattune.planning.plan", explode)
    arguments = ["plan", *plan_files(tmp_path), "--cap", "4", "--json"]
    code, out, err = wattune(*arguments)
    assert (code, len(err)) == (1, 1)
    assert "unexpected ZeroDivisionError; set WATTUNE_TRACEBACK=1 for a traceback: two lines" in err[0]
    assert json.loads(out)["error"]["exit_code"] == 1
    monkeypatch.setenv("WATTUNE_TRACEBACK", "1")
    code, _, err = wattune(*arguments)
    assert code == 1
    assert err[0].startswith("Traceback")


def test_a_warning_takes_one_line(wattune, monkeypatch, tmp_path):
    import warnings

    from wattune import planning

    real = planning.plan

    def warn(*arguments, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("look\nout", stacklevel=1)
        return real(*arguments, **options)

    monkeypatch.setattr("wattune.planning.plan", warn)
    code, _, err = wattune("plan", *plan_files(tmp_path), "--cap", "4", "--json")
    assert (code, err) == (0, ["wattune: warning: look out"])


@pytest.mark.slow
def test_an_interrupt_in_a_finalizer_is_not_lost():
    """Python drops what is raised there, and with it a Ctrl-C that happens to come then."""
    code = """
import sys, time, weakref
from wattune.cli import main as called
main = sys.modules["wattune.cli.main"]

class Thing:
    pass

def interrupted():
    raise KeyboardInterrupt

def call(name, app, arguments):
    thing = Thing()
    weakref.finalize(thing, interrupted)
    del thing
    time.sleep(20)
    return 0

main._call = call
sys.exit(main.main(["devices"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
