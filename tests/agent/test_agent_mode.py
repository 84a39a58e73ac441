from pathlib import Path

from tests.support.agent_sensors import TimedTree, put

from wattune_agent.mode import mode, mode_id

CONF = """\
# a comment with < POWER_MODEL ID=9 NAME=NOT_ONE >
< PARAM TYPE=FILE NAME=CPU_ONLINE >
CORE_0 /sys/devices/system/cpu/cpu0/online
< POWER_MODEL ID=0 NAME=15W >
CPU_ONLINE CORE_1 1
GPU MAX_FREQ 612000000
< POWER_MODEL ID=1 NAME=25W >
< POWER_MODEL NAME=MAXN_SUPER ID=2 >
< PM_CONFIG DEFAULT=1 >
"""


def orin(root: Path, status: str = "pmode:0002\n") -> TimedTree:
    put(root, "/etc/nvpmodel.conf", CONF)
    put(root, "/var/lib/nvpmodel/status", status)
    put(root, "/sys/devices/system/cpu/online", "0-5\n")
    for policy, khz in ((0, 1728000), (4, 1728000)):
        folder = f"/sys/devices/system/cpu/cpufreq/policy{policy}"
        put(root, f"{folder}/scaling_min_freq", "729600\n")
        put(root, f"{folder}/scaling_max_freq", f"{khz}\n")
    put(root, "/sys/kernel/nvpmodel_clk_cap/emc", "2133000000\n")
    put(root, "/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n")
    return TimedTree(root)


def test_a_jetsons_mode_in_words_and_in_order(tmp_path: Path) -> None:
    assert list(mode(orin(tmp_path)).items()) == [
        ("nvpmodel", "MAXN_SUPER (ID 2)"),
        ("online cores", "0-5"),
        ("CPU limit", "1728 MHz"),
        ("jetson_clocks", "off"),
        ("memory clock limit", "2133 MHz"),
        ("L4T", "36.4.3"),
    ]


def test_each_change_shows(tmp_path: Path) -> None:
    tree = orin(tmp_path)
    before = mode(tree)
    for path, text, name, value in (
        ("/var/lib/nvpmodel/status", "pmode:0000", "nvpmodel", "15W (ID 0)"),
        ("/sys/devices/system/cpu/online", "0-3", "online cores", "0-3"),
        ("/sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1190400", "CPU limit", "1728 + 1190.4 MHz"),
        ("/sys/kernel/nvpmodel_clk_cap/emc", "0", "memory clock limit", "none"),
        ("/etc/nv_tegra_release", "# R35 (release), REVISION: 3.1, GCID", "L4T", "35.3.1"),
    ):
        put(tmp_path, path, text)
        after = mode(tree)
        assert after[name] == value
        assert {key for key in after if after[key] != before.get(key)} == {name}
        before = after


def test_jetson_clocks_hold_the_cpu_at_its_limit(tmp_path: Path) -> None:
    tree = orin(tmp_path)
    for policy in (0, 4):
        put(tmp_path, f"/sys/devices/system/cpu/cpufreq/policy{policy}/scaling_min_freq", "1728000")
    assert mode(tree)["jetson_clocks"] == "on"


def test_a_board_that_trains_on_its_cpu_leaves_its_clock_out(tmp_path: Path) -> None:
    found = mode(orin(tmp_path), "cpu")
    assert "CPU limit" not in found
    assert "jetson_clocks" not in found


def test_the_mode_that_a_board_starts_with_and_one_without_a_name(tmp_path: Path) -> None:
    tree = orin(tmp_path)
    (tmp_path / "var/lib/nvpmodel/status").unlink()
    assert mode(tree)["nvpmodel"] == "25W (ID 1)"
    put(tmp_path, "/var/lib/nvpmodel/status", "pmode:0007")
    assert mode(tree)["nvpmodel"] == "ID 7"


def test_an_empty_tree_has_no_mode(tmp_path: Path) -> None:
    assert mode(TimedTree(tmp_path)) == {}
    assert mode_id(TimedTree(tmp_path)) is None


def test_other_computers_tell_their_kernel_and_driver(tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    put(tmp_path, "/proc/driver/nvidia/version", line)
    assert mode(TimedTree(tmp_path), "cpu") == {"kernel": "6.8.0", "driver": "550.54.15"}


def test_the_limits_of_cores_that_are_off_are_no_part_of_it(tmp_path: Path) -> None:
    tree = orin(tmp_path)
    put(tmp_path, "/sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq", "1190400\n")
    assert mode(tree)["CPU limit"] == "1728 + 1190.4 MHz"
    put(tmp_path, "/sys/devices/system/cpu/cpufreq/policy4/affected_cpus", "\n")
    assert mode(tree)["CPU limit"] == "1728 MHz"
