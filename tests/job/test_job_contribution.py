"""A contribution: the planned points within the limit, its checks, and nothing that identifies a person."""

from __future__ import annotations

import getpass
import json
import re
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import profiles
from tests.support.cli_boards import live_board

from wattune.devices import Knob, Sensor, builtin_board, open_device
from wattune.errors import DeviceError, InputError
from wattune.job import contribution
from wattune.job.contribution import contribute, described, least_s, planned_points
from wattune.records import BoardEvent, Contribution
from wattune.reporting.contribution_text import SECTIONS, issue_text, workload_rows


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two small workloads in place of the reference set."""
    pair = (profiles.workload(name="reference-one"), profiles.workload(name="reference-two"))
    monkeypatch.setattr(contribution, "references", lambda data_type: pair)


@pytest.fixture(scope="module")
def whole():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contribution, "references", lambda data_type: (profiles.workload(name="reference-one"),))
        return contribute(profiles.board())


def points(record):
    return [cell.point for part in record.workloads for cell in part.cells]


def test_the_points_of_a_board():
    planned = planned_points(profiles.board())
    assert len(planned) == len(set(planned)) == 15
    # The highest and the lowest setting come first: with these alone a contribution is of use.
    assert [point.knobs["clock_mhz"] for point in planned[:5]] == [921.6, 76.8, 691.2, 537.6, 307.2]


def test_a_whole_contribution(tmp_path):
    device = profiles.board()
    began_s = device.now_s()
    record = contribute(device)
    assert record.is_complete
    assert record.is_steady
    assert sorted(points(record)) == sorted(planned_points(device) * 2)
    assert [len(part.repeats) for part in record.workloads] == [1, 1]
    assert record.time_s == pytest.approx(device.now_s() - began_s)
    assert record.time_s >= least_s(device)
    assert record.provenance.kind == "simulated"
    assert Contribution.load(record.save(tmp_path / "c.json")) == record
    rows = workload_rows(record)
    assert [(row.workload, row.batch_size, row.settings) for row in rows] == [
        ("reference-one", 128, 5),
        ("reference-two", 128, 5),
    ]
    assert all(row.speed_up > 1 and row.saved >= 0 and row.lowest_w < row.highest_w for row in rows)


def test_it_stops_at_the_limit_with_what_it_has():
    device = profiles.board()
    whole = contribute(profiles.board())
    record = contribute(device, limit_minutes=whole.time_s / 60 / 3)
    assert device.now_s() <= whole.time_s / 3
    assert not record.is_complete
    assert 0 < record.points < record.planned == whole.points
    assert all(part.cells for part in record.workloads), "each workload has its share"
    assert "stopped at the limit" in issue_text(record, "c.json")


def test_a_batch_size_that_does_not_fit_is_part_of_it():
    made = builtin_board("jetson-nano").memory
    record = contribute(profiles.board(memory={"size_mib": made.system_mib + made.context_mib + 30}))
    unfit = [cell for part in record.workloads for cell in part.cells if cell.out_of_memory]
    assert unfit
    assert record.is_complete
    assert "does not fit in memory" in issue_text(record, "c.json")


def test_drift_is_reported(monkeypatch):
    slow = iter((1.0,) * 30 + (1.2,) * 2)
    measure = contribution.CellProbe.measure

    def drifting(self, point):
        cell, cost = measure(self, point)
        return cell.model_copy(update={"step_s": cell.step_s * next(slow)}), cost

    monkeypatch.setattr(contribution.CellProbe, "measure", drifting)
    record = contribute(profiles.board())
    assert not record.is_steady
    assert "NOT STEADY" in issue_text(record, "c.json")


def test_devices_that_cannot_contribute(whole, tmp_path):
    whole.workloads[0].table.save(tmp_path / "profile.json")
    device = open_device(f"recorded:{tmp_path / 'profile.json'}")
    with pytest.raises(InputError, match="recorded"):
        contribute(device)
    device = profiles.board()
    device.kind, device.trains_on = "measured", "gpu"
    with pytest.raises(DeviceError, match="trains on the CPU"):
        contribute(device)


# -------------------------------------------------------------------------------------------------------------- privacy

IDENTIFIERS = re.compile(
    r"([0-9a-f]{2}:){5}[0-9a-f]{2}"  # a hardware address
    r"|\b\d{1,3}(\.\d{1,3}){3}\b"  # an IP address
    r"|/(home|root|Users|tmp|dev|var|etc|sys|proc)\b"  # a path
    r"|[\w.]+@[\w.]+"  # an e-mail address
    r"|(?<![\w.])\d{13}\b",  # a Jetson's serial number, and not the decimals of a figure
    re.IGNORECASE,
)

FIELDS = {
    "record", "version", "provenance", "kind", "device", "model", "data", "software", "seed", "created_at", "board",
    "name", "mode", "settings", "memory_bytes", "sensor_rail", "sensor_covers", "sensor_window_s",
    "sensor_resolution_w", "l4t", "kernel", "driver", "torch", "cuda", "set_version", "workloads", "workload", "key",
    "input_shape", "data_type", "optimizer", "algorithm", "cells", "repeats", "time", "power", "batch_size",
    "micro_batch_size", "clock_mhz", "memory_clock_mhz", "cpu_clock_mhz", "cpu_cores", "power_limit_w", "step_s",
    "step_std_s", "power_mean_w", "power_std_w", "power_peak_w", "power_window_w", "steps", "out_of_memory",
    "throttled", "over_current", "swapped_bytes", "temperature_c", "probes", "p_above_cap", "points", "planned",
    "limit_s", "time_s", "energy_j", "is_complete", "is_steady", "within", "throttled_cells", "events", "notices",
}  # fmt: skip
"""Every field that may be in a contribution: a new one is to be thought about here."""


def names(content):
    if isinstance(content, dict):
        return {*content, *(name for value in content.values() for name in names(value))}
    return {name for value in content for name in names(value)} if isinstance(content, list) else set()


def test_the_fields_of_a_contribution(whole):
    assert names(whole.dump()) <= FIELDS


secret = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.:/@", min_size=6, max_size=24).filter(lambda s: s.strip())


@given(secret=secret.map(lambda text: f"SECRET{text}"))
def test_what_a_device_says_of_its_surroundings_is_left_out(secret):
    device = SimpleNamespace(
        name="Orin", mode="15W", knobs=(Knob("clock_mhz", (306.0,)),), sensor=Sensor("VDD_IN"), memory_bytes=1e9,
        versions=lambda: {"l4t": "36.4.3"}, spec=f"jetson?root={secret}", problems=(f"{secret} may not be written",),
        controller=SimpleNamespace(path=secret), events=lambda: (BoardEvent(time_s=0, kind="clamp", text=secret),),
    )  # fmt: skip
    assert secret not in described(device).model_dump_json()


def test_identifiers_are_told_from_figures():
    for identifier in ("1421019012345", "48:b0:2d:aa:bb:cc", "192.168.1.77", "tm@x.org", "/home/tom"):
        assert IDENTIFIERS.search(json.dumps({"text": f"read {identifier}"}))
        assert IDENTIFIERS.search(identifier)
    assert not IDENTIFIERS.search(json.dumps({"step_s": 0.7134884501445, "power_mean_w": 11.7134884501445}))


@pytest.mark.slow
def test_nothing_in_the_files_identifies_a_person(tmp_path, monkeypatch):
    secrets = ["toms-orin", "tom.miller", "1421019012345", "48:b0:2d:aa:bb:cc", "192.168.1.77", "tm@x.org"]
    monkeypatch.setattr(contribution, "BATCH_SIZES", (2,))
    monkeypatch.setattr(contribution, "SETTINGS", 2)
    with live_board(tmp_path / "toms-orin", load=1.0) as root:
        planted = " ".join(secrets)
        for path in ("etc/hostname", "etc/machine-id", "proc/device-tree/serial-number", "proc/cpuinfo", "etc/hosts"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(f"Serial : {planted}\n")
        (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
        (root / "proc/sys/kernel/osrelease").write_text("5.15.148-toms-orin-tegra\n")
        device = open_device(f"jetson?root={root}")
        device._note("other writer", f"process 12, {planted}, wrote {root}")
        device.problems += (planted,)
        try:
            record = contribute(device, limit_minutes=1.0)
        finally:
            device.close()
    produced = json.dumps(record.dump()) + issue_text(record, "contribution.json")
    assert record.board.kernel == "5.15.148"
    assert "other writer" not in record.events or "process 12" not in produced
    here = {socket.gethostname(), getpass.getuser(), str(tmp_path), str(root)}
    for word in (*secrets, *(word for word in here if len(word) > 4)):
        assert word not in produced
    assert not IDENTIFIERS.search(produced)
    assert names(record.dump()) <= FIELDS


def test_every_section_has_a_heading(whole):
    text = issue_text(whole, "mine.json")
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == list(SECTIONS)
    assert "`mine.json`" in text
    assert "(simulated)" in text
