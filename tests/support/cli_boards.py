"""A live board beside the tests, for the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.live_board import live


@contextmanager
def live_board(folder: Path, *, load: float = 0.0) -> Iterator[Path]:
    """A live Orin Nano as plain files on real time; its load is what ``load_fraction`` in the folder says."""
    with live(folder, throttled=False, load=load, seconds=120):
        yield folder


def limits(folder: Path) -> dict[str, str]:
    """The text of every file that pinning writes."""
    found = sorted((folder / "sys").rglob("*")) if (folder / "sys").is_dir() else []
    names = {"min_freq", "max_freq", "railgate_enable"}
    return {str(path): path.read_text().strip() for path in found if path.name in names and path.is_file()}
