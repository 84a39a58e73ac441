"""Series to forecast: the user's own, or one that is made, cut into pieces with the values that follow each."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.downloads import File, local
from wattune.workloads.values import flag, number, whole

BEGUN = 500
"""Values of the made series that are left out: it begins away from where it comes to move."""


@dataclass(frozen=True)
class Series:
    """Pieces of ``length`` values of a series, to forecast the ``horizon`` values that follow each.

    ``file``: an ``.npz`` file with the array ``series``, (T,) or (T, values at each step); the first of these values is
    what is forecast. Without one, a series of ``steps`` values is made (``mackey_glass``), with noise of the standard
    deviation ``noise`` relative to its own. ``stride``: steps from one piece to the next.

    The last ``test_share`` of the series is the test part, no piece of which reaches into the training part. With
    ``standardise``, mean 0 and standard deviation 1 in the training part: a mean squared error of 1 is then what
    forecasting the mean would have there.
    """

    length: int
    file: File | None = None
    horizon: int = 1
    stride: int = 1
    steps: int = 4000
    noise: float = 0.0
    standardise: bool = True
    test_share: float = 0.2

    def __post_init__(self) -> None:
        for what, value in (("length", self.length), ("horizon", self.horizon), ("stride", self.stride)):
            whole(f"{what} of the series", value)
        if whole("steps of the series", self.steps) > 1_000_000:
            raise WorkloadError("steps of the series", value=self.steps, allowed="at most 1000000")
        number("noise", self.noise, least=0)
        flag("standardise", self.standardise)
        number("test_share", self.test_share, above=0, below=1)

    def __call__(self) -> Data:
        """Read or make the series. Raises: WorkloadError."""
        series = self._made() if self.file is None else _read(self.file)  # (T, values)
        cut = len(series) - int(len(series) * self.test_share)
        if self.standardise:
            spread = series[:cut].std(0)
            if not spread.all():
                raise WorkloadError("a series that does not change", hint="give standardise = false")
            series = (series - series[:cut].mean(0)) / spread
        return Data(self._pieces(series[:cut], "training"), self._pieces(series[cut:], "test"))

    def _made(self) -> NDArray[np.float64]:
        series = mackey_glass(self.steps)
        noise = np.random.default_rng(0).standard_normal(len(series))
        noisy: NDArray[np.float64] = series + self.noise * series.std() * noise
        return noisy[:, None]

    def _pieces(self, series: NDArray[np.float64], part: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        whole_piece = self.length + self.horizon
        if len(series) < whole_piece:
            raise WorkloadError(
                f"the {part} part of the series is too short",
                value=f"{len(series)} steps",
                allowed=f"at least length and horizon, {whole_piece}",
            )
        starts = np.arange(0, len(series) - whole_piece + 1, self.stride)
        places = starts[:, None] + np.arange(whole_piece)
        pieces = series.astype(np.float32)[places]  # (pieces, length + horizon, values)
        return pieces[:, : self.length], pieces[:, self.length :, 0]


def mackey_glass(steps: int) -> NDArray[np.float64]:
    """A chaotic series of so many steps, which is forecast well from some twenty values and not from a few.

    dx/dt = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x, by Runge and Kutta's method in steps of 1; between two steps the
    delayed value lies on a straight line. Source: Mackey and Glass 1977, Oscillation and chaos in physiological control
    systems (doi 10.1126/science.267326); these constants are the usual ones for forecasting.
    """
    delay = 17
    x = np.full(delay + 1 + BEGUN + steps, 1.2)

    def slope(value: float, delayed: float) -> float:
        return 0.2 * delayed / (1 + delayed**10) - 0.1 * value

    for at in range(delay, len(x) - 1):
        now, then = float(x[at - delay]), float(x[at - delay + 1])
        between, value = (now + then) / 2, float(x[at])
        k1 = slope(value, now)
        k2 = slope(value + k1 / 2, between)
        k3 = slope(value + k2 / 2, between)
        k4 = slope(value + k3, then)
        x[at + 1] = value + (k1 + 2 * k2 + 2 * k3 + k4) / 6
    return x[-steps:]


def _read(file: File) -> NDArray[np.float64]:
    path = local(file)
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            if "series" not in arrays.files:
                raise WorkloadError(f"{path} lacks the array series", value=", ".join(arrays.files) or "no array")
            series = np.asarray(arrays["series"])
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of an .npz file") from error
    except (OSError, ValueError, EOFError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a whole .npz file") from error
    if series.ndim not in (1, 2) or series.dtype.kind not in "iuf":
        raise WorkloadError(
            f"the array series of {path}",
            value=f"{series.dtype} {series.shape}",
            allowed="numbers of the shape (steps,) or (steps, values)",
        )
    if not np.isfinite(series).all():
        raise WorkloadError(f"the array series of {path} holds NaN or infinite values", hint="clean the data")
    return series.reshape(len(series), -1).astype(np.float64)
