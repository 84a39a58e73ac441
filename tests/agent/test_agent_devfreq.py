"""The GPU's clock is found on every board by its name, and pinned with railgating off."""

import pytest
from tests.support.agent_trees import (
    DEVFREQ,
    GPU,
    HIGH,
    LISTED_MHZ,
    LOW,
    RAILGATE,
    MadeTree,
    gpu_tree,
    link,
    put,
    texts,
)

from wattune_agent.devfreq import find_gpu_clock


def found(root):
    clock, problems = find_gpu_clock(MadeTree(root))
    assert problems == []
    return clock


def test_frequencies_become_mhz_once(tmp_path):
    clock = found(gpu_tree(tmp_path, now_mhz=408.0))
    assert clock.unit == "gpu"
    assert clock.settings_mhz == LISTED_MHZ
    assert clock.now_mhz() == 408.0
    assert clock.pinned_mhz() is None


@pytest.mark.parametrize("node", ["gpu\0", "gv11b", "gp10b\0\n", "ga10b", "gb10b", "nvgpu\0"])
def test_the_name_in_the_device_tree_counts(tmp_path, node):
    assert found(gpu_tree(tmp_path, node=node)).settings_mhz == LISTED_MHZ


@pytest.mark.parametrize("node", ["nvdec\0", "vic", "nvenc", "dmc", "memory-controller"])
def test_other_clocks_do_not(tmp_path, node):
    clock, problems = find_gpu_clock(MadeTree(gpu_tree(tmp_path, node=node)))
    assert clock is None
    assert "of_node/name" in problems[0]


def test_the_gpu_is_chosen_among_other_clocks(tmp_path):
    gpu_tree(tmp_path)
    other = "/sys/devices/platform/bus@0/15340000.vic"
    put(tmp_path, other + "/devfreq/15340000.vic/available_frequencies", "115200000 601600000\n")
    put(tmp_path, other + "/of_node/name", "vic\0")
    link(tmp_path, other + "/devfreq/15340000.vic/device", other)
    link(tmp_path, "/sys/class/devfreq/15340000.vic", other + "/devfreq/15340000.vic")
    assert found(tmp_path).files()[0] == LOW


@pytest.mark.parametrize("node", ["gpu\0", None])
def test_a_tree_without_links_is_searched(tmp_path, node):
    assert found(gpu_tree(tmp_path, links=False, node=node)).files()[0] == LOW


def test_jetpack_7_names_the_clock_of_the_cores(tmp_path):
    gpu = "/sys/devices/platform/bus@0/d0b0000000.pcie/pci0000:00/0000:01:00.0"
    for name, mhz in (("gpu-gpc-0", 1575), ("gpu-nvd-0", 1692)):
        folder = f"{gpu}/devfreq/{name}"
        put(tmp_path, folder + "/available_frequencies", f"315000000 {mhz}000000\n")
        link(tmp_path, "/sys/class/devfreq/" + name, folder)
        link(tmp_path, folder + "/device", gpu)
    assert found(tmp_path).settings_mhz == (315.0, 1575.0)


def test_a_table_without_frequencies_is_a_problem(tmp_path):
    put(gpu_tree(tmp_path), DEVFREQ + "/available_frequencies", "\n")
    clock, problems = find_gpu_clock(MadeTree(tmp_path))
    assert clock is None
    assert "lists no frequency" in problems[0]


def test_a_link_that_leads_out_of_the_tree_is_not_followed(tmp_path):
    outside = gpu_tree(tmp_path / "outside")
    inside = tmp_path / "inside"
    link(inside, "/sys/class/devfreq/gpu-gpc-0", "/../outside" + DEVFREQ)
    clock, problems = find_gpu_clock(MadeTree(inside))
    assert clock is None
    assert "leads out of" in problems[0]
    assert (outside / HIGH[1:]).read_text() == "1020000000\n"


def test_railgating_goes_off_before_the_limits_and_comes_back_after_them(tmp_path):
    tree = MadeTree(gpu_tree(tmp_path))
    clock, _ = find_gpu_clock(tree)
    assert clock.files() == [LOW, HIGH, RAILGATE.replace(GPU, DEVFREQ + "/device")]
    before = texts(tmp_path)
    saved = {path: (tmp_path / path[1:]).read_text() for path in clock.files()}
    clock.pin(612.0)
    assert [path.rsplit("/")[-1] for path in tree.written] == ["railgate_enable", "min_freq", "max_freq"]
    assert tree.read(RAILGATE) == "0"
    tree.written.clear()
    clock.restore(saved)
    assert [path.rsplit("/")[-1] for path in tree.written] == ["max_freq", "min_freq", "railgate_enable"]
    assert texts(tmp_path) == before


def test_railgating_that_is_off_is_left_alone(tmp_path):
    tree = MadeTree(gpu_tree(tmp_path, railgate="0\n"))
    tree.before_write = lambda path, text: pytest.fail(path) if "railgate" in path else None
    find_gpu_clock(tree)[0].pin(612.0)


def test_a_board_without_railgating(tmp_path):
    clock = found(gpu_tree(tmp_path, railgate=None))
    clock.pin(612.0)
    assert clock.files() == [LOW, HIGH]


def test_a_pin_at_another_frequency_than_a_listed_one_is_none(tmp_path):
    assert found(gpu_tree(tmp_path, low_mhz=650.0, high_mhz=650.0)).pinned_mhz() is None
