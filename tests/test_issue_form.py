"""The issue form for boards: valid, and with a field for each section of the text that `wattune contribute` prints."""

from pathlib import Path

import pytest

from wattune.reporting.contribution_text import SECTIONS

yaml = pytest.importorskip("yaml")

FORM = Path(__file__).parent.parent / ".github" / "ISSUE_TEMPLATE" / "board.yml"


def test_the_form_has_a_field_for_each_section():
    form = yaml.safe_load(FORM.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    assert {part["type"] for part in form["body"]} <= {"markdown", "input", "textarea", "dropdown", "checkboxes"}
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    required = [field["attributes"]["label"] for field in fields if field["validations"]["required"]]
    assert required == list(SECTIONS)
    assert len({field["id"] for field in fields}) == len(fields)
