"""The example of a server and two devices runs unchanged, and so do the commands by which the docs add a device."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest
from tests.support.server.serving import Serving, free_port
from tests.support.server.story import ENVIRONMENT

from wattune.job.with_server import own_name
from wattune.records import TrainingRecord
from wattune_server.store.schema import TrainingRow

ROOT = Path(__file__).parent.parent.parent
ADDRESS = "http://127.0.0.1:8484"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="scripts for sh")]


def called(command, folder):
    """Run a command as a user of that folder, with a cache of its own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**ENVIRONMENT, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("WATTUNE_TOKEN", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The folder in which the example ran."""
    folder = tmp_path_factory.mktemp("fleet")
    called(["sh", str(ROOT / "examples" / "server-and-device" / "two_boards.sh"), str(free_port())], folder)
    return folder


def test_two_boards_train_from_one_server(fleet):
    plans = [TrainingRecord.load(fleet / board / "training.json").plan for board in ("nano", "orin")]
    assert plans[0].clock_mhz != plans[1].clock_mhz
    assert (fleet / "nano" / "efficiency.json").read_text() == (fleet / "orin" / "efficiency.json").read_text()


def test_commands_for_a_device_run_as_documented(fleet, tmp_path):
    """In the example's store, whose curve and profile are known: a first device waits minutes for them."""
    page = (ROOT / "docs" / "server.md").read_text()
    section = page.partition("## Connecting a device\n")[2].partition("\nWhat happens:")[0]
    blocks = [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)]
    assert [block.count(ADDRESS) for block in blocks] == [1, 1, 1]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "wattune-store").symlink_to(fleet / "fleet")
    server = Serving(tmp_path / "wattune-store", "--workers", "0", log=tmp_path / "log")
    try:
        for block in (block.replace(ADDRESS, server.url) for block in blocks):
            if block.startswith("wattune.run("):
                called([sys.executable, "-c", f"import wattune\n{block}"], tmp_path)
            else:
                called(["bash", "-euo", "pipefail", "-c", block], tmp_path)
        command = ["wattune-server", "token", "make", "looker", "--scope", "read", "--store", "wattune-store"]
        token = called(command, tmp_path).stdout.strip()
        headers = {"Accept": "text/html", "Authorization": f"Bearer {token}"}
        page = httpx.get(server.url, headers=headers).text
        for name in (own_name(), "nano-1"):
            device = page.partition(f'id="device-{name}"')[2].partition('</li>\n<li class="card')[0]
            assert ">done</span>" in device, name
            assert "resnet8-digits" in device
        assert [run.device for run in server.rows(TrainingRow)[:3]] == ["nano-1", own_name(), own_name()]
    finally:
        server.end()
