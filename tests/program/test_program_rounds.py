"""Rounds of programs: which intervals are steps, and which process is followed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import OutputError
from wattune.program.printed import PrintedRounds, printed_steps
from wattune.program.rounds import GAP, Interval, StepPage, ordinary

STEP_S = st.floats(0.001, 10.0)


@given(times=st.lists(STEP_S, min_size=1, max_size=40))
def test_ordinary_intervals_are_near_the_median(times):
    intervals = [Interval(0.0, one, 1) for one in times]
    kept = ordinary(intervals)
    middle = sorted(times)[(len(times) - 1) // 2]
    assert kept == [one for one in intervals if one.step_s <= GAP * middle]
    assert 2 * len(kept) >= len(times), "at least half of the steps are steps"


STAMPS = """
import sys, time
from wattune.program.hook.sitecustomize import Stamps
stamps = Stamps(sys.argv[1])
for _ in range(int(sys.argv[2])):
    stamps.stamp(3)
print("on", flush=True)
sys.stdin.read()
"""


def test_one_process_is_followed_while_it_lives():
    with StepPage() as page:

        def stamping(count: int) -> subprocess.Popen[str]:
            words = [sys.executable, "-c", STAMPS, page._path, str(count)]
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
            return process

        with stamping(5) as first:
            assert page.read()[:2] == (first.pid, 5)
            with stamping(2) as second:
                assert page.read()[:2] == (first.pid, 5)
                first.communicate()
                assert page.read()[:2] == (second.pid, 2)
                assert page.read().marker == 3
                second.communicate()
        assert page.read() is None


def test_the_page_has_its_memory_from_the_start():
    with StepPage() as page:
        assert os.stat(page._path).st_blocks > 0, "a page without memory ends the program that writes to it by SIGBUS"


@pytest.mark.parametrize("folders_full", [1, 2])
def test_a_full_memory_folder_is_passed_over(monkeypatch, folders_full):
    full: list[str] = []
    allocate = os.posix_fallocate

    def allocated(file: int, offset: int, size: int) -> None:
        if len(full) < folders_full:
            full.append(os.readlink(f"/proc/self/fd/{file}"))
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", allocated)
    page = StepPage()
    if folders_full == 1:
        with page:
            assert os.path.dirname(page._path) == tempfile.gettempdir()
    else:
        with pytest.raises(OutputError, match="no room"):
            page.__enter__()
    assert not any(map(os.path.exists, full)), "what had no room is removed"


def test_printed_step_times_are_rounds():
    with StepPage() as page:
        rounds = PrintedRounds(re.compile(r"(?P<ms>[0-9.]+)ms/step"), page)
        for number in range(11):
            rounds.take(f"\r{number}/100 - 25ms/step".encode(), number)
        rounds.take(b"\rno number\r", 11)
        assert page.read() is not None
        assert page.read().rounds == 10 * 40, "as many as fit between two lines"
        rounds.take(b"0ms/step\n25ms/st", 12)
        rounds.take(b"ep\n", 13)
        assert page.read().rounds == pytest.approx(12 * 40)


@pytest.mark.parametrize("line", ["step", "step 1e-300 s", "step nan s", "step inf s", "step 1e400 s", "step -1 s"])
def test_an_odd_line_changes_neither_the_output_nor_the_rounds(capfd, line):
    with StepPage() as page:
        with printed_steps(re.compile(r"step(?: ([-+.\w]+) s)?"), page):
            for text in ("step 0.01 s", line, "step 0.01 s", "last"):
                os.write(1, f"{text}\n".encode())
                time.sleep(0.05)
            subprocess.run(["sh", "-c", "printf 'no newline'"], check=True)
        assert page.read() is not None
        assert 5 < page.read().rounds < 1000
    assert capfd.readouterr().out == f"step 0.01 s\n{line}\nstep 0.01 s\nlast\nno newline"


FORWARDING = """
import os, re, subprocess, sys
from wattune.program.printed import printed_steps
from wattune.program.rounds import StepPage
with StepPage() as page, printed_steps(re.compile("([0-9]+)"), page):
    subprocess.run(["sh", "-c", sys.argv[1]], check=True)
assert not any(os.path.exists(f"/proc/self/fd/{file}") for file in range(3, 9)), "the output has been closed"
"""


def test_a_slow_reader_gets_the_whole_output():
    words = [sys.executable, "-c", FORWARDING, "seq 1 24000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(2.5)  # longer than a child that keeps the output open is waited for
        assert process.stdout is not None
        assert process.stdout.read() == "".join(f"{number}\n" for number in range(1, 24001))
    assert process.returncode == 0


def test_a_child_that_keeps_the_output_open_is_not_waited_for():
    child = "(while sleep 0.1; do echo 7; done) & echo $! >&2; seq 1 3"
    done = subprocess.run([sys.executable, "-c", FORWARDING, child], capture_output=True, text=True, timeout=30)
    os.kill(int(done.stderr.split()[0]), signal.SIGKILL)
    assert (done.returncode, done.stdout[:6]) == (0, "1\n2\n3\n"), done.stderr


def test_a_page_that_is_closed_takes_no_stamps(tmp_path):
    with StepPage() as page:
        pass
    with open(tmp_path / "next", "w+b") as file:  # with the descriptor that the page had
        page.stamp(1, 1.0)
        assert file.read() == b""
