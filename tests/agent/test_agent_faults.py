"""One fault at a time on three families: the board ends as it began, and the page says what the user is told."""

from pathlib import Path

import pytest
from tests.agent.faults_all import FAULTS
from tests.agent.faults_made import FAMILIES, Bench, documented, outcome
from tests.agent.faults_sensor import passing

from wattune_agent.guarded import run_guarded

PAGE = Path(__file__).parent.parent.parent / "docs" / "faults.md"
EVERY = [
    pytest.param(fault, family, id=f"{fault.name}, {family}", marks=[pytest.mark.slow] if fault.slow else [])
    for fault in FAULTS
    for family in FAMILIES
]


@pytest.mark.parametrize(("fault", "family"), EVERY)
def test_a_fault_ends_as_the_page_says(fault, family, tmp_path):
    """Regenerate the page with ``python -m tests.agent.faults_made docs/faults.md``."""
    cell = outcome(fault, family, tmp_path / "board")
    print(f"| {fault.name} | {family} | {cell} |")
    assert documented(PAGE)[fault.name][1 + FAMILIES.index(family)] == cell


def test_the_page_has_every_fault_and_no_other():
    rows = documented(PAGE)
    print("\n".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")))
    assert list(rows) == ["fault", "---", *(fault.name for fault in FAULTS)]
    assert [rows[fault.name][0] for fault in FAULTS] == [fault.does for fault in FAULTS]
    everywhere = [fault.name for fault in FAULTS if not fault.absent]
    assert len(set(everywhere)) == len(everywhere) >= 25


def test_what_the_restore_says_is_in_the_report_of_a_program(tmp_path):
    bench = Bench(tmp_path / "board", "orin-nano")
    bench.controller.read()
    bench.tree.later(bench.tree.now_s() + 0.3, lambda: bench.tree.board.clamp(bench.settings[2]))
    with passing(bench.tree):
        report = run_guarded(bench.controller, ["sleep", "0.6"], clock_mhz=bench.settings[-2])
    assert (report.exit_code, [event["kind"] for event in report.events]) == (0, ["clamped"])
