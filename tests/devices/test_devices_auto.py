"""What "auto" opens: the first of what is here."""

from __future__ import annotations

import pytest
from tests.support.agent_socket import serving
from tests.support.board_records import unpack, without_sensor
from tests.support.fake_nvml import FakeGpu, FakeLibrary, install

from wattune.devices import auto, known_devices, open_device
from wattune.errors import DeviceError, DeviceUnavailable, InputError


@pytest.fixture
def tree(tmp_path):
    return unpack("orin-nano-jp6", tmp_path / "tree")


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Put these into this computer."""

    def put(*, agents=(), local=(), cards=()):
        monkeypatch.setattr(auto, "agent_specs", lambda: list(agents))
        monkeypatch.setattr(auto, "local_specs", lambda root=None: list(local))
        install(monkeypatch, tmp_path, FakeLibrary(*(FakeGpu() for _ in cards)))

    return put


def opened_by_auto():
    device = open_device("auto")
    device.close()
    return device.spec


def test_a_board_in_a_folder(tree):
    device = open_device(f"auto?root={tree}")
    assert device.spec == f"jetson?root={tree}"
    assert "Orin Nano" in device.name
    device.close()
    known = known_devices(str(tree))
    assert [(entry.backend, entry.auto) for entry in known] == [("jetson", True), ("cpu", False)]


def test_an_agent_comes_first_unless_it_does_not_answer(here, tree, tmp_path):
    local, socket = f"jetson?root={tree}", tmp_path / "agent.sock"
    here(agents=[f"agent:{socket}"], local=[local], cards="1")
    with serving(tree, socket):
        assert opened_by_auto() == f"agent:{socket}"
    here(agents=[f"agent:{socket}"], local=[local])
    assert opened_by_auto() == local


@pytest.mark.parametrize(("cards", "spec"), [("1", "nvidia:0"), ("", "cpu?root={}")])
def test_a_card_comes_before_a_cpu_with_a_sensor(here, tree, cards, spec):
    here(local=[f"cpu?root={tree}"], cards=cards)
    assert opened_by_auto() == spec.format(tree)


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
