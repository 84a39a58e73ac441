"""One fault at a time on three families: the board ends as it began, and the page says what the user is told."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.agent.faults_all import FAULTS
from tests.agent.faults_made import FAMILIES, Bench, documented, family_of, outcome
from tests.support.forked import Forked
from tests.support.live.power import STATES
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune_agent.guarded import PERIOD_S, run_guarded

PAGE = Path(__file__).parent.parent.parent / "docs" / "faults.md"
AT_ONCE = [
    pytest.param(fault, family, id=f"{fault.name}, {family}", marks=[pytest.mark.slow] * (family != FAMILIES[0]))
    for fault in FAULTS
    for family in (*FAMILIES, *STATES)
    if not fault.slow
]
DIFFERENT = {("the clock never settles", "idle"): "nothing said; as found"}
"""Cells of boards in other states than those of the table: fault and state -> cell."""
IN_SECONDS = [
    pytest.param(fault, families, id=f"{fault.name}-{name}")
    for fault in FAULTS
    if fault.slow
    for name, families in (("busy", FAMILIES), ("states", tuple(STATES)))
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "family"), AT_ONCE)
def test_a_fault_ends_as_the_page_says(fault, family, tmp_path):
    cell = outcome(fault, family, tmp_path / "board")
    print(f"| {fault.name} | {family} | {cell} |")
    state = family[len(family_of(family)) + 1 :]
    usual = documented(PAGE)[fault.name][family_of(family)]
    assert DIFFERENT.get((fault.name, state), usual) == cell


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "families"), IN_SECONDS)
def test_a_fault_that_takes_seconds_ends_as_the_page_says(fault, families, tmp_path):
    """All families at once, each in a process of its own: most of it is waiting."""
    pytest.importorskip("tests.support.training_runs")  # torch, once
    with ExitStack() as ends:
        acts = [partial(_say, fault, family, tmp_path / family) for family in families]
        processes = [ends.enter_context(Forked(act)) for act in acts]
        said = [(*process.communicate(120), process.returncode) for process in processes]
    print(
        *(f"| {fault.name} | {family} | {out} |\n{err}" for family, (out, err, _) in zip(families, said, strict=True))
    )
    assert [code for *_, code in said] == [0] * len(families)
    cells = documented(PAGE)[fault.name]
    assert [cells[family_of(family)] for family in families] == [out for out, *_ in said]


def _say(fault, family, folder):
    print(outcome(fault, family, folder), end="")


def test_the_page_has_every_fault_and_no_other():
    assert list(documented(PAGE)) == [fault.name for fault in FAULTS]
    everywhere = [fault.name for fault in FAULTS if not fault.absent]
    assert len(set(everywhere)) == len(everywhere) >= 25


@pytest.mark.parametrize("after_s", [1.5 + 0.037 * attempt for attempt in range(5)])
@pytest.mark.parametrize("family", FAMILIES)
def test_rising_power_is_answered_by_the_first_reading_that_shows_it(family, after_s, tmp_path):
    """At whatever moment between two readings it rises."""
    bench = Bench(tmp_path / "board", family)
    tree, board = bench.tree, bench.controller.describe()
    bench.pin(bench.settings[-1])
    watts = []
    for load in (1.0, 0.0):
        tree.board.load = load
        tree.sleep(5.0)
        watts.append(tree.board.power_w())
    bench.controller.read()
    pinned, rose_s = bench.limits[1], tree.now_s() + after_s
    tree.later(rose_s, lambda: setattr(tree.board, "load", 1.0))
    program = VirtualProgram(VirtualTime(tree.sleep), 5.0)
    report = run_guarded(bench.controller, program, clock_mhz=bench.settings[-1], cap_w=sum(watts) / 2)
    lowered_s = [time_s for time_s, path, text in tree.writes if path == bench.high and int(text) < pinned]
    assert 0 < lowered_s[0] - rose_s <= board["window_s"] + board["lag_s"] + board["period_s"] + PERIOD_S
    assert report.power_peak_w > sum(watts) / 2


def test_what_the_restore_says_is_in_the_report_of_a_program(tmp_path):
    bench = Bench(tmp_path / "board", "orin-nano")
    bench.controller.read()
    bench.tree.later(bench.tree.now_s() + 0.3, lambda: bench.tree.board.clamp(bench.settings[2]))
    program = VirtualProgram(VirtualTime(bench.tree.sleep), 0.55)
    report = run_guarded(bench.controller, program, clock_mhz=bench.settings[-2])
    assert (report.exit_code, [event["kind"] for event in report.events]) == (0, ["clamped"])
