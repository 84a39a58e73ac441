"""NVIDIA's management library as pynvml and the agent call it: the C functions, their codes and their out-parameters.

It stands where pynvml keeps ``libnvidia-ml.so.1``, so pynvml itself is the real one. Which function returns which code
when is from the comments of nvml.h. The GPU's energy counter moves every tenth of a second of real time.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field

import pynvml
from pynvml import (
    NVML_ERROR_INSUFFICIENT_SIZE,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_UNINITIALIZED,
    NVML_SUCCESS,
)

REFRESH_S = 0.1


@dataclass
class FakeGpu:
    """One GPU. Power follows the clock; the clock follows its lock, and what ``others`` do to it."""

    name: str = "NVIDIA A30"
    uuid: str = "GPU-5f0c1f2a-0000-4000-8000-000000000001"
    architecture: int = pynvml.NVML_DEVICE_ARCH_AMPERE
    capability: tuple[int, int] = (8, 0)
    memory_clocks: tuple[int, ...] = (1215,)
    clocks: tuple[int, ...] = tuple(range(1440, 195, -15))
    limits_mw: tuple[int, int] = (100_000, 165_000)
    limit_mw: int = 165_000
    free_bytes: int = 20 * 2**30
    temperature_c: int = 41
    highest_mhz: int = 1440
    virtual: int = 0
    reasons: int = 0
    mig: bool = False
    instant: bool = True
    energy: bool = True
    usage: bool = True
    newer_temperature: bool = True
    settle_s: float = 0.02
    locked: tuple[int, int] | None = None
    fails: dict[str, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    changes: list[tuple[str, object]] = field(default_factory=list)
    _energy_j: float = 1000.0
    _power_w: float = 0.0
    _since_s: float = field(default_factory=time.monotonic)
    _began_s: float = field(default_factory=time.monotonic)
    _clock: int = 1440
    _next: tuple[float, int] | None = None

    def __post_init__(self):
        self.struct = pynvml.struct_c_nvmlDevice_t()
        self._power_w = self.power_of(self._clock)

    def power_of(self, clock):
        return min(30.0 + 120.0 * clock / 1440, self.limit_mw / 1000)

    def now(self):
        """Clock, watts and the joules that the counter shows."""
        at_s = time.monotonic()
        if self._next is not None and at_s >= self._next[0]:
            self._pass(self._next[0])
            self._clock, self._next = self._next[1], None
            self._power_w = self.power_of(self._clock)
        self._power_w = self.power_of(self._clock)
        self._pass(at_s)
        # The counter shows what was used up to its last refresh.
        late_s = (at_s - self._began_s) % REFRESH_S
        return self._clock, self._power_w, self._energy_j - late_s * self._power_w

    def _pass(self, until_s):
        self._energy_j += (until_s - self._since_s) * self._power_w
        self._since_s = until_s

    def lock(self, low, high):
        self.now()
        self.locked = (low, high)
        self._next = (time.monotonic() + self.settle_s, max(low, min(high, 1440)))

    def unlock(self):
        self.now()
        self.locked = None
        self._next = (time.monotonic() + self.settle_s, 1440)


class FakeLibrary:
    """``libnvidia-ml.so.1`` with these GPUs; ``root``: whether its caller is; ``lacks``: functions that it has not yet.

    ``broken``: the code that ``nvmlInit`` returns, as without a loaded driver.
    """

    def __init__(self, *gpus: FakeGpu, root=True, lacks=(), broken=NVML_SUCCESS):
        self.gpus = list(gpus)
        self.root = root
        self.lacks = set(lacks)
        self.broken = broken
        self.users = 0

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    # -------------------------------------------------------------------------------------------------------- library

    def nvmlInitWithFlags(self, flags):
        if self.broken == NVML_SUCCESS:
            self.users += 1
        return self.broken

    def nvmlShutdown(self):
        if not self.users:
            return NVML_ERROR_UNINITIALIZED
        self.users -= 1
        return NVML_SUCCESS

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = b"550.54.15"
        return NVML_SUCCESS

    def nvmlDeviceGetCount_v2(self, out):
        return self._give(out, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index, out):
        if index.value >= len(self.gpus):
            return NVML_ERROR_INVALID_ARGUMENT
        return self._point(out, self.gpus[index.value])

    def nvmlDeviceGetHandleByUUID(self, uuid, out):
        for gpu in self.gpus:
            if gpu.uuid.encode() == uuid.value:
                return self._point(out, gpu)
        return NVML_ERROR_NOT_FOUND

    # -------------------------------------------------------------------------------------------------------- reading

    def nvmlDeviceGetIndex(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetIndex", lambda gpu: self._give(out, self.gpus.index(gpu)))

    def nvmlDeviceGetName(self, handle, buffer, size):
        return self._answer(handle, "nvmlDeviceGetName", lambda gpu: self._write(buffer, gpu.name))

    def nvmlDeviceGetUUID(self, handle, buffer, size):
        return self._answer(handle, "nvmlDeviceGetUUID", lambda gpu: self._write(buffer, gpu.uuid))

    def nvmlDeviceGetArchitecture(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetArchitecture", lambda gpu: self._give(out, gpu.architecture))

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        def answer(gpu):
            self._give(major, gpu.capability[0])
            return self._give(minor, gpu.capability[1])

        return self._answer(handle, "nvmlDeviceGetCudaComputeCapability", answer)

    def nvmlDeviceGetSupportedMemoryClocks(self, handle, count, out):
        def answer(gpu):
            return self._list(count, out, gpu.memory_clocks) if gpu.memory_clocks else NVML_ERROR_NOT_SUPPORTED

        return self._answer(handle, "nvmlDeviceGetSupportedMemoryClocks", answer)

    def nvmlDeviceGetSupportedGraphicsClocks(self, handle, memory, count, out):
        def answer(gpu):
            if memory.value not in gpu.memory_clocks:
                return NVML_ERROR_NOT_FOUND
            return self._list(count, out, gpu.clocks)

        return self._answer(handle, "nvmlDeviceGetSupportedGraphicsClocks", answer)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind, out):
        return self._answer(handle, "nvmlDeviceGetMaxClockInfo", lambda gpu: self._give(out, gpu.highest_mhz))

    def nvmlDeviceGetVirtualizationMode(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetVirtualizationMode", lambda gpu: self._give(out, gpu.virtual))

    def nvmlDeviceGetClockInfo(self, handle, kind, out):
        return self._answer(handle, "nvmlDeviceGetClockInfo", lambda gpu: self._give(out, gpu.now()[0]))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, out):
        def answer(gpu):
            if not gpu.energy or gpu.architecture < pynvml.NVML_DEVICE_ARCH_VOLTA:
                return NVML_ERROR_NOT_SUPPORTED
            return self._give(out, int(gpu.now()[2] * 1000))

        return self._answer(handle, "nvmlDeviceGetTotalEnergyConsumption", answer)

    def nvmlDeviceGetFieldValues(self, handle, count, out):
        def answer(gpu):
            for value in out._obj[: count.value]:
                known = value.fieldId == pynvml.NVML_FI_DEV_POWER_INSTANT and value.scopeId == 0 and gpu.instant
                value.nvmlReturn = NVML_SUCCESS if known else NVML_ERROR_NOT_SUPPORTED
                value.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
                value.value.uiVal = int(gpu.now()[1] * 1000) if known else 0
            return NVML_SUCCESS

        return self._answer(handle, "nvmlDeviceGetFieldValues", answer)

    def nvmlDeviceGetPowerUsage(self, handle, out):
        def answer(gpu):
            return self._give(out, int(gpu.now()[1] * 1000)) if gpu.usage else NVML_ERROR_NOT_SUPPORTED

        return self._answer(handle, "nvmlDeviceGetPowerUsage", answer)

    def nvmlDeviceGetPowerManagementLimit(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetPowerManagementLimit", lambda gpu: self._give(out, gpu.limit_mw))

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle, low, high):
        def answer(gpu):
            self._give(low, gpu.limits_mw[0])
            return self._give(high, gpu.limits_mw[1])

        return self._answer(handle, "nvmlDeviceGetPowerManagementLimitConstraints", answer)

    def nvmlDeviceGetTemperatureV(self, handle, out):
        def answer(gpu):
            if not gpu.newer_temperature:
                return NVML_ERROR_NOT_SUPPORTED
            out._obj.temperature = gpu.temperature_c
            return NVML_SUCCESS

        return self._answer(handle, "nvmlDeviceGetTemperatureV", answer)

    def nvmlDeviceGetTemperature(self, handle, sensor, out):
        return self._answer(handle, "nvmlDeviceGetTemperature", lambda gpu: self._give(out, gpu.temperature_c))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetCurrentClocksEventReasons", lambda gpu: self._give(out, gpu.reasons))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, out):
        return self._answer(
            handle, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: self._give(out, gpu.reasons)
        )

    def nvmlDeviceGetMemoryInfo(self, handle, out):
        def answer(gpu):
            out._obj.free = gpu.free_bytes
            return NVML_SUCCESS

        return self._answer(handle, "nvmlDeviceGetMemoryInfo", answer)

    def nvmlDeviceGetMigMode(self, handle, current, pending):
        return self._answer(handle, "nvmlDeviceGetMigMode", lambda gpu: self._give(current, int(gpu.mig)))

    def nvmlDeviceGetPersistenceMode(self, handle, out):
        return self._answer(handle, "nvmlDeviceGetPersistenceMode", lambda gpu: self._give(out, 1))

    def nvmlDeviceGetEccMode(self, handle, current, pending):
        return self._answer(handle, "nvmlDeviceGetEccMode", lambda gpu: self._give(current, 1))

    # -------------------------------------------------------------------------------------------------------- changing

    def nvmlDeviceSetGpuLockedClocks(self, handle, low, high):
        def change(gpu):
            if gpu.architecture < pynvml.NVML_DEVICE_ARCH_VOLTA:
                return NVML_ERROR_NOT_SUPPORTED
            if not 0 < low.value <= high.value:
                return NVML_ERROR_INVALID_ARGUMENT
            gpu.changes.append(("lock", (low.value, high.value)))
            gpu.lock(low.value, high.value)
            return NVML_SUCCESS

        return self._change(handle, "nvmlDeviceSetGpuLockedClocks", change)

    def nvmlDeviceResetGpuLockedClocks(self, handle):
        def change(gpu):
            gpu.changes.append(("reset", None))
            gpu.unlock()
            return NVML_SUCCESS

        return self._change(handle, "nvmlDeviceResetGpuLockedClocks", change)

    def nvmlDeviceSetPowerManagementLimit(self, handle, limit):
        def change(gpu):
            if not gpu.limits_mw[0] <= limit.value <= gpu.limits_mw[1]:
                return NVML_ERROR_INVALID_ARGUMENT
            gpu.changes.append(("limit", limit.value))
            gpu.now()
            gpu.limit_mw = limit.value
            return NVML_SUCCESS

        return self._change(handle, "nvmlDeviceSetPowerManagementLimit", change)

    # --------------------------------------------------------------------------------------------------------- private

    def _answer(self, handle, name, answer):
        if not self.users:
            return NVML_ERROR_UNINITIALIZED
        address = handle.value if isinstance(handle, ctypes.c_void_p) else ctypes.addressof(handle.contents)
        gpu = next((g for g in self.gpus if ctypes.addressof(g.struct) == address), None)
        if gpu is None:
            return NVML_ERROR_INVALID_ARGUMENT
        gpu.calls.append(name)
        return gpu.fails.get(name) or answer(gpu)

    def _change(self, handle, name, change):
        return self._answer(handle, name, lambda gpu: change(gpu) if self.root else NVML_ERROR_NO_PERMISSION)

    def _point(self, out, gpu):
        if isinstance(out._obj, ctypes.c_void_p):  # the agent's handles are opaque
            out._obj.value = ctypes.addressof(gpu.struct)
        else:
            out._obj.contents = gpu.struct
        return NVML_SUCCESS

    def _give(self, out, value):
        out._obj.value = value
        return NVML_SUCCESS

    def _write(self, buffer, text):
        buffer.value = text.encode()
        return NVML_SUCCESS

    def _list(self, count, out, values):
        before, count._obj.value = count._obj.value, len(values)
        if before < len(values):
            return NVML_ERROR_INSUFFICIENT_SIZE
        for index, value in enumerate(values):
            out[index] = value
        return NVML_SUCCESS


def install(monkeypatch, library: FakeLibrary | None) -> FakeLibrary | None:
    """Let pynvml find this library; None: none, as on a machine without a driver."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    if library is None:

        def load():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", load)
    return library
