"""NVIDIA's management library as the agent calls it: the C functions, their codes and their out-parameters.

Which function returns which code when is from the comments of nvml.h, as are the numbers. A GPU's energy counter moves
every tenth of a second of real time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from wattune_agent.nvml import Cards
from wattune_agent.tree import Tree

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = range(5)
NOT_FOUND, INSUFFICIENT_SIZE, GPU_IS_LOST, UNKNOWN = 6, 7, 15, 999
PASCAL, VOLTA, AMPERE, BLACKWELL = 4, 5, 7, 10
POWER_CAP, HEAT, HARDWARE_HEAT, IDLE = 0x04, 0x20, 0x40, 0x01
VGPU = 2

REFRESH_S = 0.1


@dataclass
class FakeGpu:
    """One GPU. Power follows the clock; the clock follows its lock, and what ``others`` do to it."""

    name: str = "NVIDIA A30"
    uuid: str = "GPU-5f0c1f2a-0000-4000-8000-000000000001"
    architecture: int = AMPERE
    capability: tuple[int, int] = (8, 0)
    memory_clocks: tuple[int, ...] = (1215,)
    clocks: tuple[int, ...] = tuple(range(1440, 195, -15))
    limits_mw: tuple[int, int] | None = (100_000, 165_000)
    limit_mw: int = 165_000
    free_bytes: int | None = 20 * 2**30
    temperature_c: int = 41
    highest_mhz: int = 1440
    virtual: int = 0
    reasons: int = 0
    mig: bool = False
    ecc: bool = True
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


def _answers(function):
    """A function of the library, of what it does with the GPU of its handle; what the GPU ``fails`` at, it does not."""
    name = function.__name__

    def answer(self, handle, *given):
        if not self.users:
            return UNINITIALIZED
        gpu = self.gpus[handle.value - 1]
        gpu.calls.append(name)
        if name in gpu.fails or (name.startswith(("nvmlDeviceSet", "nvmlDeviceReset")) and not self.root):
            return gpu.fails.get(name, NO_PERMISSION)
        return function(self, gpu, *given)

    return answer


class FakeLibrary:
    """``libnvidia-ml.so.1`` with these GPUs; ``root``: whether its caller is; ``lacks``: functions that it has not yet.

    ``broken``: the code that ``nvmlInit`` returns, as without a loaded driver.
    """

    def __init__(self, *gpus: FakeGpu, root=True, lacks=(), broken=SUCCESS):
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
        if self.broken == SUCCESS:
            self.users += 1
        return self.broken

    def nvmlSystemGetDriverVersion(self, buffer, size):
        buffer.value = b"550.54.15"
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, out):
        return self._give(out, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index, out):
        if index.value >= len(self.gpus):
            return INVALID_ARGUMENT
        return self._give(out, index.value + 1)

    def _give(self, out, value):
        out._obj.value = value
        return SUCCESS

    # -------------------------------------------------------------------------------------------------------- reading

    @_answers
    def nvmlDeviceGetName(self, gpu, buffer, size):
        buffer.value = gpu.name.encode()
        return SUCCESS

    @_answers
    def nvmlDeviceGetUUID(self, gpu, buffer, size):
        buffer.value = gpu.uuid.encode()
        return SUCCESS

    @_answers
    def nvmlDeviceGetSupportedMemoryClocks(self, gpu, count, out):
        return self._list(count, out, gpu.memory_clocks) if gpu.memory_clocks else NOT_SUPPORTED

    @_answers
    def nvmlDeviceGetSupportedGraphicsClocks(self, gpu, memory, count, out):
        return self._list(count, out, gpu.clocks) if memory.value in gpu.memory_clocks else NOT_FOUND

    def _list(self, count, out, values):
        before, count._obj.value = count._obj.value, len(values)
        if before < len(values):
            return INSUFFICIENT_SIZE
        for index, value in enumerate(values):
            out[index] = value
        return SUCCESS

    @_answers
    def nvmlDeviceGetTemperatureV(self, gpu, out):
        out._obj.temperature = gpu.temperature_c
        return SUCCESS if gpu.newer_temperature else NOT_SUPPORTED

    @_answers
    def nvmlDeviceGetMemoryInfo(self, gpu, out):
        out._obj.free = gpu.free_bytes or 0
        return NOT_SUPPORTED if gpu.free_bytes is None else SUCCESS

    # -------------------------------------------------------------------------------------------------------- changing

    @_answers
    def nvmlDeviceSetGpuLockedClocks(self, gpu, low, high):
        if gpu.architecture < VOLTA:
            return NOT_SUPPORTED
        if not 0 < low.value <= high.value:
            return INVALID_ARGUMENT
        gpu.changes.append(("lock", (low.value, high.value)))
        gpu.lock(low.value, high.value)
        return SUCCESS

    @_answers
    def nvmlDeviceResetGpuLockedClocks(self, gpu):
        gpu.changes.append(("reset", None))
        gpu.unlock()
        return SUCCESS

    @_answers
    def nvmlDeviceSetPowerManagementLimit(self, gpu, limit):
        if gpu.limits_mw is None:
            return NOT_SUPPORTED
        if not gpu.limits_mw[0] <= limit.value <= gpu.limits_mw[1]:
            return INVALID_ARGUMENT
        gpu.changes.append(("limit", limit.value))
        gpu.now()
        gpu.limit_mw = limit.value
        return SUCCESS


TOLD = {
    "nvmlDeviceGetArchitecture": lambda gpu: gpu.architecture,
    "nvmlDeviceGetClockInfo": lambda gpu: gpu.now()[0],
    "nvmlDeviceGetCudaComputeCapability": lambda gpu: gpu.capability,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.reasons,
    "nvmlDeviceGetEccMode": lambda gpu: (1, 1) if gpu.ecc else None,
    "nvmlDeviceGetMaxClockInfo": lambda gpu: gpu.highest_mhz,
    "nvmlDeviceGetMigMode": lambda gpu: (int(gpu.mig), int(gpu.mig)),
    "nvmlDeviceGetPowerManagementLimit": lambda gpu: None if gpu.limits_mw is None else gpu.limit_mw,
    "nvmlDeviceGetPowerManagementLimitConstraints": lambda gpu: gpu.limits_mw,
    "nvmlDeviceGetPowerUsage": lambda gpu: int(gpu.now()[1] * 1000) if gpu.usage else None,
    "nvmlDeviceGetTemperature": lambda gpu: gpu.temperature_c,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: (
        int(gpu.now()[2] * 1000) if gpu.energy and gpu.architecture >= VOLTA else None
    ),
    "nvmlDeviceGetVirtualizationMode": lambda gpu: gpu.virtual,
}
"""Functions that tell a number or two, through their last parameters; None: not supported."""


def _telling(name, told):
    def tell(self, gpu, *outs):
        values = told(gpu)
        if values is None:
            return NOT_SUPPORTED
        values = values if isinstance(values, tuple) else (values,)
        for out, value in zip(outs[-len(values) :], values, strict=True):
            self._give(out, value)
        return SUCCESS

    tell.__name__ = name
    return _answers(tell)


for _name, _told in TOLD.items():
    setattr(FakeLibrary, _name, _telling(_name, _told))


class CardTree(Tree):
    """A folder of files, in a machine with these cards; None: in a machine without the library."""

    def __init__(self, root, library: FakeLibrary | None):
        super().__init__(str(root))
        self.library = library
        self._cards = Cards(self._load)

    def _load(self):
        if self.library is None:
            raise OSError("libnvidia-ml.so.1: cannot open shared object file")
        return self.library


def may_change(monkeypatch, folder) -> None:
    """This process may change cards, and the environment names none."""
    (folder / "status").write_text("CapEff:\t000001ffffffffff\n")
    monkeypatch.setattr("wattune_agent.nvml.STATUS", str(folder / "status"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def install(monkeypatch, folder, library: FakeLibrary | None) -> FakeLibrary | None:
    """Let ``--device nvidia`` find this library, as root, and keep its snapshots in ``folder``."""
    may_change(monkeypatch, folder)
    monkeypatch.setattr("wattune.devices.agent.Tree", lambda *root: Tree(*root) if root else CardTree(folder, library))
    return library


GB10 = {
    "name": "NVIDIA GB10",
    "architecture": BLACKWELL,
    "capability": (12, 1),
    "memory_clocks": (),
    "highest_mhz": 3003,
    "limits_mw": None,
    "free_bytes": None,
    "ecc": False,
}
"""A DGX Spark as `nvidia-smi` 580 prints it: "Pwr:Usage/Cap 3W / N/A", "Memory-Usage Not Supported", ECC "N/A"; its
energy counter answers."""

LAPTOP = {
    "name": "NVIDIA GeForce RTX 4080 Laptop GPU",
    "limits_mw": (5_000, 150_000),
    "limit_mw": 150_000,
    "fails": {"nvmlDeviceSetPowerManagementLimit": NOT_SUPPORTED},
}
"""A laptop's card: a range of limits is reported, and each is refused, while `nvidia-smi -lgc 210,1800` works.
Source: NVIDIA/open-gpu-kernel-modules #483."""
