"""``wattune doctor -- COMMAND``: the interpreter of a program, and whether its steps are seen."""

from __future__ import annotations

import json
import sys

import pytest

from wattune.cli import main
from wattune.doctor.interpreter import examine, interpreter_of
from wattune.errors import InputError

FAKE_TORCH = """
__version__ = "2.1.2"
class version:
    cuda = "11.4"
class cuda:
    @staticmethod
    def is_available():
        return False
def from_numpy(array):
    raise RuntimeError("Numpy is not available")
def zeros(*_, **__):
    raise RuntimeError("no kernel image is available")
"""


def program(folder, first_line):
    folder.mkdir(exist_ok=True)
    path = folder / "train"
    path.write_text(f"{first_line}\nprint(1)\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["train.py", "-I"], []),
        (["-u", "-m", "train", "-E"], ["-u"]),
        (["-X", "dev", "-W", "error", "-I", "train.py"], ["-X", "dev", "-W", "error", "-I"]),
        (["-c", "print(1)"], []),
        ([], []),
    ],
)
def test_the_options_of_the_interpreter_end_at_the_script(words, options):
    assert interpreter_of([sys.executable, *words]) == [sys.executable, *options]


def test_a_script_starts_what_its_first_line_names(tmp_path):
    assert interpreter_of([program(tmp_path, f"#!{sys.executable} -u"), "-I"]) == [sys.executable, "-u"]
    (env,) = interpreter_of([program(tmp_path, "#!/usr/bin/env python3")])
    assert env.endswith("/python3")
    assert interpreter_of([program(tmp_path, "#!/bin/sh")]) is None
    assert interpreter_of(["sh", "-c", "python3 train.py"]) is None
    with pytest.raises(InputError, match="no such program: nothing-here"):
        interpreter_of(["nothing-here"])


@pytest.mark.slow
def test_steps_are_seen_but_by_an_isolated_interpreter():
    seen = examine([sys.executable, "train.py"])
    assert (seen.python, seen.sees_steps, seen.failure, seen.misfit) == (sys.version.split()[0], True, "", "")
    assert seen.torch is not None
    assert examine([sys.executable, "-I", "train.py"]).sees_steps is False


def test_what_does_not_fit_together_is_told(tmp_path, monkeypatch, capsys):
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").write_text(FAKE_TORCH)
    (packages / "numpy.py").write_text("__version__ = '2.1.0'\ndef zeros(n): return [0]\n")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    assert main(["doctor", "--json", "--", sys.executable, "train.py"]) == 1
    said = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in said["findings"]}
    assert findings["numpy"]["state"] == "fail"
    assert "numpy 2.1.0 does not fit torch: Numpy is not available" in findings["numpy"]["text"]
    assert "finds no GPU" in findings["torch"]["text"]
    assert findings["steps"]["state"] == "warn"


def test_a_python_without_torch_and_no_python_are_guarded_all_the_same(tmp_path, monkeypatch, capsys):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.10.2: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["doctor", "--", sys.executable, "train.py"]) == 0
    assert "libcudart.so.10.2" in " ".join(capsys.readouterr().out.split())
    assert main(["doctor", "--", "sh", "train.sh"]) == 0
    assert "does not start Python" in capsys.readouterr().out
    assert main(["doctor", "--try", "--", "sh", "train.sh"]) == 2


def test_a_torch_that_crashes_the_process(tmp_path, capsys):
    python = tmp_path / "python"
    for script, failure in (
        ("kill -ILL $$", "importing torch was ended by signal 4"),
        ("echo 'ImportError: libcudart.so.10.2' >&2\nexit 1", "ImportError: libcudart.so.10.2"),
        ("echo 0", "importing torch ended with 0"),
    ):
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        assert examine([str(python)]).failure == failure
    python.write_text("no program")
    assert main(["doctor", "--", str(python), "train.py"]) == 1
    assert "does not work: " in " ".join(capsys.readouterr().out.split())
