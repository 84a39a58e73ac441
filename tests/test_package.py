"""What `import wattune` promises."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import wattune
import wattune.version
from wattune.version import RELEASE


def test_the_names_are_sorted_and_all_there():
    assert wattune.__all__ == sorted(wattune.__all__)
    for name in wattune.__all__:
        assert getattr(wattune, name) is not None
    assert set(wattune.__all__) <= set(dir(wattune))


def test_the_steps_and_the_records_are_among_them():
    steps = {"run", "profile", "estimate", "plan", "train", "compare"}
    records = {"ProfileTable", "SampleEfficiency", "Plan", "TrainingRecord", "Comparison"}
    assert steps | records | {"Workload", "OptimizerRule", "load_workload", "open_device"} <= set(wattune.__all__)


def test_every_error_is_public():
    from wattune import errors

    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(wattune.__all__)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = wattune.walk


def test_the_command_and_the_package_tell_the_same_version():
    done = subprocess.run([sys.executable, "-m", "wattune", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"wattune {wattune.__version__}\n"
    assert re.fullmatch(r"0\.\d+\.\d+(\.dev0(\+g[0-9a-f]{9})?)?", wattune.__version__)


def version_of(folder, release=RELEASE):
    """What a copy of the package tells in ``folder``, which has the agent beside it."""
    (folder / "wattune_agent").mkdir(parents=True, exist_ok=True)
    (folder / "wattune").mkdir(exist_ok=True)
    copy = folder / "wattune/version.py"
    copy.write_text(Path(wattune.version.__file__).read_text().replace(f'"{RELEASE}"', f'"{release}"'))
    return runpy.run_path(str(copy))["__version__"]


def test_a_development_clone_tells_its_commit_and_a_copy_in_another_repository_none(tmp_path):
    def git(*arguments, at):
        own = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-C", at)
        return subprocess.run(["git", *own, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    clone, beside = tmp_path / "clone", tmp_path / "beside"
    assert version_of(tmp_path / "src") == RELEASE
    git("init", clone, at=tmp_path)
    git("commit", "--allow-empty", "-m", "one", at=clone)
    git("worktree", "add", beside, at=clone)
    git("commit", "--allow-empty", "-m", "two", at=clone)
    for at in (clone, beside):
        assert version_of(at / "src") == f"{RELEASE}+g{git('rev-parse', 'HEAD', at=at)[:9]}"
    git("pack-refs", "--all", at=clone)
    git("checkout", "--detach", at=beside)
    for at in (clone, beside):
        assert version_of(at / "src") == f"{RELEASE}+g{git('rev-parse', 'HEAD', at=at)[:9]}"
    assert version_of(clone / "src") != version_of(beside / "src")
    assert version_of(clone / "lib") == RELEASE
    assert version_of(clone / "src", release="0.1.0") == "0.1.0"
    assert version_of(clone / "src") != RELEASE
    (clone / "src/wattune_agent").rmdir()
    assert runpy.run_path(str(clone / "src/wattune/version.py"))["__version__"] == RELEASE


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_an_interrupt_while_the_command_is_loaded_is_one_line_and_130(number):
    """A module that takes Ctrl-C while it is imported stands for the first tenth of a second."""
    script = (
        "import sys, signal; sys.modules['typer'] = None\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'wattune.cli': signal.raise_signal(signal.NAME)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from wattune.__main__ import main\n"
        "sys.exit(main())"
    )
    script = script.replace("NAME", number)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "wattune: interrupted\n")
