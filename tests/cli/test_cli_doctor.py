"""``wattune doctor``: checks, and board records to share."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from tests.support.board_records import materialise, unpack
from tests.support.cli_boards import limits, live_board
from tests.support.cli_records import PROFILE

from wattune.devices.agent import BoardDevice
from wattune.doctor import default_device, examine, tried_settings
from wattune.errors import DeviceError


def test_a_healthy_board(wattune, root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    code, out, err = wattune("doctor", "--sysfs-root", root)
    assert (code, err) == (0, [])
    assert all(line.startswith(("ok ", "warn ", " ")) for line in out.splitlines())
    assert "VDD_IN 4.556 W" in out
    code, out, _ = wattune("doctor", "--sysfs-root", root, "--json")
    output = json.loads(out)
    assert code == 0
    assert {"name", "state", "text", "fix"} == set(output["findings"][0])
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before, "nothing on the board is changed"


def test_a_board_without_a_sensor(wattune, root):
    for path in [*root.rglob("in?_input"), *root.rglob("curr?_input")]:
        path.unlink()
    code, out, err = wattune("doctor", "--device", "jetson", "--sysfs-root", root, "--json")
    assert (code, len(err)) == (1, 1)
    assert "not ready to train on" in err[0]
    output = json.loads(out)
    assert output["error"]["exit_code"] == 1
    assert any(finding["state"] == "fail" and "external:" in finding["text"] for finding in output["findings"])


def test_a_shared_record_recreates_the_board(wattune, refused, tmp_path):
    root = unpack("nano-jp4", tmp_path / "board")
    path = tmp_path / "board.json"
    code, _, err = wattune("doctor", "--sysfs-root", root, "--submit", path)
    assert code == 0
    assert str(path) in err[-2]
    record = json.loads(path.read_text())
    assert (record["record"], record["version"]) == ("board", 1)
    before = path.read_bytes()
    refused("doctor", "--sysfs-root", root, "--submit", path)
    assert path.read_bytes() == before

    again = str(tmp_path / "again")
    materialise(record, again)
    assert default_device(again) == "jetson"
    texts = [
        [finding.text for finding in examine(f"jetson?root={place}").findings if finding.name in ("rails", "clock")]
        for place in (root, again)
    ]
    assert texts[0] == texts[1]


def test_a_board_behind_an_agent_is_examined_as_well(wattune, root, tmp_path):
    socket = tmp_path / "agent.sock"
    command = [sys.executable, "-m", "wattune_agent", "serve", "--sysfs-root", str(root), "--socket", str(socket)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert str(socket) in agent.stderr.readline()
            code, out, err = wattune("doctor", "--device", f"agent:{socket}")
        finally:
            agent.terminate()
            agent.communicate()
    assert (code, err) == (0, [])
    assert "VDD_IN 4.556 W" in out


# ------------------------------------------------------------------------------------------------------------------ try


def test_trying_needs_an_agreement(wattune, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "--yes" in refused("doctor", "--try", "--device", "sim:jetson-nano")
    assert wattune("doctor", "--yes", "--device", "sim:jetson-nano")[0] == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "board.json").write_text("{}")
    code, _, err = wattune("doctor", "--try", "--yes", "--device", "sim:jetson-nano")
    assert (code, err) == (2, ["wattune: the output file exists: board.json; choose another with --submit FILE"])


@pytest.mark.parametrize(("answer", "is_agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("", False)])
def test_trying_asks_on_a_terminal(wattune, tmp_path, monkeypatch, answer, is_agreed):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, out, err = wattune("doctor", "--try", "--device", "sim:jetson-nano")
    assert code == 0
    assert "76.8 MHz; 537.6 MHz; 921.6 MHz" in err[0]
    assert ("restored" in out) == is_agreed == (tmp_path / "board.json").exists()


def test_trying_a_simulated_and_a_replayed_device(wattune, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = wattune("doctor", "--try", "--yes", "--device", "sim:jetson-nano", "--json")
    content = json.loads(out)
    assert (code, content["provenance"]["kind"]) == (0, "simulated")
    assert [row["clock_read_mhz"] for row in content["tried"]] == [76.8, 537.6, 921.6]
    powers_w = [row["power_mean_w"] for row in content["tried"]]
    assert powers_w == sorted(powers_w)
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "profile.json").write_text(json.dumps(PROFILE))
    code, out, err = wattune("doctor", "--try", "--yes", "--device", "replay:profile.json", "--submit", "again.json")
    assert code == 0, err
    assert "[replayed]" in out
    assert json.loads((tmp_path / "again.json").read_text())["provenance"]["kind"] == "replayed"


@pytest.fixture
def briefly(monkeypatch):
    """Settings are held for a moment: these boards need no time to settle."""
    monkeypatch.setattr(tried_settings, "TRY_S", 0.4)


@pytest.mark.slow
def test_trying_a_board_restores_it_and_records_it(wattune, tmp_path, briefly):
    path = tmp_path / "tried.json"
    with live_board(tmp_path / "board", load=1.0) as root:
        before = limits(root)
        code, out, err = wattune("doctor", "--try", "--yes", "--sysfs-root", root, "--submit", path)
        assert limits(root) == before
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["306", "714", "1020"]
    record = json.loads(path.read_text())
    assert [row["clock_read_mhz"] for row in record["tried"]] == pytest.approx([306, 714, 1020], rel=0.01)
    assert record["provenance"]["kind"] == "simulated"
    materialise(record, str(tmp_path / "again"))
    assert default_device(str(tmp_path / "again")) == "jetson"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "remark"), [("orin-nano-jp6", "not the pinned one"), ("agx-thor-r39", "suspended")])
def test_a_clock_that_does_not_follow_is_remarked_on(wattune, tmp_path, briefly, name, remark):
    # A folder of files: its clock stays where it was recorded.
    root = unpack(name, tmp_path / "board")
    before = limits(root)
    code, out, err = wattune("doctor", "--try", "--yes", "--sysfs-root", root, "--submit", tmp_path / "b.json")
    assert code == 0, err
    assert remark in out.splitlines()[4]
    assert limits(root) == before


def test_a_setting_that_fails_is_reported_and_the_board_restored(wattune, tmp_path, briefly, monkeypatch):
    apply = BoardDevice._apply

    def fails(self, knobs):
        if knobs["clock_mhz"] == 714:
            raise DeviceError("the clock does not move")
        apply(self, knobs)

    monkeypatch.setattr(BoardDevice, "_apply", fails)
    with live_board(tmp_path / "board") as root:
        before = limits(root)
        code, out, err = wattune("doctor", "--try", "--yes", "--sysfs-root", root, "--submit", tmp_path / "b.json")
        assert limits(root) == before
    assert (code, err[-1]) == (1, "wattune: 714 MHz: the clock does not move")
    assert [row["failed"] for row in json.loads((tmp_path / "b.json").read_text())["tried"]] == [False, True, False]
    assert "failed, see below" in out.splitlines()[3]


def test_an_interrupted_try_restores_the_board_and_writes_nothing(wattune, tmp_path, briefly, monkeypatch):
    pinned = []

    def interrupted(device, knobs, work):
        pinned.append(limits(root))
        raise KeyboardInterrupt

    monkeypatch.setattr(tried_settings, "_measured", interrupted)
    with live_board(tmp_path / "board") as root:
        before = limits(root)
        code, out, err = wattune("doctor", "--try", "--yes", "--sysfs-root", root, "--submit", tmp_path / "b.json")
        assert limits(root) == before != pinned[0]
    assert (code, out, err[-1]) == (130, "", "wattune: interrupted")
    assert not (tmp_path / "b.json").exists()


def test_nothing_to_try_without_a_clock(wattune):
    code, out, err = wattune("doctor", "--try", "--yes", "--device", "external:echo 5", "--json")
    assert (code, len(err)) == (2, 1), out
    assert "no clock" in err[0]
