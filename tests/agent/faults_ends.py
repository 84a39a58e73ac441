"""Faults that end or stop a process: the training, the agent, a client."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.agent.faults_made import AS_FOUND, BY_RESTORE, cell, fault
from tests.support.agent_socket import ENVIRONMENT, Holder, serving
from tests.support.live_board import live, wait_for
from tests.support.live_devices import virtual

from wattune.devices import open_device
from wattune.point import Knobs
from wattune_agent.client import AgentClient
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.guarded import SAFETY_EXIT, run_guarded
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import snapshots
from wattune_agent.tree import Tree


@fault("an exception in the training loop")
def _(bench):
    device = virtual(bench.tree)
    try:
        with device.at(Knobs(clock_mhz=bench.mhz)):
            assert bench.is_at(bench.mhz)
            raise ZeroDivisionError
    except ZeroDivisionError as error:
        bench.tell(f"`{type(error).__name__}`")
    assert bench.is_back
    device.close()


# ---------------------------------------------------------------------------------------------- the agent, and clients


class Served:
    """A live board as a process, and an agent that serves it."""

    def __init__(self, root, bench, ends):
        self.tree, self.socket, self.bench, self.ends = Tree(str(root)), root / "agent.sock", bench, ends
        self.family, self.mhz = "cpu" if bench.is_cpu else "jetson", bench.mhz
        self.files = find_board(self.tree, self.family).clock.files()
        # Railgating on, to be switched off. Boost off already: switching it changes the limits too, and a board made of
        # plain files may then write over what the agent writes at that moment, as no kernel does.
        self.tree.write(bench.switch, "1")
        time.sleep(0.05)  # until the board has taken it in
        self.before = self.state()
        self.start()

    def state(self):
        return [self.tree.read(path) for path in self.files]

    def is_back(self):
        return self.state() == self.before

    def is_at(self, mhz):
        wanted = str(round(mhz * self.bench.tree.board.model.per_mhz))
        return self.tree.read(self.bench.low) == wanted == self.tree.read(self.bench.high)

    def start(self):
        agent = serving(self.tree.root, self.socket, "--lease", "1.0", family=self.family)
        self.agent = self.ends.enter_context(agent)
        time.sleep(0.05)  # the energy counters of the files move only every few milliseconds

    def stop(self, number):
        self.agent.send_signal(number)
        self.agent.wait(10)

    def kill_soon(self):
        """Once it has pinned, and somebody has read."""
        assert wait_for(lambda: self.is_at(self.mhz), 60.0)
        time.sleep(1.5)
        self.stop(signal.SIGKILL)

    def restored(self):
        """What was told, once ``restore`` has brought the board back that a killed agent left pinned."""
        assert self.is_at(self.mhz)
        assert restore_left_behind(self.tree)
        assert wait_for(self.is_back)
        return cell(self.bench.told, BY_RESTORE)

    def check(self):
        """Without the agent, the board can be pinned again, and comes back."""
        if self.agent.poll() is None:
            self.stop(signal.SIGTERM)
        assert snapshots(self.tree) == []
        with Controller(find_board(self.tree, self.family)) as following:
            following.pin(self.bench.other_mhz)
            assert wait_for(lambda: self.is_at(self.bench.other_mhz))
        assert wait_for(self.is_back)


@contextmanager
def served(bench):
    """The files as a process keeps them alive, and an agent over them."""
    with tempfile.TemporaryDirectory(prefix="wattune-faults-") as folder, ExitStack() as ends:
        ends.enter_context(live(Path(folder), bench.family, throttled=False, load=bench.load))
        service = Served(Path(folder), bench, ends)
        yield service
        service.check()


@contextmanager
def holding(service, *requests):
    """A client in a process of its own, which has pinned."""
    holder = Holder(service.socket, ["pin", service.mhz], *requests)
    try:
        assert service.is_at(service.mhz)
        yield holder
    finally:
        holder.end()


@fault("the agent gets SIGTERM while a client holds the board")
def _(bench):
    with served(bench) as service, AgentClient(str(service.socket)) as client:
        client.pin(service.mhz)
        assert service.is_at(service.mhz)
        service.stop(signal.SIGTERM)
        assert wait_for(service.is_back)
        bench.tells(client.read)
        service.start()
    return cell(bench.told, AS_FOUND)


@fault("the agent is killed (SIGKILL)")
def _(bench):
    with served(bench) as service:
        client = AgentClient(str(service.socket))
        client.pin(service.mhz)
        service.stop(signal.SIGKILL)
        bench.tells(client.read)
        client.close()
        assert service.is_at(service.mhz)
        service.start()
        assert wait_for(service.is_back)
        with AgentClient(str(service.socket)) as client:
            client.pin(service.mhz)
            bench.hears(client.check())
        assert wait_for(service.is_back)
    return cell(bench.told, BY_RESTORE)


@fault("the agent is killed under a program of `guard`", slow=True)
def _(bench):
    with served(bench) as service:
        client = AgentClient(str(service.socket))
        program = ["sh", "-c", f"kill -9 {service.agent.pid}; sleep 60"]
        report = run_guarded(client, program, clock_mhz=service.mhz, cap_w=900.0)
        service.agent.wait(10)
        assert report.exit_code == SAFETY_EXIT
        bench.hears(event for event in report.events if event["kind"] != "failed")
        bench.tell(f"exit {report.exit_code}")
        return service.restored()


@fault("the agent is killed during a training run", slow=True)
def _(bench):
    with served(bench) as service:
        device = open_device(f"agent:{service.socket}")
        killing = threading.Thread(target=service.kill_soon)
        killing.start()
        bench.trains(device, Path(service.tree.root), cap_w=900.0)
        killing.join()
        device.close()
        return service.restored()


@fault("the guard of a program is stopped (SIGSTOP) for 6 s under a cap", slow=True)
def _(bench):
    with served(bench) as service:
        folder = Path(service.tree.root)
        report, said, began, over = (folder / name for name in ("report.json", "said", "began", "over"))
        command = [sys.executable, "-m", "wattune_agent", "guard", "--json", "--sysfs-root", service.tree.root]
        command += ["--device", service.family, "--clock", f"{service.mhz}", "--cap", "900W", "--"]
        command += ["sh", "-c", f"touch {began}; until [ -e {over} ]; do sleep 0.1; done"]
        with (
            said.open("w") as lines,
            report.open("w") as out,
            subprocess.Popen(command, env=ENVIRONMENT, stdout=out, stderr=lines) as guard,
        ):
            assert wait_for(began.exists, 20.0)  # the readings before it, at the pinned clock, take a second
            assert service.is_at(service.mhz)
            time.sleep(1.0)
            guard.send_signal(signal.SIGSTOP)
            time.sleep(6.0)
            guard.send_signal(signal.SIGCONT)
            # On a busy machine that takes a while, and the program must not have ended by then.
            told = wait_for(lambda: "stood still" in said.read_text(), 20.0)
            over.touch()
        assert told, said.read_text()
        bench.hears(json.loads(report.read_text(encoding="utf-8"))["events"])
        bench.tell(f"exit {guard.returncode}")
        assert wait_for(service.is_back)
    return cell(bench.told, AS_FOUND)


@fault("a client is killed (SIGKILL)")
def _(bench):
    with served(bench) as service, holding(service, ["guard", 900.0]) as holder:
        holder.process.kill()
        assert wait_for(service.is_back)
    return cell(bench.told, AS_FOUND)


@fault("a client is stopped (SIGSTOP)")
def _(bench):
    with served(bench) as service, holding(service) as holder:
        holder.process.send_signal(signal.SIGSTOP)
        assert wait_for(service.is_back)
        holder.process.send_signal(signal.SIGCONT)
        assert wait_for(lambda: service.is_at(service.mhz))
        bench.hears(holder.ask()["events"])
        holder.end()
        assert wait_for(service.is_back)
    return cell(bench.told, AS_FOUND)


@fault("a client is stopped (SIGSTOP) under a cap, then killed")
def _(bench):
    with (
        served(bench) as service,
        holding(service, ["guard", 900.0]) as holder,
        AgentClient(str(service.socket)) as reader,
    ):
        holder.process.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: service.is_at(bench.settings[0]))
        assert reader.read()["power_w"] > 0
        if "wattune-agent: lease lapsed: " in service.agent.said():  # nobody is left to be told
            bench.tell("lease lapsed (agent's log)")
        holder.process.kill()
        assert wait_for(service.is_back)
    return cell(bench.told, AS_FOUND)
