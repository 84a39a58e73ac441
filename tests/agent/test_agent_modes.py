"""The power mode while a board is controlled: told as it is now, switched, and all that it changes brought back."""

from pathlib import Path

import pytest
from tests.support.agent_sensors import run_programs, script
from tests.support.agent_trees import CPU, HIGH, MadeTree, board_in, cpu_tree, gpu_tree, put, texts

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import Forbidden, NotRestored, NotTaken
from wattune_agent.leftover import restore_left_behind
from wattune_agent.mode import mode, mode_files
from wattune_agent.snapshot import Snapshot, snapshots

EMC = "/sys/kernel/nvpmodel_clk_cap/emc"
POLICY = CPU + "/cpufreq/policy0/"

# What nvpmodel sets: cores, limits of CPU, GPU and memory, and last of all its own note of the mode.
NVPMODEL = """\
[ "$1" = -m ] || exit 2
echo "$2" >> "$root/ran"
[ -e "$root/stuck" ] && exit 1
if [ "$2" = 1 ]; then core=0 khz=800000 hz=612000000 emc=665600000; else core=1 khz=1600000 hz=1020000000 emc=0; fi
echo $core > "$root/sys/devices/system/cpu/cpu1/online"
echo 400000 > "$root/sys/devices/system/cpu/cpufreq/policy0/scaling_min_freq"
echo $khz > "$root/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
echo $hz > "$root{high}"
echo $emc > "$root/sys/kernel/nvpmodel_clk_cap/emc"
printf 'pmode:%04d\\n' "$2" > "$root/var/lib/nvpmodel/status"
""".replace("{high}", HIGH)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A board in mode 0 with limits that somebody set by hand: the CPU held at one clock, the memory's clock capped."""
    run_programs(monkeypatch)
    gpu_tree(tmp_path)
    cpu_tree(tmp_path)
    put(tmp_path, CPU + "/cpu1/online", "1\n")
    put(tmp_path, POLICY + "scaling_min_freq", "1200000\n")
    put(tmp_path, POLICY + "scaling_max_freq", "1200000\n")
    put(tmp_path, EMC, "2133000000\n")
    put(tmp_path, "/var/lib/nvpmodel/status", "pmode:0000\n")
    put(tmp_path, "/etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=7W >\n")
    script(tmp_path, "nvpmodel", NVPMODEL)
    return MadeTree(tmp_path)


def ran(tree):
    with open(tree.root + "/ran") as file:
        return file.read().split()


def test_the_mode_is_that_of_now(tree):
    with Controller(find_board(tree, "jetson")) as controller:
        assert controller.describe()["mode"] == mode(tree)
        put(tree.root, "/var/lib/nvpmodel/status", "pmode:0001\n")
        put(tree.root, EMC, "665600000\n")
        tree.sleep(2.0)
        said = controller.describe()["mode"]
        assert (said["nvpmodel"], said["memory clock limit"]) == ("7W (ID 1)", "665.6 MHz")
        controller.switch_mode(0)
        assert controller.describe()["mode"]["nvpmodel"] == "MAXN (ID 0)"  # at once
        controller.restore()
        assert controller.describe()["mode"]["nvpmodel"] == "7W (ID 1)"


def test_the_limits_of_cores_that_are_off_are_no_part_of_it(tree):
    cpu_tree(tree.root, {0: {}, 4: {"scaling_max_freq": "2000000"}})
    put(tree.root, CPU + "/cpu4/online", "1\n")
    assert mode(tree)["CPU limit"] == "1600 + 2000 MHz"
    put(tree.root, CPU + "/cpu4/online", "0\n")
    put(tree.root, CPU + "/cpufreq/policy4/affected_cpus", "\n")
    assert mode(tree)["CPU limit"] == "1600 MHz"


def test_everything_that_a_mode_changes_comes_back_as_it_was_found(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.switch_mode(1)
    assert tree.read(CPU + "/cpu1/online") == "0"
    assert tree.read(EMC) == "665600000"
    controller.pin(408.0)
    controller.restore()
    assert ran(tree) == ["1", "0"]
    assert texts(tmp_path) == before
    assert tree.read(POLICY + "scaling_min_freq") == "1200000"


def test_it_comes_back_after_a_kill_as_well(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.switch_mode(1)
    kept = Snapshot.load(snapshots(tree)[0])
    controller.close()
    (tmp_path / "ran").unlink()
    for path, text in ((CPU + "/cpu1/online", "0"), (POLICY + "scaling_max_freq", "800000"), (EMC, "0")):
        put(tmp_path, path, text + "\n")
    kept._replace(pid=0).save()  # nvpmodel was stopped half-way: its own note still says the mode before
    assert len(restore_left_behind(tree)) == 1
    assert ran(tree) == ["0"]
    assert texts(tmp_path) == before


def test_a_mode_comes_back_after_a_power_cut_as_well(tree, controller):
    class Real(MadeTree):
        is_real = True

    controller.switch_mode(1)
    left = Snapshot.load(snapshots(tree)[0])
    controller.close()
    left._replace(pid=0, boot="the start before").save()
    put(tree.root, "/var/lib/nvpmodel/status", "pmode:0001\n")
    restore_left_behind(Real(tree.root))
    assert tree.read("/var/lib/nvpmodel/status") == "pmode:0000"
    assert snapshots(tree) == []


def test_a_mode_that_does_not_come_back_is_told_and_the_files_are_back(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.switch_mode(1)
    put(tmp_path, "/stuck", "")
    with pytest.raises(NotRestored, match="the power mode is not 0 again"):
        controller.restore()
    assert texts(tmp_path) == before
    (tmp_path / "stuck").unlink()
    controller.restore()


def test_the_cores_come_first(tree, controller):
    controller.switch_mode(1)
    controller.switch_mode(0)
    controller.switch_mode(1)
    files = list(Snapshot.load(snapshots(tree)[0]).files)
    assert files[0] == CPU + "/cpu1/online"  # the limits of a core that is off are not there
    assert files.index(HIGH) < files.index(POLICY + "scaling_max_freq") < files.index(EMC)
    assert Snapshot.load(snapshots(tree)[0]).files[EMC] == "2133000000\n"


def test_a_mode_that_cannot_be_switched_back_is_no_failure_where_it_never_was_another(tree, controller, tmp_path):
    before = texts(tmp_path)
    put(tmp_path, "/stuck", "")
    with pytest.raises(NotTaken):
        controller.switch_mode(1)
    script(tmp_path, "nvpmodel", 'echo "must be root"; exit 1')
    with pytest.raises(Forbidden):
        controller.switch_mode(1)
    assert texts(tmp_path) == before
    assert snapshots(tree) == []


def test_what_may_not_be_read_or_written_is_left_out(tree):
    class Closed(MadeTree):
        def writable(self, path):
            return path != EMC and super().writable(path)

    assert EMC in mode_files(tree)
    assert mode_files(Closed(tree.root)) == [path for path in mode_files(tree) if path != EMC]
    put(tree.root, EMC, "nonsense!\n")
    with Controller(board_in(tree)) as controller:
        controller.switch_mode(1)
        assert EMC not in Snapshot.load(snapshots(tree)[0]).files


def test_what_the_program_says_need_not_be_text(tree, controller, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    script(Path(tree.root), "nvpmodel", "printf '\\377\\376 no'; exit 1")
    with pytest.raises(NotTaken, match=r"nvpmodel said '.* no'"):
        controller.switch_mode(1)
