"""What every test shares: one torch thread, and a cache that is not the user's."""

import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import settings

# Before anything imports torch: processes whose OpenMP threads wait spinning for each other are up to 150 times
# slower. Set in the environment, so that processes that a test starts have it too.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("wattune", deadline=None)
settings.load_profile("wattune")


def pytest_configure(config: pytest.Config) -> None:
    """The example is pre-trained once a session, in a folder that the workers of xdist share."""
    if not hasattr(config, "workerinput"):
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="wattune-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("XDG_CACHE_HOME"), ignore_errors=True)


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Where torch is loaded; the tests without torch run on Pythons that have none."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
