"""A pinned board always comes back: whatever fails, whoever else writes, and whenever the process is ended."""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.agent_trees import (
    HIGH,
    LISTED_MHZ,
    LOW,
    RAILGATE,
    MadeTree,
    board_in,
    cpu_tree,
    gpu_tree,
    kinds,
    texts,
)
from tests.support.live.tree import LiveTree

from wattune_agent import tree as tree_module
from wattune_agent.board import Board
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import AgentError, BadRequest, Busy, FileFailed, Forbidden, NotRestored, NotTaken, NotThere
from wattune_agent.leftover import left_behind, restore_left_behind
from wattune_agent.snapshot import Snapshot, snapshots

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def handlers():
    """No test leaves a handler behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


# -------------------------------------------------------------------------------------------------- pin and come back


def test_the_snapshot_is_on_the_disk_before_the_first_write(tree, controller, tmp_path):
    before, seen = texts(tmp_path), []
    tree.before_write = lambda path, text: seen.append(Snapshot.load(snapshots(tree)[0]).files)
    assert controller.pin(612.0) == {"mhz": 612.0}
    assert len(seen) == 3
    assert all(files == seen[0] for files in seen)
    assert seen[0][LOW] == "306000000\n"
    assert (tree.read(LOW), tree.read(HIGH), tree.read(RAILGATE)) == ("612000000", "612000000", "0")
    controller.restore()
    assert texts(tmp_path) == before
    assert snapshots(tree) == []


def test_later_pins_keep_the_first_snapshot(tree, controller, tmp_path):
    before = texts(tmp_path)
    for mhz in LISTED_MHZ:
        controller.pin(mhz)
        assert Snapshot.load(snapshots(tree)[0]).files[HIGH] == "1020000000\n"
        assert tree.read(LOW) == tree.read(HIGH) == f"{round(mhz * 1e6)}"
    controller.restore()
    controller.restore()
    assert texts(tmp_path) == before
    controller.pin(306.0)
    controller.restore()
    assert texts(tmp_path) == before


def test_nothing_is_written_for_a_frequency_that_is_not_listed(tree, controller):
    with pytest.raises(BadRequest, match="made board has no 950 MHz; it has 306, "):
        controller.pin(950.0)
    assert tree.written == []
    assert snapshots(tree) == []


def test_without_a_clock_there_is_no_pin_and_restore_is_nothing(tmp_path):
    tree = MadeTree(tmp_path)
    with Controller(board_in(tree)) as controller:
        with pytest.raises(NotThere, match="no GPU clock"):
            controller.pin(612.0)
        controller.restore()
        assert controller.check() == []


def test_the_mode_is_the_mode_of_now(tmp_path):
    tree = LiveTree(tmp_path, "orin-nano")
    with Controller(find_board(tree, "jetson")) as controller:
        before = controller.describe()["mode"]
        tree.rewrite("/var/lib/nvpmodel/status", "pmode:0001")
        tree.sleep(2.0)
        assert before["nvpmodel"] != controller.describe()["mode"]["nvpmodel"]


def test_no_sensor_is_an_error_and_no_zero(controller):
    with pytest.raises(NotThere, match="no power sensor"):
        controller.read()
    assert controller.describe()["rail"] == ""


# --------------------------------------------------------------------------------------------------- faults at a write


def test_a_driver_that_hangs_is_given_up_and_brought_back_once_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_module, "DEADLINE_S", 0.2)
    monkeypatch.setattr(tree_module, "SECOND_DEADLINE_S", 0.1)
    going = threading.Event()

    class Hanging(MadeTree):
        def _put(self, path, text):
            if path == HIGH and not going.is_set():
                going.wait(60.0)
            super()._put(path, text)

    before, tree = texts(gpu_tree(tmp_path)), Hanging(tmp_path)
    with Controller(board_in(tree)) as controller:
        with pytest.raises(NotRestored, match="max_freq is left as it is: its driver hangs"):
            controller.pin(408.0)
        assert tree.read(LOW) == "306000000"
        assert left_behind(tree) is None  # this process still has it
        going.set()
        for thread in list(tree._hanging.values()):
            thread.join()
        controller.restore()
        assert texts(tmp_path) == before
        assert snapshots(tree) == []


@pytest.mark.parametrize("fault", ["forbidden", "eio", "vanished", "refused", "ignored"])
@pytest.mark.parametrize("name", ["min_freq", "max_freq", "railgate_enable"])
@pytest.mark.parametrize("family", ["orin-nano", "nano"])
def test_a_live_board_whose_files_fail_for_good_comes_back_later(family, name, fault, tmp_path):
    tree = LiveTree(tmp_path, family)
    board = find_board(tree, "jetson")
    before, settings = tree.state(), board.clock.settings_mhz
    controller = Controller(board)
    controller.pin(settings[1])
    tree.fault("*/" + name, fault)
    failures = []
    for change in (lambda: controller.pin(settings[3]), controller.close):
        try:
            change()
        except AgentError as error:
            failures.append(type(error))
    assert set(failures) <= {Forbidden, FileFailed, NotTaken, NotRestored}
    assert failures or name == "railgate_enable"  # which need not be written again, or was off before
    tree.faults.clear()
    restore_left_behind(tree)
    assert tree.state() == before
    assert snapshots(tree) == []


# ------------------------------------------------------------------------------------------------------- other writers


def test_a_new_pin_does_not_begin_the_fight_anew(tree, controller):
    controller.pin(612.0)
    for mhz in (612.0, 714.0) * 3:
        tree.write(HIGH, "1020000000")
        controller.check()
        controller.pin(mhz)
    tree.write(HIGH, "1020000000")
    assert "is now left alone" in controller.check()[0]["text"]


# -------------------------------------------------------------------------------------------------------- one at a time


def test_gpu_and_cpu_of_a_board_are_two(tree, controller, tmp_path):
    cpu_tree(tmp_path)
    before = texts(tmp_path)
    controller.pin(612.0)
    with Controller(board_in(tree, "cpu")) as second:
        second.pin(800.0)
        assert [Path(path).name for path in snapshots(tree)] == ["board-cpu.json", "board-jetson.json"]
        controller.restore()
        assert tree.read("/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq") == "800000"
    assert texts(tmp_path) == before


CHILD = """
import sys, time
from tests.support.agent_trees import MadeTree, board_in
from wattune_agent.controller import Controller
controller = Controller(board_in(MadeTree(sys.argv[1])))
{before}
controller.pin(612.0)
print("pinned", flush=True)
{after}
"""


def child(root, before="", after="time.sleep(60)"):
    """A process that has pinned the board."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(before=before, after=after), str(root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    assert process.stdout.readline() == "pinned\n"
    return process


def ended(process, number=None):
    """Its exit code, what it said, and what it said of errors."""
    if number is not None:
        process.send_signal(number)
    said, errors = process.communicate(timeout=120)
    return process.returncode, said, errors


def test_two_threads(tree, tmp_path):
    before, errors = texts(tmp_path), []
    with Controller(board_in(tree)) as controller:

        def use():
            try:
                for mhz in LISTED_MHZ * 2:
                    controller.pin(mhz)
                    controller.check()
            except AgentError as error:
                errors.append(error)

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert texts(tmp_path) == before


# ------------------------------------------------------------------------------------------------------- being ended


def test_what_a_killed_process_left_is_brought_back_and_told(tree, controller, tmp_path):
    before = texts(tmp_path)
    process = child(tmp_path)
    assert ended(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert tree.read(HIGH) == "612000000"
    assert left_behind(tree).pid == process.pid
    controller.pin(408.0)
    (event,) = controller.check()
    assert event["kind"] == "left behind"
    assert f"as it was before process {process.pid}" in event["text"]
    controller.restore()
    assert texts(tmp_path) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
@pytest.mark.parametrize("how", ["default", "handled", "exits"])
def test_signals_bring_it_back_and_then_do_what_they_did(tmp_path, number, how):
    before = texts(gpu_tree(tmp_path))
    handler = {
        "default": "import signal; signal.signal({n}, signal.SIG_DFL)",
        # Not print: the signal may arrive within the child's own.
        "handled": "import os, signal; signal.signal({n}, lambda n, f: os.write(1, b'told %d\\n' % n) and sys.exit(7))",
        "exits": "import signal; signal.signal({n}, lambda n, f: (_ for _ in ()).throw(KeyboardInterrupt))",
    }[how].format(n=int(number))
    code, said, errors = ended(child(tmp_path, before=handler), number)
    assert texts(tmp_path) == before
    assert snapshots(MadeTree(tmp_path)) == []
    if how == "default":
        assert (code, said, errors) == (-number, "", "")
    elif how == "handled":
        assert (code, said) == (7, f"told {int(number)}\n")
    else:
        assert code in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in errors


def test_a_handler_that_goes_on_finds_the_board_as_it_was_and_can_pin_again(tmp_path):
    before = texts(gpu_tree(tmp_path))
    process = child(
        tmp_path,
        before="import signal; hits = []; signal.signal(15, lambda n, f: hits.append(n))",
        after="""
while not hits: time.sleep(0.01)
print(open(sys.argv[1] + "%s").read().strip(), signal.getsignal(15).__name__, flush=True)
controller.pin(408.0)
controller.close()
"""
        % HIGH,
    )
    assert ended(process, signal.SIGTERM) == (0, "1020000000 <lambda>\n", "")
    assert texts(tmp_path) == before


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('no')", 1),
        ("import threading; threading.Timer(0.1, print).start()", 0),
    ],
)
def test_the_end_of_the_interpreter_brings_it_back(tmp_path, after, code):
    before = texts(gpu_tree(tmp_path))
    assert ended(child(tmp_path, after=after))[0] == code
    assert texts(tmp_path) == before


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    gpu_tree(tmp_path)
    ignore = "import signal; signal.signal(1, signal.SIG_IGN)"
    process = child(tmp_path, before=ignore, after="sys.stdin.readline(); print('on', flush=True)")
    process.send_signal(signal.SIGHUP)
    process.stdin.write("\n")
    process.stdin.flush()
    assert ended(process)[:2] == (0, "on\n")


def test_a_forked_child_leaves_the_board_to_its_parent(tree, controller):
    controller.pin(612.0)
    pid = os.fork()
    if pid == 0:
        controller.restore()
        controller.close()
        code = 0
        try:
            controller.pin(408.0)
        except Busy:
            code = 7
        os.kill(os.getpid(), signal.SIGTERM) if code == 7 else os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
    assert tree.read(HIGH) == "612000000"
    assert len(snapshots(tree)) == 1


def test_children_do_not_hold_the_lock_of_a_killed_parent(tree, controller, tmp_path):
    process = child(
        tmp_path,
        before="import os, subprocess",
        after="""
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b".")
    time.sleep(60)
os.read(read, 1)
other = subprocess.Popen(["sleep", "60"])
print(other.pid, flush=True)
time.sleep(60)
""",
    )
    other = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        controller.pin(408.0)
        assert kinds(controller.check()) == ["left behind"]
    finally:
        os.kill(other, signal.SIGKILL)
        for pid in _children_of_nobody(tmp_path):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def _children_of_nobody(root):
    """Processes that were started with this tree and live on."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(root).encode() in line and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def test_a_pin_from_another_thread_takes_no_signals_over(tree, tmp_path):
    before, controller = texts(tmp_path), Controller(board_in(tree))
    thread = threading.Thread(target=controller.pin, args=(612.0,))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    controller.close()
    assert texts(tmp_path) == before


def test_handlers_are_there_only_while_pinned(tree, controller):
    python = signal.getsignal(signal.SIGINT)
    controller.pin(612.0)
    assert callable(signal.getsignal(signal.SIGTERM))
    assert callable(signal.getsignal(signal.SIGHUP))
    assert signal.getsignal(signal.SIGINT) == python
    controller.restore()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_that_was_put_over_ours_stays(tree, controller):
    called = []
    controller.pin(612.0)
    ours = signal.getsignal(signal.SIGTERM)
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    assert before == ours
    controller.pin(408.0)
    controller.restore()
    os.kill(os.getpid(), signal.SIGTERM)
    assert called == [signal.SIGTERM]
    signal.signal(signal.SIGTERM, before)  # as whoever put his own there does in the end
    controller.pin(408.0)
    controller.restore()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ctrl_c_half_way_waits_until_the_files_are_whole(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.pin(612.0)
    seen = []

    def interrupt(path, text):
        seen.append(path)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    tree.before_write = interrupt
    with pytest.raises(KeyboardInterrupt):
        controller.restore()
    assert len(seen) == 3
    assert texts(tmp_path) == before
    assert snapshots(tree) == []


def test_a_signal_while_another_thread_pins(tmp_path):
    before = texts(gpu_tree(tmp_path))
    process = child(
        tmp_path,
        before="""
import threading
slow = controller.board.tree
slow.before_write = lambda path, text: time.sleep(0.02)
""",
        after="""
def pins():
    while True:
        controller.pin(408.0)
        controller.pin(816.0)
threading.Thread(target=pins, daemon=True).start()
print("pinning", flush=True)
time.sleep(60)
""",
    )
    process.stdout.readline()
    time.sleep(0.1)
    assert ended(process, signal.SIGTERM)[0] == -signal.SIGTERM
    assert texts(tmp_path) == before
    assert snapshots(MadeTree(tmp_path)) == []


def test_nothing_is_installed_on_import():
    code = """
import signal, atexit
before = [signal.getsignal(n) for n in (1, 2, 15)], atexit._ncallbacks()
import wattune_agent.controller
assert ([signal.getsignal(n) for n in (1, 2, 15)], atexit._ncallbacks()) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_nothing_is_left_at_the_end(tree, controller):
    controller.pin(612.0)
    controller.restore()
    count, files = atexit._ncallbacks(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        controller.pin(612.0)
        controller.restore()
    assert atexit._ncallbacks() == count
    assert len(os.listdir("/proc/self/fd")) == files


# ------------------------------------------------------------------------------------------------------------- the last


def test_a_sensor_of_the_board_is_asked_each_time_and_the_conditions_once_a_second(tmp_path):
    tree = LiveTree(tmp_path, "orin-nano")
    board = find_board(tree, "jetson")
    reads = []
    real = tree.read
    tree.read = lambda path: reads.append(path) or real(path)
    controller = Controller(board)
    controller.read()
    first = sum("thermal" in path for path in reads)
    for _ in range(5):
        controller.read()
    assert sum("thermal" in path for path in reads) == first
    tree.sleep(1.0)
    controller.read()
    assert sum("thermal" in path for path in reads) > first
    assert isinstance(controller.board, Board)
