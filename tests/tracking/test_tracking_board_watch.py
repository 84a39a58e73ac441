"""Rows of a board, second by second, and the file that they go to."""

from __future__ import annotations

import csv
import os
import time
from itertools import pairwise

import pytest
from tests.support.device_examples import make_work, quiet
from tests.support.live_devices import unpack

from wattune.devices import Fault, SimulatedDevice, open_device
from wattune.errors import OutputError, SensorError
from wattune.tracking.board_watch import COLUMNS, BoardRow, BoardWatch, rows_file


def test_a_row_is_of_the_time_since_the_last_one():
    device = SimulatedDevice(quiet())
    rows = []
    with BoardWatch(device) as watch:
        for _ in range(3):
            device.wait(1.0)
            rows.append(watch.row())
        begin_s = device.now_s()
        while device.now_s() < begin_s + 3:
            with device.step(make_work(gflop=20)):
                pass
        rows.append(watch.row())
        device.wait(2.0)
        rows.append(watch.row())
    assert [row.seconds for row in rows[:3]] == [1.0, 2.0, 3.0]
    at_rest_w = rows[0].power_w
    assert [row.power_w for row in rows[:3]] == pytest.approx([at_rest_w] * 3, rel=0.01)
    assert rows[3].power_w > 1.3 * at_rest_w
    assert rows[4].power_peak_w <= rows[3].power_peak_w  # a peak is the row's own
    total_j = sum(row.power_w * seconds for row, seconds in zip(rows, lengths(rows), strict=True))
    assert rows[-1].energy_j == pytest.approx(total_j, rel=1e-3)
    assert rows[-1].energy_j == pytest.approx(watch.figures().energy_j, abs=0.01)


def lengths(rows):
    ends_s = [0.0, *(row.seconds for row in rows)]
    return [end_s - begin_s for begin_s, end_s in pairwise(ends_s)]


def first_row(watch):
    """The first row, which needs a reading; they are taken in another thread."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return watch.row()
        except SensorError as error:
            if "no reading" not in str(error) or time.monotonic() > until_s:
                raise
        time.sleep(0.01)


def test_a_board_as_files_is_read_and_left_as_it_was(tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "board")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
    device = open_device(f"jetson?root={root}")
    with BoardWatch(device) as watch:
        row = first_row(watch)
    assert row.power_w == pytest.approx(device.power_w(), abs=1e-3)
    assert row.clock_mhz == device.clock_mhz()
    assert row.temperature_c == device.conditions().temperature_c == watch.temperature_max_c
    assert (row.throttled, watch.throttled_rows, watch.rows) == ("", 0, 1)
    device.close()
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before}


def test_a_sensor_that_is_lost_is_an_error():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=1, duration_s=10),)))
    with BoardWatch(device) as watch:
        device.wait(1.0)
        watch.row()
        device.wait(5.0)
        with pytest.raises(SensorError):
            watch.row()
    with pytest.raises(SensorError):
        watch.figures()


ROW = BoardRow("2026-01-01T00:00:00.000+00:00", 1.0, 5.0, 6.0, 5.0, None, 40.5, "heat, over-current")


def test_a_row_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "power.csv"
    with rows_file(path) as write:
        assert path.read_text() == ",".join(COLUMNS) + "\n"
        write(ROW)
        (row,) = csv.DictReader(path.read_text().splitlines())
    assert row["power_w"] == "5.0"
    assert row["clock_mhz"] == ""
    assert row["throttled"] == "heat, over-current"


def test_a_file_that_exists_or_cannot_be_written(tmp_path):
    (tmp_path / "power.csv").write_text("mine")
    for path in (tmp_path / "power.csv", tmp_path / "absent" / "power.csv"):
        with pytest.raises(OutputError, match=f"cannot write {path}"), rows_file(path):
            pytest.fail("the file was opened")
    assert (tmp_path / "power.csv").read_text() == "mine"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_error(tmp_path, monkeypatch):
    with rows_file(tmp_path / "power.csv") as write:
        descriptor = os.open("/dev/full", os.O_WRONLY)
        opened = next(fd for fd in os.listdir("/proc/self/fd") if _leads_to(fd, tmp_path / "power.csv"))
        os.dup2(descriptor, int(opened))
        os.close(descriptor)
        with pytest.raises(OutputError, match="No space left on device"):
            write(ROW)
        os.dup2(os.open(os.devnull, os.O_WRONLY), int(opened))


def _leads_to(descriptor, path):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False
