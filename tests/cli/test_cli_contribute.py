"""``wattune contribute``: two files or none."""

from __future__ import annotations

import json

import pytest
from tests.support import profiles
from tests.support.cli_boards import limits, live_board

from wattune.job import contribution
from wattune.profiling import cell_probe
from wattune.records import Contribution

DEVICE = ["--device", "sim:jetson-nano"]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contribution, "references", lambda data_type: (profiles.workload(name="reference-one"),))


@pytest.mark.slow
def test_a_record_and_the_text_of_an_issue(wattune, tmp_path):
    code, out, err = wattune("contribute", *DEVICE)
    assert code == 0, err
    assert "30 minutes at most" in err[0]
    record = Contribution.load("contribution.json")
    assert record.is_complete
    assert (tmp_path / "contribution.md").read_text() == out
    assert out.startswith("### Board\n\nsim:jetson-nano (simulated)\n")
    before = (tmp_path / "contribution.json").read_bytes()
    assert wattune("contribute", *DEVICE)[0] == 2
    assert (tmp_path / "contribution.json").read_bytes() == before


@pytest.mark.slow
def test_the_limit_in_json(wattune, tmp_path):
    code, out, _ = wattune("contribute", *DEVICE, "--minutes", "0.2", "--json")
    record = Contribution.parse(json.loads(out))
    assert (code, record.limit_s, record.is_complete) == (0, 12.0, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["-o", "mine.md"], ["--mode", "0"], ["--minutes", "31"]])
def test_bad_input_takes_one_line(wattune, tmp_path, arguments):
    code, out, err = wattune("contribute", *DEVICE, *arguments)
    assert (code, out, len(err)) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_board_is_as_it_was_found(wattune, tmp_path, monkeypatch):
    pinned = []

    def interrupted(self, *_):
        pinned.append(limits(root))
        raise KeyboardInterrupt

    monkeypatch.setattr(cell_probe, "is_needed", lambda device: False)
    monkeypatch.setattr(cell_probe.CellProbe, "_steps_timed", interrupted)
    with live_board(tmp_path / "board") as root:
        before = limits(root)
        output = tmp_path / "c.json"
        code, out, err = wattune("contribute", "--device", "jetson", "--sysfs-root", root, "-o", output)
        assert limits(root) == before != pinned[0]
    assert (code, out, err[-1]) == (130, "", "wattune: interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["board"]
