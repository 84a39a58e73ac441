"""NVIDIA's management library through ctypes: the cards of this machine, and the right to change them.

Units: W, J, MHz, degrees Celsius, bytes. Source: NVML API reference, nvml.h.
"""

import ctypes
import os
import threading
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, Tuple

from wattune_agent.errors import AgentError, BadRequest, FileFailed, Forbidden, NotThere
from wattune_agent.settings import grid
from wattune_agent.tree import LOCK

LIBRARY = "libnvidia-ml.so.1"

UNREACHABLE = "no NVIDIA card can be reached ({}): install its driver; in a container, start it with --gpus all"

AMPERE, VOLTA, UNKNOWN_ARCHITECTURE = 7, 5, 0xFFFFFFFF

GA100 = (8, 0)
"""Compute capability of the one Ampere chip whose power reading is not averaged."""

UNLOCKED = "none"
"""The text of a clock that is not locked."""

UNKNOWN = "unknown"

_GRAPHICS = 0  # the clock, and the sensor of the chip's temperature
_VGPU = 2
_TEMPERATURE_V1 = 0x100000C

_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_NO_DRIVER = {9: "Driver Not Loaded", 12: "Library Not Found", 18: "Driver/library version mismatch"}
_CODES = {
    1: "Uninitialized",
    2: "Invalid Argument",
    _NOT_SUPPORTED: "Not Supported",
    _NO_PERMISSION: "Insufficient Permissions",
    6: "Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    999: "Unknown Error",
    **_NO_DRIVER,
}

_HOLDS_BACK = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Reasons for a clock below its setting, apart from idling and the locked clock itself."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Temperature(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("sensor", ctypes.c_uint), ("temperature", ctypes.c_int)]


def _load() -> Any:
    return ctypes.CDLL(LIBRARY)


class Cards:
    """The cards of this machine. ``load`` returns the library; it is called once, when a card is first asked for."""

    def __init__(self, load: Optional[Callable[[], Any]] = None) -> None:
        self._load = load or _load
        self._library: Any = None
        self._opening = threading.Lock()
        self._cards: Dict[str, "Card"] = {}

    def all(self) -> List["Card"]:
        """Every card that answers, in the driver's order. Raises: NotThere without a driver, FileFailed."""
        cards = []
        for index in range(self.count()):
            with suppress(FileFailed):  # this card is lost: the others still work
                cards.append(self._card(index))
        return cards

    def count(self) -> int:
        """Number of cards, lost ones included. Raises: NotThere without a driver, FileFailed."""
        count = ctypes.c_uint()
        _check(_code(self._opened(), "nvmlDeviceGetCount_v2", ctypes.byref(count)), "the number of cards")
        return int(count.value)

    def driver(self) -> str:
        """Version of the driver; empty if the driver does not report it."""
        buffer = ctypes.create_string_buffer(96)
        code = _code(self._opened(), "nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(96))
        return buffer.value.decode("utf-8", "replace") if code == 0 else ""

    def find(self, which: str) -> "Card":
        """The card of this index or UUID. Raises: BadRequest if there is none; as ``all``."""
        if which in self._cards:
            return self._cards[which]
        count = self.count()
        if which in map(str, range(count)):
            return self._card(int(which))
        for card in self.all():
            if card.uuid == which:
                return card
        raise BadRequest(
            "no such NVIDIA card: {}; allowed: an index below {}, or a UUID as `nvidia-smi -L` shows it".format(
                which, count
            )
        )

    def _card(self, index: int) -> "Card":
        library, handle = self._opened(), ctypes.c_void_p()
        code = _code(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        _check(code, "card {}".format(index))
        card = Card(library, handle)
        # The same object each time: it knows what it was locked to.
        return self._cards.setdefault(card.uuid, card)

    def _opened(self) -> Any:
        with self._opening:
            if self._library is None:
                try:
                    library = self._load()
                except OSError as error:
                    raise NotThere(UNREACHABLE.format(error)) from error
                _check(_code(library, "nvmlInitWithFlags", ctypes.c_uint(0)), "the driver")
                self._library = library
            return self._library


class Card:
    """One card. A method that can return None does so if this card or driver does not answer; every other failure is
    FileFailed, or Forbidden for a change that this user may not make."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self.uuid = self._text("nvmlDeviceGetUUID")
        self.name = self._text("nvmlDeviceGetName")
        self.locked = UNLOCKED
        """The clock that this process has locked, in MHz, as text; the driver does not report it. ``UNKNOWN`` after a
        failed release: another process may have locked it before."""
        self._is_refused = False
        self.architecture = self._number("nvmlDeviceGetArchitecture") or 0
        self.capability = self._pair("nvmlDeviceGetCudaComputeCapability") or (0, 0)

    # ---------------------------------------------------------------------------------------------------------- files

    def read(self, file: str) -> str:
        """The text of one of the card's files. Raises: FileFailed."""
        if file == LOCK:
            return self.locked
        limit_mw = self._limit_mw()
        if limit_mw is None:
            raise FileFailed("the power limit of {} cannot be read".format(self.name))
        return str(limit_mw)

    def write(self, file: str, text: str) -> None:
        """Write one of the card's files. Raises: Forbidden, FileFailed."""
        if file == LOCK:
            self._lock(text)
        else:
            _check(self._set_limit(int(text)), "the power limit of {}".format(self.name))

    def check_writable(self) -> None:
        """Raises: Forbidden if this process may not change the card."""
        if not may_administer():
            _check(_NO_PERMISSION, "the clock of {}".format(self.name))

    # --------------------------------------------------------------------------------------------------------- clocks

    def clocks_mhz(self) -> List[int]:
        """Clocks at the highest memory clock, ascending; a grid if none are listed (GB10); empty without a lock."""
        if not VOLTA <= self.architecture < UNKNOWN_ARCHITECTURE:
            return []
        memory = self._list("nvmlDeviceGetSupportedMemoryClocks")
        if memory:
            return sorted(set(self._list("nvmlDeviceGetSupportedGraphicsClocks", ctypes.c_uint(max(memory)))))
        if self._number("nvmlDeviceGetVirtualizationMode") == _VGPU:
            return []
        highest_mhz = self._number("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(_GRAPHICS))
        return grid(highest_mhz) if highest_mhz else []

    def lists_clocks(self) -> bool:
        """True if ``clocks_mhz`` are the driver's own."""
        return bool(self._list("nvmlDeviceGetSupportedMemoryClocks"))

    def clock_mhz(self) -> Optional[int]:
        """The present graphics clock."""
        return self._number("nvmlDeviceGetClockInfo", ctypes.c_uint(_GRAPHICS))

    def _lock(self, text: str) -> None:
        """Lock the graphics clock to this many MHz, or leave it to the driver again (``UNLOCKED``)."""
        if text == UNLOCKED:
            code = _code(self._library, "nvmlDeviceResetGpuLockedClocks", self._handle)
            if code == _NOT_SUPPORTED:  # a card whose clock cannot be locked has none to release
                code = 0
        else:
            mhz = ctypes.c_uint(int(text))
            code = _code(self._library, "nvmlDeviceSetGpuLockedClocks", self._handle, mhz, mhz)
        if text == UNLOCKED and code != 0 and not self._is_refused:
            self.locked = UNKNOWN
        self._is_refused = text != UNLOCKED and code == _NO_PERMISSION  # and nothing has to be released after that
        if code == _NOT_SUPPORTED:  # which shows at the first lock alone
            raise FileFailed(
                "the driver refuses to lock the clock of {}: use ?actuator=power_limit_w or none".format(self.name)
            )
        _check(code, "the locked clock of {}".format(self.name))
        self.locked = text

    # ---------------------------------------------------------------------------------------------------------- power

    def energy_j(self) -> Optional[float]:
        """Energy since the driver was loaded."""
        out = ctypes.c_ulonglong()
        is_known = self._asks("nvmlDeviceGetTotalEnergyConsumption", ctypes.byref(out))
        return out.value / 1000.0 if is_known else None

    def usage_w(self) -> Optional[float]:
        """Power as the driver reports it."""
        usage_mw = self._number("nvmlDeviceGetPowerUsage")
        return None if usage_mw is None else usage_mw / 1000.0

    def limit_w(self) -> Optional[float]:
        """The power limit."""
        limit_mw = self._limit_mw()
        return None if limit_mw is None else limit_mw / 1000.0

    def limits_w(self) -> Optional[Tuple[float, float]]:
        """The lowest and the highest power limit; None for a card without one, such as a GB10."""
        limits_mw = self._pair("nvmlDeviceGetPowerManagementLimitConstraints")
        return None if limits_mw is None else (limits_mw[0] / 1000.0, limits_mw[1] / 1000.0)

    def takes_limit(self) -> bool:
        """False if the driver refuses to set the power limit, tried with the present one: a laptop's card has a range
        of limits, and refuses each of them."""
        limit_mw = self._limit_mw()
        return limit_mw is not None and self._set_limit(limit_mw) in (0, _NO_PERMISSION)

    def _limit_mw(self) -> Optional[int]:
        return self._number("nvmlDeviceGetPowerManagementLimit")

    def _set_limit(self, limit_mw: int) -> int:
        return _code(self._library, "nvmlDeviceSetPowerManagementLimit", self._handle, ctypes.c_uint(limit_mw))

    # ----------------------------------------------------------------------------------------------------- conditions

    def temperature_c(self) -> Optional[float]:
        """The chip's temperature, by the call of drivers from 565 on, or by the one that goes away."""
        out = _Temperature(_TEMPERATURE_V1, _GRAPHICS, 0)
        if self._asks("nvmlDeviceGetTemperatureV", ctypes.byref(out)):
            return float(out.temperature)
        temperature_c = self._number("nvmlDeviceGetTemperature", ctypes.c_uint(_GRAPHICS))
        return None if temperature_c is None else float(temperature_c)

    def held_back(self) -> Tuple[str, ...]:
        """Reasons for a clock below its setting."""
        out = ctypes.c_ulonglong()
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            if self._asks(name, ctypes.byref(out)):
                return tuple(text for bit, text in sorted(_HOLDS_BACK.items()) if out.value & bit)
        return ()

    def free_bytes(self) -> Optional[float]:
        """Free memory."""
        out = _Memory()
        return float(out.free) if self._asks("nvmlDeviceGetMemoryInfo", ctypes.byref(out)) else None

    def shares_memory(self) -> bool:
        """True if the card has no memory of its own but the machine's (GB10): the driver has no answer for it then."""
        return _code(self._library, "nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(_Memory())) == _NOT_SUPPORTED

    def has_ecc(self) -> Optional[bool]:
        """True if the memory corrects errors, which takes some of its speed."""
        modes = self._pair("nvmlDeviceGetEccMode")
        return None if modes is None else bool(modes[0])

    def is_divided(self) -> bool:
        """True if the card is divided into instances (MIG)."""
        return bool((self._pair("nvmlDeviceGetMigMode") or (0, 0))[0])

    # --------------------------------------------------------------------------------------------------------- private

    def _asks(self, name: str, *arguments: Any) -> bool:
        """True if the call succeeds. Raises: FileFailed if the card is lost."""
        code = _code(self._library, name, self._handle, *arguments)
        if code in (1, 15):
            _check(code, getattr(self, "name", "a card"))
        return code == 0

    def _number(self, name: str, *arguments: Any) -> Optional[int]:
        out = ctypes.c_uint()
        return int(out.value) if self._asks(name, *arguments, ctypes.byref(out)) else None

    def _pair(self, name: str) -> Optional[Tuple[int, int]]:
        one, other = ctypes.c_uint(), ctypes.c_uint()
        return (one.value, other.value) if self._asks(name, ctypes.byref(one), ctypes.byref(other)) else None

    def _text(self, name: str) -> str:
        buffer = ctypes.create_string_buffer(96)
        _check(_code(self._library, name, self._handle, buffer, ctypes.c_uint(96)), "a card")
        return buffer.value.decode("utf-8", "replace")

    def _list(self, name: str, *arguments: Any) -> List[int]:
        count = ctypes.c_uint(0)
        self._asks(name, *arguments, ctypes.byref(count), None)  # the length, with "insufficient size"
        values = (ctypes.c_uint * count.value)()
        if not count.value or not self._asks(name, *arguments, ctypes.byref(count), values):
            return []
        return list(values)


def _code(library: Any, name: str, *arguments: Any) -> int:
    """The call's return code; that of a missing function from a driver that lacks it."""
    try:
        function = getattr(library, name)
    except AttributeError:
        return 13
    return int(function(*arguments))


def _check(code: int, what: str) -> None:
    """Raises: NotThere, Forbidden, FileFailed unless the call succeeded."""
    if code == 0:
        return
    text = _CODES.get(code, "error {}".format(code))
    error: AgentError = FileFailed("{}: the NVIDIA driver says {}".format(what, text))
    if code in _NO_DRIVER:
        error = NotThere(UNREACHABLE.format(text))
    elif code == _NO_PERMISSION:
        error = Forbidden(
            "{} may not be set by this user: run the agent as root and use --device agent, or run this as root (a "
            "container also needs --cap-add SYS_ADMIN)".format(what)
        )
    raise error


STATUS = "/proc/self/status"
"""The capabilities of this process, among other things. Source: proc(5)."""

_SYS_ADMIN = 1 << 21
"""The bit of CAP_SYS_ADMIN. Source: capabilities(7), linux/capability.h."""


def may_administer() -> bool:
    """True if this process has CAP_SYS_ADMIN, which the driver demands for a change of a clock or limit.

    Root has it, except in a container that was started without it.
    """
    try:
        with open(STATUS, encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("CapEff:")]
        return bool(int(masks[0], 16) & _SYS_ADMIN)
    except (OSError, IndexError, ValueError):
        return os.geteuid() == 0
