"""The contract of a device, held by every implementation."""

import pytest
from tests.devices.contract import DeviceContract
from tests.devices.devices_made import FileDevice, make_table

from wattune.devices import RecordedDevice, open_device


class TestSimulatedNano(DeviceContract):
    spec = "sim:jetson-nano"
    too_large = 4096

    @pytest.fixture
    def device(self):
        return open_device(self.spec, seed=3)

    @pytest.fixture
    def another(self):
        return open_device(self.spec, seed=4)


class TestSimulatedTx2Nx(TestSimulatedNano):
    spec = "sim:jetson-tx2-nx"


class TestSimulatedCpu(TestSimulatedNano):
    spec = "sim:jetson-nano:cpu"


class TestRecordedClocks(DeviceContract):
    setting = "clock_mhz"
    too_large = 16

    @pytest.fixture
    def device(self):
        return RecordedDevice(make_table(self.setting))

    @pytest.fixture
    def another(self):
        return RecordedDevice(make_table(self.setting))


class TestRecordedPowerLimits(TestRecordedClocks):
    setting = "power_limit_w"


class TestRecordedWithoutActuator(TestRecordedClocks):
    setting = None


class TestRealTime(DeviceContract):
    """The sampling thread, with files as sysfs has them."""

    @pytest.fixture
    def device(self, tmp_path):
        return FileDevice(tmp_path)

    @pytest.fixture
    def another(self, tmp_path):
        return FileDevice(tmp_path)
