"""A board in user space: clocks that follow late, rails that follow clocks and load, and heat.

It has no files of its own: it is built on one of the board records, says what each of the files that move would hold
at a moment, and takes what is written into them as the kernel would. Time is whatever ``advance`` is told.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import math
import os
from pathlib import Path
from typing import Any

from tests.support.live.clock import LiveClock
from tests.support.live.memory import LiveMemory
from tests.support.live.meter import History, LiveMeter
from tests.support.live.power import BOARDS, Model

RECORDS = Path(__file__).parent.parent.parent / "boards"
CPU_LIMITS = ("scaling_min_freq", "scaling_max_freq", "scaling_cur_freq")


class LiveBoard:
    """The physics of one of ``BOARDS`` ("orin-nano": newer kernel, "nano": older, "cpu-laptop", ...).

    ``load``: 0 to 1, or more where others draw from the same rail; set it at any time, ``ambient_c`` as well.
    """

    def __init__(self, family: str = "orin-nano", *, now_s: float = 0.0) -> None:
        self.family = family
        self.model: Model = BOARDS[family]
        self.record: dict[str, Any] = json.loads((RECORDS / f"{self.model.record}.json").read_text(encoding="utf-8"))
        self.now_s = now_s
        self.ambient_c = 25.0
        self._load = 0.0
        self._decided: tuple[object, ...] = ()
        for pattern, text in self.model.instead:
            self.record["files"].update(dict.fromkeys(fnmatch.filter(self.record["files"], pattern), text + "\n"))
        self.memory: LiveMemory | None = None
        if self.model.memory:
            cap = next((path for path in self.record["files"] if path.endswith("/emc_iso_cap")), None)
            self.memory = LiveMemory(self.model.memory, cap, int(self.record["files"].get(cap, "0")))
            self.record["files"].update({path: text + "\n" for path, text in self.memory.files().items()})
        self._texts = {path: text.rstrip("\n") for path, text in self.record["files"].items()}
        self.clocks = self._find_clocks(self.model.clock_folder, self.model.limits, self.model.listing)
        cpu = ("*/cpufreq/policy*", CPU_LIMITS, "scaling_available_frequencies")
        self.cpus = self._find_clocks(*cpu) if self.memory is not None else []
        self._cpu_tops = [clock.high for clock in self.cpus]
        for clock in self.cpus:
            clock.now = clock.low
        self._switches = {path: self._texts[path] for path in self._found(*self.model.switches)}
        self._zones = [path for path in self._found("*/thermal_zone*/temp") if self._is_warm(path)]
        self._coolers = [
            p.replace("/type", "/cur_state") for p in self._found("*/cooling_device*/type") if self._cools(p)
        ]
        self.temperature_c = self.ambient_c + self.model.heat_c_per_w * self.power_w()
        self._meter = LiveMeter(self.model.window_s, self.model.period_s)
        self._history = History(now_s, self.rails_w(), self._meter.kept_s)
        self._counters = self._find_counters()
        self._rails = self._find_rails()
        self._decide()

    # ------------------------------------------------------------------------------------------------------ the truth

    @property
    def load(self) -> float:
        """How busy the part is whose clock is set: 0 to 1, or more where others draw from its rail."""
        return self._load

    @load.setter
    def load(self, value: float) -> None:
        self._load = max(value, 0.0)
        self._decide()

    @property
    def clock_mhz(self) -> float:
        """Where the (first) clock is now."""
        return self.clocks[0].now / self.model.per_mhz

    @property
    def top_mhz(self) -> float:
        """The highest frequency."""
        return self.clocks[0].listed[-1] / self.model.per_mhz

    def rails_w(self) -> dict[str, float]:
        """Exact power of each rail at this moment."""
        ghz = sum(clock.now for clock in self.clocks) / len(self.clocks) / self.model.per_mhz / 1e3
        rails_w = self.model.power(ghz, self._load, self.clocks[0].asleep)
        for share, watts in zip(self.other_shares(), self.model.others_w, strict=True):
            rails_w[self.model.whole] -= watts * self._load * (1 - share)
        return rails_w

    def other_shares(self) -> tuple[float, float]:
        """The clocks of memory and CPU under load, relative to what they may be while nobody has set them."""
        cpus = [clock.high / top for clock, top in zip(self.cpus, self._cpu_tops, strict=True)]
        return 1.0 if self.memory is None else self.memory.share(1.0), min(1.0, *cpus, 1.0)

    def speed(self) -> float:
        """How fast work is, relative to the highest clocks."""
        memory, cpu = self.other_shares()
        return self.clock_mhz / self.top_mhz * memory**0.3 * cpu**0.2

    def power_w(self) -> float:
        """Exact power of the whole."""
        return self.rails_w()[self.model.whole]

    def clamp(self, mhz: float | None) -> None:
        """Let heat (or a power budget) hold the clock at or below this; None: no longer."""
        for clock in self.clocks:
            clock.clamp = None if mhz is None else round(mhz * self.model.per_mhz)
        self._decide()

    def advance(self, now_s: float) -> None:
        """Let time pass until then."""
        while self.now_s < now_s:
            soon = [clock.arrives_s for clock in self._all_clocks() if clock.arrives_s is not None]
            rails_w = self.rails_w()
            until_s = max(min([now_s, *soon]), self.now_s)
            self._history.add(until_s, rails_w)
            steady_c = self.ambient_c + self.model.heat_c_per_w * rails_w[self.model.whole]
            decay = math.exp(-(until_s - self.now_s) / self.model.heat_s)
            self.temperature_c = steady_c + (self.temperature_c - steady_c) * decay
            self.now_s = until_s
            for clock in self._all_clocks():
                clock.arrive(until_s)
            self._decide()

    # ---------------------------------------------------------------------------------------------------------- files

    def paths(self) -> list[str]:
        """Every file that moves or is listened to."""
        fixed = [path for clock in self._all_clocks() for path in (clock.low_path, clock.high_path, clock.now_path)]
        fixed += self.memory.paths() if self.memory is not None else []
        return [*fixed, *self._switches, *self._zones, *self._coolers, *self._counters, *self._rails]

    def writable(self) -> list[str]:
        """Those of them that somebody may write."""
        limits = [path for clock in self._all_clocks() for path in (clock.low_path, clock.high_path)]
        return [*limits, *(self.memory.writable() if self.memory is not None else []), *self._switches]

    def state_paths(self) -> list[str]:
        """Those of them that stay as they were written: not the memory's rate, which follows the load."""
        return [path for path in self.writable() if self.memory is None or path != self.memory.setter_path]

    def text(self, path: str) -> str:
        """What the file holds at this moment."""
        for clock in self._all_clocks():
            if path in (clock.low_path, clock.high_path, clock.now_path):
                return clock.text(path)
        if self.memory is not None and path in self.memory.paths():
            return self.memory.text(path, self._load)
        if path in self._switches:
            return self._switches[path]
        if path in self._zones:
            return str(round(1e3 * self.temperature_c))
        if path in self._coolers:
            return str(self._cooling_state(path))
        if path in self._counters:
            zone, begin_uj, range_uj = self._counters[path]
            # The counter moves about every millisecond.
            behind_s = self.now_s % 1e-3
            energy_uj = 1e6 * (self._history.energy_j[zone] - self.rails_w()[zone] * behind_s)
            return str(int(begin_uj + max(0.0, energy_uj)) % (range_uj + 1))
        rail, what = self._rails[path]
        millivolts, milliamps = self._meter.reading(self._history, rail, self.now_s)
        return str({"mV": millivolts, "mA": milliamps, "mW": millivolts * milliamps // 1000}[what])

    def write(self, path: str, text: str) -> None:
        """What somebody writes into the file. Raises: OSError, as the kernel would."""
        if path in self._switches:
            if text.strip() not in ("0", "1"):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self._switches[path] = text.strip()
        elif self.memory is not None and path in self.memory.paths():
            self.memory.write(path, text)
        else:
            clocks = [c for c in self._all_clocks() if path in (c.low_path, c.high_path, c.now_path)]
            if not clocks:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            clocks[0].write(path, text)
        self._decide()

    # -------------------------------------------------------------------------------------------------------- private

    def _all_clocks(self) -> list[LiveClock]:
        return [*self.clocks, *self.cpus]

    def _decide(self) -> None:
        asked = (self._load, *self._switches.values(), *((c.low, c.high, c.clamp) for c in self._all_clocks()))
        if asked == self._decided:  # the clocks are on their way, or there
            return
        self._decided = asked
        for path, text in self._switches.items():
            for clock in self.clocks:
                if path.endswith("/no_turbo"):
                    clock.base = round(self.model.base_mhz * self.model.per_mhz) if text == "1" else None
                if path.endswith("/railgate_enable"):
                    clock.asleep = text == "1" and self._load == 0.0
        for clock in self._all_clocks():
            clock.decide(self.now_s, self._load)
            clock.arrive(self.now_s)

    def _cooling_state(self, path: str) -> int:
        clock = self.clocks[0]
        most = int(self._texts[path.replace("/cur_state", "/max_state")])
        if clock.clamp is None:
            return 0
        return min(most, sum(step > clock.clamp for step in clock.listed))

    def _found(self, *patterns: str) -> list[str]:
        return sorted(p for p in self._texts if any(fnmatch.fnmatch(p, pattern) for pattern in patterns))

    def _is_warm(self, path: str) -> bool:
        kind = self._texts[path.replace("/temp", "/type")]
        return "PMIC" not in kind and int(self._texts[path]) > 0

    def _cools(self, path: str) -> bool:
        return any(fnmatch.fnmatch(self._texts[path], pattern) for pattern in self.model.coolers)

    def _find_clocks(self, folder_pattern: str, limits: tuple[str, str, str], listing: str) -> list[LiveClock]:
        low, high, now = limits
        clocks = []
        for path in sorted(self._found(f"{folder_pattern}/{high}"), key=lambda path: (len(path), path)):
            folder = path.rpartition("/")[0]
            listed = self._texts.get(f"{folder}/{listing}", "").split()
            if self.model.any_step:
                ends = [int(self._texts[f"{folder}/cpuinfo_{end}_freq"]) for end in ("min", "max")]
                listed = [str(step) for step in range(ends[0], ends[1] + 1, self.model.any_step)]
            clocks.append(
                LiveClock(
                    f"{folder}/{low}",
                    path,
                    f"{folder}/{now}",
                    [int(step) for step in listed],
                    low=int(self._texts[f"{folder}/{low}"]),
                    high=int(self._texts[path]),
                    now=int(listed[0]),
                    refuses=self.model.refuses,
                    any_step=self.model.any_step,
                )
            )
        return clocks

    def _find_counters(self) -> dict[str, tuple[str, int, int]]:
        counters = {}
        for path in self._found("*/energy_uj"):
            folder = path.rpartition("/")[0]
            name = self._texts[folder + "/name"]
            counters[path] = (name, int(self._texts[path]), int(self._texts[folder + "/max_energy_range_uj"]))
        return counters

    def _find_rails(self) -> dict[str, tuple[str, str]]:
        """path -> (rail, unit) of every channel of the power monitor."""
        rails = {}
        for path in self._found("*/rail_name_?"):
            folder, _, name = path.rpartition("/")
            for kind, unit in (("voltage", "mV"), ("current", "mA"), ("power", "mW")):
                rails[f"{folder}/in_{kind}{name[-1]}_input"] = (self._texts[path], unit)
        for path in self._found("*/in[123]_label"):
            folder, _, name = path.rpartition("/")
            rails[f"{folder}/in{name[2]}_input"] = (self._texts[path], "mV")
            rails[f"{folder}/curr{name[2]}_input"] = (self._texts[path], "mA")
        return rails
