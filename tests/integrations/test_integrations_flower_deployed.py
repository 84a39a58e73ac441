"""A fleet on Flower as it is deployed: a SuperLink, SuperNodes and the apps, each a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if not os.environ.get("WATTUNE_REQUIRE_FLOWER"):
    pytest.importorskip("flwr", reason="needs Flower in an environment of its own: make test-flower")

ROOT = Path(__file__).parents[2]
APP = ROOT / "tests/support/flower_app"
CLIENTS = 3
WITHIN_S = 600.0
"""A killed SuperNode counts as gone a minute after its last sign of life, by Flower's constants."""


class Deployment:
    """Processes of Flower, each with a process group, a log and a port of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, start_new_session=True, **streams
            )

    def kill(self, name: str) -> None:
        """SIGKILL to a process and to all that it started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait_for(self, what: Callable[[], object]) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not what():
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{ended} ended:\n{self.logs()}"
            assert time.monotonic() < until_s, self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"--- {path.stem}\n{path.read_text()[-4000:]}" for path in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()  # some of a SuperLink's own have groups of their own, and end with it
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_ports(number: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def deployment(tmp_path) -> Iterator[Deployment]:
    """A SuperLink and three SuperNodes, and the configuration that names it."""
    link, *nodes = free_ports(1 + CLIENTS)
    own = Deployment(tmp_path)
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr/config.toml").write_text(
        f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    try:
        options = ["--insecure", "--port", str(link), "--disable-runtime-dependency-installation"]
        own.start("superlink", "flower-superlink", *options)
        own.wait_for(lambda: is_listening(link))
        for number, port in enumerate(nodes):
            config = f"partition-id={number} num-partitions={CLIENTS}"
            options = ["--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port), "--node-config", config]
            own.start(f"supernode{number}", "flower-supernode", *options)
        yield own
    finally:
        own.close()


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_the_rounds_continue_when_a_client_is_killed_in_its_training(deployment):
    folder = deployment.folder
    command = ["flwr", "run", str(APP), "--run-config", f'folder="{folder}" clients={CLIENTS}']
    started = subprocess.run(command, cwd=folder, env=deployment.environment, capture_output=True, check=False)
    assert started.returncode == 0, f"{started.stdout.decode()}\n{deployment.logs()}"
    deployment.wait_for((folder / "training.json").exists)
    deployment.kill("supernode2")
    deployment.wait_for((folder / "result.json").exists)

    result = json.loads((folder / "result.json").read_text())
    before, during, *after = result["rounds"]
    assert (before["asked"], before["answered"]) == (3, 3)
    assert (during["asked"], during["answered"]) == (3, 2)
    assert [one["answered"] for one in after] == [2, 2]
    assert after[-1]["left"] == 2
    assert before["steps"] == 3 * 40
    assert 0 < during["steps"] < 3 * 40
    assert after[-1]["steps"] == 2 * 40
    assert result["accuracy"] > 0.5
