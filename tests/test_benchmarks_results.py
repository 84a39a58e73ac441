"""Results of the benchmarks: each says when it was measured, and it is noticed if its code has changed since."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import subprocess

import benchmarks
import pytest
from benchmarks import stale, timing
from benchmarks.tables.results import moment
from benchmarks.timing import RESULTS, ROOT, keep, measured_at

NAMES = sorted(path.stem for path in RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_each_result_has_the_commit_and_date_of_its_measurement(name):
    where = json.loads((RESULTS / f"{name}.json").read_text())["measured_at"]
    for one in [where] if "commit" in where else where.values():
        assert re.fullmatch(r"[0-9a-f]{40}", one["commit"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["date"])


def test_each_benchmark_can_be_imported():
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if module.name != "benchmarks.federated" or importlib.util.find_spec("flwr"):  # in an environment of its own
            importlib.import_module(module.name)


def test_each_result_has_the_code_that_it_measures():
    assert sorted(stale.MEASURED) == NAMES
    for paths in stale.MEASURED.values():
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit, of a file of 200 lines in `src`."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("pass\n" * 200)
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_measurement_has_the_commit_and_says_if_the_code_had_other_changes(repository):
    clean = measured_at(repository)
    assert set(clean) == {"commit", "date"}
    assert moment(clean) == f"{clean['commit'][:7]}, {clean['date']}"
    (repository / "src" / "code.py").write_text("pass\n")
    assert measured_at(repository) == {**clean, "dirty": True}
    assert moment(measured_at(repository)) == f"{clean['commit'][:7]} with changes, {clean['date']}"


def test_outside_a_repository_the_commit_is_unknown(tmp_path):
    where = measured_at(tmp_path)
    assert where["commit"] is None
    assert moment(where) == f"no commit, {where['date']}"


def test_changed_lines_are_counted_since_the_commit(repository):
    commit = measured_at(repository)["commit"]
    assert stale.changed_lines(commit, ("src",), repository) == 0
    (repository / "src" / "code.py").write_text("pass\n" * 150 + "..." + "\n")
    assert stale.changed_lines(commit, ("src",), repository) == 51
    assert stale.changed_lines(commit, ("benchmarks",), repository) == 0


def test_without_git_or_the_commit_nothing_is_said(repository, tmp_path_factory):
    assert stale.changed_lines("0" * 40, ("src",), repository) == 0
    assert stale.changed_lines("0" * 40, ("src",), tmp_path_factory.mktemp("plain")) == 0


def test_what_changed_a_lot_is_a_warning_and_no_error(monkeypatch, capsys):
    monkeypatch.setattr(stale, "changed_lines", lambda commit, paths: 151 if "benchmarks/startup.py" in paths else 150)
    stale.main()
    assert re.fullmatch(
        r"warning: results/startup.json was measured at [0-9a-f]{7}, 151 changed lines ago\n", capsys.readouterr().out
    )


def test_results_are_kept_with_the_moment(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    keep("made", {"figure": 1})
    assert json.loads((tmp_path / "made.json").read_text())["measured_at"]["date"] == measured_at()["date"]
    parts = {"one": {"commit": "a" * 40, "date": "2026-01-01"}, "other": {"commit": "b" * 40, "date": "2026-01-02"}}
    keep("made", {"measured_at": parts})
    assert json.loads((tmp_path / "made.json").read_text())["measured_at"] == parts
    assert moment(parts) == "aaaaaaa, 2026-01-01 (one) and bbbbbbb, 2026-01-02 (other)"
