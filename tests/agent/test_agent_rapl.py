from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, link, put

from wattune_agent.errors import Forbidden, NoReading
from wattune_agent.rapl import find_rapl

RANGE_UJ = 262143328850


def zone(root: Path, path: str, name: str, energy_uj: float = 1e9, *, links: bool = True) -> str:
    folder = f"/sys/devices/virtual/powercap/intel-rapl/{path}"
    put(root, f"{folder}/name", f"{name}\n")
    put(root, f"{folder}/energy_uj", f"{energy_uj:.0f}\n")
    put(root, f"{folder}/max_energy_range_uj", f"{RANGE_UJ}\n")
    if links:
        link(root, f"/sys/class/powercap/{path.split('/')[-1]}", folder)
    return folder


class Burning(TimedTree):
    """A tree whose counters rise with its time, each with its power."""

    def __init__(self, root: Path, powers_w: dict[str, float]) -> None:
        super().__init__(root)
        self.powers_w = powers_w
        self.begin_uj = {path: float((root / path.lstrip("/")).read_text()) for path in self._files()}

    def read(self, path: str) -> str:
        for file, begin_uj in getattr(self, "begin_uj", {}).items():
            if path == file:
                zone = path.split("/")[-2]
                return str(int((begin_uj + self.powers_w[zone] * self.time_s * 1e6) % RANGE_UJ))
        return super().read(path)

    def _files(self) -> list[str]:
        return self.glob("/sys/devices/virtual/powercap/intel-rapl/intel-rapl:*/energy_uj") + self.glob(
            "/sys/devices/virtual/powercap/intel-rapl/intel-rapl:*/intel-rapl:*/energy_uj"
        )


def laptop(root: Path, psys_w: float, *, links: bool = True, begin_uj: float = 1e9) -> Burning:
    zone(root, "intel-rapl:0", "package-0", begin_uj, links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:0", "core", links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:1", "uncore", links=links)
    zone(root, "intel-rapl:0/intel-rapl:0:2", "dram", links=links)
    zone(root, "intel-rapl:1", "psys", links=links)
    powers_w = {"intel-rapl:0": 12.0, "intel-rapl:0:0": 8.0, "intel-rapl:0:1": 1.0, "intel-rapl:0:2": 2.0}
    return Burning(root, {**powers_w, "intel-rapl:1": psys_w})


@pytest.mark.parametrize("links", [True, False])
def test_packages_and_memory_are_summed_and_what_is_inside_is_not(tmp_path: Path, links: bool) -> None:
    tree = laptop(tmp_path, psys_w=0.0, links=links)
    sensor, problems = find_rapl(tree)
    assert sensor is not None
    assert problems == []
    assert sensor.rail == "package-0 + dram"
    assert "not the whole board" in sensor.covers
    tree.time_s += 0.1
    reading = sensor.read()
    assert reading.power_w == pytest.approx(14.0, rel=1e-3)
    assert reading.rails_w == pytest.approx(
        {"package-0": 12.0, "core": 8.0, "uncore": 1.0, "dram": 2.0, "psys": 0.0}, rel=1e-3
    )


def test_the_platform_counts_where_it_is_not_less(tmp_path: Path) -> None:
    tree = laptop(tmp_path, psys_w=21.0)
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    assert (sensor.rail, sensor.covers) == ("psys", "the platform as its firmware counts it")
    assert sensor.read().power_w == pytest.approx(21.0, rel=1e-3)


def test_the_first_read_waits_and_the_next_are_means_since_a_tenth_of_a_second_before(tmp_path: Path) -> None:
    tree = laptop(tmp_path, psys_w=0.0)
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    assert tree.slept == [0.1]
    tree.time_s += 0.1
    sensor.read()
    assert tree.slept == [0.1]
    assert sensor.read() == sensor.read()  # no time went by
    tree.time_s += 60.0  # a mean over a minute says nothing of now
    sensor.read()
    assert tree.slept == [0.1, 0.1]


class Stepping(Burning):
    """Its power changes at a moment."""

    def read(self, path: str) -> str:
        if path.endswith("intel-rapl:0/energy_uj"):
            return str(int(1e9 + 1e6 * (10.0 * self.time_s + 20.0 * max(0.0, self.time_s - 1.0))))
        return super().read(path)


@pytest.mark.parametrize("offset_s", [0.003, 0.02, 0.05, 0.097])
def test_two_readers_do_not_shorten_each_others_window(tmp_path: Path, offset_s: float) -> None:
    """The second one asks shortly after the first: its mean is over a tenth of a second all the same."""
    zone(tmp_path, "intel-rapl:0", "package-0")
    tree = Stepping(tmp_path, {"intel-rapl:0": 0.0})
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    assert sensor.window_s == 0.1
    tree.time_s = 0.5
    for reader in range(1, 30):
        tree.time_s = 0.5 + 0.1 * (reader // 2) + offset_s * (reader % 2)
        power_w = sensor.read().power_w
        since_s = max(0.0, tree.time_s - 1.0)
        if 0.0 < since_s < 0.09:  # no more than its share of the window is the new power
            assert power_w <= 10.0 + 20.0 * since_s / 0.09 + 0.1
        elif since_s > 0.2:
            assert power_w == pytest.approx(30.0, rel=1e-3)
    assert tree.slept == [0.1]


def test_a_reader_that_asks_without_pause_keeps_little(tmp_path: Path) -> None:
    tree = laptop(tmp_path, psys_w=0.0)
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    for _ in range(2000):
        tree.time_s += 0.0005
        assert sensor.read().power_w == pytest.approx(14.0, rel=2e-2)
    assert len(sensor._looks) < 60  # type: ignore[attr-defined]


def test_what_stands_for_the_whole_is_decided_once(tmp_path: Path) -> None:
    tree = laptop(tmp_path, psys_w=13.0)  # less than packages and memory
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    assert sensor.rail == "package-0 + dram"
    psys = next(path for path in tree.begin_uj if path.endswith("intel-rapl:1/energy_uj"))
    for psys_w in (40.0, 1.0, 14.0):
        tree.begin_uj[psys] += (tree.powers_w["intel-rapl:1"] - psys_w) * tree.time_s * 1e6  # from now on
        tree.powers_w["intel-rapl:1"] = psys_w
        for _ in range(2):
            tree.time_s += 0.2
            reading = sensor.read()
        assert reading.power_w == pytest.approx(14.0, rel=1e-3)
        assert reading.rails_w["psys"] == pytest.approx(psys_w, rel=1e-3)


def test_what_could_not_be_read_at_first_is_decided_at_the_first_reading(tmp_path: Path) -> None:
    class Late(Burning):
        closed = True

        def read(self, path: str) -> str:
            if path.endswith("energy_uj") and self.closed and hasattr(self, "begin_uj"):
                raise self._mapped(PermissionError(13, "Permission denied"), path, "read")
            return super().read(path)

    laptop(tmp_path, psys_w=21.0)
    powers_w = {"intel-rapl:0": 12.0, "intel-rapl:0:0": 8.0, "intel-rapl:0:1": 1.0, "intel-rapl:0:2": 2.0}
    tree = Late(tmp_path, {**powers_w, "intel-rapl:1": 21.0})
    sensor, problems = find_rapl(tree)
    assert sensor is not None
    assert problems
    tree.closed = False
    assert sensor.read().power_w == pytest.approx(21.0, rel=1e-3)
    assert sensor.rail == "psys"


def test_a_counter_that_was_reset_is_one_failed_reading(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", "package-0", 5e9)
    tree = Burning(tmp_path, {"intel-rapl:0": 10.0})
    sensor, _ = find_rapl(tree)
    assert sensor is not None
    tree.time_s += 0.1
    tree.begin_uj[f"{folder}/energy_uj"] = 0.0
    with pytest.raises(NoReading, match="jumped"):
        sensor.read()
    tree.time_s += 0.1
    assert sensor.read().power_w == pytest.approx(10.0, rel=1e-3)


def test_a_counter_that_stands_still_is_no_reading(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    sensor, problems = find_rapl(TimedTree(tmp_path))
    assert sensor is not None
    assert "does not move" in problems[0]
    with pytest.raises(NoReading, match="does not move"):
        sensor.read()


def test_two_packages_and_the_second_way_to_the_same_counter(tmp_path: Path) -> None:
    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}")
        zone(tmp_path, f"intel-rapl:{package}/intel-rapl:{package}:0", "core")
        zone(tmp_path, f"intel-rapl:{package}/intel-rapl:{package}:1", "dram")
    for path, name in (("intel-rapl-mmio:0", "package-0"), ("intel-rapl-mmio:0:0", "dram")):
        put(tmp_path, f"/sys/class/powercap/{path}/name", name)
        put(tmp_path, f"/sys/class/powercap/{path}/energy_uj", "5")
    powers_w = {"intel-rapl:0": 50.0, "intel-rapl:0:0": 30.0, "intel-rapl:0:1": 5.0}
    tree = Burning(tmp_path, {**powers_w, "intel-rapl:1": 60.0, "intel-rapl:1:0": 40.0, "intel-rapl:1:1": 6.0})
    sensor, problems = find_rapl(tree)
    assert sensor is not None
    assert problems == []
    assert sensor.read().power_w == pytest.approx(121.0, rel=1e-3)
    assert list(sensor.read().rails_w) == ["package-0", "package-1", "core", "dram", "core-1", "dram-1"]


def test_an_amd_processor_has_its_package_alone(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")
    zone(tmp_path, "intel-rapl:0/intel-rapl:0:0", "core")
    sensor, _ = find_rapl(Burning(tmp_path, {"intel-rapl:0": 9.0, "intel-rapl:0:0": 4.0}))
    assert sensor is not None
    assert (sensor.rail, sensor.covers) == ("package-0", "the CPU package, not the whole board")
    assert sensor.read().power_w == pytest.approx(9.0, rel=1e-3)


CLOSED = {
    "psys": ("intel-rapl:1",),
    "parts": ("intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:1"),
    "all but the package": ("intel-rapl:0:0", "intel-rapl:0:1", "intel-rapl:0:2", "intel-rapl:1"),
}


@pytest.mark.parametrize("closed", sorted(CLOSED))
@pytest.mark.parametrize("how", ["forbidden", "vanished", "nonsense"])
def test_a_counter_that_is_not_needed_does_not_take_the_package_away(tmp_path: Path, closed: str, how: str) -> None:
    class Partly(Burning):
        def read(self, path: str) -> str:
            if path.endswith("energy_uj") and path.split("/")[-2] in CLOSED[closed]:
                if how == "nonsense":
                    return "many"
                error = PermissionError(13, "Permission denied") if how == "forbidden" else OSError(2, "No such file")
                raise self._mapped(error, path, "read")
            return super().read(path)

    powers_w = laptop(tmp_path, psys_w=21.0).powers_w
    sensor, problems = find_rapl(Partly(tmp_path, powers_w))
    assert sensor is not None
    has_memory = "intel-rapl:0:2" not in CLOSED[closed]
    assert sensor.rail == ("package-0 + dram" if has_memory else "package-0")
    assert sensor.covers == f"the CPU package{' and the memory' if has_memory else ''}, not the whole board"
    assert sensor.read().power_w == pytest.approx(14.0 if has_memory else 12.0, rel=1e-3)
    if how == "forbidden":
        (problem,) = problems
        assert all(f"{zone}/energy_uj" in problem for zone in CLOSED[closed])
    else:
        assert problems == []


def test_a_closed_package_is_no_reading_although_another_one_is_open(tmp_path: Path) -> None:
    class Partly(Burning):
        def read(self, path: str) -> str:
            if path.endswith("intel-rapl:1/energy_uj") and hasattr(self, "begin_uj"):
                raise self._mapped(PermissionError(13, "Permission denied"), path, "read")
            return super().read(path)

    for package in (0, 1):
        zone(tmp_path, f"intel-rapl:{package}", f"package-{package}")
    sensor, problems = find_rapl(Partly(tmp_path, {"intel-rapl:0": 50.0, "intel-rapl:1": 60.0}))
    assert sensor is not None
    assert len(problems) == 1
    with pytest.raises(Forbidden):
        sensor.read()


def test_root_only_counters_name_the_file_and_the_ways_out(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0")

    class Closed(TimedTree):
        def read(self, path: str) -> str:
            if path.endswith("energy_uj"):
                raise self._mapped(PermissionError(13, "Permission denied"), path, "read")
            return super().read(path)

    sensor, problems = find_rapl(Closed(tmp_path))
    assert sensor is not None
    for part in ("intel-rapl:0/energy_uj", "5.10", "wattune-agent serve"):
        assert part in problems[0]
    with pytest.raises(Forbidden):
        sensor.read()


def test_without_counters_it_says_what_was_looked_for(tmp_path: Path) -> None:
    sensor, problems = find_rapl(TimedTree(tmp_path))
    assert sensor is None
    for part in ("/sys/class/powercap", "modprobe intel_rapl_msr", "external:"):
        assert part in problems[0]
