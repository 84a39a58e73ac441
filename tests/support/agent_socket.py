"""An agent for tests: as a process, in this process, and its clients as processes."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager

from tests.support.live_board import ROOT, wait_for

from wattune_agent.server import AgentServer

SETTINGS = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0)

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}

HOLDER = """
import json, sys, time
from wattune_agent.client import AgentClient
client = AgentClient(sys.argv[1])
for request, *numbers in json.loads(sys.argv[2]):
    getattr(client, request)(*numbers)
print("held", flush=True)
for line in sys.stdin:
    print(json.dumps({"clock_mhz": client.read()["clock_mhz"], "events": client.check()}), flush=True)
"""
"""A client that does what it is told, then answers each line from its stdin with what it knows."""


def state_of(pid):
    """The state of a process, as "S" or "T"; "Z" also if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@contextmanager
def agent(*arguments):
    """``wattune-agent`` with these arguments, as a process."""
    command = [sys.executable, "-m", "wattune_agent", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(root, socket, *options, family="jetson", source=ROOT / "src"):
    """An agent that serves the board below ``root``; ``source``: the folder of its package."""
    arguments = ["serve", "--device", family, "--sysfs-root", root, "--socket", socket, *options]
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-m", "wattune_agent", *map(str, arguments)]
        with subprocess.Popen(command, env={**ENVIRONMENT, "PYTHONPATH": str(source)}, stderr=said) as process:

            def text():
                said.seek(0)
                return said.read()

            process.said, process.socket = text, socket
            try:
                assert wait_for(lambda: socket.exists() and " at " in text()), text()
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        raise


@contextmanager
def served(path, keeper, time=None):
    """An agent in this process."""
    server = AgentServer(keeper, str(path), time=time)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield
    finally:
        server.stop()
        thread.join()


class Holder:
    """A client in a process of its own."""

    def __init__(self, socket, *requests):
        command = [sys.executable, "-c", HOLDER, str(socket), json.dumps(requests)]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.process.stdout.readline() == "held\n"

    def ask(self):
        self.process.stdin.write("\n")
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
