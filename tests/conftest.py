"""What every test shares: one torch thread, and a cache that is not the user's."""

import os
import shutil
import signal
import sys
import tempfile

import pytest
from hypothesis import settings

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

settings.register_profile("wattune", deadline=None)
settings.load_profile("wattune")


MEMORY, LEAST_BYTES = "/dev/shm", 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    """The example is pre-trained once a session, in a folder that the workers of xdist share.

    What tests write goes to memory where there is room: boards are files, some hundred thousand in all the tests, and a
    disk takes minutes to make and remove them. With ``--basetemp`` it stays where that says.
    """
    if hasattr(config, "workerinput"):
        return
    place = MEMORY if _is_roomy(MEMORY) else None
    # Short: the path of a socket has about 100 characters at most.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tests-", dir=place)
    if place is not None and config.option.basetemp is None:
        config.option.basetemp = os.path.join(os.environ["XDG_CACHE_HOME"], "t")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop("XDG_CACHE_HOME"), ignore_errors=True)


def _is_roomy(place: str) -> bool:
    """Whether the folder has room for all that tests write, and programs may be run from there."""
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        return False
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize >= LEAST_BYTES and not found.f_flag & os.ST_NOEXEC


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Where torch is loaded; the tests without torch run on Pythons that have none."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
