"""The contract of a device, held by every implementation."""

import pytest
from tests.devices.contract import SEEDS, DeviceContract
from tests.support.agent_socket import serving
from tests.support.device_examples import FileDevice, make_table
from tests.support.live_board import live

from wattune.devices import ReplayDevice, open_device
from wattune.devices.replay import Noise


class TestSimulatedNano(DeviceContract):
    spec = "sim:jetson-nano"
    too_large = 4096
    has_ground_truth = True

    @pytest.fixture
    def device(self, request):
        return open_device(self.spec, seed=SEEDS[request.fixturename])

    another = device


class TestSimulatedTx2Nx(TestSimulatedNano):
    spec = "sim:jetson-tx2-nx"


class TestSimulatedTx2(TestSimulatedNano):
    spec = "sim:jetson-tx2"


class TestSimulatedCpu(TestSimulatedNano):
    spec = "sim:jetson-nano:cpu"


class TestReplayedClocks(DeviceContract):
    setting = "clock_mhz"
    too_large = 16
    is_replay = True

    @pytest.fixture
    def device(self, request):
        return ReplayDevice(make_table(self.setting), Noise(seed=SEEDS[request.fixturename]))

    another = device


class TestReplayedPowerLimits(TestReplayedClocks):
    setting = "power_limit_w"


class TestReplayedWithoutActuator(TestReplayedClocks):
    setting = None


class TestReplayedCsv(TestReplayedClocks):
    """A table in CSV, with several knobs and standard deviations."""

    too_large = None

    @pytest.fixture
    def path(self, tmp_path):
        lines = ["batch_size,clock_mhz,cpu_clock_mhz,step_s,step_std_s,power_w,power_std_w"]
        lines += [
            f"{size},{clock},{cpu},{size / clock + 5 / cpu},0.001,{clock / 20 + cpu / 200},0.5"
            for size in (4, 8)
            for clock in (100, 200)
            for cpu in (600, 1200)
        ]
        path = tmp_path / "table.csv"
        path.write_text("\n".join(lines))
        return path

    @pytest.fixture
    def device(self, path):
        return open_device(f"replay:{path}", seed=3)

    @pytest.fixture
    def another(self, path):
        return open_device(f"replay:{path}?seed=4")


class TestRealTime(DeviceContract):
    """The sampling thread, with files as sysfs has them."""

    @pytest.fixture
    def device(self, tmp_path):
        return FileDevice(tmp_path)

    another = device


@pytest.fixture(scope="class")
def root(request, tmp_path_factory):
    """A live board as files; one for all tests of a class, so that each finds what the one before left."""
    with live(tmp_path_factory.mktemp("board"), request.cls.family, throttled=False) as board:
        yield board.root


@pytest.fixture(scope="class")
def socket(root, tmp_path_factory):
    """Of an agent that holds it."""
    with serving(root, tmp_path_factory.mktemp("agent") / "agent.sock") as agent:
        yield agent.socket


class LiveBoard(DeviceContract):
    """A live board in this process, on real time."""

    family, name = "orin-nano", "jetson"
    has_controller = True

    @pytest.fixture
    def spec(self, root):
        return f"{self.name}?root={root}"

    @pytest.fixture
    def device(self, spec):
        device = open_device(spec)
        yield device
        device.close()

    another = device


class TestOrinNano(LiveBoard):
    pass


@pytest.mark.slow
class TestNano(LiveBoard):
    family = "nano"


@pytest.mark.slow
class TestLaptop(LiveBoard):
    family, name = "cpu-laptop", "cpu"


class TestAgent(LiveBoard):
    """The same board, touched by an agent in another process."""

    @pytest.fixture
    def spec(self, socket):
        return f"agent:{socket}"
