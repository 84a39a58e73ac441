"""Any program under a cap: on a live board in user space, with programs that are no Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from tests.support.board_records import unpack
from tests.support.cli_boards import limits, live_board

from wattune.cli.guarded_device import Pinned
from wattune.devices import Device, Knob, Sensor
from wattune.devices.base import Conditions
from wattune.errors import DeviceUnavailable
from wattune.point import Knobs
from wattune.records import BoardEvent
from wattune_agent.cap_guard import told
from wattune_agent.errors import NotRestored, NotThere
from wattune_agent.guarded import run_guarded
from wattune_agent.outcome import GuardRequest, Report, in_words

GUARD = ["guard", "--device", "jetson", "--sysfs-root"]
COMMAND = [sys.executable, "-m", "wattune"]


@pytest.mark.slow
def test_it_pins_meters_restores_and_ends_as_the_program_did(wattune, tmp_path):
    with live_board(tmp_path / "board", load=0.5) as root:
        before = limits(root)
        script = f"cat {root}/sys/class/devfreq/*/max_freq; sleep 1; exit 3"
        code, out, err = wattune(
            *GUARD, root, "--clock", "612MHz", "--json", "-o", tmp_path / "report.json", "--", "sh", "-c", script
        )
        assert limits(root) == before
    report = json.loads(out)
    assert code == report["exit_code"] == 3
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert report["clock_mhz"] == 612.0
    assert report["time_s"] >= 1.0  # the sleep; how much more is the machine's affair
    assert report["energy_j"] == pytest.approx(report["power_mean_w"] * report["time_s"])
    assert report["provenance"]["kind"] == "simulated"
    assert err == [f"wattune: the guard record is in {tmp_path / 'report.json'}"]


def test_a_report_does_not_replace_a_file_that_the_program_made(root, tmp_path):
    report = tmp_path / "report.json"
    command = [*COMMAND, *GUARD, str(root), "-o", str(report), "--", "sh", "-c", f"echo mine > {report}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert report.read_text() == "mine\n"
    assert json.loads((tmp_path / "report-2.json").read_text())["record"] == "guard"
    assert f"is in {tmp_path / 'report-2.json'}" in done.stderr


def test_a_board_that_is_not_restored_is_in_the_report_with_the_programs_exit_code(
    wattune, root, tmp_path, monkeypatch
):
    def fails(*_):
        raise NotRestored("max_freq cannot be written")

    monkeypatch.setattr("wattune_agent.controller.give_back", fails)
    report = tmp_path / "report.json"
    arguments = [*GUARD, root, "--clock", "612MHz", "-o", report, "--", "sh", "-c", "exit 7"]
    code, _, err = wattune(*arguments)
    assert code == 7
    record = json.loads(report.read_text())
    assert [event["kind"] for event in record["events"]] == ["not restored"]
    assert any("max_freq cannot be written" in line for line in err)


def test_without_json_stdout_is_the_programs_own(root):
    done = subprocess.run([*COMMAND, *GUARD, str(root), "--", "echo", "mine"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert all(line.startswith("wattune: ") for line in done.stderr.splitlines())
    assert "simulated" in done.stderr


def test_a_cap_at_the_supply_is_reported_as_one(wattune, root, tmp_path):
    options = ["--meter", "external:echo 5", "--cap", "12W@supply"]
    code, out, err = wattune(*GUARD, root, *options, "-o", tmp_path / "report.json", "--", "true")
    assert (code, out) == (0, "")
    assert any("above 12 W (12 W at the supply) for 0.0 s" in line for line in err)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["cap_w"], report["supply_cap_w"], report["cap_side"]) == (12.0, 12.0, "supply")
    out = wattune(*GUARD, root, "--cap", "12W", "--json", "--", "true")[1]
    report = json.loads(out)
    assert (report["cap_w"], report["supply_cap_w"], report["cap_side"]) == (12.0, None, "module")


def test_a_clock_may_be_given_rounded(wattune, tmp_path):
    root = unpack("nano-jp4", tmp_path / "board")
    code, out, err = wattune(*GUARD, root, "--clock", "77MHz", "--json", "--", "true")
    assert code in (0, 1), err  # a folder does not follow
    assert "has no such clock" not in out
    code, out, err = wattune(*GUARD, root, "--clock", "500MHz", "--json", "--", "true")
    assert (code, len(err)) == (2, 1)
    assert "460.8" in json.loads(out)["error"]["message"]
    err = wattune(*GUARD, root, "--clock", "612000000", "--", "true")[2]
    assert "no such clock: 612000000 MHz; allowed: 76.8, " in err[0]


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (["--cap", "10W@supply", "--", "true"], "a meter at the supply"),
        (["--", "/no/such/program"], "program not found"),
        (["-o", "taken", "--", "true"], "the output file exists"),
        (["-o", "taken/report.json", "--", "touch", "ran"], "cannot write to taken"),
    ],
)
def test_what_cannot_be_done_is_one_line(refused, root, tmp_path, monkeypatch, tail, words):
    before = limits(root)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("mine")
    assert words in refused(*GUARD, root, *tail)
    assert limits(root) == before
    assert not (tmp_path / "ran").exists()


def test_the_options_of_the_program_are_its_own(wattune, root):
    code, out, err = wattune(*GUARD, root, "--clock", "nonsense", "--", "echo", "--json", "--clock")
    assert (code, out, len(err)) == (2, "", 1), "a --json behind -- is not ours"
    code, _, _ = wattune(*GUARD, root, "--", "sh", "-c", 'test "$1" = --json', "sh", "--json")
    assert code == 0


@pytest.mark.slow
def test_after_a_kill_restore_brings_the_board_back(wattune, tmp_path):
    with live_board(tmp_path / "board") as root:
        before = limits(root)
        script = "echo $$; exec sleep 60"
        process = subprocess.Popen(
            [*COMMAND, *GUARD, str(root), "--clock", "612", "--", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        program = int(process.stdout.readline())
        process.kill()
        process.wait()
        until_s = time.monotonic() + 60
        while os.path.exists(f"/proc/{program}"):  # it does not run on without its guard
            assert time.monotonic() < until_s
            time.sleep(0.01)
        process.communicate()  # which would wait for the program, too
        changed = limits(root)
        assert changed != before
        code, out, _ = wattune("doctor", "--sysfs-root", root)
        assert code == 1
        assert "wattune restore" in out
        code, out, err = wattune("restore", "--sysfs-root", root)
        assert (code, err) == (0, [])
        assert "612" in out or "as it was" in out
        until_s = time.monotonic() + 30
        while limits(root) != before and time.monotonic() < until_s:
            time.sleep(0.01)
        assert limits(root) == before
        assert wattune("restore", "--sysfs-root", root)[1] == "nothing to restore\n"


class Sensing:
    """A device with a power limit, as ``Pinned`` is told of it: what it does is written down."""

    name = "a card"
    knobs = (Knob("power_limit_w", (100.0, 150.0, 200.0)),)
    combinations, only_knob = Device.combinations, Device.only_knob
    sensor = Sensor(rail="counter")

    def __init__(self, may=True):
        self.may, self.did = may, []

    @contextmanager
    def at(self, knobs):
        if not self.may:
            raise DeviceUnavailable("only root may set clocks and power limits")
        self.did.append(knobs)
        yield self
        self.did.append("back")

    def power_w(self):
        return 120.0

    def conditions(self):
        return Conditions(temperature_c=50.0)

    def now_s(self):
        return 0.0

    def events(self):
        kinds = ("stuck sensor", "throttled")
        return tuple(BoardEvent(time_s=0.0, kind=kind, text=kind) for kind in kinds)


def test_a_card_is_tried_before_a_program_runs_on_it(tmp_path):
    device = Sensing()
    report = run_guarded(Pinned(device), ["true"], cap_w=150.0)
    assert device.did == [Knobs(power_limit_w=200.0), "back"]
    assert [event["kind"] for event in report.events] == ["throttled"]
    with pytest.raises(NotThere, match="only root"):
        run_guarded(Pinned(Sensing(may=False)), ["touch", str(tmp_path / "ran")], cap_w=150.0)
    assert not (tmp_path / "ran").exists()


def test_the_settings_of_a_power_limit_are_watts():
    device, asked = Sensing(), GuardRequest(["sleep"], None, 110.0, None, None)
    described = Pinned(device).describe()
    event = {"time_s": 0.1, "kind": "guard", "text": "", "power_w": 120.0, "action": "down", "setting": 150.0}
    held = [[150.0, 1.0]]
    report = Report(1.0, 120.0, 120.0, 120.0, 0.5, None, 9, [event], 0, "finished", settings_s=held)
    assert "held 150 W" in in_words(report, asked, described, "measured")
    assert told(event, unit=described["setting_unit"]).endswith("down to 150 W")
