"""The files that a snapshot may name, and the texts that they may contain.

Root restores snapshots that other users wrote, so only files that this package changes are ever accepted from a
snapshot, and only texts that could have been read from them.
"""

import os
import pwd
import re
import stat

from wattune_agent.errors import FileFailed
from wattune_agent.limits import HIGHEST_MHZ, tolerance_of
from wattune_agent.tree import Tree

__all__ = ["fits", "is_of_gpu", "is_of_mode", "may_write"]

LONGEST = 100
"""Most characters in a text, including the trailing white space of some drivers."""

_CPU = "/sys/devices/system/cpu/"
_DEVFREQ = re.compile(r"/sys/(?:devices|class)/(?:[^/]+/)*devfreq/[^/]+/(?:min|max)_freq")
_CPUFREQ = re.compile(_CPU + r"(?:cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq)/scaling_(?:min|max)_freq")
_RAILGATE = re.compile(r"/sys/(?:devices|class)/(?:[^/]+/)*railgate_enable")
_POWER = re.compile(r"/sys/devices/(?:[^/]+/)*[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/power/control")
_BOOST = re.compile(_CPU + r"(?:cpufreq/boost|intel_pstate/no_turbo|(?:cpufreq/policy[0-9]+|cpu[0-9]+/cpufreq)/boost)")
_CORE = re.compile(_CPU + r"cpu[0-9]+/online")
_MEMORY = re.compile(r"/sys/kernel/(?:nvpmodel_clk_cap/emc|nvpmodel_emc_cap/emc_iso_cap)")

_FREQUENCY = re.compile(r"\s*[0-9]{1,12}\s*", re.ASCII)
_RUNTIME = re.compile(r"\s*(?:auto|on)\s*", re.ASCII)
_SWITCH = re.compile(r"\s*[01]\s*", re.ASCII)

_KINDS = (
    (_DEVFREQ, _FREQUENCY),
    (_CPUFREQ, _FREQUENCY),
    (_RAILGATE, _SWITCH),
    (_POWER, _RUNTIME),
    (_BOOST, _SWITCH),
    (_CORE, _SWITCH),
    (_MEMORY, _FREQUENCY),
)


def fits(path: str, text: str) -> bool:
    """True if this package changes the file, and if the file can have contained the text."""
    if ".." in path.split("/") or len(text) > LONGEST:
        return False
    if not any(file.fullmatch(path) and form.fullmatch(text) for file, form in _KINDS):
        return False
    khz = tolerance_of(path)
    return not khz or int(text) <= HIGHEST_MHZ * 1000 * khz


def is_of_mode(path: str) -> bool:
    """True if only a switch of the power mode changes this file: a core's switch, a cap on the memory clock."""
    return bool(_CORE.fullmatch(path) or _MEMORY.fullmatch(path))


def is_of_gpu(path: str) -> bool:
    """True if this is the kind of file of a GPU's clock; which of them is the GPU's, only the tree can tell."""
    return any(kind.fullmatch(path) for kind in (_DEVFREQ, _RAILGATE, _POWER))


def may_write(tree: Tree, path: str, uid: int) -> bool:
    """True if the file's owner, group and mode let this user write it. False if the file cannot be found."""
    try:
        status = os.stat(tree.inside(path))
    except (OSError, FileFailed):
        return False
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IWUSR)
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        groups = []
    return bool(status.st_mode & (stat.S_IWGRP if status.st_gid in groups else stat.S_IWOTH))
