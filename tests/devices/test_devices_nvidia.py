"""NVIDIA GPUs through the real pynvml, over a library that answers as NVIDIA's does; and a real one, only read."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest
from tests.devices.contract import DeviceContract
from tests.support.fake_nvml import FakeGpu, FakeLibrary, install

import wattune.devices.nvidia.gpu as nvidia
from wattune.devices import Knob, Meter, known_devices, open_device
from wattune.devices.base import Leftover
from wattune.devices.group import open_group
from wattune.devices.group.watch import restore
from wattune.devices.nvidia.gpu import find_nvidia, open_nvidia
from wattune.devices.nvidia.gpu_power import EnergyCounter, InstantPower, ReportedPower, find_reader
from wattune.devices.nvidia.gpu_restore import restore_gpus
from wattune.devices.nvidia.nvml import Gpu, count_gpus
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune_agent.settings import MOST_SETTINGS
from wattune_agent.snapshot import boot_id, started_at

CLOCK = "0?actuator=clock_mhz"
PASCAL = {"architecture": pynvml.NVML_DEVICE_ARCH_PASCAL, "capability": (6, 1), "name": "NVIDIA P40"}


@pytest.fixture(autouse=True)
def kept_here(monkeypatch, tmp_path):
    """What is kept goes to this test's folder, and the environment names no GPU."""
    monkeypatch.setattr(
        "wattune.devices.nvidia.claims.folders", lambda tree: [str(tmp_path / name) for name in ("state", "all")]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


@pytest.fixture
def use(monkeypatch):
    """Put GPUs into this machine."""

    def put(*gpus, **options):
        return install(monkeypatch, FakeLibrary(*gpus, **options))

    return put


class TestNvidia(DeviceContract):
    actuator = "clock_mhz"

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

    def test_it_is_left_as_it_was(self, device, gpu, tmp_path):
        with device.at(device.combinations()[0]):
            assert list((tmp_path / "state").glob("nvidia-*.json"))
        assert gpu.locked is None
        assert gpu.limit_mw == 165_000
        assert not list((tmp_path / "state").glob("nvidia-*.json"))


class TestNvidiaByPowerLimit(TestNvidia):
    actuator = "power_limit_w"

    @pytest.fixture
    def gpu(self):
        return FakeGpu(limits_mw=(100_000, 102_000), limit_mw=101_000, energy=False)

    def test_it_is_left_as_it_was(self, device, gpu):
        assert device.knobs == (Knob("power_limit_w", (100.0, 101.0, 102.0)),)
        with device.at(Knobs(power_limit_w=100)), device.at(Knobs(power_limit_w=102.0)):
            assert gpu.limit_mw == 102_000
        assert gpu.changes == [("limit", 100_000), ("limit", 102_000), ("limit", 100_000), ("limit", 101_000)]


class TestNvidiaAlone(TestNvidia):
    """Nothing is set: the GPU chooses its clock."""

    actuator = "none"

    def test_it_is_left_as_it_was(self, device, gpu):
        with device.at(None):
            assert device.current() is None
        assert gpu.changes == []


# ------------------------------------------------------------------------------------------------------------- reading


def test_what_it_is(use):
    use(FakeGpu(mig=True), FakeGpu(name="NVIDIA H100", uuid="GPU-h100", capability=(9, 0), temperature_c=70))
    device = find_nvidia("GPU-h100?actuator=clock_mhz")
    assert device.name == "NVIDIA H100"
    assert device.mode == "driver 550.54.15, persistence on, ECC on, power limit 165 W"
    assert device.data_types == {"fp32", "tf32", "fp16", "bf16"}
    assert device.trains_on == "gpu"
    assert not device.shares_memory
    assert device.memory_bytes == 20 * 2**30
    assert device.conditions().temperature_c == 70
    assert device.current() is None
    assert "power limit" not in find_nvidia("0?actuator=power_limit_w").mode
    assert "all of them together" in find_nvidia("0").problems[-1]


def test_settings_are_few_and_listed(use):
    gpu = FakeGpu()
    use(gpu)
    (knob,) = open_nvidia(CLOCK).knobs
    assert knob.name == "clock_mhz"
    assert len(knob.values) == MOST_SETTINGS
    assert (knob.values[0], knob.values[-1]) == (210.0, 1440.0)
    assert set(knob.values) <= set(map(float, gpu.clocks))


@pytest.mark.parametrize(
    ("gpu", "kind", "window_s"),
    [
        ({}, EnergyCounter, 0.5),
        ({"energy": False}, InstantPower, 0.0),
        ({"energy": False, "instant": False}, ReportedPower, 0.0),  # GA100
        ({"energy": False, "instant": False, "capability": (8, 6)}, ReportedPower, 1.0),
        ({**PASCAL, "instant": False}, ReportedPower, 0.0),
    ],
)
def test_each_way_to_tell_power_has_its_window(use, gpu, kind, window_s):
    fake = FakeGpu(**gpu)
    use(fake)
    reader = find_reader(Gpu("0"))
    assert type(reader) is kind
    assert reader.sensor.window_s == window_s
    assert "GPU board" in reader.sensor.covers
    if kind is not EnergyCounter:
        assert reader.read_w() == pytest.approx(fake.power_of(1440))


def test_readings_fail_as_sensors_do(use):
    gpu = FakeGpu()
    use(gpu)
    device = open_nvidia("0")
    gpu.fails["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(SensorError, match="GPU is lost"):
        device.power_w()
    gpu.fails["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(SensorError, match="energy counter is gone"):
        device.power_w()
    gpu.fails.clear()
    gpu.now = lambda: (1440, 150.0, 5.0)
    with pytest.raises(SensorError, match="stands still at 5"):
        device.power_w()


def test_what_holds_the_clock_back(use):
    gpu = FakeGpu(reasons=pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle)
    library = use(gpu)
    now = open_nvidia(CLOCK).conditions()
    assert (now.throttled, now.notices) == ((), ("power limit",))  # the card's own limit: its ordinary state
    assert open_nvidia("0?actuator=power_limit_w").conditions().notices == ()
    gpu.reasons |= pynvml.nvmlClocksEventReasonSwThermalSlowdown
    now = open_nvidia(CLOCK).conditions()
    assert (now.throttled, now.notices) == (("heat",), ("power limit",))
    library.lacks.add("nvmlDeviceGetCurrentClocksEventReasons")  # a driver before 535
    pynvml._nvmlGetFunctionPointer_cache.clear()
    gpu.reasons = pynvml.nvmlClocksEventReasonHwThermalSlowdown
    assert open_nvidia(CLOCK).conditions().throttled == ("heat (hardware)",)
    gpu.fails["nvmlDeviceGetTemperatureV"] = pynvml.NVML_ERROR_GPU_IS_LOST
    device = open_nvidia(CLOCK)
    assert device.conditions().temperature_c is None


def test_the_temperature_is_asked_for_by_the_newer_call_first(use):
    gpu = FakeGpu(temperature_c=70)
    library = use(gpu)
    device = open_nvidia("0")
    assert device.conditions().temperature_c == 70
    assert "nvmlDeviceGetTemperature" not in gpu.calls
    gpu.newer_temperature = False
    assert device.conditions().temperature_c == 70
    library.lacks.add("nvmlDeviceGetTemperatureV")  # a driver before 565
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert device.conditions().temperature_c == 70
    library.lacks.clear()


def test_the_temperature_is_known_to_an_older_pynvml_too(use, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV", raising=False)
    use(FakeGpu(temperature_c=70))
    assert open_nvidia("0").conditions().temperature_c == 70


OPTIONAL = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTemperature",
)


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_UNKNOWN]
)
def test_what_a_user_is_not_told_does_not_refuse_the_card(use, code):
    use(FakeGpu(fails=dict.fromkeys(OPTIONAL, code)))
    device = open_nvidia("0?actuator=none")
    assert device.memory_bytes is None
    assert device.mode == "driver 550.54.15"
    assert device.sensor.rail == "instantaneous power"
    assert device.power_w() > 0
    assert device.conditions().temperature_c is None


def test_a_limit_that_cannot_be_brought_back_is_not_changed(use, tmp_path):
    gpu = FakeGpu(fails={"nvmlDeviceGetPowerManagementLimit": pynvml.NVML_ERROR_UNKNOWN})
    use(gpu)
    device = open_nvidia("0?actuator=power_limit_w")
    with pytest.raises(DeviceError, match="could not be restored"), device.at(Knobs(power_limit_w=100.0)):
        pytest.fail("it was set")
    assert gpu.changes == []
    assert not list((tmp_path / "state").glob("*.json"))


# ----------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch"),
    ],
)
def test_without_a_driver(use, code, said):
    use(broken=code)
    assert count_gpus() == 0
    with pytest.raises(DeviceUnavailable, match=said) as caught:
        open_device("nvidia:0")
    assert "--gpus all" in str(caught.value)
    assert caught.value.exit_code == 2


def test_without_the_library(monkeypatch):
    install(monkeypatch, None)
    with pytest.raises(DeviceUnavailable, match="Library Not Found"):
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


def test_a_gpu_without_locked_clocks(use):
    library = use(FakeGpu(**PASCAL))
    assert open_nvidia("0").safest == open_nvidia("0?actuator=power_limit_w").safest == Knobs(power_limit_w=100.0)
    with pytest.raises(InputError, match="power_limit_w or none"):
        open_nvidia(CLOCK)
    library.gpus[0].fails["nvmlDeviceGetPowerManagementLimitConstraints"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(InputError, match="no power limit"):
        open_nvidia("0?actuator=power_limit_w")
    assert open_nvidia("0").knobs == ()


def test_a_gpu_without_a_power_limit_locks_its_clock(use):
    gpu = FakeGpu()
    use(gpu)
    gpu.fails["nvmlDeviceGetPowerManagementLimitConstraints"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert [knob.name for knob in open_nvidia("0").knobs] == ["clock_mhz"]


def test_a_gpu_that_tells_no_power(use):
    use(FakeGpu(energy=False, instant=False, usage=False, name="Orin (nvgpu)"))
    with pytest.raises(DeviceUnavailable, match="--device jetson"):
        open_device("nvidia:0")
    entry = next(d for d in known_devices() if d.backend == "nvidia")
    assert entry.power_w is None
    assert entry.sensor == "none"
    assert "tells no power" in entry.problems[0]


def test_of_several_gpus_the_one_that_trains_is_measured(use, monkeypatch):
    use(FakeGpu(), FakeGpu(uuid="GPU-second"))
    with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES=GPU-second"):
        open_nvidia("1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-second")
    assert open_nvidia("1").uuid == "GPU-second"
    with pytest.raises(DeviceUnavailable, match="2 GPUs"):
        open_nvidia("0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert open_nvidia("0").power_w() > 0


def test_an_index_of_cuda_is_not_the_drivers_for_different_cards(use, monkeypatch):
    use(FakeGpu(name="NVIDIA T400"), FakeGpu(name="NVIDIA GeForce RTX 4090", uuid="GPU-fast"))
    for visible in ("0", "1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(DeviceUnavailable, match="CUDA_DEVICE_ORDER=PCI_BUS_ID") as caught:
            open_nvidia(visible)
        assert "2 different GPUs" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES=GPU-fast" in str(caught.value)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with pytest.raises(DeviceUnavailable, match="PCI_BUS_ID"):
        open_nvidia("1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert open_nvidia("1").uuid == "GPU-fast"
    with pytest.raises(DeviceUnavailable, match="2 GPUs"):
        open_nvidia("0")


@pytest.mark.parametrize("visible", ["GPU-", "GPU-5f0c", "GPU-5f0c1f2a-0000-4000-8000-00000000000", "", "5f0c"])
def test_a_uuid_that_names_no_card_or_several_is_refused(use, monkeypatch, visible):
    use(FakeGpu(), FakeGpu(uuid="GPU-5f0c1f2a-0000-4000-8000-000000000002"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for index in "01":
        with pytest.raises(DeviceUnavailable, match="CUDA_VISIBLE_DEVICES=GPU-5f0c1f2a"):
            open_nvidia(index)


def test_a_shortened_uuid_of_one_card_is_enough(use, monkeypatch):
    use(FakeGpu(), FakeGpu(uuid="GPU-77"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-5")
    assert open_nvidia("1").uuid == "GPU-77"
    with pytest.raises(DeviceUnavailable, match="2 GPUs"):
        open_nvidia("0")


def test_one_card_is_always_the_one_that_trains(use, monkeypatch):
    use(FakeGpu())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert open_nvidia("0").power_w() > 0


def test_a_card_that_lists_no_clocks_has_a_grid(use):
    gpu = FakeGpu(name="NVIDIA GB10", memory_clocks=(), capability=(12, 1), highest_mhz=3003)
    gpu.fails["nvmlDeviceGetPowerManagementLimitConstraints"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    use(gpu)
    device = find_nvidia("0")
    (knob,) = device.knobs
    assert (knob.name, len(knob.values)) == ("clock_mhz", MOST_SETTINGS)
    assert (knob.values[0], knob.values[-1]) == (751.0, 3003.0)
    assert "never tried" in device.problems[-1]
    with device.at(Knobs(clock_mhz=751.0)):
        assert gpu.locked == (751, 751)
    assert gpu.locked is None
    gpu.virtual = pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    assert find_nvidia("0").knobs == ()
    gpu.virtual, gpu.architecture = 0, pynvml.NVML_DEVICE_ARCH_PASCAL
    assert find_nvidia("0").knobs == ()


def test_known_devices_show_what_is_there(use):
    gpu = FakeGpu()
    library = use(gpu, FakeGpu(uuid="GPU-ill"))
    library.gpus[1].fails["nvmlDeviceGetName"] = pynvml.NVML_ERROR_GPU_IS_LOST
    first, second = (d for d in known_devices() if d.backend == "nvidia")
    assert first.spec == "nvidia:0"
    assert first.power_w == pytest.approx(150, rel=0.1)
    assert [(knob.name, knob.values[-1]) for knob in first.knobs] == [("power_limit_w", 165.0)]
    assert "lost" in second.problems[0]
    assert library.users == 0
    assert gpu.changes == []


# ---------------------------------------------------------------------------------------------------------- changing


def test_without_the_right_to_nothing_is_changed_and_nothing_stays(use, tmp_path):
    gpu = FakeGpu()
    use(gpu, root=False)
    device = open_nvidia("0")
    with pytest.raises(DeviceUnavailable, match="run as root") as caught, device.at(device.combinations()[0]):
        pytest.fail("it was set")
    assert "actuator=none" in str(caught.value)
    assert gpu.changes == []
    assert not list((tmp_path / "state").glob("*.json"))
    with open_nvidia("0?actuator=none").at(None):
        pass


def test_limits_that_are_no_whole_watts_are_kept(use):
    gpu = FakeGpu(limits_mw=(100_400, 103_600), limit_mw=103_600)
    use(gpu)
    device = open_nvidia("0?actuator=power_limit_w")
    assert device.knobs[0].values == (101.0, 102.0, 103.0)
    with device.at(Knobs(power_limit_w=101.0)):
        assert gpu.limit_mw == 101_000
    gpu.limits_mw = (100_400, 100_600)
    with pytest.raises(InputError, match="no power limit"):
        open_nvidia("0?actuator=power_limit_w")


FORKED = """
import os, sys
from pathlib import Path
import pytest
from tests.support.fake_nvml import FakeGpu, FakeLibrary, install
from wattune.devices.nvidia.gpu import NvidiaDevice
from wattune.errors import DeviceError
from wattune.point import Knobs

gpu = FakeGpu()
install(pytest.MonkeyPatch(), FakeLibrary(gpu))
state = Path(sys.argv[1])
device = NvidiaDevice("0", state=state)
context = device.at(Knobs(clock_mhz=210.0))
setting = context.__enter__()
changes = list(gpu.changes)
if os.fork() == 0:
    with pytest.raises(DeviceError, match=f"process {os.getppid()}"):
        setting.change(Knobs(clock_mhz=1440.0))
    inner = device.at(Knobs(clock_mhz=1440.0))
    with pytest.raises(DeviceError, match="process"):
        inner.__enter__()
    context.__exit__(None, None, None)
    device._end()
    device.close()
    assert gpu.changes == changes
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert list(state.glob("nvidia-*.json"))
assert gpu.locked == (210, 210)
with pytest.raises(DeviceError, match="already"), NvidiaDevice("0", state=state).at(Knobs(clock_mhz=210.0)):
    pass
context.__exit__(None, None, None)
assert gpu.locked is None
assert not list(state.glob("nvidia-*.json"))
print("fine")
"""


def test_a_forked_child_does_not_bring_back_what_is_its_parents(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FORKED, str(tmp_path / "held")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout == "fine\n", done.stderr


def test_what_cannot_be_brought_back_at_the_end_is_said(use, capsys, tmp_path):
    gpu = FakeGpu()
    library = use(gpu)
    device = open_nvidia(CLOCK)
    context = device.at(Knobs(clock_mhz=210.0))
    context.__enter__()
    gpu.fails["nvmlDeviceResetGpuLockedClocks"] = pynvml.NVML_ERROR_GPU_IS_LOST
    device._end()
    said = capsys.readouterr().err
    assert said.startswith("wattune: ")
    assert "GPU is lost" in said
    assert "wattune restore" in said
    with pytest.raises(DeviceError, match="lost"):
        device.close()
    assert library.users == 0
    assert list((tmp_path / "state").glob("nvidia-*.json"))
    gpu.fails.clear()
    assert restore_gpus() == ["NVIDIA A30: clock no longer locked"]
    context.__exit__(None, None, None)  # it is closed: nothing to do


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
def test_who_may_not_change_a_clock_is_told_before(use, monkeypatch, tmp_path, mask, uid, may):
    use(FakeGpu())
    status = tmp_path / "status"
    status.write_text("Name:\tpython\n" + (f"CapInh:\t0\nCapEff:\t{mask}\n" if mask else ""))
    monkeypatch.setattr("wattune_agent.nvml.STATUS", str(status))
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    problems = find_nvidia("0").problems
    assert problems == () if may else "CAP_SYS_ADMIN" in problems[0]
    assert find_nvidia("0?actuator=none").problems == ()


def test_a_clock_that_does_not_come_down_is_an_error_and_is_let_go(use, monkeypatch):
    monkeypatch.setattr(nvidia, "SETTLE_S", 0.05)
    gpu = FakeGpu(settle_s=60)
    use(gpu)
    device = open_nvidia(CLOCK)
    with pytest.raises(DeviceError, match="runs at 1440 MHz"), device.at(Knobs(clock_mhz=210.0)):
        pytest.fail("it was taken")
    assert gpu.locked is None
    assert device.current() is None


def test_a_limit_that_is_not_taken(use):
    gpu = FakeGpu(limits_mw=(100_000, 101_000))
    library = use(gpu)
    library.nvmlDeviceSetPowerManagementLimit = lambda handle, limit: 0
    device = open_nvidia("0?actuator=power_limit_w")
    with pytest.raises(DeviceError, match="and not 100 W"), device.at(Knobs(power_limit_w=100.0)):
        pytest.fail("it was taken")


def test_one_controller_a_gpu(use):
    use(FakeGpu())
    first, second = open_nvidia(CLOCK), open_nvidia(CLOCK)
    with first.at(Knobs(clock_mhz=210.0)):
        with pytest.raises(DeviceUnavailable, match="already"), second.at(Knobs(clock_mhz=210.0)):
            pytest.fail("two of them")
        assert first.current() == Knobs(clock_mhz=210.0)
        second.close()
        assert first.current() == Knobs(clock_mhz=210.0)
    with open_nvidia(CLOCK).at(Knobs(clock_mhz=210.0)):
        pass


def test_another_process_is_named(use, tmp_path):
    use(FakeGpu())
    device = open_nvidia(CLOCK)
    code = f"""
import sys
from pathlib import Path
from wattune.devices.nvidia.claims import Held
held = Held(Path({str(tmp_path / "state")!r}), {device.uuid!r})
held.claim()
held.keep({{"uuid": {device.uuid!r}, "limit_w": None}})
print("here", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "here\n"
        with pytest.raises(DeviceUnavailable, match=f"process {other.pid}"), device.at(Knobs(clock_mhz=210.0)):
            pytest.fail("two of them")
        assert restore_gpus() == []  # it is at work
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    # Killed: what it kept is found by the next one.
    with device.at(Knobs(clock_mhz=210.0)):
        (event,) = device.events()
    assert event.kind == "left behind"
    assert str(other.pid) in event.text


def test_what_a_killed_process_left_is_brought_back(use, tmp_path):
    gpu = FakeGpu(limit_mw=120_000)
    use(gpu)
    folder = tmp_path / "state"
    folder.mkdir()
    kept = {"uuid": gpu.uuid, "name": gpu.name, "actuator": "power_limit_w", "limit_w": 150.0, "pid": 7}
    path = folder / f"nvidia-{gpu.uuid}.json"
    path.write_text(json.dumps(kept))
    gpu.fails["nvmlDeviceSetPowerManagementLimit"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(DeviceError, match="lost"):
        restore_gpus()
    assert path.exists()
    gpu.fails.clear()
    assert restore_gpus() == ["NVIDIA A30: power limit back to 150 W"]
    assert gpu.limit_mw == 150_000
    assert not path.exists()
    assert restore_gpus() == []
    path.write_text('{"uuid": "GPU')
    with pytest.raises(DeviceError, match="cannot be read"):
        restore_gpus()
    path.write_text("[]")
    with pytest.raises(DeviceError, match="was not written by wattune"):
        restore_gpus()


def test_the_process_that_watches_a_group_restores_cards_of_a_killed_one(use, tmp_path):
    gpu = FakeGpu(limit_mw=120_000)
    use(gpu)
    device = open_nvidia("0?actuator=power_limit_w")
    leftover = device.leftover
    device.close()
    assert leftover == Leftover("gpu", str(tmp_path / "state"))
    assert restore([leftover], try_for_s=0.0) == []
    path = tmp_path / "state" / f"nvidia-{gpu.uuid}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"uuid": gpu.uuid, "limit_w": 150.0, "pid": 7}))
    assert restore([leftover], try_for_s=0.0) == ["NVIDIA A30: power limit back to 150 W"]
    assert gpu.limit_mw == 150_000


def test_a_group_of_cards_is_set_and_restored_together(use):
    cards = [FakeGpu(), FakeGpu(uuid="GPU-5f0c1f2a-0000-4000-8000-000000000002")]
    use(*cards)
    group = open_group(["nvidia:0?actuator=clock_mhz", "nvidia:1?actuator=clock_mhz"])
    assert group.name == "2 x NVIDIA A30"
    with group.at(group.safest):
        assert [card.locked for card in cards] == [(int(group.safest["clock_mhz"]),) * 2] * 2
        assert group.power_w() > 0
    assert [card.locked for card in cards] == [None, None]
    group.close()


def test_what_another_user_left_is_brought_back_whatever_else_lies_there(use, tmp_path):
    gpu = FakeGpu(limit_mw=120_000)
    use(gpu)
    for name in ("state", "all"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere").write_text("{}")
    os.mkfifo(tmp_path / "state" / "nvidia-GPU-pipe.json")
    (tmp_path / "state" / "nvidia-GPU-link.json").symlink_to(tmp_path / "elsewhere")
    path = tmp_path / "all" / f"nvidia-{gpu.uuid}.json"
    path.write_text(json.dumps({"uuid": gpu.uuid, "limit_w": 150.0, "pid": 7}))
    with pytest.raises(DeviceError, match=r"link\.json.*; .*pipe\.json"):
        restore_gpus()
    assert gpu.limit_mw == 150_000
    assert not path.exists()
    assert (tmp_path / "elsewhere").read_text() == "{}"


def test_a_process_that_lives_keeps_its_gpu_without_its_lock_as_well(use, tmp_path):
    use(gpu := FakeGpu())
    place = tmp_path / "state"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        place.mkdir()
        kept = {"uuid": gpu.uuid, "limit_w": 150.0, "pid": other.pid, "started": started_at(other.pid)}
        path = place / f"nvidia-{gpu.uuid}.json"
        path.write_text(json.dumps({**kept, "boot": boot_id()}))
        assert restore_gpus() == []
        device = open_nvidia(CLOCK)
        with pytest.raises(DeviceUnavailable, match=f"process {other.pid}"), device.at(Knobs(clock_mhz=210.0)):
            pytest.fail("two of them")
        path.write_text(json.dumps({**kept, "boot": "the start before"}))
        assert len(restore_gpus()) == 1
        other.communicate(b"\n")


def test_a_lock_is_not_made_through_a_link(use, tmp_path):
    use(gpu := FakeGpu())
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / f"nvidia-{gpu.uuid}.lock").symlink_to(tmp_path / "anywhere")
    with pytest.raises(DeviceUnavailable, match="nothing can be kept"), open_nvidia(CLOCK).at(Knobs(clock_mhz=210.0)):
        pytest.fail("through a link")
    assert not (tmp_path / "anywhere").exists()


def test_nothing_is_changed_where_nothing_can_be_kept(use, tmp_path):
    gpu = FakeGpu()
    use(gpu)
    (tmp_path / "state").write_text("a file where the folder should be")
    device = open_nvidia(CLOCK)
    with pytest.raises(DeviceUnavailable, match="nothing can be kept"), device.at(Knobs(clock_mhz=210.0)):
        pytest.fail("it was set")
    assert gpu.changes == []


def test_another_writer_is_answered_and_told(use, monkeypatch):
    monkeypatch.setattr(nvidia, "CHECK_S", 0.0)
    gpu = FakeGpu(energy=False)
    use(gpu)
    device = open_nvidia(CLOCK)
    with device.at(Knobs(clock_mhz=210.0)):
        for _ in range(nvidia.MOST_ANSWERS + 2):
            gpu.unlock()
            time.sleep(0.03)
            device.power_w()
            time.sleep(0.03)
    events = device.events()
    assert [event.kind for event in events] == ["another writer"] * (nvidia.MOST_ANSWERS + 1)
    assert "set again" in events[0].text
    assert "left so" in events[-1].text
    assert gpu.changes.count(("lock", (210, 210))) == 1 + nvidia.MOST_ANSWERS


def test_a_clock_that_stays_is_not_called_changed(use, monkeypatch):
    monkeypatch.setattr(nvidia, "CHECK_S", 0.0)
    use(FakeGpu(energy=False))
    device = open_nvidia(CLOCK)
    with device.at(Knobs(clock_mhz=210.0)):
        for _ in range(5):
            device.power_w()
    assert device.events() == ()


def test_a_closed_device_has_let_go(use):
    gpu = FakeGpu()
    library = use(gpu)
    device = open_nvidia(CLOCK)
    context = device.at(Knobs(clock_mhz=210.0))
    context.__enter__()
    device.close()
    assert gpu.locked is None
    assert library.users == 0


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

    def test_its_sensors_agree_at_rest(self, device):
        gpu = device._gpu
        counted = [device.power_w() for _ in range(20)]
        told = {"instant": gpu.instant_w(), "usage": gpu.usage_w(), "counted": sum(counted[10:]) / 10}
        print(f"\n{told}")
        present = [power_w for power_w in told.values() if power_w is not None]
        assert max(present) < 2 * min(present)

    def test_the_energy_counter_moves_in_steps(self, device):
        begin_s, moves_s, last_j = time.monotonic(), [], device._gpu.energy_j()
        while time.monotonic() - begin_s < 3:
            energy_j = device._gpu.energy_j()
            if energy_j != last_j:
                moves_s.append(time.monotonic() - begin_s)
                last_j = energy_j
        gaps_s = sorted(later - earlier for earlier, later in itertools.pairwise(moves_s))
        middle_s = gaps_s[len(gaps_s) // 2]
        print(f"\n{len(moves_s)} refreshes, gaps {gaps_s[0]:.4f} to {gaps_s[-1]:.4f} s, median {middle_s:.4f} s")
        assert gaps_s[-1] < 1

    def test_the_meter_agrees_with_the_counter(self, device):
        before_j = device._gpu.energy_j()
        with Meter(device) as meter:
            device.wait(5)
        counted_j = device._gpu.energy_j() - before_j
        assert meter.figures().energy_j == pytest.approx(counted_j, rel=0.1)
