"""Board records: what is taken along, and what never is."""

import json
from pathlib import Path

import pytest
from tests.support.agent_trees import link, put
from tests.support.board_records import materialise

from wattune.doctor.capture import PATTERNS, capture
from wattune_agent.errors import FileFailed, Forbidden
from wattune_agent.tree import Tree

GPU = "/sys/devices/57000000.gpu"
DEVFREQ = GPU + "/devfreq/57000000.gpu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "board"
    put(root, "/sys/firmware/devicetree/base/model", "NVIDIA Jetson Nano Developer Kit\0")
    put(root, "/sys/firmware/devicetree/base/serial-number", "1423019012345\0")
    put(root, "/sys/firmware/devicetree/base/gpu/name", "gpu\0")
    link(root, "/proc/device-tree", "/sys/firmware/devicetree/base")
    put(root, "/etc/nv_tegra_release", "# R32 (release), REVISION: 7.1, GCID: 1, BOARD: t210ref\n")
    put(root, "/etc/hostname", "anns-nano\n")
    put(root, "/proc/sys/kernel/hostname", "anns-nano\n")
    put(root, "/proc/sys/kernel/osrelease", "4.9.253-tegra\n")
    put(root, "/proc/cpuinfo", "processor\t: 0\nModel\t\t: Nano\nSerial\t\t: 100000001d2c3b4a\n")
    put(root, "/sys/class/net/eth0/address", "00:04:4b:e5:aa:bb\n")
    put(root, "/etc/nvpmodel.conf", "# secret comment\n< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n")
    for name, text in (("min_freq", "76800000"), ("max_freq", "921600000"), ("available_frequencies", "76800000 ")):
        put(root, f"{DEVFREQ}/{name}", text + "\n")
    link(root, GPU + "/of_node", "/sys/firmware/devicetree/base/gpu")
    link(root, DEVFREQ + "/device", GPU)
    link(root, "/sys/class/devfreq/57000000.gpu", DEVFREQ)
    return root


def test_files_stand_under_their_own_place_and_links_lead_there(root: Path, tmp_path: Path) -> None:
    record = capture(Tree(str(root)), source="a test")
    assert record["name"] == "NVIDIA Jetson Nano Developer Kit"
    assert (record["l4t"], record["kernel"]) == ("32.7.1", "4.9.253-tegra")
    assert record["source"] == ["a test"]
    assert record["files"][DEVFREQ + "/max_freq"] == "921600000\n"
    assert record["files"]["/sys/firmware/devicetree/base/gpu/name"] == "gpu\0"
    assert record["links"]["/sys/class/devfreq/57000000.gpu"] == DEVFREQ
    assert record["links"]["/proc/device-tree"] == "/sys/firmware/devicetree/base"

    again = Tree(materialise(json.loads(json.dumps(record)), str(tmp_path / "again")))
    assert again.read("/sys/class/devfreq/57000000.gpu/device/of_node/name") == "gpu"
    assert again.real("/sys/class/devfreq/57000000.gpu") == DEVFREQ
    assert capture(again)["files"] == record["files"]


def test_nothing_that_names_a_board_or_its_owner_is_taken(root: Path) -> None:
    text = json.dumps(capture(Tree(str(root))))
    for private in ("1423019012345", "anns-nano", "00:04:4b", "100000001d2c3b4a", "secret comment", str(root)):
        assert private not in text
    for pattern in PATTERNS:
        assert not any(word in pattern for word in ("serial", "address", "hostname", "machine-id", "/net/"))


def test_what_may_not_be_read_is_named(root: Path) -> None:
    class Refusing(Tree):
        def read(self, path: str) -> str:
            if path.endswith("min_freq"):
                raise Forbidden(f"{path} may not be read")
            if path.endswith("max_freq"):
                raise FileFailed(f"{path} cannot be read: Input/output error")
            return super().read(path)

    record = capture(Refusing(str(root)))
    assert record["unread"] == {DEVFREQ + "/min_freq": "not allowed", DEVFREQ + "/max_freq": "Input/output error"}
