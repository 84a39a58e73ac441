import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_sensors import TimedTree, hwmon_chip, iio_chip, link, put

from wattune_agent.errors import Forbidden, NoReading
from wattune_agent.ina3221 import find_rails
from wattune_agent.rails import OTHERS_S, Rail, whole_of

ORIN = [("VDD_IN", 4800, 1000), ("VDD_CPU_GPU_CV", 4800, 200), ("VDD_SOC", 4800, 300)]
AGX_ORIN = [("VDD_GPU_SOC", 5000, 400), ("VDD_CPU_CV", 5000, 400), ("VIN_SYS_5V0", 5000, 400)]
NANO = [("POM_5V_IN", 3187), ("POM_5V_GPU", 450), ("POM_5V_CPU", 612)]


def problem_of(root: Path) -> str:
    """Why there is no sensor."""
    sensor, problems = find_rails(TimedTree(root))
    assert sensor is None
    return problems[0]


def sensor_of(root: Path):
    sensor, problems = find_rails(TimedTree(root))
    assert sensor is not None, problems
    return sensor, problems


CARRIER = {"chip": "7-0041", "number": 2}
AGX_SUM = "VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0"
TX2 = [
    (iio_chip, [("VDD_SYS_GPU", 153), ("VDD_SYS_SOC", 306), ("VDD_4V0_WIFI", 0)], {"chip": "0-0040", "number": 0}),
    (iio_chip, [("VDD_IN", 1649), ("VDD_SYS_CPU", 306), ("VDD_SYS_DDR", 173)], {"chip": "0-0041", "number": 1}),
    (iio_chip, [("VDD_MUX", 9000), ("VDD_5V_IO_SYS", 900), ("VDD_3V3_SYS", 50)], {"chip": "0-0042", "number": 2}),
    (iio_chip, [("VDD_3V3_IO", 10), ("VDD_1V8_IO", 20), ("VDD_M2_IN", 30)], {"chip": "0-0043", "number": 3}),
]


@pytest.mark.parametrize(
    ("chips", "rail", "watts"),
    [
        pytest.param([(hwmon_chip, ORIN, {})], "VDD_IN", 4.8, id="hwmon multiplies and takes the input by name"),
        pytest.param([(iio_chip, NANO, {})], "POM_5V_IN", 3.187, id="iio gives milliwatts"),
        pytest.param([(iio_chip, NANO, {"chip": "1-0040"})], "POM_5V_IN", 3.187, id="iio on another bus"),
        pytest.param(TX2, "VDD_IN", 1.649, id="the input may be on the second chip and the carrier has chips too"),
        pytest.param(
            [(hwmon_chip, AGX_ORIN, {}), (hwmon_chip, [("", 5000, 2300), ("", 5000, 0)], CARRIER)],
            AGX_SUM,
            6.0,
            id="a chip without labels beside the module's is the carrier's",
        ),
    ],
)
def test_the_rail_of_the_module_among_the_chips(tmp_path: Path, chips: list[Any], rail: str, watts: float) -> None:
    for chip, rails, where in chips:
        chip(tmp_path, rails, **where)
    sensor, problems = sensor_of(tmp_path)
    assert (sensor.rail, problems) == (rail, [])
    assert sensor.covers == ("the module" if rail != AGX_SUM else "the module, as the sum of 3 rails")
    assert sensor.read() == pytest.approx(watts)


def test_a_copy_of_the_tree_without_links(tmp_path: Path) -> None:
    put(tmp_path, "/sys/class/hwmon/hwmon1/name", "ina3221\n")
    for channel, (label, millivolts, milliamps) in enumerate(AGX_ORIN, 1):
        put(tmp_path, f"/sys/class/hwmon/hwmon1/in{channel}_label", label)
        put(tmp_path, f"/sys/class/hwmon/hwmon1/in{channel}_input", f"{millivolts}")
        put(tmp_path, f"/sys/class/hwmon/hwmon1/curr{channel}_input", f"{milliamps}")
    sensor, problems = sensor_of(tmp_path)
    assert problems == []
    assert sensor.read() == pytest.approx(6.0)
    assert sensor.rail == AGX_SUM


def test_both_drivers_files_of_one_chip_are_one_chip(tmp_path: Path) -> None:
    folder = hwmon_chip(tmp_path, AGX_ORIN, chip="1-0040")
    device = folder.split("/hwmon/")[0]
    for channel, (name, _, _) in enumerate(AGX_ORIN):
        put(tmp_path, f"{device}/iio:device0/rail_name_{channel}", name)
        put(tmp_path, f"{device}/iio:device0/in_power{channel}_input", "600")
    put(tmp_path, f"{device}/iio:device0/name", "ina3221x")
    link(tmp_path, "/sys/bus/iio/devices/iio:device0", f"{device}/iio:device0")
    assert sensor_of(tmp_path)[0].read() == pytest.approx(1.8)


def test_thor_by_its_carriers_input_and_without_it_by_the_sum(tmp_path: Path) -> None:
    rails = [("VDD_GPU", 19700, 0), ("VDD_CPU_SOC_MSS", 19700, 330), ("VIN_SYS_5V0", 5000, 1300)]
    hwmon_chip(tmp_path, rails, chip="2-0040", number=1)
    sensor, _ = sensor_of(tmp_path)
    assert sensor.read() == pytest.approx(6.501 + 6.5)
    put(tmp_path, "/sys/class/hwmon/hwmon2/name", "ina238\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/in1_label", "VIN\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/power1_input", "23000000\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/in1_input", "19700\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/curr1_input", "1160\n")
    sensor, _ = sensor_of(tmp_path)
    assert (sensor.rail, sensor.covers) == ("VIN", "the module and its carrier board")
    assert sensor.read() == pytest.approx(23.0)


@pytest.mark.parametrize("label", ["VDD_5V", "CPU", "VDD_M2_IN", "VDD_GPU"])
def test_a_chip_of_the_carrier_with_labels_is_not_added_to_the_module(tmp_path: Path, label: str) -> None:
    """As the chips of an AGX Xavier lie, with one of a carrier board's maker beside them."""
    iio_chip(tmp_path, [("GPU", 2000), ("CPU", 1500), ("SOC", 3000)], chip="1-0040", number=0)
    iio_chip(tmp_path, [("CV", 600), ("VDDRQ", 1000), ("SYS5V", 4000)], chip="1-0041", number=1)
    hwmon_chip(tmp_path, [(label, 12000, 1117.5)], chip="7-0044", number=2)
    sensor, problems = sensor_of(tmp_path)
    assert (sensor.covers, problems) == ("the module, as the sum of 6 rails", [])
    assert sensor.read() == pytest.approx(12.1)


def test_labels_in_another_order_are_noticed_and_the_largest_rail_stands_for_the_module(tmp_path: Path) -> None:
    # As in a published log of a Nano: the "GPU" draws 8.9 W of a board that draws 3.2 W.
    folder = iio_chip(tmp_path, [("POM_5V_GPU", 8949), ("POM_5V_IN", 3227), ("POM_5V_CPU", 3148)])
    sensor, problems = sensor_of(tmp_path)
    assert len(problems) == 1
    assert "POM_5V_IN" in problems[0]
    assert "POM_5V_GPU" in problems[0]
    assert (sensor.rail, sensor.covers) == ("POM_5V_GPU", "the module, by its largest rail")
    assert sensor.read() == pytest.approx(8.949)
    put(tmp_path, f"{folder}/in_power0_input", "4000")
    assert sensor.read() == pytest.approx(4.0)


def test_one_reading_between_two_loads_is_no_contradiction(tmp_path: Path) -> None:
    folder = iio_chip(tmp_path, NANO)

    class Busy(TimedTree):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            put(tmp_path, f"{folder}/in_power0_input", "7000")

    put(tmp_path, f"{folder}/in_power0_input", "900")  # read before the load came, the GPU after it
    put(tmp_path, f"{folder}/in_power1_input", "2500")
    sensor, problems = find_rails(Busy(tmp_path))
    assert sensor is not None
    assert (sensor.rail, problems) == ("POM_5V_IN", [])


def test_a_single_reading_with_less_than_its_parts_is_given_by_the_largest(tmp_path: Path) -> None:
    folder = hwmon_chip(tmp_path, ORIN)
    sensor, _ = sensor_of(tmp_path)
    put(tmp_path, f"{folder}/curr2_input", "1500")
    sensor._tree.sleep(OTHERS_S)
    assert sensor.read() == pytest.approx(7.2)
    assert sensor.read() == pytest.approx(7.2)  # as long as that lasts, all of them are read
    put(tmp_path, f"{folder}/curr2_input", "1040")  # within what two moments explain
    assert sensor.read() == pytest.approx(4.8)


@pytest.mark.parametrize("milliamps", [0, -5])
def test_an_input_that_has_failed_from_the_start_is_no_wrong_label(tmp_path: Path, milliamps: int) -> None:
    hwmon_chip(tmp_path, [("VDD_IN", 4800, milliamps), *ORIN[1:]])
    sensor, problems = sensor_of(tmp_path)
    assert sensor.rail == "VDD_IN"
    assert any("VDD_IN reads" in problem for problem in problems)
    with pytest.raises(NoReading, match="VDD_IN reads"):
        sensor.read()


def test_trailing_nul_bytes_and_units_are_no_part_of_a_name_or_number(tmp_path: Path) -> None:
    folder = iio_chip(tmp_path, NANO)
    put(tmp_path, f"{folder}/rail_name_0", "POM_5V_IN\n\0")
    put(tmp_path, f"{folder}/in_power0_input", "3187 mW\n\0")
    sensor, _ = sensor_of(tmp_path)
    assert sensor.rail == "POM_5V_IN"
    assert sensor.read() == pytest.approx(3.187)


@pytest.mark.parametrize(
    ("label", "is_input"),
    [
        ("VDD_IN", True),
        ("POM_5V_IN", True),
        ("5V_IN", True),
        ("VDD_5V_IN", True),
        ("vdd_in", True),
        ("VDD IN", True),
        ("VIN", True),
        ("VDD_M2_IN", False),
        ("VIN_SYS_5V0", False),
        ("VDD_MUX", False),
        ("VDD_GPU_SOC", False),
    ],
)
def test_names_of_inputs(label: str, is_input: bool) -> None:
    assert (whole_of([Rail("VDD_CPU", [], 1.0), Rail(label, [], 1.0)]) is not None) == is_input


@pytest.mark.parametrize("labels", [["", "", ""], ["VDD_5V", "VDD_3V3", ""], ["VDD_GPU_SOC", "VDD_CPU_CV", "NC"]])
def test_rails_that_are_not_known_to_be_the_whole_module_do_not_stand_for_it(tmp_path: Path, labels: list[str]) -> None:
    hwmon_chip(tmp_path, [(label, 5000, 400) for label in labels])
    carries = "none of the rails that can be read carries the whole module"
    for part in (carries, labels[0] or "1-0040 channel 1", "external:"):
        assert part in problem_of(tmp_path)


def test_labels_of_the_device_tree_stand_in_for_the_drivers(tmp_path: Path) -> None:
    folder = hwmon_chip(tmp_path, [("", 5000, 900), ("", 5000, 100), ("", 5000, 100)])
    device = folder.split("/hwmon/")[0]
    for channel, (label, _, _) in enumerate(ORIN):
        put(tmp_path, f"{device}/of_node/input@{channel}/label", f"{label}\0")
    sensor, problems = sensor_of(tmp_path)
    assert (sensor.rail, problems) == ("VDD_IN", [])


def test_a_channel_that_is_switched_off_or_half_there_is_left_out(tmp_path: Path) -> None:
    folder = hwmon_chip(tmp_path, ORIN)
    put(tmp_path, f"{folder}/in3_enable", "0\n")
    os.remove(tmp_path / f"{folder}/curr2_input".lstrip("/"))
    sensor, _ = sensor_of(tmp_path)
    assert [rail.name for rail in sensor._rails] == ["VDD_IN"]


def test_without_a_chip_it_says_what_was_looked_for_and_what_would_help(tmp_path: Path) -> None:
    put(tmp_path, "/sys/class/hwmon/hwmon0/name", "nvme\n")
    for part in ("/sys/class/hwmon", "/sys/bus/iio/devices", "modprobe", "external:"):
        assert part in problem_of(tmp_path)


def test_a_chip_without_channels_is_another_sentence(tmp_path: Path) -> None:
    put(tmp_path, "/sys/class/hwmon/hwmon1/name", "ina3221\n")
    assert "none of its channels" in problem_of(tmp_path)


@pytest.mark.parametrize(
    ("rails", "files", "match"),
    [
        (ORIN, {"curr1_input": "0"}, "VDD_IN reads 0 W"),  # nor is it given by its parts
        *(
            (ORIN, {"curr1_input": text, "curr2_input": "0", "curr3_input": "0"}, "VDD_IN")
            for text in ("", "garbage", "nan", "inf", "-3", "0", "1e30")
        ),
        (AGX_ORIN, {"curr2_input": ""}, "VDD_CPU_CV"),
    ],
)
def test_nonsense_of_the_whole_or_of_a_part_of_a_sum_is_no_reading(
    tmp_path: Path, rails: Any, files: dict[str, str], match: str
) -> None:
    folder = hwmon_chip(tmp_path, rails)
    sensor, _ = sensor_of(tmp_path)
    for name, text in files.items():
        put(tmp_path, f"{folder}/{name}", text)
    with pytest.raises(NoReading, match=match):
        sensor.read()


def test_a_vanished_part_leaves_the_whole_and_a_vanished_whole_is_no_reading(tmp_path: Path) -> None:
    folder = hwmon_chip(tmp_path, ORIN)
    sensor, _ = sensor_of(tmp_path)
    os.remove(tmp_path / f"{folder}/curr3_input".lstrip("/"))
    sensor._tree.sleep(OTHERS_S)
    assert sensor.read() == pytest.approx(4.8)
    os.remove(tmp_path / f"{folder}/in1_input".lstrip("/"))
    with pytest.raises(NoReading, match="in1_input"):
        sensor.read()


def test_a_file_that_may_not_be_read_is_named_with_the_ways_out(tmp_path: Path) -> None:
    folder = iio_chip(tmp_path, NANO)

    class Closed(TimedTree):
        def read(self, path: str) -> str:
            if path.endswith("in_power0_input"):
                raise self._mapped(PermissionError(13, "Permission denied"), path, "read")
            return super().read(path)

    sensor, problems = find_rails(Closed(tmp_path))
    assert sensor is not None
    assert f"{folder}/in_power0_input" in problems[0]
    assert "wattune-agent serve" in problems[0]
    with pytest.raises(Forbidden):
        sensor.read()


@pytest.mark.parametrize(
    ("chip", "rails", "files", "window_s"),
    [
        (hwmon_chip, ORIN, {"update_interval": "422"}, 0.422),
        (hwmon_chip, ORIN, {"samples": "64"}, 0.4224),
        (hwmon_chip, ORIN, {}, 0.0066),
        (hwmon_chip, ORIN, {"update_interval": "?"}, 0.0066),
        (iio_chip, NANO, {"running_mode": "0"}, 0.001),
        (iio_chip, NANO, {"running_mode": "1"}, 0.422),
        (iio_chip, NANO, {}, 0.422),
    ],
)
def test_the_window_as_the_driver_tells_it(
    tmp_path: Path, chip: Any, rails: Any, files: dict[str, str], window_s: float
) -> None:
    chip(tmp_path, rails, **files)
    sensor, _ = sensor_of(tmp_path)
    assert sensor.window_s == sensor.period_s == pytest.approx(window_s)


@pytest.mark.parametrize("gone", ["in1_enable", "in1_input", "in1_label"])
def test_the_parts_do_not_stand_for_an_input_that_is_switched_off_or_without_files(tmp_path: Path, gone: str) -> None:
    folder = hwmon_chip(tmp_path, ORIN, in1_enable="0" if gone == "in1_enable" else "1")
    if gone != "in1_enable":
        os.remove(f"{tmp_path}{folder}/{gone}")
    assert "its parts do not stand for it" in problem_of(tmp_path)


def test_an_ina238_averages_for_fifty_milliseconds(tmp_path: Path) -> None:
    put(tmp_path, "/sys/class/hwmon/hwmon2/name", "ina238\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/in1_label", "VIN\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/power1_input", "23000000\n")
    assert sensor_of(tmp_path)[0].window_s == pytest.approx(0.05, rel=0.02)


def test_the_resolution_from_the_shunt(tmp_path: Path) -> None:
    hwmon_chip(tmp_path, ORIN, shunt1_resistor="5000")
    assert sensor_of(tmp_path)[0].resolution_w == pytest.approx(0.008 * 4.8)


class CountingTree(TimedTree):
    """Notes each file that is read, and each time that the links of a path are followed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[str] = []
        self.followed: list[str] = []

    def read(self, path: str) -> str:
        self.reads.append(path)
        return super().read(path)

    def inside(self, path: str) -> str:
        self.followed.append(path)
        return super().inside(path)


def test_a_reading_opens_the_inputs_file_alone_and_once_a_second_those_of_every_rail(tmp_path: Path) -> None:
    """That is what takes time: half a millisecond for each file on a board."""
    iio_chip(tmp_path, NANO)
    tree = CountingTree(tmp_path)
    sensor = find_rails(tree)[0]
    assert sensor is not None
    sensor.read()
    tree.reads.clear()
    tree.followed.clear()
    sensor.read()
    assert [os.path.basename(path) for path in tree.reads] == ["in_power0_input"]
    tree.sleep(OTHERS_S)
    tree.reads.clear()
    sensor.read()
    assert [os.path.basename(path) for path in tree.reads] == ["in_power0_input", "in_power1_input", "in_power2_input"]
    assert tree.followed == []
