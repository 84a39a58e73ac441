"""Any program under a cap that changes: virtual programs on a modelled board, with exact power, and real ones."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from tests.support.agent_socket import state_of
from tests.support.cli_boards import limits, live_board
from tests.support.live_board import wait_for
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune.cap_source import CalledCap, CapTrace, WatchedCap
from wattune.cli.guarded_cap import GuardedCap
from wattune_agent.guarded import run_guarded

NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
WINDOW_S = 1.0


class Modelled:
    """A controller whose power is known at every moment: static, and convex in the clock while the program runs.

    ``averaging_s``: what its sensor shows is a mean over so long.
    """

    def __init__(self, *, static_w=2.5, dynamic_w=4.0, rest_w=1.2, averaging_s=0.0, noise_w=0.02):
        self.settings = [100.0 * k for k in range(1, 11)]
        self.static_w, self.dynamic_w, self.rest_w = static_w, dynamic_w, rest_w
        self.averaging_s, self.noise_w = averaging_s, noise_w
        self.mhz, self.free_mhz = None, 1000.0
        self.program = None
        self.untils_s, self.energies_j = [0.0], [0.0]  # exact energy until each of these moments
        self.armed = []
        self.restored = 0
        self.clock = VirtualTime(self.passes)
        self.begin_s = self.clock.now_s()
        self._noise = random.Random(7)

    def watts_at(self, mhz):
        share = mhz / self.settings[-1]
        return self.static_w + self.dynamic_w * (0.4 * share + 0.6 * share**3)

    def power_w(self):
        program = self.program
        runs = program is not None and not program.ended.is_set() and not program.is_held
        return self.watts_at(self.mhz or self.free_mhz) if runs else self.rest_w

    def passes(self, seconds):
        self.untils_s.append(self.untils_s[-1] + seconds)
        self.energies_j.append(self.energies_j[-1] + seconds * self.power_w())

    def mean_w(self, end_s, window_s):
        """The exact mean over the window that ends then, in seconds since the beginning."""
        return (self.energy_j(end_s) - self.energy_j(end_s - window_s)) / window_s

    def energy_j(self, time_s):
        index = min(max(1, bisect_left(self.untils_s, time_s)), len(self.untils_s) - 1)
        (begin_s, end_s), (begin_j, end_j) = (
            self.untils_s[index - 1 : index + 1],
            self.energies_j[index - 1 : index + 1],
        )
        return begin_j + (end_j - begin_j) * (time_s - begin_s) / (end_s - begin_s) if end_s > begin_s else end_j

    def describe(self):
        sensor = {"window_s": self.averaging_s, "lag_s": 0.0, "period_s": 0.0}
        return {"name": "modelled", "rail": "VDD_IN", "settings_mhz": self.settings, **sensor}

    def read(self):
        now_s = self.clock.now_s() - self.begin_s
        watts = self.mean_w(now_s, self.averaging_s) if self.averaging_s and now_s else self.power_w()
        return {
            "power_w": watts + self._noise.gauss(0.0, self.noise_w),
            "temperature_c": 50.0,
            "clock_mhz": self.mhz or self.free_mhz,
        }

    def claim(self):
        pass

    def guard(self, *asked):
        self.armed.append(asked)

    def pin(self, mhz, others=None):
        assert mhz in self.settings
        self.mhz = mhz

    def check(self):
        return []

    def restore(self):
        self.restored += 1
        self.mhz = None


def guarded(cap, lasts_s, board=None, *, later=(), clock_mhz=None, wall=None):
    """The report of a virtual program that lasts so long, the board, and the program."""
    board = board or Modelled()
    for after_s, act in later:
        board.clock.later(after_s, act)
    board.program = program = VirtualProgram(board.clock, lasts_s)
    options = {} if wall is None else {"clock": wall}
    caps = GuardedCap(cap, None, None, **options)
    report = run_guarded(board, program, caps=caps, window_s=WINDOW_S, clock_mhz=clock_mhz)
    return report, board, program


def above_s(board, cap_w, until_s, from_s=0.0):
    """Exact seconds in which the mean over the window was above ``cap_w(time_s)``; 0 W counts as no limit."""
    step_s, total_s, at_s = 0.02, 0.0, max(WINDOW_S, from_s + WINDOW_S)
    while at_s < until_s:
        limit_w = cap_w(at_s)
        total_s += step_s * (0 < limit_w < board.mean_w(at_s, WINDOW_S) - 1e-9)
        at_s += step_s
    return total_s


def stops(program):
    """When it was held and continued."""
    return [(round(at_s, 2), number) for at_s, number in program.sent if number in (signal.SIGSTOP, signal.SIGCONT)]


CAPS = CapTrace(
    times_s=(0.0, 20.0, 40.0, 60.0, 80.0, 90.0, 110.0, 130.0),
    caps_w=(9.0, 4.4, 5.6, 3.4, 0.0, 6.0, 4.4, 3.0),
)


@pytest.mark.parametrize("averaging_s", [0.0, 0.4])
@pytest.mark.parametrize("clock_mhz", [None, 1000.0])
def test_announced_caps_are_never_exceeded(averaging_s, clock_mhz):
    report, board, program = guarded(CAPS, 129.0, Modelled(averaging_s=averaging_s), clock_mhz=clock_mhz)
    for at_s in CAPS.times_s[:-1]:  # later the guard tries the next clock, as under a constant cap
        assert above_s(board, CAPS.watts, at_s + 8.0, from_s=max(0.0, at_s - WINDOW_S)) == 0
    assert above_s(board, lambda time_s: 1.01 * CAPS.watts(time_s), 129.0) == 0
    assert report.above_cap_s == 0
    energies_j = [one["energy_j"] for one in report.cap_intervals]
    assert sum(energies_j) == pytest.approx(report.energy_j, rel=0.01)
    assert report.energy_j == pytest.approx(board.energy_j(129.0), rel=0.01)
    assert report.ended == "finished"
    assert board.restored == 1
    assert program.exit_code == 0
    assert [one["asked_w"] for one in report.cap_intervals if one["pause"]][-1] == 0.0
    assert 10.0 < report.paused_s < 13.0


def test_the_clock_rises_again_as_far_as_is_known_at_the_time_of_a_rise():
    cap = CapTrace(times_s=(0.0, 20.0, 40.0, 60.0), caps_w=(9.0, 4.4, 9.0, 4.4))
    report, board, _ = guarded(cap, 80.0)
    settings = [(one["time_s"], one["asked_w"], one["setting"]) for one in report.cap_intervals]
    assert settings[0][2] is None  # left to the board
    raised = next(at_s for at_s, asked_w, mhz in settings if asked_w == 9.0 and mhz == 1000.0 and at_s > 30)
    assert 40.0 <= raised <= 40.2
    first, second = ([mhz for at_s, _, mhz in settings if at_s < 40][-1], settings[-1][2])
    assert first == second
    assert board.watts_at(first) < 4.4
    assert board.watts_at(first) > 0.8 * 4.4
    assert above_s(board, cap.watts, 80.0) == 0


def test_a_lower_cap_that_another_client_sets_is_held_under_a_cap_that_changes():
    board, set_w = Modelled(), [None]
    read, board.read = board.read, lambda: {**read(), "set_cap_w": set_w[0]}
    later = [(at_s, lambda watts=watts: set_w.__setitem__(0, watts)) for at_s, watts in ((10, 4.4), (50, 9.5), (70, 2))]
    later.append((80.0, lambda: set_w.__setitem__(0, None)))
    cap = CapTrace(times_s=(0.0, 30.0), caps_w=(9.0, 5.6))
    report, board, _ = guarded(cap, 110.0, board, later=later)
    assert above_s(board, lambda time_s: 1.01 * (4.4 if 10 < time_s < 50 else cap.watts(time_s)), 70.0) <= WINDOW_S
    assert [one["cap_w"] for one in report.cap_intervals if one["time_s"] > 50 and one["pause"]] == [2.0]
    assert (report.ended, report.cap_intervals[-1]["cap_w"]) == ("finished", 5.6)
    assert {asked[0] for asked in board.armed} == {9.0, 5.6}


@pytest.mark.parametrize("to_w", [4.4, 3.4, 0.0])
def test_an_unannounced_lowering_costs_one_window_at_most(to_w):
    cap = CalledCap(cap_w=lambda time_s: 9.0 if time_s < 20 else to_w)
    report, board, _ = guarded(cap, 40.0)
    exact_s = above_s(board, cap.watts, 40.0)
    assert exact_s <= WINDOW_S
    assert report.above_cap_s <= WINDOW_S + 0.2
    assert (exact_s > 0) == (to_w > 0)


def test_below_what_the_lowest_clock_draws_the_program_is_held():
    cap = CapTrace(times_s=(0.0, 20.0, 40.0, 60.0, 70.0), caps_w=(9.0, 2.0, 9.0, 2.0, 9.0))
    report, board, program = guarded(cap, 80.0)
    pauses = [one for one in report.cap_intervals if one["pause"] is not None]
    assert all("at the lowest clock, more than 2 W" in one["pause"] for one in pauses)
    # Nobody knew the first time; the second time it is held before the cap falls.
    assert above_s(board, cap.watts, 80.0, from_s=45.0) == 0
    assert above_s(board, cap.watts, 45.0) <= WINDOW_S
    assert [number for _, number in stops(program)].count(signal.SIGCONT) == 2
    assert report.ended == "finished"


def test_a_program_is_held_while_the_cap_is_0_w_and_continued_at_its_end():
    cap = CapTrace(times_s=(0.0, 10.0, 20.0), caps_w=(9.0, 0.0, 9.0))
    report, _, program = guarded(cap, 30.0)
    sent = stops(program)
    assert sent[0][1] == signal.SIGSTOP
    assert sent[0][0] == pytest.approx(10.0 - WINDOW_S - 0.1, abs=0.15)
    assert [at_s for at_s, number in sent if number == signal.SIGCONT] == [pytest.approx(20.0, abs=0.15)]
    again_s = [later - earlier for (earlier, _), (later, _) in pairwise(sent[:-1])]
    assert again_s == pytest.approx([1.0] * len(again_s), abs=0.15)  # if somebody else has continued it
    assert report.paused_s == pytest.approx(11.1, abs=0.3)
    assert report.time_s == pytest.approx(30.0)


def test_caps_that_end_with_a_pause_end_the_program():
    report, board, program = guarded(CapTrace(times_s=(0.0, 10.0), caps_w=(9.0, 0.0)), 60.0)
    assert (report.exit_code, report.ended) == (4, "stopped for safety")
    assert report.events[-1]["text"] == "the caps leave nothing to run with any more"
    assert report.time_s == pytest.approx(10.0, abs=0.5)
    assert [number for _, number in program.sent][-2:] == [signal.SIGTERM, signal.SIGCONT]
    assert board.restored == 1


def test_a_signal_for_a_program_that_is_held_reaches_it():
    cap = CapTrace(times_s=(0.0, 10.0, 50.0), caps_w=(9.0, 0.0, 9.0))
    board = Modelled()

    def interrupt():
        program = board.program
        program._process = program  # as if it had begun as a process
        program._on_signal(signal.SIGHUP, None)

    report, _, program = guarded(cap, 60.0, board, later=[(20.0, interrupt)])
    numbers = [(at_s, number) for at_s, number in program.sent if at_s > 19.9]
    assert [number for _, number in numbers[:2]] == [signal.SIGHUP, signal.SIGCONT]
    assert numbers[2] == (pytest.approx(30.0, abs=0.2), signal.SIGSTOP)  # it went on, so it is held again
    assert report.ended == "interrupted"


def test_the_agents_own_guard_is_told_each_cap():
    _, board, _ = guarded(CapTrace(times_s=(0.0, 10.0, 20.0, 30.0), caps_w=(9.0, 5.0, 0.0, 6.0)), 35.0)
    assert board.armed == [(9.0, None, 1.0), (5.0, None, 1.0), (6.0, None, 1.0)]


def test_a_board_without_a_clock_can_only_be_held():
    board = Modelled()
    board.settings = []
    board.watts_at = lambda mhz: 6.0
    cap = CapTrace(times_s=(0.0, 10.0, 20.0, 30.0, 40.0), caps_w=(9.0, 4.0, 9.0, 4.0, 9.0))
    report, board, program = guarded(cap, 50.0, board)
    assert report.ended == "finished"
    assert [number for _, number in stops(program)].count(signal.SIGCONT) == 2
    assert above_s(board, cap.watts, 50.0, from_s=22.0) == 0


def test_a_clock_on_the_wall_that_is_set_is_followed():
    cap = CapTrace(times_s=(0.0, 60.0, 120.0), caps_w=(9.0, 4.4, 9.0), begin=NOON)
    board = Modelled()
    shift = [0.0]

    def wall():
        return NOON + timedelta(seconds=board.clock.now_s() - board.begin_s + shift[0])

    sets = [(20.0, lambda: shift.__setitem__(0, 60.0)), (30.0, lambda: shift.__setitem__(0, 0.0))]
    report, board, _ = guarded(cap, 40.0, board, later=sets, wall=wall)
    asked = [one["asked_w"] for one in report.cap_intervals]
    assert [now for earlier, now in pairwise([None, *asked]) if now != earlier] == [9.0, 4.4, 9.0]
    times_s = [one["time_s"] for one in report.cap_intervals]
    assert times_s == sorted(times_s)
    assert above_s(board, lambda time_s: 4.4 if 20 <= time_s < 30 else 9.0, 40.0) <= WINDOW_S


def test_a_clock_that_was_lowered_for_its_temperature_does_not_rise_for_its_power():
    board = Modelled()
    read = board.read
    board.read = lambda: {**read(), "temperature_c": 60.0 + 25.0 * (board.mhz or board.free_mhz) / 1000.0}
    cap = CapTrace(times_s=(0.0, 20.0, 40.0), caps_w=(9.0, 4.4, 9.0))
    board.program = program = VirtualProgram(board.clock, 100.0)
    report = run_guarded(
        board, program, caps=GuardedCap(cap, None, None), window_s=WINDOW_S, clock_mhz=1000.0, max_temp_c=81.0
    )
    assert report.ended == "finished"
    assert any(event.get("temperature_c", 0.0) > 81.0 for event in report.events)
    assert report.cap_intervals[-1]["setting"] <= 800.0
    late = [event for event in report.events if event["kind"] == "guard" and event["time_s"] > 60.0]
    assert len(late) < 6  # no more than the guard's own careful tries


def test_a_program_that_begins_under_0_w_is_held_at_once():
    report, _, program = guarded(CapTrace(times_s=(0.0, 5.0), caps_w=(0.0, 9.0)), 20.0)
    assert stops(program)[0] == (0.0, signal.SIGSTOP)
    assert report.cap_intervals[0]["pause"] == "the cap is 0 W"
    assert report.paused_s == pytest.approx(5.0, abs=0.2)


def test_a_file_that_is_no_cap_leaves_the_last_one(tmp_path):
    path = tmp_path / "watts"
    path.write_text("9\n")
    later = [(5.0, lambda: path.write_text("none\n")), (10.0, lambda: path.write_text("4.4\n")), (15.0, path.unlink)]
    report, board, _ = guarded(WatchedCap(path=path), 25.0, later=later)
    assert [event["kind"] for event in report.events if event["kind"] != "guard"] == ["cap unread", "cap unread"]
    assert {one["asked_w"] for one in report.cap_intervals} == {9.0, 4.4}
    assert board.mean_w(24.0, 1.0) < 4.4


@pytest.mark.parametrize("seed", range(20))
def test_any_announced_caps_on_any_board_are_kept(seed):
    """Caps above the power at the lowest clock."""
    draw = random.Random(seed)
    board = Modelled(
        static_w=draw.uniform(1.5, 4.0), dynamic_w=draw.uniform(1.0, 8.0), averaging_s=draw.choice([0.0, 0.2, 0.4])
    )
    low_w, high_w = board.watts_at(100.0), board.watts_at(1000.0)
    caps_w = [1.1 * high_w, *(draw.uniform(1.05 * low_w, 1.1 * high_w) for _ in range(9))]
    cap = CapTrace(times_s=tuple(12.0 * k for k in range(10)), caps_w=tuple(caps_w))
    report, board, _ = guarded(cap, 120.0, board)
    for at_s in cap.times_s:  # later the guard tries the next clock, as under a constant cap
        assert above_s(board, cap.watts, at_s + 8.0, from_s=at_s - WINDOW_S) == 0
    assert above_s(board, lambda time_s: 1.01 * cap.watts(time_s), 120.0) == 0
    assert report.ended == "finished"
    assert report.paused_s == 0


# -------------------------------------------------------------------------------------------------------- real programs


def command_of(root, *options):
    return [sys.executable, "-m", "wattune", "guard", "--device", "jetson", "--sysfs-root", str(root), *options]


@pytest.mark.slow
def test_a_real_program_and_its_children_are_stopped_and_continued(tmp_path):
    """A file that another program writes: 0 W, and then enough."""
    watts, report, counts = tmp_path / "watts", tmp_path / "report.json", tmp_path / "counts"
    watts.write_text("50\n")
    script = f"(while :; do echo tick >> {counts}; sleep 0.05; done) & child=$!; read -r line; kill $child; exit 5"
    with live_board(tmp_path / "board") as root:
        before = limits(root)
        process = subprocess.Popen(
            command_of(root, "--cap", f"watch:{watts}", "-o", str(report), "--", "sh", "-c", script),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert wait_for(lambda: counts.exists())
        watts.write_text("0\n")

        def is_still():
            size = counts.stat().st_size
            time.sleep(0.5)
            return counts.stat().st_size == size

        assert wait_for(is_still, 20.0)
        size = counts.stat().st_size
        watts.write_text("50\n")
        assert wait_for(lambda: counts.stat().st_size > size, 20.0)
        _, err = process.communicate(b"end\n", timeout=30)
        assert limits(root) == before
    assert process.returncode == 5, err
    record = json.loads(report.read_text())
    assert record["caps"] == f"watch:{watts}"
    assert [one["pause"] for one in record["cap_intervals"] if one["pause"]] == ["the cap is 0 W"]
    assert record["paused_s"] > 0.4
    assert b"held for" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_held_does_not_stay_so_without_its_guard(tmp_path, number):
    watts, started, ended = tmp_path / "watts", tmp_path / "started", tmp_path / "ended"
    watts.write_text("50\n")
    # One process: a shell that is stopped with a child between vfork and exec is never seen as stopped.
    script = (
        "import os, pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(ended)!r}).touch(), sys.exit(0)))\n"
        f"pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n"
        "while True: time.sleep(0.05)\n"
    )
    with live_board(tmp_path / "board") as root, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            command_of(root, "--cap", f"watch:{watts}", "--", sys.executable, "-c", script), stderr=err
        )
        assert wait_for(lambda: started.exists() and started.read_text().strip(), 20.0)
        pid = int(started.read_text())
        watts.write_text("0\n")
        assert wait_for(lambda: "T" in state_of(pid), 20.0), (state_of(pid), (tmp_path / "err").read_text())
        process.send_signal(number)
        process.wait(20)
        assert wait_for(lambda: ended.exists(), 20.0)  # it was continued, and heard that it should end
        assert wait_for(lambda: not os.path.exists(f"/proc/{pid}") or "Z" in state_of(pid), 20.0)


def test_what_is_refused_is_one_line(refused, root, tmp_path):
    path = tmp_path / "caps.csv"
    path.write_text("time,watts\n2999-01-01T00:00,5\n")
    before = limits(root)
    arguments = ("guard", "--device", "jetson", "--sysfs-root", root, "--cap", path, "--", "touch", tmp_path / "ran")
    assert "begins after the run" in refused(*arguments)
    assert not (tmp_path / "ran").exists()
    assert limits(root) == before


def test_a_report_names_the_caps(wattune, root, tmp_path):
    path = tmp_path / "caps.csv"
    path.write_text("time,watts\n2024-01-01 00:00,400\n2024-01-02 00:00,500\n")
    code, out, err = wattune(
        "guard", "--device", "jetson", "--sysfs-root", root, "--cap", path, "--json", "--", "sh", "-c", "exit 3"
    )
    assert code == 3, err
    assert any(f"times of {path} have no offset, and are taken as local" in line for line in err)
    record = json.loads(out)
    assert record["cap_w"] is None
    assert record["caps"] == str(path)
    assert [one["asked_w"] for one in record["cap_intervals"]] in ([], [500.0])


@pytest.mark.parametrize("cap", ["caps.csv", "caps.csv@supply", "watch:file"])
def test_the_agents_own_command_says_what_follows_such_a_cap(cap):
    command = [sys.executable, "-m", "wattune_agent", "guard", "--cap", cap, "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "a cap that changes needs `wattune guard`" in done.stderr
