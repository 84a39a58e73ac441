from __future__ import annotations

import io

import pytest
from rich.console import Console

from wattune.cli import output
from wattune.cli.output import QUIET_S, lines


@pytest.fixture
def told():
    """(lines that were written, the progress, the clock as a list of one number)."""
    written, now = [], [0.0]
    return written, lines(written.append, lambda: now[0]), now


def test_lines_are_sparse(told):
    written, show, now = told
    for done in range(1000):
        now[0] = done / 10
        show(done, 1000, "train: accuracy 0.5")
    assert 1 + int(99.9 / QUIET_S) <= len(written) <= 1 + int(99.9 / QUIET_S) + 3  # and the quarters
    assert written[0] == "train: 0/1000 accuracy 0.5"


def test_each_step_has_a_beginning_and_an_end(told):
    written, show, _ = told
    for step in ("profile", "estimate"):
        show(0, 0, f"{step}: started")
        for done in range(11):
            show(done, 10, f"{step}: batch size 8: something")
    assert written == [
        "profile: started",
        "profile: 0/10 batch size 8: something",
        "profile: 3/10 batch size 8: something",
        "profile: 5/10 batch size 8: something",
        "profile: 8/10 batch size 8: something",
        "profile: 10/10 batch size 8: something",
        "estimate: started",
        "estimate: 0/10 batch size 8: something",
        "estimate: 3/10 batch size 8: something",
        "estimate: 5/10 batch size 8: something",
        "estimate: 8/10 batch size 8: something",
        "estimate: 10/10 batch size 8: something",
    ]


def test_warnings_always_come_through(told):
    written, show, _ = told
    show(0, 10, "estimate: begun")
    show(0, 10, "estimate: warning: the proxy is of another shape")
    show(0, 10, "warning: and so on")
    assert written[1:] == ["estimate: warning: the proxy is of another shape", "warning: and so on"]


def test_a_terminal_gets_bars(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=100))
    with output.shown() as show:
        show(0, 4, "profile: batch size 8 at [921.6] MHz")
        show(4, 4, "profile: done")
        show(1, 0, "train: accuracy 0.5")
        show(0, 4, "estimate: warning: look [out]")
    text = screen.getvalue()
    assert "profile" in text
    assert "4/4" in text
    assert "wattune: warning: look [out]" in text
