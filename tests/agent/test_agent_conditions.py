from pathlib import Path

import pytest
from tests.support.agent_sensors import TimedTree, link, put

from wattune_agent.conditions import conditions


def zones(root: Path, **celsius: float) -> None:
    for number, (kind, value) in enumerate(celsius.items()):
        put(root, f"/sys/class/thermal/thermal_zone{number}/type", kind.replace("_", "-") + "\n")
        put(root, f"/sys/class/thermal/thermal_zone{number}/temp", f"{value * 1e3:.0f}\n")


def cooling(root: Path, *devices: tuple[str, float]) -> None:
    for number, (kind, state) in enumerate(devices):
        put(root, f"/sys/class/thermal/cooling_device{number}/type", kind + "\n")
        put(root, f"/sys/class/thermal/cooling_device{number}/cur_state", f"{state:g}\n")


def test_the_hottest_zone_of_the_chip(tmp_path: Path) -> None:
    # A Nano's PMIC says 100 C at all times; zones that are switched off on an Orin say -256 C.
    zones(tmp_path, AO_therm=41, CPU_therm=33.5, GPU_therm=34, PMIC_Die=100, thermal_fan_est=50, cv0_thermal=-256)
    assert conditions(TimedTree(tmp_path)).temperature_c == 41.0


def test_a_zone_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    zones(tmp_path, CPU_therm=33.5, GPU_therm=34)
    put(tmp_path, "/sys/class/thermal/thermal_zone1/temp", "")
    assert conditions(TimedTree(tmp_path)).temperature_c == 33.5


def test_zones_that_are_numbered_anew_are_found_again(tmp_path: Path) -> None:
    zones(tmp_path, CPU_therm=33.5)
    tree = TimedTree(tmp_path)
    assert conditions(tree).temperature_c == 33.5
    thermal = tmp_path / "sys/class/thermal"
    (thermal / "thermal_zone0").rename(thermal / "thermal_zone5")
    assert conditions(tree).temperature_c is None
    assert conditions(tree).temperature_c == 33.5


def test_zones_without_the_class(tmp_path: Path) -> None:
    put(tmp_path, "/sys/devices/virtual/thermal/thermal_zone3/type", "tj-thermal\0")
    put(tmp_path, "/sys/devices/virtual/thermal/thermal_zone3/temp", "51250")
    assert conditions(TimedTree(tmp_path)).temperature_c == 51.25


def test_a_processor_without_a_zone_of_its_own(tmp_path: Path) -> None:
    zones(tmp_path, acpitz=27.8)
    put(tmp_path, "/sys/class/hwmon/hwmon2/name", "k10temp\n")
    put(tmp_path, "/sys/class/hwmon/hwmon2/temp1_input", "61000\n")
    assert conditions(TimedTree(tmp_path)).temperature_c == 61.0


def test_an_empty_tree_tells_nothing(tmp_path: Path) -> None:
    assert conditions(TimedTree(tmp_path)) == (None, (), None, ())


@pytest.mark.parametrize(
    "kind", ["gpu-throttle-alert", "cpu-throttle-alert", "gpu-balanced", "tegra-heavy", "cpufreq-cpu0", "Processor"]
)
def test_a_cooling_device_above_its_rest_clamps(tmp_path: Path, kind: str) -> None:
    cooling(tmp_path, ("pwm-fan", 3), (kind, 2))
    tree = TimedTree(tmp_path)
    assert conditions(tree).throttled == (f"{kind} at 2",)
    cooling(tmp_path, ("pwm-fan", 3), (kind, 0))
    assert conditions(tree).throttled == ()


def test_a_hot_surface_is_a_notice_and_throttles_nothing(tmp_path: Path) -> None:
    cooling(tmp_path, ("hot-surface-alert", 1), ("cpu-throttle-alert", 0))
    assert conditions(TimedTree(tmp_path)).throttled == ()


def test_a_frequency_device_that_rests_above_zero_beside_an_alert(tmp_path: Path) -> None:
    # As seen on an AGX Thor at rest: its GPU's device stands at 18 of 169.
    cooling(tmp_path, ("gpu-throttle-alert", 0), ("devfreq-gpu-gpc-0", 18))
    tree = TimedTree(tmp_path)
    assert conditions(tree).throttled == ()
    cooling(tmp_path, ("gpu-throttle-alert", 1), ("devfreq-gpu-gpc-0", 40))
    assert conditions(tree).throttled == ("gpu-throttle-alert at 1", "devfreq-gpu-gpc-0 at 40")
    cooling(tmp_path, ("gpu-throttle-alert", 0), ("devfreq-gpu-gpc-0", 5))
    assert conditions(tree).throttled == ()
    cooling(tmp_path, ("gpu-throttle-alert", 0), ("devfreq-gpu-gpc-0", 18))
    assert conditions(tree).throttled == ("devfreq-gpu-gpc-0 at 18",)


def test_what_follows_the_temperature_at_all_times_does_not_clamp(tmp_path: Path) -> None:
    cooling(tmp_path, ("gpu_scaling", 3), ("vts", 2), ("core_dvfs_floor", 1), ("intel_powerclamp", -1), ("iwlwifi", 4))
    assert conditions(TimedTree(tmp_path)).throttled == ()


def test_the_processors_own_counter_clamps_while_it_rises(tmp_path: Path) -> None:
    counter = "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
    put(tmp_path, counter, "7\n")
    tree = TimedTree(tmp_path)
    assert conditions(tree).throttled == ()
    put(tmp_path, counter, "9\n")
    assert conditions(tree).throttled == ("the processor's thermal throttle",)
    assert conditions(tree).throttled == ()


def test_over_current_events_of_an_orin(tmp_path: Path) -> None:
    folder = "/sys/devices/platform/soctherm-oc-event/hwmon/hwmon3"
    for number, count in ((1, 0), (2, 15), (3, 37)):
        put(tmp_path, f"{folder}/oc{number}_event_cnt", f"{count}\n")
    put(tmp_path, f"{folder}/name", "soctherm_oc\n")
    link(tmp_path, "/sys/class/hwmon/hwmon3", folder)
    tree = TimedTree(tmp_path)
    assert conditions(tree).over_current == 52
    put(tmp_path, f"{folder}/oc3_event_cnt", "38\n")
    assert conditions(tree).over_current == 53
