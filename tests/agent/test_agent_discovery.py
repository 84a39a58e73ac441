import shutil
from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, hwmon_chip, iio_chip, put
from tests.support.agent_trees import gpu_tree

from wattune_agent.controller import LOOK_S, Controller
from wattune_agent.discovery import board_name, families, find_board, is_tegra
from wattune_agent.errors import BadRequest, NoReading, NotThere
from wattune_agent.tree import Tree


def test_a_jetson_by_its_parts_alone(tmp_path: Path) -> None:
    gpu_tree(tmp_path)
    iio_chip(tmp_path, [("POM_5V_IN", 3000), ("POM_5V_GPU", 100), ("POM_5V_CPU", 400)])
    assert families(TimedTree(tmp_path)) == ["jetson"]
    assert find_board(TimedTree(tmp_path), "jetson").name == "jetson"


def test_what_a_jetson_lacks_is_a_problem_and_no_error(tmp_path: Path) -> None:
    put(tmp_path, "/sys/firmware/devicetree/base/compatible", "nvidia,p3448-0003\0nvidia,tegra210\0")
    board = find_board(TimedTree(tmp_path), "jetson")
    assert board.clock is None
    assert board.sensor is None
    assert len(board.problems) == 2
    assert "INA3221" in board.problems[1]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/proc/device-tree/compatible", "radxa,rock5b\0rockchip,rk3588\0"),
        ("/proc/cpuinfo", "CPU implementer\t: 0x51\n"),
    ],
)
def test_a_board_with_an_arm_processor_is_not_told_to_load_a_driver_for_x86(
    tmp_path: Path, path: str, content: str
) -> None:
    put(tmp_path, path, content)
    put(tmp_path, "/sys/devices/system/cpu/online", "0-7\n")
    said = " ".join(find_board(TimedTree(tmp_path), "cpu").problems)
    assert "external:" in said
    assert "rapl" not in said


@pytest.mark.parametrize(("label", "is_found"), [("VDD_IN", True), ("VIN", False)])
def test_a_sensor_whose_driver_was_loaded_again_is_found_again(tmp_path: Path, label: str, is_found: bool) -> None:
    gpu_tree(tmp_path)
    folder = hwmon_chip(tmp_path, [("VDD_IN", 4800, 1000)], number=3)
    tree = TimedTree(tmp_path)
    controller = Controller(find_board(tree, "jetson"))
    assert controller.read()["power_w"] == pytest.approx(4.8)
    shutil.rmtree(f"{tmp_path}{folder}")
    (tmp_path / "sys/class/hwmon/hwmon3").unlink()
    (tmp_path / "sys/bus/i2c/devices/1-0040").unlink()
    (tmp_path / "sys/bus/i2c/drivers/ina3221/1-0040").unlink()
    hwmon_chip(tmp_path, [(label, 4800, 2000)], number=5)  # another rail measures something else
    with pytest.raises(NoReading):
        controller.read()
    tree.sleep(LOOK_S)
    if is_found:
        assert controller.read()["power_w"] == pytest.approx(9.6)
    else:
        with pytest.raises(NoReading, match="VDD_IN"):
            controller.read()


def test_another_vendors_gpu_is_no_jetson(tmp_path: Path) -> None:
    put(tmp_path, "/proc/device-tree/compatible", "radxa,rock5b\0rockchip,rk3588\0")
    gpu_tree(tmp_path)
    assert families(TimedTree(tmp_path)) == []


def test_nothing_of_the_family(tmp_path: Path) -> None:
    with pytest.raises(NotThere, match="no Jetson here"):
        find_board(TimedTree(tmp_path), "jetson")
    with pytest.raises(NotThere, match="no CPU"):
        find_board(TimedTree(tmp_path), "cpu")
    with pytest.raises(BadRequest, match="jetson, cpu"):
        find_board(TimedTree(tmp_path), "tpu")
    assert families(TimedTree(tmp_path)) == []


def test_a_cpu_board_takes_the_nearest_to_the_whole(tmp_path: Path) -> None:
    put(tmp_path, "/proc/cpuinfo", "processor\t: 0\nmodel name\t: A Processor  @ 2 GHz\n")
    put(tmp_path, "/sys/class/powercap/intel-rapl:0/name", "package-0")
    put(tmp_path, "/sys/class/powercap/intel-rapl:0/energy_uj", "5")
    board = find_board(TimedTree(tmp_path), "cpu")
    assert board.name == "A Processor @ 2 GHz"
    assert board.sensor is not None
    assert board.sensor.rail == "package-0"
    iio_chip(tmp_path, [("VDD_IN", 3000), ("VDD_CPU_GPU", 100), ("VDD_SOC", 400)])
    board = find_board(TimedTree(tmp_path), "cpu")
    assert board.sensor is not None
    assert board.sensor.rail == "VDD_IN"


def test_names(tmp_path: Path) -> None:
    tree = TimedTree(tmp_path)
    put(tmp_path, "/sys/class/dmi/id/sys_vendor", "LENOVO\n")
    put(tmp_path, "/sys/class/dmi/id/product_name", "System Product Name\n")
    assert board_name(tree) == "LENOVO"
    put(tmp_path, "/sys/class/dmi/id/product_name", "20L7CTO1WW\n")
    assert board_name(tree) == "LENOVO 20L7CTO1WW"
    put(tmp_path, "/sys/class/dmi/id/product_name", "LENOVO 20L7CTO1WW\n")
    assert board_name(tree) == "LENOVO 20L7CTO1WW"
    assert not is_tegra(tree)
    put(tmp_path, "/sys/class/dmi/id/product_name", "NVIDIA Jetson AGX Thor Developer Kit\n")
    assert is_tegra(tree)


def test_on_this_machine_it_only_looks() -> None:
    assert set(families(Tree())) <= {"jetson", "cpu"}
