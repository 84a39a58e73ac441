"""Subsets of a data set: the samples of some classes, a share of the samples, and the training and test parts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.values import number, whole

Pair = tuple[NDArray[np.generic], NDArray[np.generic]]
"""Samples and their labels."""


def select_classes(x: NDArray[np.generic], y: NDArray[np.generic], classes: tuple[int, ...] | None) -> Pair:
    """Return the samples of these classes, relabelled 0, 1, ... in their order.

    Raises: WorkloadError for a class without samples.
    """
    if classes is None:
        return x, y
    if missing := sorted(set(classes) - set(np.unique(y).tolist())):
        raise WorkloadError("classes without samples in the data", value=missing)
    keep = np.isin(y, classes)
    places = np.argsort(classes)
    return x[keep], places[np.searchsorted(classes, y[keep], sorter=places)].astype(np.int64)


def draw_share(x: NDArray[np.generic], y: NDArray[np.generic], share: float, seed: int) -> Pair:
    """Draw ``share`` of the samples with ``seed``, in their original order; their number is rounded up.

    Source: arXiv 2502.18323, Table 1, whose quarters are 12,500 of 50,000, 18,315 of 73,257 and 22,500 of 90,000.
    """
    if share == 1:
        return x, y
    count = math.ceil(round(share * len(x), 6))  # 0.07 * 100 is 7.000000000000001
    # Not the generator of `split_indices`, or the samples drawn first would all be in the test part.
    keep = np.sort(np.random.default_rng([seed, 1]).permutation(len(x))[:count])
    return x[keep], y[keep]


def split_indices(samples: int, test_share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the indices of the training and test parts with ``seed``; the size of the test part is rounded down."""
    order = np.random.default_rng(seed).permutation(samples)
    test, train = np.split(order, [int(samples * test_share)])
    return train, test


def split(x: NDArray[np.generic], y: NDArray[np.generic], test_share: float, seed: int) -> Data:
    """Split the samples into training and test parts with ``seed``. Raises: WorkloadError if one is empty."""
    train, test = split_indices(len(x), test_share, seed)
    return Data((x[train], y[train]), (x[test], y[test]))


def choose(
    train: Pair, test: Pair | None, *, classes: tuple[int, ...] | None, share: float, test_share: float, split_seed: int
) -> Data:
    """Take the share of the training samples of these classes, and split the test part off unless there is one.

    Raises: WorkloadError for a class without samples, or if a part is empty.
    """
    chosen = draw_share(*select_classes(*train, classes), share, split_seed)
    if test is None:
        return split(*chosen, test_share, split_seed)
    return Data(chosen, select_classes(*test, classes))


def check_selection(
    test_share: float, split_seed: int, *, classes: tuple[int, ...] | None = None, share: float = 1.0
) -> None:
    """Check a split, classes to keep, and a share of the samples. Raises: WorkloadError."""
    number("test_share", test_share, above=0, below=1)
    whole("split_seed", split_seed, least=0)
    if number("share", share, above=0) > 1:
        raise WorkloadError("share", value=share, allowed="a number above 0, up to 1")
    for label in classes or ():
        whole("a label in classes", label, least=0)
    if classes is not None and (not classes or len(set(classes)) != len(classes)):
        raise WorkloadError("classes", value=list(classes), allowed="at least one, each once")
