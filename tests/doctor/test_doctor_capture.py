"""Board records: what is taken along, what never is, and that a stranger's record can do no harm."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_sensors import run_programs
from tests.support.agent_trees import link, put

from wattune.doctor.capture import PATTERNS, capture, materialise
from wattune_agent.errors import BadRequest, FileFailed, Forbidden
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
    record = capture(Tree(str(root)), source="a test", note="made up")
    assert record["name"] == "NVIDIA Jetson Nano Developer Kit"
    assert (record["l4t"], record["kernel"]) == ("32.7.1", "4.9.253-tegra")
    assert (record["source"], record["note"]) == (["a test"], "made up")
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


def test_what_may_not_be_read_is_named_and_its_permission_kept(root: Path, tmp_path: Path) -> None:
    class Refusing(Tree):
        def read(self, path: str) -> str:
            if path.endswith("min_freq"):
                raise Forbidden(f"{path} may not be read")
            if path.endswith("max_freq"):
                raise FileFailed(f"{path} cannot be read: Input/output error")
            return super().read(path)

    (root / DEVFREQ.lstrip("/") / "min_freq").chmod(0o400)
    record = capture(Refusing(str(root)))
    assert record["unread"] == {DEVFREQ + "/min_freq": "not allowed", DEVFREQ + "/max_freq": "Input/output error"}
    assert record["modes"] == {DEVFREQ + "/min_freq": "0400"}
    place = tmp_path / "again" / DEVFREQ.lstrip("/") / "min_freq"
    materialise(record, str(tmp_path / "again"))
    assert stat.S_IMODE(place.stat().st_mode) == 0o400


def test_a_program_is_kept_as_its_answers(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_programs(monkeypatch)
    put(root, "/usr/bin/vcgencmd", '#!/bin/sh\necho "throttled=0x0 it\'s $1"\n')
    (root / "usr/bin/vcgencmd").chmod(0o755)
    record = capture(Tree(str(root)))
    assert record["outputs"]["vcgencmd get_throttled"] == "throttled=0x0 it's get_throttled\n"
    again = Tree(materialise(record, str(tmp_path / "again")))
    assert again.program("vcgencmd") is None  # nothing of somebody else's record is run
    assert again.answer("vcgencmd get_throttled") == record["outputs"]["vcgencmd get_throttled"]
    assert again.answer("vcgencmd measure_temp") is None
    assert capture(again)["outputs"] == record["outputs"]


BASE: dict[str, Any] = {"record": "board", "version": 1, "files": {}, "links": {}}


@pytest.mark.parametrize(
    "record",
    [
        {"record": "profile", "version": 1},
        [],
        {**BASE, "version": 2},
        {**BASE, "files": {"/sys/../../outside": "x"}},
        {**BASE, "files": {"sys/relative": "x"}},
        {**BASE, "files": {"/sys//twice": "x"}},
        {**BASE, "files": ["/sys/a"]},
        {**BASE, "files": {"/sys/a": 1}},
        {**BASE, "files": {"/sys/a": "x", "/sys/a/b": "x"}},
        {"record": "board", "version": 1},
        {**BASE, "links": {"/sys/a": "../../../etc"}},
        {**BASE, "files": {"/sys/a": "x"}, "links": {"/sys/a": "/etc"}},
        {**BASE, "outputs": {"rm -rf": "x"}},
        {**BASE, "outputs": {"vcgencmd $(id)": "x"}},
        {**BASE, "modes": {"/sys/none": "0644"}},
    ],
)
def test_a_strangers_record_writes_nowhere_else(record: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        materialise(record, str(tmp_path / "a" / "board"))
    assert not (tmp_path / "outside").exists()


def test_no_file_of_a_record_can_be_run_and_no_link_leads_out(tmp_path: Path) -> None:
    record = {**BASE, "files": {"/usr/bin/vcgencmd": "#!/bin/sh\ntouch /tmp/x\n"}, "links": {"/sys/a": "/etc"}}
    record["modes"] = {"/usr/bin/vcgencmd": "4755"}
    tree = Tree(materialise(record, str(tmp_path / "board")))
    assert tree.program("vcgencmd") is None
    assert tree.inside("/sys/a") == str(tmp_path / "board" / "etc")


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x", encoding="utf-8")
    with pytest.raises(BadRequest, match="not empty"):
        materialise(BASE, str(tmp_path))
