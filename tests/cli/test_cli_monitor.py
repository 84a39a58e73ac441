"""A board second by second, and a command that is measured."""

from __future__ import annotations

import csv
import itertools
import signal
import subprocess
import sys
import time

import pytest
from tests.support.cli_boards import board_tree, limits, live_board

from wattune.tracking.board_watch import COLUMNS

COMMAND = [sys.executable, "-m", "wattune", "monitor"]
METER = ["--device", "external:echo 6.5 W"]


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C in the third pause of a simulated board, whose own time passes without one."""
    pauses = itertools.count(1)

    def sleep(seconds):
        if next(pauses) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("wattune.cli.monitor.time.sleep", sleep)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_lines_in_a_pipe_and_rows_in_the_file(wattune, tmp_path, interrupted):
    code, out, err = wattune("monitor", "--device", "sim:jetson-nano", "-o", tmp_path / "power.csv")
    assert code == 130
    head, names, *lines = out.splitlines()
    assert head == "# sim:jetson-nano (simulated)"
    assert names.split() == ["seconds", "power", "peak", "clock", "temp.", "throttled"]
    rows = rows_of(tmp_path / "power.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["seconds"] for row in rows] == [line.split()[0] for line in lines] == ["1.0", "2.0", "3.0"]
    assert [f"{float(row['power_w']):.2f}" for row in rows] == [line.split()[1] for line in lines]
    (line,) = err
    assert line.startswith("wattune: interrupted; 4 s on sim:jetson-nano (simulated), ")
    assert " W on average, " in line


def test_a_table_in_a_terminal(wattune, interrupted, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    code, out, _ = wattune("monitor", "--device", "sim:jetson-nano")
    assert code == 130
    assert all(word in out for word in ("sim:jetson-nano (simulated)", "power", "clock", "temperature", "throttled"))
    assert "922 MHz" in out
    assert out.count("in 3 s") == 2  # once live, once when it ends


def test_a_command_is_measured_and_ends_as_it_did(wattune, tmp_path):
    arguments = (*METER, "-o", tmp_path / "power.csv", "--", "sh", "-c", "echo mine; exit 3")
    code, _, _ = wattune("monitor", *arguments)
    assert code == 3
    (row,) = rows_of(tmp_path / "power.csv")
    assert float(row["power_w"]) == pytest.approx(6.5)


def test_the_output_is_the_commands_own_and_the_board_is_left_as_it_was(tmp_path):
    root = board_tree(tmp_path / "board")
    before = limits(root)
    done = subprocess.run(
        [*COMMAND, "--sysfs-root", str(root), "--", "echo", "mine"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "mine\n"
    (line,) = done.stderr.splitlines()
    assert "Orin Nano" in line
    assert "(simulated)" in line
    assert "°C at most" in line
    assert limits(root) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "sim:jetson-nano", "--", "true"], "this device cannot run programs: sim:jetson-nano"),
        ([*METER, "--", "no-such-program"], "program not found: no-such-program"),
        (["--device", "sim:jetson-nano", "-o", "."], "the output file exists"),
        (["--device", "nonsense"], "unknown device: nonsense"),
        (["--device", "external:false"], "the meter's command false ended with 1"),
        (["--device", "sim:jetson-nano", "--sysfs-root", "/"], "sysfs_root with this device"),
        (["--cap", "5W"], "No such option"),
    ],
)
def test_bad_input_is_one_line(wattune, arguments, message):
    code, out, err = wattune("monitor", *arguments)
    assert (code, out) == (2, "")
    (line,) = err
    assert message in line


def test_a_recorded_board_has_nothing_to_show(wattune, tmp_path):
    from tests.support.device_examples import make_table

    path = make_table().save(tmp_path / "profile.json")
    code, _, err = wattune("monitor", "--device", f"recorded:{path}")
    assert code == 1
    (line,) = err
    assert "is a recording: there is no reading before the first step" in line


# -------------------------------------------------------------------------------------------------------- processes


def wait_for(condition, process):
    until_s = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_a_summary(tmp_path, number):
    file = tmp_path / "power.csv"
    with live_board(tmp_path / "board", load=0.5) as root:
        before = limits(root)
        arguments = [*COMMAND, "--sysfs-root", str(root), "-o", str(file)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: file.exists() and len(rows_of(file)) >= 2, process)
            process.send_signal(number)
            out, err = process.communicate()
        assert limits(root) == before
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("wattune: interrupted; ")
    assert len(out.splitlines()) == 2 + len(rows_of(file))
    assert all(row["clock_mhz"] and row["temperature_c"] for row in rows_of(file))


@pytest.mark.slow
def test_an_interrupt_reaches_the_command(tmp_path):
    arguments = [*COMMAND, *METER, "--", "sh", "-c", f"touch {tmp_path}/begun; exec sleep 600"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        wait_for((tmp_path / "begun").exists, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert "6.50 W on average" in line


@pytest.mark.slow
def test_a_command_runs_to_its_end_without_a_sensor(tmp_path):
    (tmp_path / "watts").write_text("7.5")
    script = f"rm {tmp_path}/watts; while [ ! -e {tmp_path}/noticed ]; do sleep 0.1; done; touch {tmp_path}/ended"
    arguments = [*COMMAND, "--device", f"external:cat {tmp_path}/watts#period_s=0.1", "--", "sh", "-c", script]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        first = process.stderr.readline()
        (tmp_path / "noticed").touch()
        _, rest = process.communicate()
    assert first.startswith("wattune: no more rows: ")
    assert (tmp_path / "ended").exists()
    assert process.returncode == 1
    assert rest.startswith("wattune: ")
    assert "average" not in rest
    assert "Traceback" not in rest


@pytest.mark.slow
def test_it_shows_a_board_that_another_process_has_pinned(tmp_path):
    file = tmp_path / "power.csv"
    with live_board(tmp_path / "board", load=1.0) as root:
        inner = [*COMMAND, "--sysfs-root", str(root), "-o", str(file), "--", "sleep", "2"]
        guard = [sys.executable, "-m", "wattune", "guard", "--device", "jetson", "--sysfs-root", str(root)]
        subprocess.run([*guard, "--clock", "612MHz", "--", *inner], check=True, capture_output=True)
    assert {row["clock_mhz"] for row in rows_of(file)} == {"612.0"}
