from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, link, put

from wattune_agent.errors import Forbidden, NoReading
from wattune_agent.rapl import find_rapl

RANGE_UJ = 262143328850
POWERS_W = {"intel-rapl:0": 12.0, "intel-rapl:0:0": 8.0, "intel-rapl:0:1": 1.0, "intel-rapl:0:2": 2.0}


def zone(root: Path, path: str, name: str, energy_uj: float = 1e9, *, links: bool = True) -> str:
    folder = f"/sys/devices/virtual/powercap/intel-rapl/{path}"
    put(root, f"{folder}/name", f"{name}\n")
    put(root, f"{folder}/energy_uj", f"{energy_uj:.0f}\n")
    put(root, f"{folder}/max_energy_range_uj", f"{RANGE_UJ}\n")
    if links:
        link(root, f"/sys/class/powercap/{path.split('/')[-1]}", folder)
    return folder


class Burning(TimedTree):
    """A tree whose counters rise with its time, each with its power; those of ``closed`` fail with an error, or read
    as this text."""

    def __init__(self, root: Path, powers_w: dict[str, float], closed: dict[str, OSError | str] | None = None) -> None:
        super().__init__(root)
        self.powers_w = powers_w
        self.begin_uj = dict.fromkeys(powers_w, 1000000000.0)
        self.closed = closed or {}

    def read(self, path: str) -> str:
        name = path.split("/")[-2]
        if not path.endswith("energy_uj"):
            return super().read(path)
        wrong = self.closed.get(name)
        if isinstance(wrong, OSError):
            raise self._mapped(wrong, path, "read")
        if wrong is not None:
            return wrong
        return str(int((self.begin_uj[name] + self.powers_w[name] * self.time_s * 1e6) % RANGE_UJ))


def laptop(root: Path, closed: dict[str, OSError | str] | None = None, *, links: bool = True) -> Burning:
    zone(root, "intel-rapl:0", "package-0", links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:0", "core", links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:1", "uncore", links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:2", "dram", links=links)
    zone(root, "intel-rapl:1", "psys", links=links)
    return Burning(root, POWERS_W, closed)


@pytest.mark.parametrize("links", [True, False])
def test_packages_and_memory_are_summed_and_what_is_inside_is_not(tmp_path: Path, links: bool) -> None:
    tree = laptop(tmp_path, links=links)
    sensor, problems = find_rapl(tree)
    assert sensor is not None
    assert problems == []
    assert (sensor.rail, sensor.covers) == ("package-0 + dram", "the CPU package and the memory, not the whole board")
    tree.time_s += 0.1
    assert sensor.read() == pytest.approx(14.0, rel=1e-3)


def test_a_counter_wraps_around(tmp_path: Path) -> None:
    tree = laptop(tmp_path)
    tree.begin_uj["intel-rapl:0"] = RANGE_UJ - 2e6
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    for _ in range(10):
        tree.time_s += 0.1
        assert sensor.read() == pytest.approx(14.0, rel=1e-3)


def test_a_counter_that_was_reset_is_one_failed_reading(tmp_path: Path) -> None:
    tree = laptop(tmp_path)
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    tree.time_s += 0.1
    tree.begin_uj["intel-rapl:0"] = 0.0
    with pytest.raises(NoReading, match="impossible"):
        sensor.read()
    tree.time_s += 0.1
    assert sensor.read() == pytest.approx(14.0, rel=1e-3)


@pytest.mark.parametrize(("power_w", "why"), [(0.0, "stands still"), (1001.0, "jumped by an impossible amount")])
def test_an_impossible_power_is_no_reading_and_always_the_same_problem(
    tmp_path: Path, power_w: float, why: str
) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    tree = Burning(tmp_path, {"intel-rapl:0": power_w})
    sensor, problems = find_rapl(tree)
    assert sensor is not None
    assert problems == [f"package-0: the energy counter {why}"]
    for pause_s in (0.1, 0.137):  # no figure that was measured may make the text a new one
        tree.time_s += pause_s
        with pytest.raises(NoReading) as caught:
            sensor.read()
        assert [str(caught.value)] == problems


def test_two_packages_and_the_second_way_to_the_same_counter(tmp_path: Path) -> None:
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}")
        zone(tmp_path, f"intel-rapl:{package}/intel-rapl:{package}:0", "core")
        zone(tmp_path, f"intel-rapl:{package}/intel-rapl:{package}:1", "dram")
    for path, name in (("intel-rapl-mmio:0", "package-0"), ("intel-rapl-mmio:0:0", "dram")):
        put(tmp_path, f"/sys/class/powercap/{path}/name", name)
        put(tmp_path, f"/sys/class/powercap/{path}/energy_uj", "5")
    powers_w = {"intel-rapl:0": 50.0, "intel-rapl:0:1": 5.0, "intel-rapl:1": 60.0, "intel-rapl:1:1": 6.0}
    sensor, problems = find_rapl(Burning(tmp_path, powers_w))
    assert sensor is not None
    assert (sensor.rail, problems) == ("package-0 + package-1 + dram + dram-1", [])
    assert sensor.read() == pytest.approx(121.0, rel=1e-3)


CLOSED = PermissionError(13, "Permission denied")


@pytest.mark.parametrize("wrong", [CLOSED, OSError(2, "No such file"), "many"], ids=["closed", "vanished", "nonsense"])
def test_a_counter_that_is_not_needed_does_not_take_the_package_away(tmp_path: Path, wrong: OSError | str) -> None:
    sensor, problems = find_rapl(laptop(tmp_path, dict.fromkeys([*POWERS_W, "intel-rapl:1"][1:], wrong)))
    assert sensor is not None
    assert (sensor.rail, sensor.covers) == ("package-0", "the CPU package, not the whole board")
    assert sensor.read() == pytest.approx(12.0, rel=1e-3)
    assert len(problems) == (wrong is CLOSED)


def test_root_only_counters_are_all_named_with_the_ways_out(tmp_path: Path) -> None:
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}")
        zone(tmp_path, f"intel-rapl:{package}/intel-rapl:{package}:1", "dram")
    powers_w = {"intel-rapl:0": 50.0, "intel-rapl:1": 60.0, "intel-rapl:0:1": 5.0, "intel-rapl:1:1": 6.0}
    tree = Burning(tmp_path, powers_w, dict.fromkeys(list(powers_w)[1:], CLOSED))
    sensor, (problem,) = find_rapl(tree)
    assert sensor is not None
    for part in ("intel-rapl:1/energy_uj", "intel-rapl:0:1/energy_uj", "5.10", "wattune-agent serve"):
        assert part in problem
    with pytest.raises(Forbidden):  # although another package is open
        sensor.read()
    tree.closed = {}
    assert sensor.read() == pytest.approx(110.0, rel=1e-3)


def test_without_counters_it_says_what_was_looked_for(tmp_path: Path) -> None:
    sensor, problems = find_rapl(TimedTree(tmp_path))
    assert sensor is None
    for part in ("/sys/class/powercap", "modprobe intel_rapl_msr", "external:"):
        assert part in problems[0]
