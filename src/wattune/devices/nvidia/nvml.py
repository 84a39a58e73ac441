"""Boundary to NVIDIA's management library: translates its calls, units and errors into ours.

Source: NVML API reference; function names and error codes as in nvidia-ml-py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml

from wattune.errors import DeviceError, DeviceUnavailable, InputError

UNKNOWN = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_UNKNOWN,
    }
)
"""Error codes for something that this chip or driver does not have, or does not tell this user: the memory of a
divided card needs privileges, for example."""

NO_DRIVER = frozenset(
    {
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)

POWER_LIMIT = "power limit"

HOLDS_BACK = {
    pynvml.nvmlClocksEventReasonSwPowerCap: POWER_LIMIT,
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat (hardware)",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}
"""Reasons for a clock below its setting, apart from idling and the locked clock itself."""

AMPERE = pynvml.NVML_DEVICE_ARCH_AMPERE
VOLTA = pynvml.NVML_DEVICE_ARCH_VOLTA
GA100 = (8, 0)
"""Compute capability of the one Ampere chip whose power reading is not averaged."""


class Gpu:
    """One GPU, by its index ("0") or its UUID ("GPU-..."). Units: W, J, MHz, degrees Celsius, bytes.

    Every method raises DeviceError if the library fails; one that can return None does so if this chip or driver
    does not answer the call.
    """

    def __init__(self, which: str):
        """Open the GPU. Raises: DeviceUnavailable without a driver, InputError if the GPU does not exist."""
        with translated("NVIDIA driver"):
            pynvml.nvmlInit()
        self._closed = False
        try:
            with translated("GPU"):
                self.count: int = pynvml.nvmlDeviceGetCount()
                self._handle = self._found(which)
                self.index: int = pynvml.nvmlDeviceGetIndex(self._handle)
                self.name: str = pynvml.nvmlDeviceGetName(self._handle)
                self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)
                self.driver: str = pynvml.nvmlSystemGetDriverVersion()
        except BaseException:
            pynvml.nvmlShutdown()
            raise
        self.architecture: int = self._optional(pynvml.nvmlDeviceGetArchitecture) or 0
        self.capability: tuple[int, int] = self._optional(pynvml.nvmlDeviceGetCudaComputeCapability) or (0, 0)

    def close(self) -> None:
        """Release the library; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with translated("NVIDIA driver"):
            pynvml.nvmlShutdown()

    def names(self) -> dict[str, str]:
        """UUID -> name of each GPU of this computer, in the driver's order; a name is empty if a GPU does not tell."""
        names: dict[str, str] = {}
        for index in range(self.count):
            with translated("GPU"):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid: str = pynvml.nvmlDeviceGetUUID(handle)
            try:
                names[uuid] = pynvml.nvmlDeviceGetName(handle)
            except pynvml.NVMLError:
                names[uuid] = ""
        return names

    # --------------------------------------------------------------------------------------------------------- clocks

    def clocks_mhz(self) -> tuple[int, ...]:
        """Graphics clocks at the highest memory clock, ascending; empty if they are not listed or cannot be locked."""
        if not self._has_locked_clocks():
            return ()
        memory = self._optional(pynvml.nvmlDeviceGetSupportedMemoryClocks)
        if not memory:
            return ()
        return tuple(sorted(set(self._optional(pynvml.nvmlDeviceGetSupportedGraphicsClocks, max(memory)) or ())))

    def highest_mhz(self) -> int | None:
        """The highest graphics clock of a GPU that lists none, as one without a memory clock of its own (GB10).

        None if clocks cannot be locked: not before Volta, and not in a virtual machine's share of a GPU.
        """
        if not self._has_locked_clocks():
            return None
        if self._optional(pynvml.nvmlDeviceGetVirtualizationMode) == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU:
            return None
        highest_mhz: int | None = self._optional(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_GRAPHICS)
        return highest_mhz or None

    def clock_mhz(self) -> int | None:
        """The graphics clock at this moment."""
        clock_mhz: int | None = self._optional(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_GRAPHICS)
        return clock_mhz

    def lock_clock(self, mhz: int) -> None:
        """Lock the graphics clock to ``mhz``. Raises: DeviceUnavailable without permission."""
        with translated("locked graphics clocks"):
            pynvml.nvmlDeviceSetGpuLockedClocks(self._handle, mhz, mhz)

    def unlock_clock(self) -> None:
        """Leave the clock to the driver again."""
        with translated("locked graphics clocks"):
            pynvml.nvmlDeviceResetGpuLockedClocks(self._handle)

    # ---------------------------------------------------------------------------------------------------- power limit

    def limits_w(self) -> tuple[float, float] | None:
        """The lowest and the highest power limit that can be set."""
        limits_mw = self._optional(pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return (limits_mw[0] / 1000, limits_mw[1] / 1000) if limits_mw else None

    def limit_w(self) -> float | None:
        """The power limit that is set."""
        limit_mw = self._optional(pynvml.nvmlDeviceGetPowerManagementLimit)
        return None if limit_mw is None else limit_mw / 1000

    def set_limit(self, limit_w: float) -> None:
        """Set the power limit. Raises: DeviceUnavailable without permission."""
        with translated("the power limit"):
            pynvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(1000 * limit_w))

    # ---------------------------------------------------------------------------------------------------------- power

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded (Volta and newer)."""
        energy_mj = self._optional(pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return None if energy_mj is None else energy_mj / 1000

    def instant_w(self) -> float | None:
        """Power at this moment; of the whole module if the GPU has no field of its own (Grace Hopper)."""
        for scope in (pynvml.NVML_POWER_SCOPE_GPU, pynvml.NVML_POWER_SCOPE_MODULE):
            values = self._optional(pynvml.nvmlDeviceGetFieldValues, [(pynvml.NVML_FI_DEV_POWER_INSTANT, scope)])
            # Each value has a code of its own beside that of the call.
            if values and values[0].nvmlReturn == pynvml.NVML_SUCCESS:
                power_mw: int = values[0].value.uiVal
                return power_mw / 1000
        return None

    def usage_w(self) -> float | None:
        """Power as the driver reports it, averaged or not by the chip's generation."""
        usage_mw = self._optional(pynvml.nvmlDeviceGetPowerUsage)
        return None if usage_mw is None else usage_mw / 1000

    # ----------------------------------------------------------------------------------------------------- conditions

    def temperature_c(self) -> float | None:
        """The chip's temperature."""
        temperature = None
        if newer := getattr(pynvml, "nvmlDeviceGetTemperatureV", None):  # drivers from 565 on; the other one goes away
            temperature = self._optional(newer, pynvml.NVML_TEMPERATURE_GPU)
        if temperature is None:
            temperature = self._optional(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU)
        return None if temperature is None else float(temperature)

    def held_back(self) -> tuple[str, ...]:
        """Reasons for a clock below its setting; empty if there are none or the driver does not tell."""
        reasons = self._optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons)
        if reasons is None:  # drivers before 535
            reasons = self._optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
        return tuple(text for bit, text in HOLDS_BACK.items() if reasons & bit)

    def free_bytes(self) -> float | None:
        """Free memory of the GPU."""
        memory = self._optional(pynvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else float(memory.free)

    def divided(self) -> bool:
        """True if the GPU is divided into instances (MIG)."""
        mode = self._optional(pynvml.nvmlDeviceGetMigMode)
        return bool(mode and mode[0])

    def modes(self) -> dict[str, str]:
        """Driver version and modes that affect the GPU's speed or power."""
        found = {"driver": self.driver}
        persistence = self._optional(pynvml.nvmlDeviceGetPersistenceMode)
        if persistence is not None:
            found["persistence"] = "on" if persistence else "off"
        ecc = self._optional(pynvml.nvmlDeviceGetEccMode)
        if ecc is not None:
            found["ECC"] = "on" if ecc[0] else "off"
        if self.divided():
            found["MIG"] = "on"
        return found

    # -------------------------------------------------------------------------------------------------------- private

    def _has_locked_clocks(self) -> bool:
        # "For Volta or newer fully supported devices", NVML reference.
        return bool(VOLTA <= self.architecture != pynvml.NVML_DEVICE_ARCH_UNKNOWN)

    def _found(self, which: str) -> Any:
        try:
            if which.isdecimal():
                return pynvml.nvmlDeviceGetHandleByIndex(int(which))
            return pynvml.nvmlDeviceGetHandleByUUID(which)
        except pynvml.NVMLError as error:
            if error.value not in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND):
                raise
            allowed = f"an index below {self.count}, or a UUID as `nvidia-smi -L` shows it"
            raise InputError("no such NVIDIA GPU", value=which, allowed=allowed) from error

    def _optional(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(self._handle, *arguments)
        except pynvml.NVMLError as error:
            if error.value in UNKNOWN:
                return None
            raise _ours(error, function.__name__) from error


def count_gpus() -> int:
    """Number of NVIDIA GPUs; 0 without a driver. Raises: DeviceError if the driver fails."""
    try:
        with translated("NVIDIA driver"):
            pynvml.nvmlInit()
    except DeviceUnavailable:
        return 0
    try:
        with translated("NVIDIA driver"):
            return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise the library's errors as ours; ``what`` names what was asked for."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise _ours(error, what) from error


def _ours(error: Any, what: str) -> DeviceError:
    if error.value in NO_DRIVER:
        return DeviceUnavailable(
            f"no NVIDIA GPU can be reached ({error}): install its driver; in a container, start it with --gpus all"
        )
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return DeviceUnavailable(
            f"{what} may not be set by this user ({error}): run as root (a container also needs --cap-add SYS_ADMIN), "
            "or leave it alone with --device nvidia:0?actuator=none"
        )
    if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return DeviceUnavailable(f"{what}: this GPU does not have that ({error})")
    return DeviceError(f"{what}: the NVIDIA driver says {error}")
