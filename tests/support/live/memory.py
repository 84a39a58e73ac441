"""The memory clock of a live Jetson: the lock on its rate as debugfs has it, and the power mode's cap above it.

Two kinds: ``bpmp`` (TX2 and newer), whose firmware drops a rate that it does not have, and ``override`` (Nano, TX1),
which counts how often the lock was taken and has a file of its own to write the rate. Without the lock the rate follows
the load. Sources: see ``wattune_agent.knobs``.
"""

from __future__ import annotations

import errno
import os

BPMP = "/sys/kernel/debug/bpmp/debug"
OVERRIDE = "/sys/kernel/debug/clk/override.emc"
BANDWIDTH = "/sys/kernel/debug/tegra_bwmgr"

RATES_HZ = {
    "bpmp": (204000000, 665600000, 2133000000),
    "override": (204000000, 408000000, 665600000, 800000000, 1065600000, 1331200000, 1600000000),
}


class LiveMemory:
    """``cap_path``: the file of the power mode's cap; None for a board without one."""

    def __init__(self, kind: str, cap_path: str | None, cap: int) -> None:
        self.rates = RATES_HZ[kind]
        self.cap_path, self.cap = cap_path, cap
        self.most: int | None = None
        """What the firmware lets through as a cap, whatever is written; None: everything."""
        folder = f"{BPMP}/clk/emc" if kind == "bpmp" else OVERRIDE
        self.lock_path = folder + ("/mrq_rate_locked" if kind == "bpmp" else "/clk_state")
        self.rate_path = folder + ("/rate" if kind == "bpmp" else "/clk_rate")
        self.setter_path = folder + ("/rate" if kind == "bpmp" else "/clk_update_rate")
        ends = ("min_rate", "max_rate")
        bounds = [f"{folder}/{end}" if kind == "bpmp" else f"{BANDWIDTH}/emc_{end}" for end in ends]
        self.fixed = {bounds[0]: str(self.rates[0]), bounds[1]: str(self.rates[-1])}
        if kind == "bpmp":
            self.fixed[BPMP + "/emc/possible_rates"] = " ".join(str(rate // 1000) for rate in self.rates) + " (kHz)"
        self._counts = kind == "override"
        self._locks = 0
        self._asked = self.rates[-1]

    def files(self) -> dict[str, str]:
        """Every file with its text, but for the cap, which is in the board's record."""
        return {**self.fixed, **{path: self.text(path, 0.0) for path in self.paths() if path != self.cap_path}}

    def paths(self) -> list[str]:
        """The files that move or are listened to."""
        return list(dict.fromkeys([*self.writable(), self.rate_path]))

    def writable(self) -> list[str]:
        """Those of them that root may write."""
        return [*([self.cap_path] if self.cap_path else []), self.lock_path, self.setter_path]

    def share(self, load: float) -> float:
        """The rate relative to the highest."""
        return self.rate(load) / self.rates[-1]

    def rate(self, load: float) -> int:
        """The rate now, in Hz."""
        wanted = self._asked if self._locks else self.rates[-1] if load else self.rates[0]
        cap = self.cap if self.most is None else min(self.cap or self.most, self.most)
        return min(wanted, cap) if cap else wanted

    def text(self, path: str, load: float) -> str:
        """What the file says now."""
        if path == self.cap_path:
            return str(self.cap if self.most is None else min(self.cap or self.most, self.most))
        if path == self.rate_path:
            return str(self.rate(load))
        return str(int(self._locks > 0))  # the setter of the older kind reads so, too

    def write(self, path: str, text: str) -> None:
        """Take what somebody writes. Raises: OSError, as the kernel would."""
        if not text.strip().isdigit():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        value = int(text)
        if path == self.cap_path:
            self.cap = value
        elif path == self.setter_path:
            self._asked = value if value in self.rates else self._asked
        elif path == self.lock_path:
            self._locks = max(0, self._locks + (1 if value else -1)) if self._counts else int(value > 0)
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
