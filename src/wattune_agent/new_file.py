"""New files that never replace another file, even one that appears at the last moment."""

import itertools
import os
from typing import Iterator

__all__ = ["free_names", "rename_new", "rename_to_free"]


def rename_new(source: str, target: str) -> None:
    """Rename a file unless the target exists. Raises: FileExistsError, OSError."""
    try:
        os.link(source, target)  # unlike a rename, a link replaces nothing
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links, such as a USB stick's
        os.close(os.open(target, os.O_CREAT | os.O_EXCL))
        os.replace(source, target)
    else:
        os.unlink(source)


def rename_to_free(source: str, target: str) -> str:
    """Rename a file to the target, or to the first free name beside it, which is returned. Raises: OSError."""
    for free in free_names(target):
        try:
            rename_new(source, free)
        except FileExistsError:
            continue
        return free
    raise AssertionError("the names have an end")


def free_names(path: str) -> Iterator[str]:
    """Give a path, and the names to use where it is taken: ``name-2.json``, ``name-3.json``, ..."""
    stem, suffix = os.path.splitext(path)
    yield path
    for number in itertools.count(2):
        yield "{}-{}{}".format(stem, number, suffix)
