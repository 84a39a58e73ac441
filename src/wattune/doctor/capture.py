"""Board record: the few files of a board that this package reads, as one JSON object that any user can share.

``{"record": "board", "version": 1, "name", "source", "l4t", "kernel", "files": {path: text}, "links": {path: target},
"unread": {path: why}}``; ``source`` is a list. Every path is as the board names it and contains no link. Only listed
files are read; none contains a serial number, hardware address or host name.
"""

from __future__ import annotations

import os
import re
from typing import Any

from wattune_agent.discovery import board_name
from wattune_agent.errors import FileFailed, Forbidden
from wattune_agent.mode import l4t
from wattune_agent.tree import Tree

__all__ = ["capture"]

_SENSOR = "{name,in?_label,in?_input,in?_enable,curr?_input,curr?_max,curr?_crit,curr?_*alarm,shunt?_resistor,samples,"
_SENSOR += "update_interval,oc?_event_cnt,oc?_throt_en}"
_IIO = (
    "{name,rail_name_?,in_voltage?_input,in_current?_input,in_power?_input,warn_current_limit_?,crit_current_limit_?,"
)
_IIO += "running_mode}"
_DEVFREQ = "{available_frequencies,min_freq,max_freq,cur_freq,governor,available_governors,name,device/of_node/name,"
_DEVFREQ += "device/railgate_enable,device/enable_3d_scaling,device/load,device/tpc_pg_mask,device/power/control}"
_POLICY = "{affected_cpus,related_cpus,cpuinfo_min_freq,cpuinfo_max_freq,base_frequency,scaling_available_frequencies,"
_POLICY += (
    "scaling_min_freq,scaling_max_freq,scaling_cur_freq,scaling_driver,scaling_governor,scaling_available_governors,"
)
_POLICY += "scaling_setspeed,boost,energy_performance_preference,amd_pstate_max_freq,amd_pstate_lowest_nonlinear_freq}"

PATTERNS = (
    "/sys/firmware/devicetree/base/{model,compatible}",
    "/proc/device-tree/{model,compatible}",
    "/sys/class/dmi/id/{sys_vendor,product_name,product_version}",
    "/proc/{cpuinfo,meminfo,vmstat}",
    "/proc/sys/kernel/osrelease",
    "/etc/{nv_tegra_release,nvpmodel.conf}",
    "/var/lib/nvpmodel/status",
    "/sys/class/devfreq/*/" + _DEVFREQ,
    "/sys/devices/*/devfreq/*/" + _DEVFREQ,
    "/sys/devices/platform/*/devfreq/*/" + _DEVFREQ,
    "/sys/devices/platform/*/*/devfreq/*/" + _DEVFREQ,
    "/sys/devices/system/cpu/{online,offline,present,possible}",
    "/sys/devices/system/cpu/cpu*/online",
    "/sys/devices/system/cpu/cpu*/acpi_cppc/{nominal_freq,lowest_freq}",
    "/sys/devices/system/cpu/cpu*/thermal_throttle/{core_throttle_count,package_throttle_count}",
    "/sys/devices/system/cpu/cpufreq/boost",
    "/sys/devices/system/cpu/intel_pstate/{status,no_turbo,min_perf_pct,max_perf_pct}",
    "/sys/devices/system/cpu/amd_pstate/status",
    "/sys/devices/system/cpu/cpufreq/policy*/" + _POLICY,
    "/sys/devices/system/cpu/cpu*/cpufreq/" + _POLICY,
    "/sys/bus/i2c/devices/*-00*/name",
    "/sys/bus/i2c/devices/*-00*/{iio:device*,iio_device}/" + _IIO,
    "/sys/bus/i2c/devices/*-00*/hwmon/hwmon*/" + _SENSOR,
    "/sys/bus/i2c/drivers/ina3221*/*-00*/name",
    "/sys/bus/iio/devices/*/" + _IIO,
    "/sys/class/hwmon/hwmon*/" + _SENSOR,
    "/sys/class/powercap/intel-rapl*/{name,enabled,energy_uj,max_energy_range_uj}",
    "/sys/class/thermal/thermal_zone*/{type,temp,trip_point_*_temp,trip_point_*_type,cdev*_trip_point,cdev*/type}",
    "/sys/class/thermal/cooling_device*/{type,cur_state,max_state}",
    "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap",
    "/sys/kernel/nvpmodel_clk_cap/emc",
    "/sys/kernel/debug/bpmp/debug/clk/emc/{rate,min_rate,max_rate,mrq_rate_locked}",
    "/sys/kernel/debug/bpmp/debug/emc/possible_rates",
    "/sys/kernel/debug/tegra_bwmgr/emc_{min,max}_rate",
    "/sys/kernel/debug/clk/override.emc/{clk_rate,clk_state}",
)
"""Every file that is ever read, as shell patterns."""

_KEPT_LINES = {
    "/proc/cpuinfo": r"(model name|Model|Hardware)\s*:",
    "/proc/meminfo": r"(MemTotal|MemAvailable|SwapTotal|SwapFree):",
    "/proc/vmstat": r"(pswpin|pswpout) ",
    "/etc/nvpmodel.conf": r"\s*<\s*(POWER_MODEL|PM_CONFIG)\b",
}
"""Files of which only these lines are stored: the rest is not needed, and /proc/cpuinfo contains serial numbers."""


def capture(tree: Tree, source: str = "") -> dict[str, Any]:
    """Record the board, without writing to it; files that cannot be read are listed under ``unread``."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    unread: dict[str, str] = {}
    for pattern in PATTERNS:
        for path in _matching(tree, pattern):
            if not tree.exists(path):  # a link that leads nowhere
                continue
            place, trail = _followed(tree, path)
            links.update(trail)
            if place not in files and os.path.isfile(tree.inside(place)):
                files[place] = _text(tree, place, unread)
    return {
        "record": "board",
        "version": 1,
        "name": board_name(tree) or "unknown board",
        "source": [source] if source else [],
        "l4t": l4t(tree) or None,
        "kernel": files.get("/proc/sys/kernel/osrelease", "").strip() or None,
        "files": files,
        "links": links,
        "unread": unread,
    }


def _matching(tree: Tree, pattern: str) -> tuple[str, ...]:
    head, brace, rest = pattern.partition("{")
    if not brace:
        return tuple(tree.glob(pattern))
    choices, _, tail = rest.partition("}")
    paths = [path for choice in choices.split(",") for path in _matching(tree, head + choice + tail)]
    return tuple(sorted(set(paths)))


def _followed(tree: Tree, path: str) -> tuple[str, dict[str, str]]:
    """Resolve the path on the board; returns its target and the links on the way."""
    links: dict[str, str] = {}
    resolved, parts = "", path.strip("/").split("/")
    while parts:
        place = resolved + "/" + parts.pop(0)
        local = tree.root.rstrip("/") + place
        if not os.path.islink(local):
            resolved = place
            continue
        target = os.path.normpath(os.path.join(resolved or "/", os.readlink(local)))
        links[place] = target
        resolved, parts = "", target.strip("/").split("/") + parts
    return resolved, links


def _text(tree: Tree, path: str, unread: dict[str, str]) -> str:
    try:
        text = tree.read(path)
    except (FileFailed, Forbidden) as error:
        unread[path] = "not allowed" if isinstance(error, Forbidden) else str(error).rpartition(": ")[2]
        return ""
    pattern = _KEPT_LINES.get(path)
    if pattern:
        # Each line once: a processor line repeats for every core.
        lines = [line for line in text.splitlines() if re.match(pattern, line)]
        text = "\n".join(sorted(set(lines), key=lines.index))
    # Reading strips the end of a kernel file; a device tree's text ends with a NUL.
    return text + ("\0" if "/of_node/" in path or "/devicetree/" in path else "\n")
