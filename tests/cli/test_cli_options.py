"""What may stand behind the options of real boards."""

from __future__ import annotations

import pytest

from wattune.cap import PowerCap
from wattune.cli.options import device_spec, power_cap
from wattune.errors import InputError


@pytest.mark.parametrize(
    ("text", "cap_w", "side"),
    [
        ("10W", 10.0, "module"),
        ("10W@module", 10.0, "module"),
        ("12500mW@supply", 12.5, "supply"),
        ("12 W @ Supply", 12.0, "supply"),
        ("none", None, "module"),
    ],
)
def test_a_cap_and_its_side(text, cap_w, side):
    assert power_cap(text) == PowerCap(cap_w, side)


@pytest.mark.parametrize(
    "text", ["10W@", "10W@wall", "@supply", "none@supply", "10W@module@supply", "0W@supply", "nan"]
)
def test_an_invalid_cap_is_refused(text):
    with pytest.raises(InputError, match=r"--cap.*@sensor or @supply"):
        power_cap(text)


@pytest.mark.parametrize("text", ["-0.1W", "a little", "nan", ""])
def test_an_invalid_margin_is_refused(text):
    with pytest.raises(InputError, match="--margin"):
        power_cap("10W", text)


def test_options_that_are_not_given_leave_the_cap_of_a_resumed_run():
    before = PowerCap(12.0, "supply", margin_w=0.2, max_temp_c=80.0)
    assert power_cap(None, before=before) == before
    assert power_cap("10W", before=before) == PowerCap(10.0, margin_w=0.2, max_temp_c=80.0)
    assert power_cap(None, "0.5W", "70C", before=before) == PowerCap(12.0, "supply", margin_w=0.5, max_temp_c=70.0)


@pytest.mark.parametrize("text", ["80F", "-5", "0", "150", "hot", "nan", "1e9C", ""])
def test_an_invalid_temperature_is_refused(text):
    with pytest.raises(InputError, match="--max-temp"):
        power_cap("10W", max_temp=text)


def test_a_root_and_a_mode_are_written_behind_the_device(tmp_path):
    root = tmp_path / "a&b #1"
    (root / "sys").mkdir(parents=True)
    assert device_spec("jetson") == "jetson"
    assert device_spec("sim:jetson-nano") == "sim:jetson-nano"
    assert device_spec("jetson", None, "2") == "jetson?mode=2"
    spec = device_spec("cpu", root, "1")
    assert spec.startswith("cpu?root=/")
    assert spec.endswith("&mode=1")

    from wattune.devices.spec_options import split_options

    assert split_options(spec, "?", ("root", "mode"), device="cpu")[1] == {"root": str(root), "mode": "1"}


@pytest.mark.parametrize("device", ["sim:jetson-nano", "nvidia:0", "agent", "external:true"])
def test_other_devices_take_neither(tmp_path, device):
    (tmp_path / "sys").mkdir()
    for root, mode in ((tmp_path, None), (None, "2")):
        with pytest.raises(InputError, match="with this device"):
            device_spec(device, root, mode)


def test_knobs_are_written_behind_a_jetson_or_its_agent():
    assert device_spec("jetson", None, "2", "gpu,cpu") == "jetson?mode=2&knobs=gpu%2Ccpu"
    assert device_spec("agent:/run/a.sock", knobs="gpu") == "agent:/run/a.sock?knobs=gpu"
    for device in ("sim:jetson-nano", "nvidia:0", "cpu", "replay:table.csv"):
        with pytest.raises(InputError, match="--knobs with this device"):
            device_spec(device, knobs="gpu")


def test_a_root_without_files(wattune, tmp_path):
    for command in (
        ["doctor"],
        ["doctor", "--device", "jetson"],
        ["guard", "--device", "jetson"],
        ["profile", "--device", "cpu"],
    ):
        tail = ["--", "true"] if command[0] == "guard" else []
        code, out, err = wattune(*command, "--sysfs-root", tmp_path, *tail)
        assert (code, out, len(err)) == (2, "", 1)
        assert "a folder with sys/" in err[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--cap", "4W", "--mode", "2"],
        ["run", "--device", "sim:jetson-nano", "--cap", "4W", "--mode", "2"],
        ["run", "--device", "sim:jetson-nano", "--cap", "4W", "--max-temp", "warm"],
        ["run", "--device", "sim:jetson-nano", "--cap", "4W@wall"],
        ["train", "plan.json", "--device", "sim:jetson-nano", "--max-temp", "999"],
        ["compare", "a", "b", "--device", "sim:jetson-nano", "--cap", "4W", "--mode", "1"],
        ["profile", "--device", "sim:jetson-nano", "--check", "absent.json"],
        ["profile", "--device", "sim:jetson-nano", "--check", "absent.json", "--cap", "4W"],
        ["profile", "--device", "sim:jetson-nano", "--check", "absent.json", "--resume"],
        ["guard", "--device", "sim:jetson-nano", "--", "true"],
        ["guard", "--device", "jetson"],
        ["doctor", "--device", "sim:jetson-nano"],
        ["doctor", "--device", "nonsense"],
        ["doctor", "--device", "agent:/nowhere.sock", "--calibrate", "sim:jetson-nano"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant(wattune, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = wattune(*arguments)
    assert (code, out, len(err)) == (2, "", 1), err
    assert not list(tmp_path.iterdir())
