"""``wattune serve --demo``: pages fill by themselves, everything is marked as simulated, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from tests.support.server.serving import lives, stored

from wattune.cli import main
from wattune_server import demo
from wattune_server.store.schema import DeviceRow, JobRow, ProfileRow, TrainingRow

NOWHERE = "http://127.0.0.1:9"


def wait_until(condition, check=lambda: None):
    """Wait for as long as the test may take; ``check`` fails if it would wait in vain."""
    while not condition():
        check()
        time.sleep(1.0)


def test_boards_stop_with_the_demo():
    with demo.start(NOWHERE) as boards:
        assert len(boards) == len(demo.BOARDS)
        assert all(board.is_alive() for board in boards)
    assert not any(board.is_alive() for board in boards)


def test_boards_stop_if_the_server_is_killed(tmp_path):
    text = (
        "import time; from wattune_server import demo\n"
        f"with demo.start({NOWHERE!r}) as boards:\n"
        "    print(*[board.pid for board in boards], flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # what is killed cannot clear up
    with subprocess.Popen([sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == len(demo.BOARDS)
        parent.kill()
    wait_until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize("arguments", [["serve", "--store", "x"], ["store", "add", "x"], ["token", "list", "--json"]])
def test_commands_of_the_server_are_elsewhere(arguments, capsys):
    assert main(arguments) == 2
    assert f"run wattune-server {arguments[0]}, or wattune serve --demo" in capsys.readouterr().err


@pytest.mark.slow
def test_demo_fills_the_pages(tmp_path, exhaustive):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "wattune", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://\S+[0-9]", server.stdout.readline()).group()
            assert "in a browser" in server.stdout.readline()

            [store] = tmp_path.glob("wattune-demo-*/wattune.db")

            def rows(table):
                return stored(store.parent, table)

            def check():
                assert server.poll() is None
                assert not [row for row in rows(DeviceRow) if row.status["step"] == "failed"]

            names = {board.name for board in demo.BOARDS}
            wait_until(lambda: {row.name for row in rows(DeviceRow)} == names, check)
            wait_until(lambda: rows(ProfileRow) and rows(JobRow), check)
            assert {row.status["kind"] for row in rows(DeviceRow)} == {"simulated"}
            assert {row.kind for row in rows(ProfileRow)} == {"simulated"}
            if exhaustive:  # a board gets its curve after two minutes
                wait_until(lambda: rows(TrainingRow), check)
                assert rows(TrainingRow)[0].kind == "simulated"
            for path in ("", "jobs", "profiles", "runs", "models"):
                with urllib.request.urlopen(f"{url}/{path}", timeout=30) as answer:
                    assert answer.status == 200
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert server.returncode == 0
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("wattune-demo")]
    assert left == []
