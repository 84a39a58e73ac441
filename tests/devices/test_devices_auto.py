"""What "auto" opens: the first of what is here."""

from __future__ import annotations

import shutil

import pytest
from tests.support.agent_socket import serving
from tests.support.board_records import unpack
from tests.support.fake_nvml import FakeGpu, FakeLibrary, install

from wattune.devices import auto, known_devices, open_device
from wattune.errors import DeviceError, DeviceUnavailable, InputError


@pytest.fixture
def tree(tmp_path):
    return unpack("orin-nano-jp6", tmp_path / "tree")


def without_sensor(tree):
    for folder in ("bus/i2c", "class/hwmon/hwmon1", "devices/platform/bus@0/c240000.i2c"):
        path = tree / "sys" / folder
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return tree


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Put these into this computer."""

    def put(*, agents=(), local=(), cards=()):
        monkeypatch.setattr(auto, "agent_specs", lambda: list(agents))
        monkeypatch.setattr(auto, "local_specs", lambda root=None: list(local))
        install(monkeypatch, tmp_path, FakeLibrary(*(FakeGpu() for _ in cards)))

    return put


def test_a_board_in_a_folder(tree):
    device = open_device(f"auto?root={tree}")
    assert device.spec == f"jetson?root={tree}"
    assert "Orin Nano" in device.name
    device.close()
    known = known_devices(str(tree))
    assert [(entry.backend, entry.auto) for entry in known] == [("jetson", True), ("cpu", False)]


def test_an_agent_comes_first(here, tree, tmp_path):
    with serving(tree, tmp_path / "agent.sock") as agent:
        here(agents=[f"agent:{agent.socket}"], local=[f"jetson?root={tree}"], cards="1")
        device = open_device("auto")
        assert device.spec == f"agent:{agent.socket}"
        device.close()


def test_one_that_does_not_answer_is_passed_over(here, tree, tmp_path):
    here(agents=[f"agent:{tmp_path / 'none.sock'}"], local=[f"jetson?root={tree}"])
    device = open_device("auto")
    assert device.spec == f"jetson?root={tree}"
    device.close()


def test_a_card_comes_before_the_cpu(here, tree):
    here(local=[f"cpu?root={tree}"], cards="1")
    device = open_device("auto")
    assert device.spec == "nvidia:0"
    device.close()


def test_a_cpu_with_a_sensor(here, tmp_path):
    board = unpack("orin-nano-jp6", tmp_path / "board")
    here(local=[f"cpu?root={board}"])
    device = open_device("auto")
    assert device.spec == f"cpu?root={board}"
    device.close()


def test_what_was_tried_is_told(here, tree):
    without_sensor(tree)
    here(local=[f"jetson?root={tree}", f"cpu?root={tree}"])
    with pytest.raises(DeviceUnavailable) as caught:
        open_device("auto")
    assert isinstance(caught.value, DeviceError)
    assert all(word in str(caught.value) for word in (f"jetson?root={tree}: ", f"cpu?root={tree}: ", "wattune devices"))
    assert not any(entry.auto for entry in known_devices(str(tree)))
    here()
    with pytest.raises(DeviceUnavailable, match="neither agent, jetson, nvidia nor cpu is here"):
        open_device("auto")


@pytest.mark.parametrize("spec", ["auto:jetson", "auto?clock=3", "auto?root=/no/such/folder"])
def test_what_cannot_stand_behind_it(spec):
    with pytest.raises((InputError, DeviceUnavailable)):
        open_device(spec)
