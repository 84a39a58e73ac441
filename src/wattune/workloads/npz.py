"""Numpy's .npz files: images with their labels, or inputs with their targets."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import Pair, check_selection, choose


@dataclass(frozen=True)
class Npz:
    """Data from ``.npz`` files with the arrays ``images`` and ``labels``, or ``inputs`` and ``targets``.

    ``classes``: labels to keep, relabelled 0, 1, ... in that order. ``share``: share of the remaining training samples
    to use, drawn with ``split_seed``. Without a ``test`` file, ``test_share`` of those is split off with the same seed.
    """

    train: Path
    test: Path | None = None
    test_share: float = 0.2
    split_seed: int = 0
    classes: tuple[int, ...] | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        check_selection(self.test_share, self.split_seed, classes=self.classes, share=self.share)

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        return choose(
            _pair(self.train),
            None if self.test is None else _pair(self.test),
            classes=self.classes,
            share=self.share,
            test_share=self.test_share,
            split_seed=self.split_seed,
        )


def _pair(path: Path) -> Pair:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            names = ("inputs", "targets") if {"inputs", "targets"} & set(arrays.files) else ("images", "labels")
            if missing := [name for name in names if name not in arrays.files]:
                raise WorkloadError(
                    f"{path} lacks the array",
                    value=missing[0],
                    allowed="inputs and targets, or images and labels",
                    hint=f"it has {', '.join(arrays.files) or 'no arrays'}",
                )
            return np.asarray(arrays[names[0]]), np.asarray(arrays[names[1]])
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of an .npz file") from error
    except (OSError, ValueError, EOFError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a complete .npz file") from error
