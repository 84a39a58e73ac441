"""The agent behind its socket: real processes, a real socket, a live board made of files."""

import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from tests.agent.test_agent_protocol import GARBAGE, REFUSED, request
from tests.support.agent_socket import ENVIRONMENT, SETTINGS, Holder, served, serving
from tests.support.live_board import wait_for
from tests.support.made_board import MadeBoard
from tests.support.virtual_time import VirtualTime

import wattune_agent.client as client_module
import wattune_agent.server as server_module
from wattune_agent.client import AgentClient
from wattune_agent.errors import BadRequest, Busy, FileFailed, Forbidden, Full, Gone, NotThere
from wattune_agent.lease import BoardLease
from wattune_agent.server import MOST, AgentServer


@pytest.fixture(scope="module")
def server(running, tmp_path_factory):
    """The socket of an agent with a long lease, which is a process of its own: nothing lapses on a busy machine."""
    path = tmp_path_factory.mktemp("agent") / "agent.sock"
    with serving(running.root, path, "--lease", "60"):
        yield path


@pytest.fixture
def path(request, tmp_path):
    """The server's socket where the test uses it, else one for an agent of the test's own."""
    return request.getfixturevalue("server") if "server" in request.fixturenames else tmp_path / "agent.sock"


@pytest.fixture
def holders():
    made = []

    def hold(*arguments):
        made.append(Holder(*arguments))
        return made[-1]

    yield hold
    for holder in made:
        holder.end()


# ------------------------------------------------------------------------------------------------------ what is asked


def test_a_client_has_the_methods_of_a_controller(board, server, path):
    with AgentClient(str(path)) as client:
        said = client.describe()
        assert tuple(said["settings_mhz"]) == SETTINGS
        assert said["rail"] == "VDD_IN"
        assert said["lease_s"] == 60.0
        assert said["real"] is False
        assert client.read()["power_w"] > 1.0
        assert client.pin(612.0) == {"mhz": 612.0}
        assert board.is_at(612.0)
        assert wait_for(lambda: client.read()["clock_mhz"] == 612.0)
        with pytest.raises(BadRequest, match="allowed"):
            client.pin(600.0)
        assert board.is_at(612.0)
        assert client.check() == []
        client.restore()
        client.restore()
        assert not board.is_at(612.0)
        client.pin(306.0)


def test_a_client_sets_the_clocks_beside_the_first_and_loses_them_when_it_is_killed(board, server, path, holders):
    lock = board.root / "sys/kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked"
    limit = board.root / "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
    found = limit.read_text().strip()
    with AgentClient(str(path)) as client:
        others = {name: settings[0] for name, settings in client.describe()["others_mhz"].items()}
        assert list(others) == ["memory_clock_mhz", "cpu_clock_mhz"]
        assert client.pin(612.0, others) == {"mhz": 612.0, **others}
        assert (lock.read_text().strip(), limit.read_text().strip()) == ("1", "115200")
        assert client.pin(510.0) == {"mhz": 510.0}
        assert wait_for(lambda: (lock.read_text().strip(), limit.read_text().strip()) == ("0", found))
        with pytest.raises(BadRequest, match="the memory of"):
            client.pin(510.0, {"memory_clock_mhz": 1.0})
    holder = holders(path, ["pin", 510.0, others])
    assert lock.read_text().strip() == "1"
    holder.process.kill()
    assert wait_for(lambda: (lock.read_text().strip(), limit.read_text().strip()) == ("0", found))


def test_two_clients_one_holds_both_read(board, server, path, holders):
    holder = holders(path, ["pin", 510.0])
    with AgentClient(str(path)) as other:
        with pytest.raises(Busy, match="process {} of user".format(holder.process.pid)):
            other.pin(306.0)
        with pytest.raises(Busy):
            other.guard(10.0)
        assert wait_for(lambda: other.read()["clock_mhz"] == 510.0)  # the board takes a moment
        other.restore()  # nothing is held: nothing to do
        assert board.is_at(510.0)
        holder.end()
        assert wait_for(lambda: not board.is_at(510.0))
        assert other.pin(306.0) == {"mhz": 306.0}


# --------------------------------------------------------------------------------------------------- clients that end


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_client_that_ends_leaves_the_board_as_it_was(board, server, path, holders, how):
    holder = holders(path, ["pin", 306.0], ["guard", 12.0])
    assert board.is_at(306.0)
    holder.process.stdin.close() if how is None else holder.process.send_signal(how)
    assert wait_for(lambda: not board.is_at(306.0))


FORKING = """
import os, sys, time
from wattune_agent.client import AgentClient
client = AgentClient(sys.argv[1])
if sys.argv[2] == "leak":
    os.set_inheritable(client._socket.fileno(), True)
    os.dup2(client._socket.fileno(), 9, inheritable=True)
client.pin(510.0)
if os.fork() == 0:
    try:
        client.pin(306.0)
    except Exception as error:
        print(type(error).__name__, flush=True)
    with client:
        pass
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["closes", "leak"])
def test_a_fork_of_a_killed_client_does_not_hold_the_board(board, server, path, how):
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(path), how]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "Gone\n"
        assert board.is_at(510.0)
        process.kill()
        process.wait()
        assert wait_for(lambda: not board.is_at(510.0))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


# ------------------------------------------------------------------------------------------------- agents that end


def test_an_agent_that_is_terminated_restores_and_takes_its_socket_away(board, path, holders):
    with serving(board.root, path) as process:
        client = AgentClient(str(path))
        client.pin(510.0)
        process.terminate()
        assert process.wait(30) == 0
        assert not board.is_at(510.0)
        assert not path.exists()
        with pytest.raises(Gone):
            client.read()
        with pytest.raises(Gone, match="wattune restore"):
            client.restore()
    with serving(board.root, path):
        client.restore()
        client.close()
    assert not path.exists()


def test_the_socket_of_a_killed_agent_says_that_nobody_is_there(board, path):
    with serving(board.root, path) as process:
        process.kill()
        process.wait()
    assert path.exists()
    with pytest.raises(NotThere, match="no process listens"):
        AgentClient(str(path))


def test_a_second_agent_at_the_same_socket_is_refused(board, server, path):
    with pytest.raises(Busy, match="another wattune-agent"):
        AgentServer(BoardLease(None), str(path))
    with AgentClient(str(path)) as client:
        client.pin(306.0)


# ------------------------------------------------------------------------------------------------------------ garbage


def test_unknown_requests_are_answered_and_the_connection_goes_on(board, server, path):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
        file = raw.makefile("rw", encoding="utf-8")

        def ask(**message):
            file.write(json.dumps({"wattune": 2, "id": 5, **message}) + "\n")
            file.flush()
            return json.loads(file.readline())

        assert ask(request="write", path="/etc/passwd")["error"]["code"] == "bad-request"
        assert ask(request="pin")["error"]["code"] == "bad-request"
        assert ask(request="renew", wattune=1)["error"]["code"] == "gone"
        assert ask(request="read")["answer"]["power_w"] > 0
        file.close()


def test_the_holder_that_sends_garbage_loses_the_board(board, server, path):
    client = AgentClient(str(path))
    client.pin(510.0)
    client._socket.sendall(b"garbage\n")
    assert wait_for(lambda: not board.is_at(510.0))
    client.close()


@pytest.mark.parametrize(
    ("agents", "clients", "says"),
    [
        ((3, 2), (2,), ""),
        ((2,), (3, 2), ""),
        ((4, 3), (2,), r"the agent speaks version 4 .*its client version 2; .* restart the agent"),
        ((2,), (4, 3), r"the agent speaks version 2 .*its client version 4; .* restart the agent"),
    ],
)
def test_an_agent_and_a_client_talk_if_they_are_one_version_apart(
    board, path, tmp_path, monkeypatch, agents, clients, says
):
    """An agent from an altered copy of its package, which knows neither ``set`` nor the window of a cap."""
    package = tmp_path / "altered/wattune_agent"
    shutil.copytree(client_module.__file__.rpartition("/")[0], package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text, other in (
        ("__init__.py", "SERVED = (2,)", f"SERVED = {agents}"),
        ("protocol.py", ', "window_s": True', ""),
        ("protocol.py", '    "set": {"cap_w": True},\n', ""),
    ):
        assert text in (package / file).read_text()
        (package / file).write_text((package / file).read_text().replace(text, other))
    monkeypatch.setattr(client_module, "SERVED", clients)
    with serving(board.root, path, source=package.parent):
        if says:
            with pytest.raises(Gone, match=says):
                AgentClient(str(path))
            return
        with AgentClient(str(path)) as client:
            assert client.pin(612.0) == {"mhz": 612.0}
            client.guard(9.0, None, None)
            with pytest.raises(NotThere, match="does not know guard window_s; restart the agent"):
                client.guard(9.0, None, 1.0)
            with pytest.raises(NotThere, match="does not know set cap_w; restart the agent"):
                client.set_cap(8.0)
            with pytest.raises(BadRequest, match="allowed"):  # in the version that the client reads
                client.pin(600.0)
        client = AgentClient(str(path))
    with serving(board.root, path):  # of the client's own version: it has been updated
        client.guard(9.0, None, 1.0)
        client.close()


def test_a_client_that_takes_no_answers_does_not_keep_the_agent_from_others(board, server, path, holders):
    holder = holders(path, ["pin", 510.0])
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(path))
    raw.settimeout(0.5)
    try:
        while True:
            raw.sendall(b'{"wattune": 2, "id": 1, "request": "discover"}\n')
    except OSError:
        pass
    assert wait_for(lambda: holder.ask()["clock_mhz"] == 510.0)
    raw.close()


def _open_connections(path, most=10**6):
    """Connect so often, or until the queue is full, and keep all of them open."""
    for _ in range(most):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        try:
            one.connect(str(path))
        except BlockingIOError:
            one.close()
            return
        yield one


def test_a_flood_of_connections_takes_no_threads_and_few_descriptors(path):
    board = MadeBoard()
    with served(path, BoardLease(board)), AgentClient(str(path)) as holder:
        holder.pin(300.0)
        before, most, others = threading.active_count(), 0, []
        try:
            for _ in range(20):
                others += _open_connections(path, 20)
                most = max(most, threading.active_count())
            assert most <= before + MOST
            ours = len(os.listdir("/proc/self/fd")) - len(others)
            assert wait_for(lambda: ours <= MOST + 100)
            assert holder.read()["power_w"] == 3.0
            assert board.mhz == 300.0
        finally:
            for other in others:
                other.close()
        assert wait_for(lambda: _connects(path))


def test_a_client_whose_process_cannot_be_looked_at_is_not_gone(monkeypatch):
    """As when the agent has no file descriptor left."""

    def no_more(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    here, there = socket.socketpair()
    with here, there:
        peer = server_module._Peer(here, os.getpid(), 0)
        monkeypatch.setattr("builtins.open", no_more)
        is_gone = peer.is_gone()
        monkeypatch.undo()
        assert not is_gone
        assert not peer.is_gone()


def test_one_user_cannot_take_every_place(path, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_OF_USER", 3)
    monkeypatch.setattr(server_module, "_credentials", lambda connection: (os.getpid(), users[-1]))
    users = [1000]
    with served(path, BoardLease(MadeBoard()), VirtualTime()):  # no client is silent for long
        clients = [AgentClient(str(path)) for _ in range(3)]
        with pytest.raises(Full, match="3 connections"):
            AgentClient(str(path))
        users.append(1001)
        clients.append(AgentClient(str(path)))
        for client in clients:
            client.close()


def once_one_is_silent(time, call):
    """Call again until it has a place: on a busy machine, the thread of a connection may note the time late."""
    while True:
        time.sleep(5.0)
        with suppress(Full):
            return call()


def test_the_connection_that_is_silent_longest_and_holds_nothing_makes_room(path, monkeypatch):
    monkeypatch.setattr(server_module, "MOST", 3)
    time, board = VirtualTime(), MadeBoard()
    with served(path, BoardLease(board, lease_s=60.0, now_s=time.now_s), time):
        holder = AgentClient(str(path), time=time)
        holder.pin(300.0)
        idle, reader = AgentClient(str(path)), AgentClient(str(path))
        with pytest.raises(Full):  # none has been silent for long
            AgentClient(str(path))
        place = reader._socket

        def newcomer_connects():
            reader.read()
            return AgentClient(str(path))

        newcomer = once_one_is_silent(time, newcomer_connects)
        reader.read()
        assert reader._socket is place
        assert once_one_is_silent(time, idle.read)["power_w"] == 3.0  # on a new connection
        assert board.mhz == 300.0
        assert holder.check() == []
        for client in (holder, idle, reader, newcomer):
            client.close()


HOSTILE = [
    b"",
    b"\n",
    b"x" * 5000,
    "\ufeff{}\n".encode("utf-16"),
    *GARBAGE,
    *(
        json.dumps(message).encode() + b"\n"
        for message in (
            *REFUSED,
            request(request="pin", mhz=[300.0]),
            request(request="pin", mhz=1e300),
            request(request="pin", mhz=500.0),
            request(request="guard", cap_w=1e9, max_temp_c=None),
            request(request="guard", cap_w=None, max_temp_c=None),
            request(request="guard", cap_w={}, max_temp_c=1.0),
            request(request="restore"),
            {**request(request="read"), "id": 10**100},
            request(request="switch_mode", number=0),
            request(request="\ud800"),
        )
    ),
    b'{"wattune": 2, "id": 1, "request": "pin", "mhz": 1e999}\n',
    b'{"wattune": 2, "id": 1, "request": "pin", "mhz": 300.0, "request": "restore"}\n',
]
"""Messages that no client sends, or that only the board's holder may."""


@pytest.mark.slow
def test_neither_hostile_messages_nor_a_flood_keep_the_guard_from_its_readings(path):
    """Each hostile message twice and 2,000 connections, under a cap that is exceeded: the guard reads on.

    Its readings are counted between the ticks of another thread of this process with the same period, so that a busy
    machine, on which both are late, does not count.
    """
    board, ticks, read_at = MadeBoard(), [0], []
    read = board.read

    def reads():
        if threading.current_thread().name == "sample":
            read_at.append(ticks[0])
        return read()

    def tick(over):
        while not over.wait(server_module.SAMPLE_S):
            ticks[0] += 1

    board.read = reads
    over = threading.Event()
    clock = threading.Thread(target=tick, args=(over,))
    with served(path, BoardLease(board, lease_s=60.0)), AgentClient(str(path)) as holder:
        holder.pin(500.0)
        holder.guard(2.5)
        clock.start()
        try:
            for message in HOSTILE * 2:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
                    one.settimeout(30.0)
                    one.connect(str(path))
                    one.sendall(message)
                    one.shutdown(socket.SHUT_WR)
                    answer = one.makefile("rb").read()
                    assert answer.count(b"Traceback") == 0
            connections = 0
            while connections < 2000:
                others = list(_open_connections(path, 100))
                connections += len(others)
                for other in others:
                    other.close()
            assert wait_for(lambda: board.mhz == 100.0)
        finally:
            over.set()
            clock.join()
        assert holder.describe()["name"] == "board"
    gaps = [later - earlier for earlier, later in zip(read_at, [*read_at[1:], ticks[0]], strict=True)]
    assert max(gaps) * server_module.SAMPLE_S <= 1.0
    assert len(read_at) >= 0.8 * (ticks[0] - read_at[0])


def _connects(path):
    try:
        AgentClient(str(path)).close()
    except (Full, NotThere):  # no place, or none in the queue of those that wait for one
        return False
    return True


def test_a_board_that_an_agent_without_a_place_may_hold_is_not_called_restored(path, monkeypatch):
    with served(path, BoardLease(MadeBoard())):
        client = AgentClient(str(path))
        client.pin(300.0)
    monkeypatch.setattr(server_module, "MOST", 0)
    with served(path, BoardLease(MadeBoard())):
        with pytest.raises(Gone, match="connections"):
            client.restore()
        monkeypatch.setattr(server_module, "MOST", 1)
        client.restore()
        client.close()


def test_a_pin_is_not_carried_over_to_another_agent(path):
    with served(path, BoardLease(MadeBoard())):
        client = AgentClient(str(path))
        client.pin(300.0)
    board = MadeBoard()
    with served(path, BoardLease(board)):
        with pytest.raises(Gone):
            client.pin(200.0)
        with pytest.raises(Gone):
            client.read()
        client.restore()
        client.pin(200.0)
        assert board.mhz == 200.0
        client.close()


def test_a_client_that_holds_nothing_goes_on_with_the_next_agent(path):
    with served(path, BoardLease(MadeBoard())):
        client = AgentClient(str(path))
    with pytest.raises(NotThere, match="wattune-agent serve"):
        client.read()
    board = MadeBoard()
    with served(path, BoardLease(board)):
        assert client.read()["power_w"] == 5.0
        client.pin(300.0)
        assert board.mhz == 300.0
        client.close()
        with pytest.raises(Gone):
            client.read()


def test_a_lease_is_renewed_again_after_one_renewal_failed(path):
    time = VirtualTime()
    keeper, fails = BoardLease(MadeBoard(), lease_s=0.8, now_s=time.now_s), []
    renew = keeper.renew

    def fail_first(party):
        if fails:
            fails.pop()
            raise FileFailed("out of luck")
        return renew(party)

    keeper.renew = fail_first
    with served(path, keeper, time):
        client = AgentClient(str(path), time=time)
        client.pin(300.0)
        fails += [1, 1]
        time.sleep(2.0)
        assert fails == []
        assert client.check() == []
        client.close()


# ------------------------------------------------------------------------------------------------------- the socket


def test_only_the_group_may_connect(board, path):
    group = __import__("grp").getgrgid(os.getgid()).gr_name
    with serving(board.root, path, "--group", group):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.stat().st_gid == os.getgid()
    AgentServer(BoardLease(None), str(path))._listener.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_socket_appears_only_once_it_accepts(path, monkeypatch):
    seen = []

    def chmod(name, mode, change=os.chmod):
        change(name, mode)
        seen.append(path.exists())

    monkeypatch.setattr("wattune_agent.server.os.chmod", chmod)
    server = AgentServer(BoardLease(None), str(path))
    assert seen == [False]
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    server._listener.close()


def test_what_an_agent_left_that_was_killed_while_it_started_is_in_nobodys_way(path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path)[:-1] + "~")
    AgentServer(BoardLease(None), str(path))._listener.close()
    assert [file.name for file in path.parent.glob("agent.soc*")] == ["agent.sock", "agent.sock.lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_connect_is_told_the_way(board, server, path):
    os.chmod(path.parent, 0o755)
    code = (
        "import os, sys; from wattune_agent.client import AgentClient; from wattune_agent.errors import AgentError\n"
        "os.setuid(65534)\n"
        "try: AgentClient(sys.argv[1])\n"
        "except AgentError as error: print(type(error).__name__, error)"
    )
    for folder in (path.parent, *path.parent.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    said = subprocess.run([sys.executable, "-c", code, str(path)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert said.stdout.startswith("Forbidden")
    assert "usermod" in said.stdout


def test_a_path_that_is_something_else_is_not_touched(path):
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(BadRequest, match="not touched"):
        AgentServer(BoardLease(None), str(path))
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_socket_that_somebody_else_listens_at_is_not_touched(path):
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(path))
        theirs.listen(1)
        with pytest.raises(Busy, match="listens at"):
            AgentServer(BoardLease(None), str(path))
        assert path.exists()


@pytest.mark.parametrize("name", ["a" * 200 + ".sock", "no/such/folder/agent.sock"])
def test_a_path_that_cannot_be_is_refused_in_one_line(tmp_path, name):
    with pytest.raises((BadRequest, Forbidden)) as caught:
        AgentServer(BoardLease(None), str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_an_unknown_group_is_refused_with_the_command_that_makes_it(path):
    with pytest.raises(NotThere, match="groupadd --system nobody-has-this"):
        AgentServer(BoardLease(None), str(path), "nobody-has-this")
    AgentServer(BoardLease(None), str(path))._listener.close()


def test_something_else_at_the_socket_is_no_agent(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def greet():
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH\n")
            connection.recv(1000)
            connection.close()

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(Gone, match="not a wattune-agent"):
            AgentClient(str(path))
        thread.join()


@pytest.mark.slow
def test_an_agent_that_does_not_answer_is_gone(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        with pytest.raises(Gone, match=r"within 0\.1 s"):
            AgentClient(str(path), timeout_s=0.1)


# -------------------------------------------------------------------------------------------------------- the watchdog


@pytest.mark.parametrize("hangs", ["tick", "sample"])
@pytest.mark.parametrize("name", ["{}/notify", "@{}/notify"])
def test_systemd_is_told_that_the_guard_is_alive_and_not_once_it_hangs(path, tmp_path, monkeypatch, hangs, name):
    monkeypatch.setattr(server_module, "HUNG_S", 0.5)
    name = name.format(tmp_path)
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    keeper, going = BoardLease(MadeBoard()), threading.Event()
    real = getattr(keeper, hangs)
    is_hung = threading.Event()

    def hang():
        if is_hung.is_set():
            going.wait(60.0)
        real()

    monkeypatch.setattr(keeper, hangs, hang)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.settimeout(30.0)
        with served(path, keeper):
            assert [systemd.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            is_hung.set()
            systemd.settimeout(3.0)
            with pytest.raises(socket.timeout):
                all(iter(lambda: systemd.recv(100), b""))
            going.set()
            systemd.settimeout(30.0)
            assert systemd.recv(100) == b"WATCHDOG=1"
