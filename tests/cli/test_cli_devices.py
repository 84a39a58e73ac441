"""``wattune devices``: what is listed, as text and as JSON."""

import json

import pytest
from tests.support.board_records import unpack, without_sensor

FIELDS = {"backend", "name", "clocks_mhz", "power_w", "mode", "problems", "spec"}


def test_what_is_in_a_folder_is_all_that_is_listed(wattune, tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "tree")
    code, out, err = wattune("devices", "--json", "--sysfs-root", root)
    assert (code, err) == (0, [])
    listed = json.loads(out)
    assert [entry["backend"] for entry in listed] == ["jetson", "cpu"]
    jetson = listed[0]
    assert set(jetson) >= FIELDS
    assert jetson["spec"] == f"jetson?root={root}"
    assert "Orin Nano" in jetson["name"]
    assert jetson["clocks_mhz"] == [306, 408, 510, 612, 714, 816, 918, 1020]
    assert jetson["power_w"] == pytest.approx(5.04 * 0.904)
    assert jetson["mode"].startswith("nvpmodel MAXN_SUPER (ID 2), online cores 0-5")
    assert jetson["problems"] == []
    assert jetson["kind"] == "simulated"


def test_a_relative_folder_gives_a_name_that_can_be_used_anywhere(wattune, tmp_path, monkeypatch):
    unpack("nano-jp4", tmp_path / "tree")
    monkeypatch.chdir(tmp_path)
    _, out, _ = wattune("devices", "--json", "--sysfs-root", "tree")
    assert json.loads(out)[0]["spec"] == f"jetson?root={tmp_path}/tree"


def test_as_text(wattune, tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "tree")
    code, out, err = wattune("devices", "--sysfs-root", root)
    assert (code, err) == (0, [])
    line = next(line for line in out.splitlines() if line.startswith("jetson?root="))
    assert "4.56 W" in line
    assert "8 values from 306 to 1020 MHz" in " ".join(out.split())
    assert "sensor VDD_IN (the module)" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80 + len(str(tmp_path))


def test_a_board_without_a_sensor_is_listed_with_its_problem(wattune, tmp_path):
    root = without_sensor(unpack("orin-nano-jp6", tmp_path / "tree"))
    code, out, err = wattune("devices", "--sysfs-root", root)
    assert code == 0
    assert "sensor none" in out
    assert any(line.startswith("wattune: jetson?root=") and "looked for" in line for line in err)


def test_a_folder_with_nothing_in_it(wattune, refused, tmp_path):
    (tmp_path / "sys").mkdir()
    assert wattune("devices", "--json", "--sysfs-root", tmp_path) == (0, "[]\n", [])
    code, out, _ = wattune("devices", "--sysfs-root", tmp_path)
    assert code == 0
    assert "no supported board" in out
    refused("devices", "--sysfs-root", tmp_path / "none")


def test_each_clock_of_a_board_has_its_range(wattune):
    _, out, _ = wattune("devices")
    several = " ".join(out.partition("sim:jetson-tx2: ")[2].split())
    assert several.startswith(
        "13 values from 114.75 to 1300.5 MHz; memory 7 values from 408 to 1866 MHz; CPU 12 values"
    )
    assert max(map(len, out.splitlines())) <= 80


def test_a_computer_with_nothing_to_train_on_is_told_what_was_looked_for(wattune):
    _, out, err = wattune("devices")
    is_here = any(not line.startswith(("device", "sim:", " ")) and line for line in out.splitlines())
    assert is_here != any("external:COMMAND" in line for line in err)
