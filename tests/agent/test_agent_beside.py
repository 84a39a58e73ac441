"""The clocks of a Jetson beside its GPU's: found, pinned together, given back."""

import pytest
from tests.agent.faults_made import Bench
from tests.support.agent_trees import gpu_tree, put
from tests.support.live.memory import BPMP, OVERRIDE

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.emc import find_memory_clock
from wattune_agent.errors import BadRequest, FileFailed
from wattune_agent.file_knob import bring_back
from wattune_agent.knobs import fits
from wattune_agent.lease import BoardLease, Party
from wattune_agent.snapshot import Snapshot, snapshots
from wattune_agent.tree import Tree

JETSONS = ("orin-nano", "nano")
CAP = "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
EMC = BPMP + "/clk/emc/"


@pytest.fixture(params=JETSONS)
def bench(request, tmp_path):
    bench = Bench(tmp_path / "board", request.param)
    yield bench
    bench.controller.close()


def bpmp_tree(root, *, rates="40800 68000 102000 204000 665600 2133000 (kHz)", high=2133000000, cap=None):
    gpu_tree(root)
    for name, text in (("mrq_rate_locked", 0), ("rate", 2133000000), ("min_rate", 40800000), ("max_rate", high)):
        put(root, EMC + name, f"{text}\n")
    if rates is not None:
        put(root, BPMP + "/emc/possible_rates", rates + "\n")
    if cap is not None:
        put(root, CAP, f"{cap}\n")
    return Tree(str(root))


# --------------------------------------------------------------------------------------------------------------- found


def test_rates_are_those_of_the_firmware_and_none_below_204_mhz(tmp_path):
    clock = find_memory_clock(bpmp_tree(tmp_path), "")
    assert clock.settings_mhz == (204.0, 665.6, 2133.0)
    assert clock.unit == "memory"


@pytest.mark.parametrize(
    ("compatible", "high", "settings_mhz"),
    [
        ("nvidia,p3767-0005 nvidia,tegra234", 2133000000, (204.0, 665.6, 2133.0)),
        ("nvidia,tegra234", 3200000000, (204.0, 665.6, 2133.0, 3199.0)),
    ],
)
def test_rates_of_a_known_chip_end_at_the_boards_own(compatible, high, settings_mhz, tmp_path):
    assert find_memory_clock(bpmp_tree(tmp_path, rates=None, high=high), compatible).settings_mhz == settings_mhz


def test_a_chip_whose_rates_are_unknown_offers_no_memory_clock(tmp_path):
    assert find_memory_clock(bpmp_tree(tmp_path, rates=None), "nvidia,tegra194") is None


def test_an_older_chip_offers_its_rates_but_not_the_problematic_ones(tmp_path):
    gpu_tree(tmp_path)
    for path, text in (
        (OVERRIDE + "/clk_state", 0),
        (OVERRIDE + "/clk_rate", 1600000000),
        (OVERRIDE + "/clk_update_rate", 0),
        ("/sys/kernel/debug/tegra_bwmgr/emc_min_rate", 12750000),
        ("/sys/kernel/debug/tegra_bwmgr/emc_max_rate", 1331200000),
    ):
        put(tmp_path, path, f"{text}\n")
    assert find_memory_clock(Tree(str(tmp_path)), "").settings_mhz == (204.0, 408.0, 665.6, 800.0, 1065.6, 1331.2)


def test_a_cpu_offers_six_clocks_with_both_ends_and_the_limit_of_its_mode(bench):
    cpu = bench.board.others["cpu_clock_mhz"]
    listed = bench.tree.board.cpus[0].listed
    assert len(cpu.settings_mhz) in (6, 7)
    assert (cpu.settings_mhz[0], cpu.settings_mhz[-1]) == (listed[0] / 1e3, listed[-1] / 1e3)
    offered = bench.controller.describe()["others_mhz"]["cpu_clock_mhz"]
    assert offered[-1] == bench.tree.board.cpus[0].high / 1e3


def test_a_memory_clock_above_the_cap_of_the_power_mode_is_neither_offered_nor_taken(tmp_path):
    with Controller(find_board(bpmp_tree(tmp_path, cap=665600000), "jetson")) as controller:
        assert controller.describe()["others_mhz"] == {"memory_clock_mhz": [204.0, 665.6]}
        with pytest.raises(BadRequest, match=r"2133 MHz is above 665\.6 MHz, the limit of the memory"):
            controller.pin(306.0, {"memory_clock_mhz": 2133.0})
        assert controller.board.tree.read(EMC + "mrq_rate_locked") == "0"


def test_other_families_have_no_others(tmp_path):
    assert Bench(tmp_path / "board", "cpu-laptop").board.others == {}


# -------------------------------------------------------------------------------------------------------------- pinned


def test_all_clocks_are_pinned_and_come_back_byte_for_byte(bench):
    memory, cpu = bench.tree.board.memory, bench.tree.board.cpus[0]
    answer = bench.controller.pin(bench.mhz, bench.others)
    assert answer == {"mhz": bench.mhz, **bench.others}
    assert bench.is_at(bench.mhz)
    assert memory.rate(1.0) == round(1e6 * bench.others["memory_clock_mhz"])
    assert cpu.low == cpu.high == round(1e3 * bench.others["cpu_clock_mhz"])
    bench.looks(2)
    assert bench.told == []
    bench.controller.restore()
    assert bench.is_back
    assert snapshots(bench.tree) == []


def test_a_pin_without_the_others_writes_only_the_first_clocks_files(bench):
    bench.controller.pin(bench.mhz)
    assert not [path for _, path, _ in bench.tree.writes if "/cpu" in path or "/debug/" in path]
    assert list(Snapshot.load(snapshots(bench.tree)[0]).files) == bench.board.clock.files()


def test_a_clock_that_a_later_pin_leaves_out_is_as_it_was_found(bench):
    bench.controller.pin(bench.mhz, bench.others)
    bench.controller.pin(bench.mhz, {"cpu_clock_mhz": bench.others["cpu_clock_mhz"]})
    assert bench.tree.read(bench.tree.board.memory.lock_path) == "0"
    assert bench.tree.board.cpus[0].high == round(1e3 * bench.others["cpu_clock_mhz"])
    bench.controller.pin(bench.other_mhz)
    bench.controller.restore()
    assert bench.is_back


def test_the_ceiling_is_raised_before_a_higher_rate_and_lowered_after_a_lower_one(tmp_path):
    tree = bpmp_tree(tmp_path, cap=2133000000)
    written = []
    write = tree.write
    tree.write = lambda path, text: (written.append((path.rpartition("/")[2], text)), write(path, text))
    clock = find_memory_clock(tree, "")
    clock.pin(665.6)
    clock.pin(2133.0)
    low, high = "665600000", "2133000000"
    assert written == [
        ("mrq_rate_locked", "1"),
        ("rate", low),
        ("emc_iso_cap", low),
        ("emc_iso_cap", high),
        ("rate", high),
    ]


def test_a_lock_that_counts_is_taken_once_and_released_once(tmp_path):
    bench = Bench(tmp_path / "board", "nano")
    memory = bench.tree.board.memory
    for rate_mhz in (408.0, 1600.0, 408.0):
        bench.controller.pin(bench.mhz, {"memory_clock_mhz": rate_mhz})
    bench.controller.restore()
    assert [text.strip() for _, path, text in bench.tree.writes if path == memory.lock_path] == ["1", "0"]


def test_a_memory_that_was_locked_before_is_locked_again_where_it_was(bench):
    memory = bench.tree.board.memory
    for path, text in ((memory.setter_path, str(memory.rates[1])), (memory.lock_path, "1")):
        bench.tree.rewrite(path, text)
    before = bench.tree.state()
    with Controller(bench.found()) as controller:
        controller.pin(bench.mhz, {"memory_clock_mhz": memory.rates[-1] / 1e6})
        assert memory.rate(1.0) == memory.rates[-1]
    assert memory.rate(1.0) == memory.rates[1]
    assert bench.tree.state() == before


def test_lower_clocks_come_first(bench):
    first, memory = bench.settings[-1], bench.board.others["memory_clock_mhz"].settings_mhz
    bench.controller.pin(bench.settings[0], {"memory_clock_mhz": memory[-1]})
    bench.tree.writes.clear()
    bench.controller.pin(first, {"memory_clock_mhz": memory[0]})
    paths = [path for _, path, _ in bench.tree.writes]
    assert paths.index(bench.tree.board.memory.setter_path) < paths.index(bench.high)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"cpu_cores": 2.0}, "cannot set cpu_cores; allowed: memory_clock_mhz, cpu_clock_mhz"),
        ({"memory_clock_mhz": 100.0}, "the memory of .* has no 100 MHz"),
    ],
)
def test_what_a_board_does_not_have_is_refused_before_anything_is_written(others, message, bench):
    with pytest.raises(BadRequest, match=message):
        bench.controller.pin(bench.mhz, others)
    assert not bench.tree.writes


def test_the_mode_is_the_one_before_the_pin(bench):
    before = bench.controller.describe()["mode"]
    bench.controller.pin(bench.mhz, bench.others)
    bench.tree.sleep(2.0)
    assert bench.controller.describe()["mode"] == before == Controller(bench.found()).describe()["mode"]
    bench.controller.restore()


def test_a_clock_that_was_raised_before_another_one_failed_is_lowered_again(bench):
    memory = bench.tree.board.memory
    bench.controller.pin(bench.settings[0], {"memory_clock_mhz": memory.rates[0] / 1e6})
    bench.tree.fault(memory.setter_path, "refused")
    with pytest.raises(FileFailed):
        bench.controller.pin(bench.settings[-1], {"memory_clock_mhz": memory.rates[-1] / 1e6})
    assert bench.is_at(bench.settings[0])
    bench.tree.faults.clear()
    assert {event["kind"] for event in bench.controller.check()} == {"kept"}
    assert memory.rate(1.0) == memory.rates[0]


def test_the_agents_guard_lowers_the_first_clock_and_leaves_the_others(bench):
    lease, party = BoardLease(bench.controller, now_s=bench.tree.now_s), Party("a trainer")
    lease.pin(party, bench.settings[-1], bench.others)
    power_w = bench.controller.read()["power_w"]
    lease.guard(party, 0.8 * power_w, None)
    for _ in range(100):
        bench.tree.sleep(0.1)
        lease.renew(party)
        lease.sample()
        lease.tick()
    assert lease.mhz == bench.settings[0]
    assert bench.tree.board.memory.rate(1.0) == round(1e6 * bench.others["memory_clock_mhz"])
    lease.leave(party)
    assert bench.is_back


# ------------------------------------------------------------------------------------------------------------ the files


def test_only_the_memory_clocks_own_files_fit_into_a_snapshot():
    assert fits(EMC + "mrq_rate_locked", "1\n")
    assert fits(EMC + "rate", "2133000000\n")
    assert not fits(EMC + "rate", "99000000000")
    assert not fits(EMC + "mrq_rate_locked", "2")
    assert not fits(EMC + "max_rate", "2133000000")
    assert not fits(BPMP + "/clk/vi/rate", "2133000000")


def test_a_cap_alone_is_restored_alone(tmp_path):
    """A switch of the power mode changes it without the lock."""
    tree = bpmp_tree(tmp_path, cap=665600000)
    assert bring_back(tree, {CAP: "0\n"}) == []
    assert tree.read(CAP) == "0"
    assert tree.read(EMC + "mrq_rate_locked") == "0"
