"""A live board beside the tests, for the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def live_board(folder: Path, *, load: float = 0.0) -> Iterator[Path]:
    """A live Orin Nano as plain files on real time; its load is what ``load_fraction`` in the folder says."""
    command = [sys.executable, "-m", "tests.support.live.daemon", str(folder), "--seconds", "120"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("live")
            (folder / "load_fraction").write_text(str(load))
            yield folder
        finally:
            process.terminate()


def limits(folder: Path) -> dict[str, str]:
    """The text of every file that pinning writes."""
    found = sorted((folder / "sys").rglob("*")) if (folder / "sys").is_dir() else []
    names = {"min_freq", "max_freq", "railgate_enable"}
    return {str(path): path.read_text().strip() for path in found if path.name in names and path.is_file()}
