"""The paper's image sets as published: CIFAR's binary release, unpacked, and SVHN's cropped digits.

A workload file names them as ``factory = "benchmarks.paper.image_sets:cifar"`` (docs/workload-file.md). CINIC-10 is a
folder for each class, which wattune reads itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads import Data
from wattune.workloads.sample_selection import check_selection, choose
from wattune.workloads.values import attempt

RECORD_BYTES = 1 + 3 * 32 * 32
"""A label and the pixels of an image, channels first. Source: https://www.cs.toronto.edu/~kriz/cifar.html."""

Images = tuple[NDArray[np.generic], NDArray[np.generic]]


def cifar(
    folder: str,
    *,
    classes: Sequence[int] | None = None,
    share: float = 1.0,
    test_share: float | None = None,
    split_seed: int = 0,
) -> Data:
    """Read CIFAR-10 from ``cifar-10-batches-bin``, the folder of ``cifar-10-binary.tar.gz``.

    ``classes``: labels to keep, relabelled 0, 1, ... in that order. ``share``: share of the remaining training samples
    to use, drawn with ``split_seed``. ``test_share``: share of those to test with; None is the official test part.
    Raises: WorkloadError.
    """
    train = _batches(folder, [f"data_batch_{number}.bin" for number in range(1, 6)])
    test = None if test_share is not None else _batches(folder, ["test_batch.bin"])
    return _data(train, test, classes, share, test_share, split_seed)


def svhn(
    train: str,
    test: str | None = None,
    *,
    classes: Sequence[int] | None = None,
    share: float = 1.0,
    test_share: float | None = None,
    split_seed: int = 0,
) -> Data:
    """Read SVHN's ``train_32x32.mat`` and ``test_32x32.mat``, format 2; the digit 0 has the label 0.

    The other arguments are as in ``cifar``; without ``test``, ``test_share`` is 0.2.
    Source: http://ufldl.stanford.edu/housenumbers/. Raises: WorkloadError.
    """
    own = None if test is None or test_share is not None else _mat(test)
    return _data(_mat(train), own, classes, share, test_share, split_seed)


def _data(
    train: Images,
    test: Images | None,
    classes: Sequence[int] | None,
    share: float,
    test_share: float | None,
    split_seed: int,
) -> Data:
    wanted = None if classes is None else tuple(classes)
    part = 0.2 if test_share is None else test_share
    check_selection(part, split_seed, classes=wanted, share=share)
    return choose(train, test, classes=wanted, share=share, test_share=part, split_seed=split_seed)


def _batches(folder: str, names: list[str]) -> Images:
    paths = [Path(folder, name) for name in names]
    content = attempt("cannot read the binary release of CIFAR-10", lambda: b"".join(p.read_bytes() for p in paths))
    if not content or len(content) % RECORD_BYTES:
        raise WorkloadError(f"bytes of {folder}", value=len(content), allowed=f"{RECORD_BYTES} for each image")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD_BYTES)
    if records[:, 0].max() > 9:
        raise WorkloadError(f"a label in {folder}", value=int(records[:, 0].max()), allowed="0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].astype(np.int64)


def _mat(path: str) -> Images:
    from scipy.io import loadmat

    arrays = attempt(f"cannot read {path}", lambda: loadmat(path, appendmat=False, variable_names=("X", "y")))
    images, labels = (arrays.get(name, np.empty(0)) for name in ("X", "y"))
    count = images.shape[-1]
    if images.shape != (32, 32, 3, count) or labels.shape != (count, 1) or not np.isin(labels, range(1, 11)).all():
        raise WorkloadError(
            f"arrays of {path}",
            value=f"X {images.shape}, y {labels.shape}",
            allowed="X (32, 32, 3, N) and y (N, 1) of 1 to 10, as in SVHN",
        )
    return images.transpose(3, 2, 0, 1), labels[:, 0].astype(np.int64) % 10
