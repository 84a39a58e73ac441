"""The CPU clock, through the kernel's cpufreq: one or several policies, with boost off while they are pinned.

Frequencies are in kHz here and become MHz when the list is read. On a chip with several kinds of cores the settings
are those of the fastest policy; the others follow at their highest listed value that does not exceed it.

Sources: kernel ``Documentation/admin-guide/pm/cpufreq.rst``, ``intel_pstate.rst``, ``amd-pstate.rst``;
``Documentation/ABI/testing/sysfs-devices-system-cpu``.
"""

from typing import List, NamedTuple, Optional, Sequence, Tuple

from wattune_agent.errors import AgentError, FileFailed
from wattune_agent.file_knob import FileKnob, Limits
from wattune_agent.knobs import KHZ, whole
from wattune_agent.settings import thinned
from wattune_agent.tree import Tree, number

STEP_KHZ = 100000
"""Step between settings if the driver lists none: intel_pstate and amd_pstate use steps of 100 MHz or less."""

BASE = "/sys/devices/system/cpu"

_BOOSTS = ((BASE + "/intel_pstate/no_turbo", "1"), (BASE + "/cpufreq/boost", "0"))
"""The boost switches, and the text that means off. With boost on, the clock is not controlled above the base."""

Policy = NamedTuple("Policy", [("folder", str), ("limits", Limits), ("listed_khz", Tuple[int, ...])])
Policy.__doc__ = """Cores that share a clock."""


class CpuClock(FileKnob):
    """The clock of all cores that are online."""

    def __init__(self, tree: Tree, policies: List[Policy], most: Optional[int] = None) -> None:
        """``most``: most settings that are offered; None offers all that are listed."""
        # The settings are those of the fastest policy; of equals, the first goes highest.
        self._policies = sorted(policies, key=lambda policy: -policy.listed_khz[-1])
        fastest = self._policies[0]
        self._folder = fastest.folder
        listed_khz: Sequence[int] = fastest.listed_khz
        if most is not None:
            limit_khz = number(tree, fastest.limits.high)
            listed_khz = thinned(listed_khz, None if limit_khz is None else int(limit_khz), most)
        # Boost comes first in a restore, since limits above the base are accepted only while it is on.
        super().__init__(
            tree,
            "cpu",
            KHZ,
            [(policy.limits, policy.listed_khz) for policy in self._policies],
            listed_khz,
            switches=_boosts(tree, [policy.folder for policy in policies]),
            switches_first=True,
        )

    def now_mhz(self) -> Optional[float]:
        """The clock of the fastest policy, measured if root reads it; None if the driver does not report it.

        Firmware may hold a core below what was requested, which only the measured one shows: a Jetson's, for example,
        after an over-current event.
        """
        measured_khz = number(self._tree, self._folder + "/cpuinfo_cur_freq")
        if measured_khz:  # None for other users, and 0 for a core without power
            return measured_khz / KHZ
        path = self._folder + "/scaling_cur_freq"
        if not self._tree.exists(path) or self._tree.read(path).startswith("<"):  # "<unknown>" while it sleeps
            return None
        return whole(self._tree, path) / KHZ

    def _active(self) -> Tuple[Sequence[Tuple[str, str]], Sequence[Tuple[Limits, Sequence[int]]]]:
        """Those of the policies with cores that are online: a core that is switched off has no clock."""
        online = [policy for policy in self._policies if has_cores(self._tree, policy.folder)] or self._policies
        off = {policy.folder for policy in self._policies} - {policy.folder for policy in online}
        switches = [(path, text) for path, text in self._switches if path.rpartition("/")[0] not in off]
        return switches, [(policy.limits, policy.listed_khz) for policy in online]


def find_cpu_clock(tree: Tree, most: Optional[int] = None) -> Tuple[Optional[CpuClock], List[str]]:
    """The CPU's clock in this tree and its problems; None if no clock can be used. ``most``: as for CpuClock."""
    found: List[Policy] = []
    problems: List[str] = []
    for folder in policies(tree):
        try:
            if _is_online(tree, folder):
                found.append(_policy(tree, folder))
        except AgentError as error:
            problems.append("a clock of the CPU in {} is left out: {}".format(folder, error))
    if not found:
        problems.append(
            "no CPU clock: no {}/cpufreq/policy* with limits (is the cpufreq driver loaded? a virtual machine has "
            "none; in a container, is /sys the board's?)".format(BASE)
        )
        return None, problems
    return CpuClock(tree, found, most), problems


def policies(tree: Tree) -> List[str]:
    """The folders of the cores' clocks."""
    paths = tree.glob(BASE + "/cpufreq/policy*") or tree.glob(BASE + "/cpu[0-9]*/cpufreq")
    folders: List[str] = []
    for path in sorted(paths, key=lambda path: (len(path), path)):  # policy10 behind policy9
        try:
            real = tree.real(path)
        except FileFailed:
            continue
        if real not in folders:
            folders.append(real)
    return folders


def has_cores(tree: Tree, folder: str) -> bool:
    """True if any core of this policy is online, or if that cannot be read."""
    try:
        return _is_online(tree, folder)
    except AgentError:
        return True


def _is_online(tree: Tree, folder: str) -> bool:
    """True if any core is online: on some kernels a policy without cores stays in the tree, but refuses every write."""
    path = folder + "/affected_cpus"
    cores = tree.read(path).replace(",", " ").split() if tree.exists(path) else None
    if cores is None:
        name = folder.rsplit("/", 2)[1] if folder.endswith("/cpufreq") else "cpu" + folder.rpartition("policy")[2]
        cores = [name[len("cpu") :]]
    for core in cores:
        switch = "{}/cpu{}/online".format(BASE, core)  # cpu0 often has none: it cannot be switched off
        if not tree.exists(switch) or tree.read(switch) != "0":
            return True
    return False


def _policy(tree: Tree, folder: str) -> Policy:
    limits = Limits(tree, folder + "/scaling_max_freq", [folder + "/scaling_min_freq"])
    for limit_path in limits.files():
        if not tree.exists(limit_path):
            raise FileFailed("there is no {}".format(limit_path))
    path = folder + "/scaling_available_frequencies"
    texts = tree.read(path).split() if tree.exists(path) else []
    listed_khz = sorted({int(text) for text in texts if text.isdigit() and int(text) > 0})
    return Policy(folder, limits, tuple(listed_khz or _steps(tree, folder)))


def _steps(tree: Tree, folder: str) -> List[int]:
    """Settings for a driver that accepts any frequency: from its lowest to the highest that needs no boost."""
    low = whole(tree, folder + "/cpuinfo_min_freq")
    high = min(_base(tree, folder), whole(tree, folder + "/cpuinfo_max_freq"))
    if not 0 < low <= high:
        raise FileFailed("{} reports a range from {} to {} kHz".format(folder, low, high))
    between = range((low // STEP_KHZ + 1) * STEP_KHZ, high, STEP_KHZ)
    return sorted({low, high, *between})


def _base(tree: Tree, folder: str) -> int:
    """The highest frequency without boost: intel_pstate's own file, otherwise the firmware's nominal one (in MHz)."""
    if tree.exists(folder + "/base_frequency"):
        return whole(tree, folder + "/base_frequency")
    core = folder.rpartition("policy")[2]
    nominal = "{}/cpu{}/acpi_cppc/nominal_freq".format(BASE, core)
    if core.isdigit() and tree.exists(nominal):
        mhz = whole(tree, nominal)
        if mhz > 0:
            return mhz * KHZ
    return whole(tree, folder + "/cpuinfo_max_freq")


def _boosts(tree: Tree, folders: List[str]) -> List[Tuple[str, str]]:
    """The switch for all cores, or each policy's own if there is no common one."""
    files = [(path, off) for path, off in _BOOSTS if tree.exists(path)]
    return files or [(folder + "/boost", "0") for folder in folders if tree.exists(folder + "/boost")]
