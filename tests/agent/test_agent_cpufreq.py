"""The CPU's clock: several policies, drivers without a list, boost, cores that are off."""

import pytest
from tests.support.agent_trees import CPU, MadeTree, cpu_tree, link, put, texts

from wattune_agent.cpufreq import find_cpu_clock
from wattune_agent.errors import Forbidden

LISTED = "400000 800000 1200000 1600000"


def found(root):
    tree = MadeTree(root)
    clock, problems = find_cpu_clock(tree)
    assert problems == []
    return tree, clock


def limits(tree, number):
    return [int(tree.read(f"{CPU}/cpufreq/policy{number}/scaling_{end}_freq")) for end in ("min", "max")]


def restored(tree, clock, root, pins):
    before = texts(root)
    saved = {path: (root / path[1:]).read_text() for path in clock.files()}
    for mhz in pins:
        clock.pin(mhz)
        assert clock.pinned_mhz() == mhz
    clock.restore(saved)
    return texts(root) == before


def test_frequencies_become_mhz_once(tmp_path):
    tree, clock = found(cpu_tree(tmp_path))
    assert clock.unit == "cpu"
    assert clock.settings_mhz == (400.0, 800.0, 1200.0, 1600.0)
    assert clock.now_mhz() == 400.0
    clock.pin(800.0)
    assert limits(tree, 0) == [800000, 800000]


def test_steps_where_the_driver_lists_none(tmp_path):
    files = {"scaling_available_frequencies": None, "cpuinfo_min_freq": "350000", "cpuinfo_max_freq": "4700000"}
    _, clock = found(cpu_tree(tmp_path, {0: {**files, "base_frequency": "800000", "scaling_max_freq": "4700000"}}))
    assert clock.settings_mhz == (350.0, 400.0, 500.0, 600.0, 700.0, 800.0)
    assert restored(MadeTree(tmp_path), clock, tmp_path, (350.0, 800.0))


@pytest.mark.parametrize(("nominal", "top"), [("1200", 1200.0), ("0", 1600.0), (None, 1600.0), ("9900", 1600.0)])
def test_the_base_is_what_the_firmware_calls_nominal(tmp_path, nominal, top):
    cpu_tree(tmp_path, {0: {}})
    if nominal is not None:
        put(tmp_path, CPU + "/cpu0/acpi_cppc/nominal_freq", nominal + "\n")
    _, clock = found(tmp_path)
    assert clock.settings_mhz[0] == 400.0
    assert clock.settings_mhz[-1] == top


@pytest.mark.parametrize(
    ("switch", "found_on", "path", "off"),
    [
        ({"boost": "1"}, "1", CPU + "/cpufreq/boost", "0"),
        ({"no_turbo": "0"}, "0", CPU + "/intel_pstate/no_turbo", "1"),
    ],
)
def test_boost_is_off_while_pinned_and_comes_back_first(tmp_path, switch, found_on, path, off):
    tree, clock = found(cpu_tree(tmp_path, **switch))
    assert clock.files()[0] == path
    saved = {file: (tmp_path / file[1:]).read_text() for file in clock.files()}
    clock.pin(800.0)
    assert tree.written[0] == path
    assert tree.read(path) == off
    tree.written.clear()
    clock.restore(saved)
    assert tree.written[0] == path
    assert tree.read(path) == found_on


def test_boost_of_each_policy(tmp_path):
    files = {"scaling_available_frequencies": LISTED, "boost": "1"}
    tree, clock = found(cpu_tree(tmp_path, {0: files, 1: files}))
    clock.pin(800.0)
    assert [tree.read(f"{CPU}/cpufreq/policy{n}/boost") for n in (0, 1)] == ["0", "0"]


def test_small_cores_follow_the_big_ones(tmp_path):
    big = {"scaling_available_frequencies": "500000 1000000 2000000", "scaling_max_freq": "2000000"}
    tree, clock = found(cpu_tree(tmp_path, {0: {"scaling_available_frequencies": "600000 900000 1200000"}, 4: big}))
    assert clock.settings_mhz == (500.0, 1000.0, 2000.0)
    for mhz, small in ((2000.0, 1200000), (1000.0, 900000), (500.0, 600000)):
        clock.pin(mhz)
        assert clock.pinned_mhz() == mhz
        assert limits(tree, 4) == [mhz * 1000, mhz * 1000]
        assert limits(tree, 0) == [small, small]
    put(tmp_path, f"{CPU}/cpufreq/policy0/scaling_max_freq", "1200000\n")
    assert clock.pinned_mhz() is None


def test_policies_are_counted_not_spelled(tmp_path):
    policies = {n: {"scaling_available_frequencies": LISTED} for n in (0, 2, 10)}
    _, clock = found(cpu_tree(tmp_path, policies))
    assert [path.split("/")[-2] for path in clock.files()[::2]] == ["policy0", "policy2", "policy10"]


@pytest.mark.parametrize("how", ["no cores", "switched off"])
def test_cores_that_are_off_are_left_out(tmp_path, how):
    files = {"scaling_available_frequencies": LISTED}
    cpu_tree(tmp_path, {0: files, 1: {**files, "affected_cpus": "" if how == "no cores" else "1"}})
    if how == "switched off":
        put(tmp_path, CPU + "/cpu1/online", "0\n")
    _, clock = found(tmp_path)
    assert len(clock.files()) == 2


def test_an_old_tree_with_a_folder_for_each_core(tmp_path):
    cpu_tree(tmp_path, {0: {"scaling_available_frequencies": LISTED}})
    (tmp_path / CPU[1:] / "cpufreq/policy0").rename(tmp_path / CPU[1:] / "old")
    (tmp_path / CPU[1:] / "cpu0").mkdir()
    (tmp_path / CPU[1:] / "old").rename(tmp_path / CPU[1:] / "cpu0/cpufreq")
    link(tmp_path, CPU + "/cpu1/cpufreq", CPU + "/cpu0/cpufreq")
    _, clock = found(tmp_path)
    assert len(clock.files()) == 2


def test_a_policy_that_cannot_be_used_is_a_problem_and_the_others_stay(tmp_path):
    bad = {"cpuinfo_min_freq": "nonsense"}
    cpu_tree(tmp_path, {0: {"scaling_available_frequencies": LISTED}, 1: bad, 2: {"scaling_max_freq": None}})
    clock, problems = find_cpu_clock(MadeTree(tmp_path))
    assert len(clock.files()) == 2
    assert "cpuinfo_min_freq contains no whole number" in problems[0]
    assert "scaling_max_freq" in problems[1]


def test_a_driver_whose_ends_are_nonsense_is_a_problem(tmp_path):
    cpu_tree(tmp_path, {0: {"cpuinfo_min_freq": "2000000"}})
    clock, problems = find_cpu_clock(MadeTree(tmp_path))
    assert clock is None
    assert "from 2000000 to 1600000" in problems[0]


def test_nothing_there(tmp_path):
    clock, problems = find_cpu_clock(MadeTree(tmp_path))
    assert clock is None
    assert "virtual machine" in problems[0]


@pytest.mark.parametrize("text", [None, "<unknown>"])
def test_a_clock_that_does_not_tell(tmp_path, text):
    _, clock = found(cpu_tree(tmp_path, {0: {"scaling_cur_freq": text}}))
    assert clock.now_mhz() is None


@pytest.mark.parametrize(
    ("measured", "mhz"), [("300000", 300.0), (None, 1200.0), ("0", 1200.0), ("<unknown>", 1200.0), ("\x7fELF", 1200.0)]
)
def test_the_measured_clock_counts_more_than_the_requested_one(tmp_path, measured, mhz):
    _, clock = found(cpu_tree(tmp_path, {0: {"scaling_cur_freq": "1200000", "cpuinfo_cur_freq": measured}}))
    assert clock.now_mhz() == mhz


def test_other_users_see_the_requested_clock(tmp_path):
    tree, clock = found(cpu_tree(tmp_path, {0: {"scaling_cur_freq": "1200000", "cpuinfo_cur_freq": "300000"}}))

    def refuse(path):
        if path.endswith("cpuinfo_cur_freq"):
            raise Forbidden(path)

    tree.before_read = refuse
    assert clock.now_mhz() == 1200.0
