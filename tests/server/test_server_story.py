"""The whole story: a server that is killed and two different boards, in separate processes, train from one curve.

The policy is the same for both: half-way between the least and the most that training this model draws on the board.
``test_server_example`` has the same with the built-in example, of which they choose different batch sizes.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.support.server.serving import free_port, serving, wait_for
from tests.support.server.story import COMMAND, ENVIRONMENT, SMALL, but_data, offer, own_data, small

import wattune
from wattune.records import SampleEfficiency, TrainingRecord
from wattune.records.served import ServedModel
from wattune.workloads import load_workload

DEVICES = ("sim:jetson-nano", "sim:jetson-agx-orin")
LIMIT_S = 420.0


def cap_w(device):
    """The middle of what the board draws."""
    table = wattune.profile(device, load_workload(SMALL), strategy="full", reference=False)
    peaks = [cell.power_peak_w for cell in table.measured]
    return round((min(peaks) + max(peaks)) / 2, 1)


class Devices:
    """Boards as processes, each on a machine of its own: with its own cache."""

    def __init__(self, folder: Path, url: str, data: Path, caps_w: dict[str, float]):
        self.folder, self.url, self.data, self.caps_w = folder, url, data, caps_w

    def name(self, device):
        return device.partition(":")[2]

    def run(self, device, number):
        return self.folder / f"{self.name(device)}-{number}"

    def start(self, device, number, *more):
        command = [*COMMAND, "run", "--server", self.url, "--model", "small-digits", "--device", device]
        command += ["--cap", f"{self.caps_w[device]}W", "--data", str(self.data), "--set", f"name={self.name(device)}"]
        command += ["-o", str(self.run(device, number)), *more]
        environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(self.folder / f"cache-{self.name(device)}")}
        log = (self.folder / f"{self.name(device)}-{number}.log").open("w")
        with log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)

    def said(self, device, number):
        return (self.folder / f"{self.name(device)}-{number}.log").read_text()

    def finish(self, process, device, number):
        assert process.wait(LIMIT_S) == 0, self.said(device, number)
        return TrainingRecord.load(self.run(device, number) / "training.json")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_two_boards_choose_their_own_points_from_one_curve(tmp_path):
    port = free_port()
    data = own_data(tmp_path / "my.npz")
    offer(tmp_path / "store", *small())
    caps = {device: cap_w(device) for device in DEVICES}
    devices = Devices(tmp_path, f"http://127.0.0.1:{port}", data, caps)
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path / "store", "--port", str(port), "--workers", "2"))
        processes = {device: stack.enter_context(devices.start(device, 1)) for device in DEVICES}
        # In the middle of the sweep the server is killed, and away for some seconds.
        wait_for(lambda: [job for job in server.json("/v1/jobs") if job["runs_done"] >= 2], LIMIT_S)
        server.kill()
        wait_for(lambda: all("cannot be reached" in devices.said(device, 1) for device in DEVICES), LIMIT_S)
        server = stack.enter_context(serving(tmp_path / "store", "--port", str(port), "--workers", "2"))
        first = {device: devices.finish(processes[device], device, 1) for device in DEVICES}

        jobs = server.json("/v1/jobs")
        assert len(jobs) == 1  # both asked for the same
        runs = [(run["batch_size"], run["seed"]) for run in jobs[0]["runs"]]
        assert len(set(runs)) == len(runs)
        for kind in (ServedModel, SampleEfficiency):
            one, other = (kind.load(devices.run(device, 1) / f"{kind.name}.json") for device in DEVICES)
            assert one == other
        nano, orin = (first[device].plan for device in DEVICES)
        assert nano.clock_mhz != orin.clock_mhz
        for device, record in first.items():
            assert record.reached
            assert record.plan.cap_w == caps[device]
            assert not record.exceeds_cap
            assert record.provenance.kind == "simulated"

        # Without the server a board goes on with what it has of it, and delivers later what it could not.
        assert server.end() == 0
        with devices.start(DEVICES[0], 2) as process:
            second = devices.finish(process, DEVICES[0], 2)
        assert second.plan.point == nano.point
        for text in ("cannot be reached", "using the curve cached on", "will be delivered later"):
            assert text in devices.said(DEVICES[0], 2)
        server = stack.enter_context(serving(tmp_path / "store", "--port", str(port), "--workers", "0"))
        with devices.start(DEVICES[0], 3) as process:
            third = devices.finish(process, DEVICES[0], 3)

        found = {}
        for device in DEVICES:
            listed = server.json(f"/v1/trainings?device={devices.name(device)}")
            found[device] = [TrainingRecord.parse(server.json(f"/v1/trainings/{t['id']}")) for t in listed]
        kept = {DEVICES[0]: [third, second, first[DEVICES[0]]], DEVICES[1]: [first[DEVICES[1]]]}
        assert {device: [but_data(one) for one in own] for device, own in found.items()} == {
            device: [but_data(one) for one in own] for device, own in kept.items()
        }
        # Runs of one device on the same data are known as such.
        assert {len({one.provenance.data for one in own}) for own in found.values()} == {1}
        states = {state["status"]["device"]: state["status"] for state in server.json("/v1/devices")}
        assert {name: state["step"] for name, state in states.items()} == dict.fromkeys(
            map(devices.name, DEVICES), "done"
        )
        assert httpx.get(f"{server.url}/healthz", trust_env=False).status_code == 200
