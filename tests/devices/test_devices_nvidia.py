"""NVIDIA cards as devices, over a library that answers as NVIDIA's does; and a real one, only read."""

import pytest
from tests.devices.contract import DeviceContract
from tests.support.fake_nvml import (
    GB10,
    GPU_IS_LOST,
    LAPTOP,
    NOT_SUPPORTED,
    PASCAL,
    POWER_CAP,
    UNKNOWN,
    FakeGpu,
    FakeLibrary,
    install,
)

from wattune.devices import Knob, Meter, known_devices, open_device
from wattune.devices.agent import find_nvidia, open_nvidia
from wattune.errors import DeviceError, DeviceUnavailable, InputError
from wattune.point import Knobs
from wattune_agent.settings import MOST_SETTINGS

CLOCK = "0?actuator=clock_mhz"
OLD = {"architecture": PASCAL, "capability": (6, 1), "name": "NVIDIA P40"}


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Put cards into this machine."""

    def put(*gpus, **options):
        return install(monkeypatch, tmp_path, FakeLibrary(*gpus, **options))

    return put


class TestNvidia(DeviceContract):
    actuator = "clock_mhz"
    has_controller = True

    @pytest.fixture
    def gpu(self):
        return FakeGpu(clocks=(1440, 1005, 510))

    @pytest.fixture
    def device(self, use, gpu):
        use(gpu)
        device = open_device(f"nvidia:0?actuator={self.actuator}")
        yield device
        device.close()

    @pytest.fixture
    def another(self, device):
        return open_device(f"nvidia:0?actuator={self.actuator}")

    def test_it_is_left_as_it_was(self, device, gpu):
        with device.at(device.combinations()[0]):
            assert gpu.locked == (510, 510)
        assert (gpu.locked, gpu.limit_mw) == (None, 165_000)


class TestNvidiaByPowerLimit(TestNvidia):
    actuator = "power_limit_w"
    has_controller = False

    @pytest.fixture
    def gpu(self):
        return FakeGpu(limits_mw=(100_000, 102_000), limit_mw=101_000, energy=False)

    def test_it_is_left_as_it_was(self, device, gpu):
        assert device.knobs == (Knob("power_limit_w", (100.0, 101.0, 102.0)),)
        with device.at(Knobs(power_limit_w=100)), device.at(Knobs(power_limit_w=102.0)):
            assert gpu.limit_mw == 102_000
        assert (gpu.locked, gpu.limit_mw) == (None, 101_000)


class TestNvidiaAlone(TestNvidia):
    """Nothing is set: the card chooses its clock."""

    actuator = "none"

    def test_it_is_left_as_it_was(self, device, gpu):
        with device.at(None):
            assert device.current() is None
        device.wait(2.1)
        device.controller.describe()  # and no clock is found later on
        assert device.offered == ()
        assert gpu.changes == []


# ------------------------------------------------------------------------------------------------------------- reading


def test_what_it_is(use):
    use(FakeGpu(mig=True), FakeGpu(name="NVIDIA H100", uuid="GPU-h100", capability=(9, 0), temperature_c=70))
    device = find_nvidia("GPU-h100?actuator=clock_mhz")
    assert device.name == "NVIDIA H100"
    assert device.mode == "driver 550.54.15, ECC on, power limit 165 W"
    assert device.data_types == {"fp32", "tf32", "fp16", "bf16"}
    assert device.trains_on == "gpu"
    assert not device.shares_memory
    assert (device.memory_bytes, device.highest_w) == (20 * 2**30, 165.0)
    assert device.conditions().temperature_c == 70
    assert device.current() is None
    (knob,) = device.knobs
    assert (knob.name, len(knob.values)) == ("clock_mhz", MOST_SETTINGS)
    assert "power limit" not in find_nvidia("GPU-h100").mode
    assert "all of them together" in find_nvidia("0").problems[-1]


def test_a_limit_that_was_asked_for_is_not_worth_a_notice(use):
    use(FakeGpu(reasons=POWER_CAP))
    assert open_nvidia(CLOCK).conditions().notices == ("power limit",)
    assert open_nvidia("0").conditions().notices == ()


def test_the_temperature_is_asked_for_by_the_newer_call_first(use):
    gpu = FakeGpu(temperature_c=70)
    library = use(gpu)
    device = open_nvidia("0")
    assert device.conditions().temperature_c == 70
    assert "nvmlDeviceGetTemperature" not in gpu.calls
    gpu.newer_temperature = False
    assert open_nvidia("0").conditions().temperature_c == 70
    library.lacks.add("nvmlDeviceGetTemperatureV")  # a driver before 565
    assert open_nvidia("0").conditions().temperature_c == 70


# ----------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize(("code", "said"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_without_a_driver(use, code, said):
    use(broken=code)
    with pytest.raises(DeviceUnavailable, match=said) as caught:
        open_device("nvidia:0")
    assert "--gpus all" in str(caught.value)
    assert caught.value.exit_code == 2


def test_without_the_library(monkeypatch, tmp_path):
    install(monkeypatch, tmp_path, None)
    with pytest.raises(DeviceUnavailable, match="cannot open shared object"):
        open_device("nvidia:0")
    assert not [d for d in known_devices() if d.backend == "nvidia"]


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("1", "below 1"),
        ("GPU-none", "GPU-none"),
        ("0?actuator=fan", "clock_mhz, power_limit_w, none"),
        ("0?clock=5", "actuator"),
        ("0?actuator=", "actuator"),
    ],
)
def test_what_is_asked_for_wrongly(use, rest, said):
    use(FakeGpu())
    with pytest.raises(InputError, match=said):
        open_nvidia(rest)


def test_a_card_without_locked_clocks_has_its_limit_in_whole_watts_alone(use):
    gpu = FakeGpu(**OLD, limits_mw=(100_400, 103_600), limit_mw=103_600)
    use(gpu)
    assert open_nvidia("0").knobs == (Knob("power_limit_w", (101.0, 102.0, 103.0)),)
    with pytest.raises(InputError, match=r"no clock that can be set.*power_limit_w or none"):
        open_nvidia(CLOCK)
    gpu.limits_mw = (100_400, 100_600)
    with pytest.raises(InputError, match="no power limit that can be set"):
        open_nvidia("0?actuator=power_limit_w")
    assert open_nvidia("0").knobs == ()


def test_a_laptops_limit_is_tried_once_and_the_clock_is_locked_in_its_place(use):
    gpu = FakeGpu(**LAPTOP)
    use(gpu)
    device = open_nvidia("0")
    assert [knob.name for knob in device.knobs] == ["clock_mhz"]
    refused = "reports a power limit, but its driver refuses to set it"
    assert device.problems == (f"{gpu.name} {refused}: its clock is locked instead",)
    assert gpu.calls.count("nvmlDeviceSetPowerManagementLimit") == 1
    with device.at(device.safest):
        assert gpu.locked == (210, 210)
    assert (gpu.locked, gpu.limit_mw) == (None, 150_000)
    with pytest.raises(InputError, match=rf"{refused}.*use \?actuator=clock_mhz or none"):
        open_nvidia("0?actuator=power_limit_w")


def test_a_clock_that_the_driver_refuses_to_lock_names_the_other_ways(use):
    refused = ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
    gpu = FakeGpu(**{**LAPTOP, "fails": dict.fromkeys(refused, NOT_SUPPORTED)})
    use(gpu)
    device = open_nvidia("0")
    other_ways = r"refuses to lock the clock of .*: use \?actuator=power_limit_w or none"
    for _ in range(2):  # nothing was changed, so nothing is left to restore
        with pytest.raises(DeviceError, match=other_ways), device.at(device.safest):
            pytest.fail("the clock was locked")
    assert gpu.locked is None


def test_a_limit_that_could_not_be_restored_is_not_set(use):
    use(FakeGpu(fails={"nvmlDeviceGetPowerManagementLimit": UNKNOWN}))
    assert [knob.name for knob in open_nvidia("0").knobs] == ["clock_mhz"]


def test_a_dgx_spark_is_held_by_its_clock_and_trains_in_the_machines_memory(use, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n")
    gpu = FakeGpu(**GB10)
    use(gpu)
    device = open_nvidia("")
    assert device.shares_memory
    assert 0.9 < device.memory_bytes / (118566368 * 1024) <= 1.0
    assert device.highest_w is None
    (knob,) = device.knobs
    assert (knob.name, knob.values[0], knob.values[-1]) == ("clock_mhz", 751.0, 3003.0)
    with device.at(Knobs(clock_mhz=751.0)):
        assert gpu.locked == (751, 751)
        assert device.power_w() > 0
    assert gpu.locked is None


def test_a_card_that_tells_no_power(use):
    use(FakeGpu(energy=False, usage=False, name="Orin (nvgpu)"))
    with pytest.raises(DeviceUnavailable, match="--device jetson"):
        open_device("nvidia:0")
    entry = next(d for d in known_devices() if d.backend == "nvidia")
    assert (entry.power_w, entry.sensor) == (None, "none")
    assert "tells no power" in entry.problems[0]


def test_known_devices_show_what_is_there(use):
    gpu = FakeGpu()
    use(gpu, FakeGpu(uuid="GPU-ill", fails={"nvmlDeviceGetName": GPU_IS_LOST}))
    first, second = (d for d in known_devices() if d.backend == "nvidia")
    assert first.spec == "nvidia:0"
    assert first.power_w == pytest.approx(150, rel=0.1)
    assert [(knob.name, knob.values[-1]) for knob in first.knobs] == [("power_limit_w", 165.0)]
    assert "lost" in second.problems[0]
    assert (gpu.locked, gpu.limit_mw) == (None, 165_000)


# --------------------------------------------------------------------------------------------- the card that trains


FIRST, ALIKE = "GPU-5f0c1f2a-0000-4000-8000-000000000001", "GPU-5f0c1f2a-0000-4000-8000-000000000002"
FASTEST, BY_PCI = "NVIDIA GeForce RTX 4090", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("second", "index", "environment", "said"),
    [
        ({"uuid": "GPU-77"}, "1", {}, "CUDA_VISIBLE_DEVICES=GPU-77"),
        ({"uuid": "GPU-77"}, "1", {"CUDA_VISIBLE_DEVICES": "GPU-77"}, None),
        ({"uuid": "GPU-77"}, "0", {"CUDA_VISIBLE_DEVICES": "GPU-77"}, "2 GPUs"),
        ({"uuid": "GPU-77"}, "0", {"CUDA_VISIBLE_DEVICES": "0"}, None),
        ({"uuid": "GPU-77"}, "1", {"CUDA_VISIBLE_DEVICES": "GPU-7,GPU-5"}, None),
        *(
            ({"uuid": ALIKE}, index, {"CUDA_VISIBLE_DEVICES": visible}, "CUDA_VISIBLE_DEVICES=GPU-5f0c1f2a")
            for index in "01"
            for visible in ("GPU-", "GPU-5f0c", FIRST[:-1], "", "5f0c")
        ),
        # An index of CUDA is not the driver's for different cards.
        *(
            ({"uuid": "GPU-fast", "name": FASTEST}, visible, {"CUDA_VISIBLE_DEVICES": visible, **order}, "=PCI_BUS_ID")
            for visible in "01"
            for order in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
        ),
        ({"uuid": "GPU-fast", "name": FASTEST}, "1", {"CUDA_VISIBLE_DEVICES": "1", **BY_PCI}, None),
        ({"uuid": "GPU-fast", "name": FASTEST}, "0", {"CUDA_VISIBLE_DEVICES": "1", **BY_PCI}, "2 GPUs"),
    ],
)
def test_of_several_cards_the_one_that_trains_is_measured(use, monkeypatch, second, index, environment, said):
    use(FakeGpu(), FakeGpu(**second))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if said is None:
        assert open_nvidia(index).power_w() > 0
        return
    with pytest.raises(DeviceUnavailable, match=said) as caught:
        open_nvidia(index)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- changing


@pytest.mark.parametrize(
    ("mask", "uid", "may"),
    [
        ("000001ffffffffff", 0, True),
        ("00000000a80425fb", 0, False),  # root in a container that was started without --cap-add SYS_ADMIN
        ("0000000000200000", 1000, True),
        ("0000000000000000", 1000, False),
        (None, 0, True),
        (None, 1000, False),
    ],
)
def test_who_may_not_change_a_card_is_told_before(use, monkeypatch, tmp_path, mask, uid, may):
    use(FakeGpu())
    (tmp_path / "status").write_text("Name:\tpython\n" + (f"CapInh:\t0\nCapEff:\t{mask}\n" if mask else ""))
    monkeypatch.setattr("wattune_agent.nvml.os.geteuid", lambda: uid)
    problems = find_nvidia("0").problems
    assert problems == () if may else "CAP_SYS_ADMIN" in problems[0]
    assert find_nvidia("0?actuator=none").problems == ()


# ------------------------------------------------------------------------------------------------------ a real one


@pytest.mark.hardware
class TestRealGpu:
    """Only reads: clocks, limits and modes stay as they are."""

    @pytest.fixture
    def device(self):
        device = open_device("nvidia:0?actuator=none")
        yield device
        device.close()

    def test_it_says_what_it_is(self, device):
        listed = next(d for d in known_devices() if d.spec == "nvidia:0")
        print(f"\n{device.name}, {device.mode}, {device.sensor}, {device.conditions()}, {listed}")
        assert listed.power_w is not None
        assert all(list(knob.values) == sorted(knob.values) for knob in listed.knobs)
        assert device.memory_bytes > 0

    def test_the_meter_agrees_with_the_reported_power(self, device):
        from wattune_agent.tree import Tree

        card = Tree().cards().find("0")
        with Meter(device) as meter:
            device.wait(5)
        reported_w = card.usage_w()
        print(f"\n{meter.figures()}, reported {reported_w} W")
        assert meter.figures().energy_j == pytest.approx(5 * reported_w, rel=0.5)
