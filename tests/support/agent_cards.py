"""Graphics cards whose drivers answer as the kernel's sources say: amdgpu with its levels, xe with its limits."""

import errno
import json
import os
import re
from pathlib import Path

from tests.support.agent_trees import MadeTree

from wattune.doctor.capture import materialise
from wattune_agent.errors import FileFailed

BOARDS = Path(__file__).parent.parent / "boards"
STEMS = ("amd-levels", "amd-rdna", "intel-arc")
"""Records of tests/boards."""
BASE = "/sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
LEVEL, SCLK = BASE + "/power_dpm_force_performance_level", BASE + "/pp_dpm_sclk"
FREQ0 = BASE + "/tile0/gt0/freq0"
IDLE_W, W_PER_MHZ = 20.0, 0.1
WORDS = {"auto", "low", "high", "manual", "perf_determinism"}
WORDS |= {"profile_standard", "profile_min_sclk", "profile_min_mclk", "profile_peak"}


def made_card(folder, stem, **files):
    """A card's tree; ``files``: texts of files of its folder that differ from the record's."""
    record = json.loads((BOARDS / f"{stem}.json").read_text(encoding="utf-8"))
    record["files"].update({f"{BASE}/{name}": text + "\n" for name, text in files.items()})
    root = materialise(record, str(folder))
    return XeTree(root) if stem == "intel-arc" else AmdTree(root)


class CardTree(MadeTree):
    """Power follows the clock of a busy card; an idle one is at its lowest."""

    busy = True

    @property
    def power_w(self):
        """What the card draws now."""
        return IDLE_W + W_PER_MHZ * self.clock_mhz() * self.busy


class AmdTree(CardTree):
    """A mask of levels is accepted in level "manual" alone, can never be read, and is gone with it.

    Kernel ``drivers/gpu/drm/amd/pm/amdgpu_pm.c`` and ``swsmu/amdgpu_smu.c``.
    """

    @property
    def mask(self):
        """Outside of sys: a killed program leaves it as it is."""
        return Path(self.root) / "mask"

    def levels(self):
        """Level -> MHz, without the clock of the moment between two."""
        listed = {int(level): float(mhz) for level, mhz in re.findall(r"^(\d+): (\d+)Mhz", super().read(SCLK), re.M)}
        return {0: listed[0], 1: listed[2]} if len(listed) == 3 else listed

    def clock_mhz(self):
        levels = self.levels()
        chosen = self.mask.read_text().split() if self.mask.exists() else []
        masked = [levels[min(int(level), max(levels))] for level in chosen]
        allowed = {"low": [levels[0]], "high": [max(levels.values())]}.get(super().read(LEVEL), masked)
        return (max if self.busy else min)(allowed or levels.values())

    def read(self, path):
        if path.endswith("/freq1_input"):
            self.before_read(path)
            return str(round(self.clock_mhz() * 1e6))
        if path.endswith(("/power1_average", "/power1_input")):
            self.before_read(path)
            return str(round(self.power_w * 1e6))
        return super().read(path)

    def write(self, path, text):
        if path.endswith("/pp_dpm_sclk"):
            self.written.append(path)
            self.before_write(path, text)
            levels = text.split()
            if super().read(LEVEL) != "manual" or not levels or not all(level.isdigit() for level in levels):
                raise _invalid(path)
            with open(self.mask, "w") as file:
                file.write(text)
            return
        if path.endswith("/power_dpm_force_performance_level"):
            if text.strip() not in WORDS:
                raise _invalid(path)
            if text.strip() != "manual" and self.mask.exists():
                with open(self.mask, "w") as file:
                    file.write("")
        super().write(path, text)


class XeTree(CardTree):
    """Limits within the card's range are accepted in any order; the clock is 0 without work.

    Kernel ``drivers/gpu/drm/xe/xe_guc_pc.c``.
    """

    joules = 5000.0

    def clock_mhz(self):
        return float(super().read(FREQ0 + "/max_freq")) if self.busy else 0.0

    def sleep(self, seconds):
        self.joules += self.power_w * seconds
        super().sleep(seconds)

    def read(self, path):
        if path.endswith("/act_freq"):
            return str(round(self.clock_mhz()))
        if path.endswith("/energy1_input"):
            self.before_read(path)
            return str(round(self.joules * 1e6))
        return super().read(path)

    def write(self, path, text):
        if path.startswith(FREQ0):
            low, high = (int(super(XeTree, self).read(f"{FREQ0}/{name}_freq")) for name in ("rpn", "rp0"))
            if not low <= int(text) <= high:
                raise _invalid(path)
        super().write(path, text)


def _invalid(path):
    return FileFailed(f"{path} cannot be written: {os.strerror(errno.EINVAL)}")
