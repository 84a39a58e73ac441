"""A bench for one fault at a time on a live board, and the table of what came of each."""

from typing import Callable, Dict, List, NamedTuple, Optional

from tests.support.agent_trees import texts
from tests.support.live.tree import LiveTree

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import AgentError
from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import snapshots

FAMILIES = ("orin-nano", "nano", "cpu-laptop")
TITLES = {"orin-nano": "Orin Nano", "nano": "Nano", "cpu-laptop": "laptop"}
SENSOR = {"orin-nano": "*/hwmon1/curr1_input", "nano": "*/in_*0_input", "cpu-laptop": "*/energy_uj"}

UNTOUCHED, AS_FOUND, BY_RESTORE = "untouched", "as found", "by `restore`"
ABSENT = ""
"""Outcome of a fault that a family cannot have."""


class Fault(NamedTuple):
    """``act`` lets it happen on a bench; what it returns is the whole cell. ``absent``: the families that cannot have
    it, and why. ``slow``: it takes seconds, and may need torch."""

    name: str
    act: Callable[["Bench"], Optional[str]]
    absent: Dict[str, str]
    slow: bool


FAULTS: List[Fault] = []


def fault(name, slow=False, **absent):
    """Puts a function into the table; ``absent``: ``nano="why it is not there"``, ``cpu_laptop=...``."""

    def keep(act):
        missing = {family.replace("_", "-"): why for family, why in absent.items()}
        assert set(missing) <= set(FAMILIES)
        FAULTS.append(Fault(name, act, missing, slow))
        return act

    return keep


class Quick(LiveTree):
    """Follows the links of a path once: nothing here moves."""

    def __init__(self, root, family):
        self._known = {}
        super().__init__(root, family)

    def inside(self, path):
        if path not in self._known:
            self._known[path] = super().inside(path)
        return self._known[path]


class Bench:
    """A live board, under load unless it idles, with something to bring back in every file that is written."""

    def __init__(self, folder, family):
        self.family = family
        self.load = 0.0 if family.endswith("-idle") else 1.0
        self.tree = tree = Quick(folder, family)
        board = tree.board
        self.low, self.high, self.now = (
            getattr(board.clocks[0], name) for name in ("low_path", "high_path", "now_path")
        )
        self.switch = board.writable()[-1]
        self.is_cpu = family_of(family) == "cpu-laptop"
        self.sensor = SENSOR[family_of(family)]
        self.on, self.off = ("0", "1") if self.is_cpu else ("1", "0")  # of boost, of railgating
        tree.rewrite(self.switch, self.on)
        board.load = self.load
        tree.sleep(1.0)
        self.board = self.found()
        assert not self.board.problems
        self.settings = self.board.clock.settings_mhz
        self.mhz, self.other_mhz = self.settings[len(self.settings) // 2], self.settings[1]
        middles = {name: clock.settings_mhz for name, clock in self.board.others.items()}
        self.others = {name: settings[len(settings) // 2] for name, settings in middles.items()}
        self.controller = Controller(self.board)
        self.before = (tree.state(), texts(tree.root))
        self.told = []
        tree.writes.clear()

    def found(self):
        """The board as another process finds it."""
        return find_board(self.tree, "cpu" if self.is_cpu else "jetson")

    # ------------------------------------------------------------------------------------------------- what is told

    def tell(self, text):
        """Each thing once, in the order in which it was said first."""
        if text not in self.told:
            self.told.append(text)

    def tells(self, act, *arguments):
        """Do it; an error is what the user is told."""
        try:
            return act(*arguments)
        except AgentError as error:
            failure = error
        assert len(str(failure)) > 20
        assert "\n" not in str(failure)
        public = next(kind.__name__ for kind in type(failure).__mro__ if not kind.__name__.startswith("_"))
        self.tell(f"`{public}`")
        return None

    def hears(self, events):
        """Take in events, as the controller, the agent or the device tell them."""
        for event in events:
            assert len(event["text"]) > 10
            self.tell(event["kind"])

    def pin(self, mhz=None):
        """Pin, and hear what there is to be heard."""
        done = self.tells(self.controller.pin, mhz or self.mhz)
        self.hears(self.controller.check())
        return done is not None

    def refuses(self, paths, *faults, **when):
        """Each fault of each of these files keeps the board from being pinned."""
        for path in paths:
            for kind in faults:
                self.tree.faults.clear()
                self.tree.fault(path, kind, **when)
                assert not self.pin()

    def looks(self, seconds=5):
        """Look once a second, as whoever has pinned does."""
        for _ in range(seconds):
            self.tree.sleep(1.0)
            self.hears(self.controller.check())

    def clamp(self, mhz):
        """Heat holds the clock at or below this from now on; None: no longer."""
        self.tree.later(self.tree.now_s(), lambda: self.tree.board.clamp(mhz))
        self.tree.sleep(0.0)

    @property
    def limits(self):
        """Both limits as the kernel has them, in its unit."""
        return tuple(int(self.tree.board.text(path)) for path in (self.low, self.high))

    def is_at(self, mhz):
        return self.limits == (round(mhz * self.tree.board.model.per_mhz),) * 2

    # ------------------------------------------------------------------------------------------------------ the end

    def trains(self, device, folder, **limits):
        """The record of a training on the device that nothing but a safety stop ends."""
        from tests.support import training_runs as made

        from wattune.training import train

        workload = made.workload(target=None, budget_samples=10**9, evaluate_every=10**9)
        plan = made.plan(clock_mhz=self.mhz, cap_w=limits.pop("cap_w", None))
        checkpoint = folder / "checkpoint.safetensors"
        record = train(device, workload, plan, checkpoint=checkpoint, **limits)
        assert record.ended == "stopped for safety"
        assert checkpoint.exists()
        self.tell(record.ended)
        for event in record.board_events:
            self.tell(event.kind)
        return record

    @property
    def is_back(self):
        """Whether every file is as it began, byte for byte."""
        return self.before == (self.tree.state(), texts(self.tree.root))

    def end(self):
        """Everybody lets go, with the fault still there; only then it is over, and what is left is restored."""
        self.tells(self.controller.close)
        self.hears(self.controller.check())
        ending = AS_FOUND if self.tree.writes else UNTOUCHED
        if not self.is_back or snapshots(self.tree):
            assert "`NotRestored`" in self.told, "a board that is not as it was found, and nobody was told"
            self.mend()
            assert restore_left_behind(self.tree)
            ending = BY_RESTORE
        self.mend()
        assert self.is_back
        self.check()
        return cell(self.told, ending)

    def mend(self):
        """The fault is over."""
        self.tree.faults.clear()
        self.tree.before_write = None

    def check(self):
        """Nothing is left that would keep the next one from pinning, or from finding what this one found."""
        assert snapshots(self.tree) == []
        with Controller(self.found()) as following:
            following.pin(self.other_mhz)
            assert self.is_at(self.other_mhz)
            assert following.check() == []
        assert self.is_back


def cell(told, ending):
    """One cell of the table."""
    return f"{', '.join(told) or 'nothing said'}; {ending}"


def family_of(name):
    """The column of the table that a board of this name is compared with."""
    return next(family for family in FAMILIES if name.startswith(family))


def outcome(one, family, folder):
    """Let one fault happen to a board of the family; what came of it."""
    if family_of(family) in one.absent:
        return ABSENT
    bench = Bench(folder, family)
    return one.act(bench) or bench.end()


# ------------------------------------------------------------------------------------------------------------ the table


def split(text):
    """Family -> outcome, of a cell in which an outcome that is not common to all begins with its families."""
    outcomes = dict.fromkeys(FAMILIES, ABSENT)
    for part in text.split(" / "):
        head, _, rest = part.partition(": ")
        named = [family for family in FAMILIES if TITLES[family] in head.split(", ")]
        outcomes.update(dict.fromkeys(named or FAMILIES, rest if named else part))
    return outcomes


def documented(page):
    """Name of a fault -> the outcome by family, as the page has it."""
    table = page.read_text(encoding="utf-8").partition("| --- | --- | --- |\n")[2].partition("\n\n")[0]
    rows = [[part.strip() for part in text.strip("|").split(" | ")] for text in table.splitlines()]
    return {name: split(outcomes) for name, _, outcomes in rows}
