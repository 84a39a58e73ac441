"""The example of a server and two devices runs unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.test_server_story import free_port
from tests.support.server.story import ENVIRONMENT

from wattune.records import TrainingRecord

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "server-and-device"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="a script for sh")
def test_two_boards_train_from_one_server(tmp_path):
    environment = {
        **ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["sh", str(EXAMPLE / "two_boards.sh"), str(free_port())]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stderr
    plans = [TrainingRecord.load(tmp_path / board / "training.json").plan for board in ("nano", "orin")]
    assert plans[0].batch_size != plans[1].batch_size
    assert plans[0].clock_mhz != plans[1].clock_mhz
