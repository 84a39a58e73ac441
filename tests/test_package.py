"""What `import wattune` promises."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import wattune


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
    assert re.fullmatch(r"0\.\d+\.\d+", wattune.__version__)


def test_an_interrupt_while_the_command_is_loaded_is_one_line_and_130():
    """A module that takes Ctrl-C while it is imported stands for the first tenth of a second."""
    script = (
        "import sys, signal; sys.modules['typer'] = None\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'wattune.cli': signal.raise_signal(signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from wattune.__main__ import main\n"
        "sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "wattune: interrupted\n")
