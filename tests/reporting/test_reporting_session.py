"""A report of a training run in the user's own loop."""

import re

import pytest
from tests.support import report_records as samples

from wattune.cli import main
from wattune.errors import RecordError
from wattune.reporting import RecordSet, write_report
from wattune.reporting.page import Figure, Table, render
from wattune.reporting.report import compose


@pytest.fixture(scope="module")
def page():
    return compose(RecordSet(session=samples.session()))


def items(page):
    return {item.title: item for section in page.sections for item in section.items}


def test_the_headline_and_the_tiles_are_the_sessions(page):
    session = samples.session()
    number = len(session.table.measured)
    assert page.headline == (
        f"Batch size 4 at 460.8 MHz was chosen from {number} measured points while training, under a cap of 5.2 W"
    )
    tiles = {tile.label: tile for tile in page.tiles}
    assert (tiles["Time"].value, tiles["Energy"].value, tiles["Samples"].value) == ("40 s", "160 J", "4,096")
    assert page.origin == "simulated"
    assert page.warnings == []


def test_what_was_measured_and_where_it_trained(page):
    shown = items(page)
    assert isinstance(shown["Time per sample (ms)"], Figure)
    assert "Green frame: the chosen point." in shown["Time per sample (ms)"].note
    table = shown["Points that training ran at"]
    assert isinstance(table, Table)
    assert [row[:3] for row in table.rows] == [("0 s", "4 s", "0"), ("4 s", "36 s", "512")]
    assert [row[-1] for row in table.rows] == ["probe", "chosen"]


def test_a_search_that_did_not_end_and_an_interruption_are_said():
    changes = {"point": None, "ended": "interrupted", "reason": "Ctrl-C", "table": None, "changes": ()}
    page = compose(RecordSet(session=samples.session().model_copy(update=changes)))
    assert page.headline.startswith("Training ended before the search for the best point did")
    assert page.warnings == ["Ended: interrupted (Ctrl-C)."]
    assert "No point was measured." in render(page)


def test_the_command_draws_a_session(tmp_path, capsys):
    path = samples.session().save(tmp_path / "session.json")
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert re.search(r"<svg", (tmp_path / "report.html").read_text())


def test_a_session_is_not_mixed_with_a_run(tmp_path):
    with pytest.raises(RecordError, match="a session is reported alone"):
        write_report([samples.session(), samples.profile()], tmp_path / "report.html")
