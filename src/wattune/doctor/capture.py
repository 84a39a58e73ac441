"""A board record: the few files of a board that this package reads, as one JSON object that any user can share.

``{"record": "board", "version": 1, "name", "source", "l4t", "kernel", "files": {path: text}, "links": {path: target},
"modes": {path: octal}, "outputs": {"program arguments": text}, "unread": {path: why}, "note"}``; ``source`` is a list.
Every path is as the board names it and contains no link; ``modes`` lists the files that are neither 0644 nor 0444. A
program's output is stored as text, and ``materialise`` writes it as text, for ``Tree.answer``: nothing in another
user's record is ever run. Only listed files are read; none contains a serial number, hardware address or host name.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from typing import Any

from wattune_agent.errors import BadRequest, FileFailed, Forbidden
from wattune_agent.mode import l4t
from wattune_agent.tree import ANSWERS, Tree

__all__ = ["capture", "materialise"]

_SENSOR = "{name,in?_label,in?_input,in?_enable,curr?_input,curr?_max,curr?_crit,curr?_*alarm,shunt?_resistor,samples,"
_SENSOR += "update_interval,oc?_event_cnt,oc?_throt_en,pwm?,pwm?_enable}"
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
    "/sys/devices/pwm-fan/{target_pwm,cur_pwm,temp_control}",
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

_QUESTIONS = ("vcgencmd pmic_read_adc", "vcgencmd get_throttled")
_LINKS_AT_MOST = 40


def capture(tree: Tree, source: str = "", note: str = "") -> dict[str, Any]:
    """Record the board, without writing to it; files that cannot be read are listed under ``unread``."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    modes: dict[str, str] = {}
    unread: dict[str, str] = {}
    for pattern in PATTERNS:
        for path in _matching(tree, pattern):
            try:
                place, trail = _followed(tree, path)
            except FileFailed as error:
                unread[path] = str(error)
                continue
            links.update(trail)
            if place not in files and os.path.isfile(tree.inside(place)):
                files[place] = _text(tree, place, unread)
                mode = stat.S_IMODE(os.stat(tree.inside(place)).st_mode)
                if mode not in (0o644, 0o444):
                    modes[place] = f"{mode & 0o666:04o}"
    record: dict[str, Any] = {
        "record": "board",
        "version": 1,
        "name": _name(files),
        "source": [source] if source else [],
    }
    record["l4t"] = l4t(tree) or None
    record["kernel"] = files.get("/proc/sys/kernel/osrelease", "").strip() or None
    record.update(files=files, links=links, modes=modes, outputs=_outputs(tree), unread=unread, note=note)
    return record


def materialise(record: dict[str, Any], folder: str) -> str:
    """Write the record as a tree into a new or empty folder; returns its path. Raises: BadRequest if it is not a board
    record, or names a path outside the folder."""
    if not isinstance(record, dict) or record.get("record") != "board" or record.get("version") != 1:
        raise BadRequest('this is not a board record of version 1: it needs "record": "board" and "version": 1')
    if os.path.isdir(folder) and os.listdir(folder):
        raise BadRequest(f"{folder} is not empty: a board record is written into a folder of its own")
    parts = [_texts(record, key) for key in ("files", "links", "modes", "outputs")]
    try:
        _write(folder, *parts)
    except (OSError, ValueError) as error:
        raise BadRequest(f"the board record cannot be written as files: {error}") from error
    return folder


def _texts(record: dict[str, Any], key: str) -> dict[str, str]:
    texts = record.get(key, None if key == "files" else {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise BadRequest(f'"{key}" of a board record must be an object of texts')
    return texts


def _write(
    folder: str, files: dict[str, str], links: dict[str, str], modes: dict[str, str], outputs: dict[str, str]
) -> None:
    for path, text in files.items():
        place = _placed(folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8") as file:
            # The kernel ends its lines; a device tree's text ends with a NUL instead.
            file.write(text if text.endswith(("\n", "\0")) else text + "\n")
    # After the files, so that no link can lead one of them elsewhere.
    for path, target in links.items():
        place = _placed(folder, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.symlink(os.path.relpath(_placed(folder, target), os.path.dirname(place)), place)
    for question, text in outputs.items():
        if question not in _QUESTIONS:
            raise BadRequest(f"{question!r} is not a command whose output a board record may contain")
        place = _placed(folder, ANSWERS + "/" + question.replace(" ", "/"))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "x", encoding="utf-8", newline="") as file:
            file.write(text)
    for path, octal in modes.items():
        if path not in files:
            raise BadRequest(f"{path} has a mode, but is not a file of this record")
        os.chmod(_placed(folder, path), int(octal, 8) & 0o666)


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
        if len(links) > _LINKS_AT_MOST:
            raise FileFailed(f"{path} leads through too many links")
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


def _name(files: dict[str, str]) -> str:
    model = files.get("/sys/firmware/devicetree/base/model", "")
    dmi = files.get("/sys/devices/virtual/dmi/id/product_name", "") or files.get("/sys/class/dmi/id/product_name", "")
    processor = files.get("/proc/cpuinfo", "").partition(":")[2].partition("\n")[0]
    return model.strip("\0\n ") or dmi.strip() or processor.strip() or "unknown board"


def _outputs(tree: Tree) -> dict[str, str]:
    answers = {}
    for question in _QUESTIONS:
        name, argument = question.split()
        try:
            answer = tree.answer(question)
        except (FileFailed, Forbidden):
            continue
        if answer is not None:
            answers[question] = answer
            continue
        program: str | None = tree.program(name) or (shutil.which(name) if tree.root == "/" else None)
        if program is None:
            continue
        try:
            process = subprocess.run(
                [program, argument],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                timeout=5,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        answers[question] = process.stdout
    return answers


def _placed(folder: str, path: str) -> str:
    if not isinstance(path, str) or not path.startswith("/") or os.path.normpath(path) != path or "\0" in path:
        raise BadRequest(f"{path!r} is not a path of a board")
    return folder.rstrip("/") + path
