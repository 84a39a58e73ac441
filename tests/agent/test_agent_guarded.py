"""Any program under a pinned clock, a cap and a meter.

Programs are real, mostly of the shell, if it is about programs, and virtual if it is about what time brings.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
from tests.support.agent_socket import ENVIRONMENT, state_of
from tests.support.live.tree import LiveTree
from tests.support.live_board import wait_for
from tests.support.made_board import MadeBoard
from tests.support.virtual_time import DYING_S, VirtualProgram, VirtualTime

from wattune_agent import program, readings
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import BadRequest, Busy, FileFailed, Forbidden, NoReading, NotRestored, NotThere
from wattune_agent.guarded import BLIND_S, HANG_S, PERIOD_S, run_guarded
from wattune_agent.readings import Joules
from wattune_agent.signals import held


@pytest.fixture
def board():
    return MadeBoard()


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture(autouse=True)
def no_signal_is_kept():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
    with held():  # a board that another test's thread restored leaves its handlers to the next call here
        pass
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


def guard_for(board, lasts_s, time=None, *, code=0, later=(), **limits):
    """Guard a virtual program that lasts so long; ``later``: what happens when, in seconds from now."""
    time = time or VirtualTime()
    for after_s, act in later:
        time.later(after_s, act)
    return run_guarded(board, VirtualProgram(time, lasts_s, code), **limits)


def kinds(report):
    return [event["kind"] for event in report.events]


def test_a_program_is_pinned_metered_and_the_board_restored(board, tmp_path):
    report = run_guarded(board, ["sh", "-c", "sleep 0.1; echo done > $0", str(tmp_path / "out")], clock_mhz=200.0)
    assert (tmp_path / "out").read_text() == "done\n"
    assert board.pins == [200.0]
    assert board.restored == 1
    assert (report.ended, report.exit_code, report.events) == ("finished", 0, [])
    assert report.energy_j == pytest.approx(2.0 * report.time_s, rel=1e-3)
    assert report.power_mean_w == report.power_peak_w == pytest.approx(2.0)


def test_a_sensor_that_does_not_average_is_read_twice_as_often():
    assert guard_for(MadeBoard(window_s=0.007), 5.02, clock_mhz=200.0).readings == 101
    assert guard_for(MadeBoard(window_s=0.1), 5.02, clock_mhz=200.0).readings == 51


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), (":", 0)])
def test_the_exit_code_is_the_programs_however_short_it_is(board, script, code):
    report = run_guarded(board, ["sh", "-c", script])
    assert (report.exit_code, report.ended) == (code, "finished")
    assert report.readings >= 1
    assert report.energy_j >= 0
    assert board.pins == []


def test_what_a_program_says_and_reads_is_its_own(tmp_path):
    code = (
        "import sys; from tests.support.made_board import MadeBoard\n"
        "from wattune_agent.guarded import run_guarded\n"
        "sys.exit(run_guarded(MadeBoard(), ['cat']).exit_code)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, input=b"through\n", stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, b"through\n")


def test_a_program_that_is_none_is_refused_and_the_board_restored(board, tmp_path):
    program = tmp_path / "program"
    program.write_text("\x00\x01")
    program.chmod(0o755)
    with pytest.raises(BadRequest, match="cannot be run"):
        run_guarded(board, [str(program)], clock_mhz=200.0)
    assert board.restored == 1
    with pytest.raises(ChildProcessError):  # nobody watches over it
        os.waitpid(-1, os.WNOHANG)


def test_without_a_shell_the_program_is_not_run_unwatched(board, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadRequest, match=r"no shell \(sh\) .* on PATH"):
        run_guarded(board, [sys.executable, "-c", ""], clock_mhz=200.0)
    assert board.restored == 1


def test_nothing_runs_blind_or_on_a_board_of_somebody_else(board, tmp_path):
    marker = tmp_path / "ran"
    for name, error in (("read", NoReading("no sensor")), ("pin", Busy("process 7"))):
        board.fails = {name: error}
        with pytest.raises(type(error)):
            run_guarded(board, ["touch", str(marker)], clock_mhz=200.0)
    for error in (Forbidden("max_freq may not be written"), Busy("process 7")):
        for limits in ({"cap_w": 9.0}, {"max_temp_c": 80.0}):
            board.fails = {"claim": error}
            with pytest.raises(type(error)):
                run_guarded(board, ["touch", str(marker)], **limits)
    board.fails, board.temperature_c = {}, None
    with pytest.raises(NotThere, match="temperature"):
        run_guarded(board, ["touch", str(marker)], max_temp_c=80.0)
    assert not marker.exists()


# ----------------------------------------------------------------------------------------------------------- the guard


def test_the_cap_is_kept_by_lower_clocks(board):
    said = []
    report = guard_for(board, 0.85, clock_mhz=500.0, cap_w=2.5, say=said.append)
    assert board.pins == [500.0, 200.0]
    assert kinds(report) == ["guard"]
    assert report.events[0]["action"] == "down"
    assert report.events[-1]["setting"] == 200.0
    assert len(said) == 1
    assert "guard" in said[0]
    assert report.above_cap_s == pytest.approx(PERIOD_S)
    assert report.ended == "finished"
    assert board.restored == 1


def test_without_a_clock_the_board_is_left_alone_until_the_cap_is_broken(board):
    board.free_mhz = 400.0
    quiet = guard_for(board, 0.35, cap_w=4.5)
    assert board.pins == quiet.events == []
    guard_for(board, 0.55, cap_w=3.5)
    assert board.pins == [300.0]  # down from where the board was itself, not from the top


class Bursts(MadeBoard):
    """A board whose sensor shows the last burst of work for a while after its clock has fallen to the lowest."""

    def __init__(self, time, busy_w, idle_w=1.0):
        super().__init__()
        self.time, self.busy_w, self.idle_w = time, busy_w, idle_w
        self.highest_mhz = 500.0

    def read(self):
        at_s = (self.time.now_s() - 1000.0) % 1.0
        free_mhz = self.highest_mhz if at_s < 0.45 else self.settings[0]
        shown_mhz = self.highest_mhz if 0.45 <= at_s < 0.85 else self.settings[0]
        if self.mhz is not None:
            free_mhz = shown_mhz = self.mhz
        watts = self.idle_w if shown_mhz == self.settings[0] else self.busy_w * shown_mhz / 500.0
        return {"power_w": watts, "temperature_c": 50.0, "clock_mhz": free_mhz}


def test_a_gpu_that_idles_when_its_power_shows_is_lowered_from_the_clock_of_its_work(time):
    board = Bursts(time, busy_w=5.0)
    report = guard_for(board, 60.0, time, cap_w=4.5)
    assert (report.exit_code, report.ended) == (0, "finished")
    assert board.pins[0] == 400.0
    assert "at lowest" not in [event.get("action") for event in report.events]


def test_a_clock_that_was_idle_when_the_cap_was_exceeded_may_rise_later(time):
    board = MadeBoard()
    board.free_mhz, board.watts = 100.0, 9.0
    later = [(2.05, lambda: setattr(board, "watts", 1.0))]
    report = guard_for(board, 60.0, time, later=later, cap_w=4.5)
    assert report.ended == "finished"
    assert board.pins == [100.0, 200.0, 300.0, 400.0, 500.0]


def test_what_the_sensor_still_holds_of_the_time_before_the_pin_is_not_the_programs(board, time):
    board.window_s, read, pin, pinned_s = 0.5, board.read, board.pin, []

    def late():
        reading = read()
        if not pinned_s or time.now_s() - pinned_s[0] < board.window_s:
            reading["power_w"] = 5.0
        return reading

    def first(mhz):
        pin(mhz)
        pinned_s.append(time.now_s())

    board.read, board.pin = late, first
    report = guard_for(board, 1.05, time, clock_mhz=300.0, cap_w=4.0)
    assert (report.events, report.power_peak_w) == ([], 3.0)
    short = guard_for(board, 0.6, time, clock_mhz=300.0)  # which is over when that has passed
    assert short.power_peak_w == 3.0


def test_a_sensor_that_is_stuck_is_noticed(board, time):
    board.watts = 3.0
    report = guard_for(board, 3 * readings.STUCK_S, time, clock_mhz=500.0)
    assert kinds(report) == ["stuck sensor"]
    assert "VDD_IN reads 3.000 W" in report.events[0]["text"]
    assert readings.STUCK_S <= report.events[0]["time_s"] < 2 * readings.STUCK_S
    board.read = lambda: {"power_w": 3.0 + time.now_s() % 1, "temperature_c": None}
    assert guard_for(board, 3 * readings.STUCK_S, time, clock_mhz=500.0).events == []


def test_a_sensor_that_freezes_below_the_cap_is_noticed_when_the_board_changes_its_clock(board, time):
    read, begun_s = board.read, time.now_s()
    board.read = lambda: dict(read(), power_w=3.0 + min(5.0, time.now_s() - begun_s))
    later = [(8.0, lambda: setattr(board, "free_mhz", 300.0))]
    report = guard_for(board, 30.0, time, later=later, cap_w=12.0)
    assert kinds(report) == ["stuck sensor"]
    assert board.pins == []


def test_a_cap_that_another_client_sets_is_followed_down_and_up(board, time):
    read, set_w = board.read, [None]
    board.read = lambda: {**read(), "set_cap_w": set_w[0]}
    later = [(20.0, lambda: set_w.__setitem__(0, 2.5)), (60.0, lambda: set_w.__setitem__(0, None))]
    report = guard_for(board, 120.0, time, clock_mhz=500.0, cap_w=4.5, window_s=1.0, later=later)
    held = dict(report.settings_s)
    assert held[200.0] == pytest.approx(40.0, abs=8.0)
    assert held[400.0] == pytest.approx(78.0, abs=12.0)
    assert report.above_cap_s < 3.0


def test_a_program_that_stalls_is_told_once_for_each_stall(board, time):
    board.watts = 2.0  # at rest

    def draws(watts):
        return lambda: setattr(board, "watts", watts)

    later = [(1.0, draws(9.0)), (100.0, draws(2.4)), (190.0, draws(9.0)), (300.0, draws(3.0)), (330.0, draws(9.0))]
    report = guard_for(board, 400.0, time, later=[*later, (350.0, draws(2.2))], stall_s=45.0)
    told = [event for event in report.events if event["kind"] == "stalled"]
    assert [event["time_s"] for event in told] == pytest.approx([145.0, 395.0], abs=0.3)
    assert "usual are 9.00 W" in told[0]["text"]
    assert report.ended == "finished"


def test_a_lower_clock_is_no_stall_and_a_program_that_stalls_there_is_told(board, time):
    set_w = [None]
    board.watts, read = 0.3, board.read
    board.read = lambda: {**read(), "set_cap_w": set_w[0]}
    later = [(1.0, lambda: setattr(board, "watts", None)), (100.0, lambda: set_w.__setitem__(0, 1.05))]
    later += [(300.0, lambda: setattr(board, "watts", 0.3))]
    report = guard_for(board, 400.0, time, cap_w=6.0, window_s=1.0, stall_s=45.0, later=later)
    told = [event for event in report.events if event["kind"] == "stalled"]
    assert [event["time_s"] for event in told] == pytest.approx([345.0], abs=0.3)
    assert "usual are 1.00 W" in told[0]["text"]


def test_a_controller_that_guards_by_itself_is_told_the_cap(board):
    told = []
    board.guard = lambda *limits: told.append(limits)
    run_guarded(board, ["true"], clock_mhz=200.0, cap_w=3.0)
    run_guarded(board, ["true"], clock_mhz=200.0)
    assert told == [(3.0, None, None)]


def draws_too_much_once(board, is_so):
    """From then on, as a program that has come so far does."""
    read, board.watts = board.read, 1.0

    def reads():
        if is_so():
            board.watts = 9.0
        return read()

    board.read = reads


SLEEPER = "trap 'echo ended > {0}; exit 0' TERM; echo started > {0}; while :; do sleep 0.05; done"


def test_a_cap_that_cannot_be_kept_ends_the_program_and_all_it_started(board, tmp_path, monkeypatch):
    monkeypatch.setattr("wattune_agent.cap_guard.PATIENCE_S", 0.2)
    out = tmp_path / "out"
    draws_too_much_once(board, lambda: out.exists() and (tmp_path / "out.child").exists())
    script = "sh -c 'echo $$ > {0}.child; exec sleep 60' & {1}".format(out, SLEEPER.format(out))
    report = run_guarded(board, ["sh", "-c", script], clock_mhz=200.0, cap_w=2.5)
    assert (report.exit_code, report.ended) == (4, "stopped for safety")
    assert out.read_text() == "ended\n"
    assert kinds(report) == ["guard", "guard", "stopped for safety"]
    child = int((tmp_path / "out.child").read_text())
    assert wait_for(lambda: not os.path.exists("/proc/{}".format(child)) or "Z" in state_of(child))


ORPHANS = """
import ctypes, sys
from tests.support.made_board import MadeBoard
from wattune_agent import cap_guard, guarded, program
cap_guard.PATIENCE_S = 0.2
program.KILL_S = program.DEAD_S = 0.5
if sys.argv[1] == "reaper":  # orphans come to this process, as to PID 1 of a container
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
board = MadeBoard()
board.watts = 9.0
program = ["sh", "-c", "sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & trap 'exit 0' TERM; wait; wait"]
report = guarded.run_guarded(board, program, clock_mhz=100.0, cap_w=2.5)
print(report.exit_code, report.ended, board.restored)
"""

NEVER_WAITS = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
sys.exit(subprocess.call(sys.argv[1:]))
"""


@pytest.mark.parametrize("reaps", [True, False])
def test_killed_children_that_nobody_waits_for_do_not_keep_the_board_from_being_restored(reaps):
    command = [sys.executable, "-W", "ignore", "-c", ORPHANS, "reaper" if reaps else ""]
    if not reaps:
        command = [sys.executable, "-c", NEVER_WAITS, *command]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, universal_newlines=True, timeout=20)
    assert done.stdout == "4 stopped for safety 1\n"


def test_a_program_has_its_time_to_end_before_it_is_killed(board, time):
    board.fails["pin"] = FileFailed("max_freq cannot be written")
    deaf = VirtualProgram(time, 60.0, deaf=True)
    report = run_guarded(board, deaf, cap_w=2.5)
    assert (report.exit_code, report.ended) == (4, "stopped for safety")
    assert [number for _, number in deaf.sent[:3]] == [signal.SIGTERM, signal.SIGCONT, signal.SIGKILL]
    assert program.KILL_S <= deaf.sent[2][0] - deaf.sent[0][0] < program.KILL_S + 2 * PERIOD_S


def test_a_program_that_stands_still_is_ended_too(board, tmp_path):
    board.fails["pin"] = FileFailed("max_freq cannot be written")
    out, pid = tmp_path / "out", tmp_path / "pid"
    draws_too_much_once(board, lambda: pid.exists() and state_of(pid.read_text().strip()) == "T")
    script = "trap 'echo ended > {0}; exit 0' TERM; echo $$ > {1}; kill -STOP $$; sleep 60".format(out, pid)
    report = run_guarded(board, ["sh", "-c", script], cap_w=2.5)
    assert report.ended == "stopped for safety"
    assert out.read_text() == "ended\n"


def is_stopped_blind(report, gone_s):
    """``BLIND_S`` after the last reading, which is up to a period before there was none."""
    stopped_s = report.time_s - DYING_S
    return gone_s + BLIND_S - PERIOD_S < stopped_s < gone_s + BLIND_S + 2 * PERIOD_S


@pytest.mark.parametrize("cap_w", [9.0, None])
def test_a_sensor_that_is_gone_ends_the_program_at_the_lowest_clock(board, cap_w):
    gone = (0.35, lambda: board.fails.update(read=NoReading("i2c timed out")))
    report = guard_for(board, 60.0, later=[gone], clock_mhz=300.0, cap_w=cap_w)
    assert (report.exit_code, report.ended) == (4, "stopped for safety")
    assert is_stopped_blind(report, 0.35)
    assert "i2c timed out" in report.events[0]["text"]
    assert board.pins == [300.0, 100.0]
    assert board.mhz is None


def test_a_sensor_that_is_gone_ends_no_program_that_is_only_measured(board):
    gone = (0.35, lambda: board.fails.update(read=NoReading("i2c timed out")))
    report = guard_for(board, 8.0, later=[gone], cap_w=None)
    assert (report.exit_code, report.ended) == (0, "finished")
    assert [event["kind"] for event in report.events] == ["no reading"]
    assert board.pins == []


def test_a_sensor_that_fails_for_a_moment_ends_nothing(board):
    gone = (0.25, lambda: board.fails.update(read=NoReading("i2c timed out")))
    report = guard_for(board, 5.05, later=[gone, (2.05, board.fails.clear)], clock_mhz=300.0, cap_w=9.0)
    assert (report.exit_code, report.events) == (0, [])
    assert report.energy_j == pytest.approx(3.0 * 5.05)


def test_power_is_answered_also_while_there_is_no_temperature(board):
    board.read = lambda read=board.read: dict(read(), temperature_c=None if board.pins[1:] or hot else 50.0)
    hot = []
    later = [(0.25, lambda: hot.append(1)), (0.55, lambda: setattr(board, "watts", 9.0))]
    report = guard_for(board, 1.05, later=later, clock_mhz=300.0, cap_w=5.0, max_temp_c=80.0)
    assert board.pins[:2] == [300.0, 100.0]
    assert report.power_peak_w == 9.0


def test_a_sensor_that_hangs_ends_the_program(board, time):
    read, free = board.read, threading.Event()

    def hang():
        if board.hangs:
            time.wait(free, 1000.0)
        return read()

    board.hangs, board.read = False, hang
    hangs = (0.15, lambda: setattr(board, "hangs", True))
    report = guard_for(board, 60.0, time, later=[hangs], clock_mhz=500.0, cap_w=2.5)
    assert (report.exit_code, report.ended) == (4, "stopped for safety")
    assert HANG_S < report.time_s < HANG_S + 1.0
    assert board.mhz is None
    pins = list(board.pins)
    board.hangs = False
    free.set()  # what comes late does not pin again
    time.sleep(1.0)
    assert board.pins == pins
    assert board.mhz is None


def test_a_mistake_of_ours_ends_the_program_rather_than_leave_it_unguarded(board):
    read = board.read
    answers = iter([read(), {}, {}, {}, {}, {}])
    board.read = lambda: next(answers, {})
    report = guard_for(board, 60.0, cap_w=9.0)
    assert report.ended == "stopped for safety"
    assert "KeyError" in report.events[0]["text"]


def test_what_the_board_notices_is_in_the_report_in_its_time(board, time):
    event = {"kind": "another writer", "text": "max_freq reads 5"}
    notices = (0.35, lambda: board.noticed.append(dict(event, time_s=time.now_s())))
    report = guard_for(board, 2.05, time, later=[notices], clock_mhz=300.0)
    assert kinds(report) == ["another writer"]
    assert report.events[0]["time_s"] == pytest.approx(0.35)


def test_a_board_that_is_not_restored_is_in_the_report(board):
    board.fails["restore"] = NotRestored("min_freq cannot be written")
    report = run_guarded(board, ["true"], clock_mhz=300.0)
    assert kinds(report) == ["not restored"]
    assert (report.exit_code, report.ended) == (1, "finished")
    assert run_guarded(board, ["sh", "-c", "exit 9"], clock_mhz=300.0).exit_code == 9


# ----------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_go_to_the_program_which_ends_in_its_own_way(board, tmp_path, number):
    out = tmp_path / "out"
    script = (
        "trap 'sleep 0.2; echo saved > {0}; exit 3' INT TERM HUP QUIT; echo started > {0}; while :; do sleep 0.05; done"
    )

    def send():
        wait_for(lambda: out.exists() and out.read_text() == "started\n")
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    report = run_guarded(board, ["sh", "-c", script.format(out)], clock_mhz=300.0)
    assert out.read_text() == "saved\n"
    assert (report.exit_code, report.ended) == (3, "interrupted")
    assert board.restored == 1


def test_a_program_that_does_not_mind_a_signal_goes_on(board, tmp_path):
    out, over = tmp_path / "out", tmp_path / "over"
    script = "trap 'echo heard > {0}' TERM; echo started > {0}; until [ -e {1} ]; do sleep 0.02; done; echo done > {0}"

    def send():
        for number, answer in ((None, "started\n"), (signal.SIGTERM, "heard\n")):
            if number is not None:
                os.kill(os.getpid(), number)
            wait_for(lambda: out.exists() and out.read_text() == answer)  # noqa: B023
        over.touch()

    threading.Thread(target=send).start()
    report = run_guarded(board, ["sh", "-c", script.format(out, over)])
    assert (report.exit_code, report.ended) == (0, "interrupted")
    assert out.read_text() == "done\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_comes_late_does_not_keep_the_board_from_being_restored(board, number):
    restore = board.restore

    def interrupted():
        os.kill(os.getpid(), number)
        restore()

    board.restore = interrupted
    report = run_guarded(board, ["sh", "-c", "exit 3"], clock_mhz=300.0)
    assert (board.restored, report.exit_code) == (1, 3)


def test_a_controllers_own_signal_handlers_are_as_they_were_afterwards(tmp_path):
    tree, started = LiveTree(tmp_path / "board"), tmp_path / "started"
    before = tree.state()

    def send():
        wait_for(started.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    with Controller(find_board(tree, "jetson")) as controller:
        controller.pin(306.0)
        threading.Thread(target=send).start()
        script = "trap 'exit 5' TERM; touch {}; while :; do sleep 0.05; done".format(started)
        report = run_guarded(controller, ["sh", "-c", script], clock_mhz=408.0)
        assert (report.exit_code, report.ended) == (5, "interrupted")
    assert tree.state() == before


KILLED = """
import sys
from tests.support.made_board import MadeBoard
from wattune_agent.guarded import run_guarded
run_guarded(MadeBoard(), ["sh", "-c", sys.argv[1]], cap_w=9.0)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_guard_that_is_killed_takes_the_program_and_all_it_started_with_it(tmp_path, number):
    out = tmp_path / "out"
    script = "trap 'echo ended > {0}; exit' TERM; sleep 60 & echo $$ $! > {0}.pids; wait; wait".format(out)
    command = [sys.executable, "-W", "ignore", "-c", KILLED, script]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        pids = tmp_path / "out.pids"
        assert wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
        # A child that is not yet the program it is to be may miss the SIGTERM, until the SIGKILL follows.
        name = pathlib.Path("/proc", pids.read_text().split()[1], "comm")
        assert wait_for(lambda: name.read_text() == "sleep\n")
        process.send_signal(number)
        process.wait()
        assert wait_for(lambda: all(state_of(pid) == "Z" for pid in pids.read_text().split()), 4 * program.KILL_S)
        assert process.stdout.read() == b""
    assert out.read_text() == "ended\n"


KILLED_AT_ONCE = """
import os, signal, subprocess, sys
from tests.support.made_board import MadeBoard
from wattune_agent import program
from wattune_agent.guarded import run_guarded
program.KILL_S = 1.0
PROGRAM = ["sleep", "60"]


class Popen(subprocess.Popen):
    def __init__(self, command, preexec_fn=None, **options):
        def forked():
            if command == PROGRAM and sys.argv[1] == "forked":
                os.kill(guard, signal.SIGKILL)
            if preexec_fn is not None:
                preexec_fn()

        guard = os.getpid()
        super().__init__(command, preexec_fn=forked, **options)
        if command == PROGRAM and sys.argv[1] == "runs":
            os.kill(guard, signal.SIGKILL)


subprocess.Popen = Popen
run_guarded(MadeBoard(), PROGRAM, cap_w=9.0)
"""


@pytest.mark.parametrize("moment", ["forked", "runs"])
def test_a_guard_that_is_killed_while_it_starts_the_program_leaves_none_behind(moment):
    """``forked``: there is a process that is not yet the program; ``runs``: it is, and the guard does not know yet."""
    command = [sys.executable, "-W", "ignore", "-c", KILLED_AT_ONCE, moment]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=20)[0] == b""  # which ends when no process has that output any more
    assert process.returncode == -signal.SIGKILL


def test_nobody_watches_over_a_program_that_is_over(board, tmp_path):
    script = "sleep 30 > /dev/null 2>&1 & echo $! > {}".format(tmp_path / "pid")
    report = run_guarded(board, ["sh", "-c", script])
    child = int((tmp_path / "pid").read_text())
    assert report.exit_code == 0
    assert wait_for(lambda: state_of(child) == "S")  # as without a guard: who watched over it has ended by now
    os.kill(child, signal.SIGKILL)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# ------------------------------------------------------------------------------------------------------------ joules


def test_joules_leave_out_what_was_before_and_let_the_last_reading_stand_for_the_end():
    joules = Joules(0.5)
    for i in range(20):  # the sensor shows 2 W of before for half a second, then 6 W
        joules.add(i / 10, 2.0 if i < 5 else 6.0)
    assert joules.energy_j(2.0) == pytest.approx(12.0)
    assert (joules.peak_w, joules.readings, joules.above_s(2.0)) == (6.0, 20, 0.0)


def test_joules_count_no_stretch_of_time_twice():
    joules = Joules(0.0, 1.0)
    for time_s in (0.0, 1.0, 0.5, 0.75, 2.0):
        joules.add(time_s, 3.0)
    assert (joules.energy_j(2.0), joules.above_s(2.0)) == (6.0, 2.0)


def test_joules_count_the_time_above_the_cap():
    joules = Joules(0.0, 5.0)
    for time_s, power_w in ((0.0, 4.0), (1.0, 6.0), (1.5, 5.0), (2.0, 6.0)):
        joules.add(time_s, power_w)
    assert joules.above_s(2.25) == pytest.approx(0.75)
    assert joules.energy_j(2.25) == pytest.approx(4.0 + 3.0 + 2.5 + 1.5)


def test_joules_count_the_time_in_which_the_mean_over_the_window_is_above_the_cap():
    joules = Joules(0.0, 5.0, 1.0)
    above_s = []
    for i in range(30):  # 6 W for half of each second has a mean of 5 W, 7 W from 2 s on has more
        joules.add(i / 10, 7.0 if i >= 20 else 6.0 if i % 10 < 5 else 4.0)
        above_s.append(joules.above_s(i / 10))
    assert above_s[19] == pytest.approx(0.9)  # without any history, a burst counts
    assert above_s[29] == pytest.approx(1.8)
