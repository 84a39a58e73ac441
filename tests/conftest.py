"""What every test shares: one torch thread, and a cache that is not the user's."""

import gc
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.scratch import MEMORY, remove_left_over, scratch_folder

# Before anything imports torch: processes whose OpenMP threads wait spinning for each other are up to 150 times
# slower. Set in the environment, so that processes that a test starts have it too.
os.environ["OMP_NUM_THREADS"] = "1"

# Started in the background of a script, or by nohup, the tests and every program below them would ignore what such a
# start ignores: a shell cannot even set a trap for it.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Every run draws the same few examples, so that a change is not refused for what it did not touch; `make
# test-exhaustive` draws many, and others each time.
settings.register_profile("fast", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("exhaustive", deadline=None, max_examples=100)
settings.load_profile("fast")

ALL_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)
"""A module in which every test is slow; in a list of marks this one comes first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """One option: whether tests that can be had in a small and a large size run in the large one."""
    parser.addoption("--exhaustive", action="store_true", help="all kills, seeds, kinds and examples: an hour and more")


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    """Whether a test is to run in its large size."""
    return bool(pytestconfig.getoption("exhaustive"))


def pytest_configure(config: pytest.Config) -> None:
    """The example is pre-trained once a session, in a folder that the workers of xdist share.

    What tests write goes to memory where there is room: boards are files, some hundred thousand in all the tests, and a
    disk takes minutes to make and remove them. With ``--basetemp`` it stays where that says.
    """
    if config.getoption("exhaustive"):
        settings.load_profile("exhaustive")
    if hasattr(config, "workerinput"):
        return
    remove_left_over()
    scratch = scratch_folder()
    os.environ["XDG_CACHE_HOME"] = str(scratch)
    if scratch.parent == MEMORY and config.option.basetemp is None:
        config.option.basetemp = str(scratch / "t")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules in which every test is slow in a run without slow tests: importing some takes seconds."""
    if config.getoption("markexpr") != "not slow" or collection_path.suffix != ".py":
        return None
    return True if ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the exhaustive run out of all others, and keep those together that share what takes long.

    Tests with a fixture of their module run in one process, which makes it once: each process would make its own.
    """
    if not config.getoption("exhaustive"):
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if not item.get_closest_marker("xdist_group") and _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.parent.nodeid))


def _shares_a_fixture(item: pytest.Item) -> bool:
    """Whether its own module has a fixture that is made once for the tests in it, and the test uses it."""
    module = item.nodeid.partition("::")[0]
    found = item._fixtureinfo.name2fixturedefs.values()
    return any(one.scope in ("module", "class") and one.baseid.startswith(module) for made in found for one in made)


def pytest_collection_finish() -> None:
    """Keep what was imported out of all later garbage collections: it is a million objects, and stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("XDG_CACHE_HOME"), ignore_errors=True)


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Where torch is loaded; the tests without torch run on Pythons that have none."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
