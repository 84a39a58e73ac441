"""Load processes: they start on request, end on request, and never outlive their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from wattune.doctor.load import BusyProcess

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


def ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[11])


def until(condition, seconds=10.0):
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_load_waits_works_and_ends():
    with BusyProcess(1) as load:
        pid = load._running[0].pid
        idle_ticks = ticks(pid)
        time.sleep(0.2)
        assert ticks(pid) - idle_ticks <= 1
        load.begin()
        until(lambda: ticks(pid) - idle_ticks >= 10)
        load.end()
        assert not os.path.exists(f"/proc/{pid}")
    assert load.words == "1 busy core"


def test_a_load_ends_with_its_parent():
    code = (
        "from wattune.doctor.load import BusyProcess\n"
        "busy = BusyProcess(1).__enter__()\nbusy.begin()\n"
        "print(busy._running[0].pid, flush=True)\ninput()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()

    def gone():
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(gone)
