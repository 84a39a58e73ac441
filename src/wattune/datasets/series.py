"""Time series to forecast, the user's own or synthetic, cut into pieces with the values that follow each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattune.datasets.downloads import File, local
from wattune.datasets.npz import read_arrays
from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.values import flag, number, whole

TRANSIENT_STEPS = 500
"""Steps at the start of the synthetic series that are dropped, because it has not reached its attractor yet."""


@dataclass(frozen=True)
class Series:
    """Pieces of ``length`` values of a series, to forecast the ``horizon`` values that follow each.

    ``file``: an ``.npz`` file with the array ``series``, (T,) or (T, values at each step); the first value of a step is
    the one to forecast. Without a file, a synthetic series of ``steps`` values (``mackey_glass``) with added noise of
    ``noise`` times its standard deviation. ``stride``: steps from one piece to the next.

    The last ``test_share`` of the series is the test part; no piece spans both parts. With ``standardise``, the
    training part has mean 0 and standard deviation 1, so that forecasting its mean has a mean squared error of 1.
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
        """Read or generate the series. Raises: WorkloadError."""
        series = self._synthetic() if self.file is None else _read(self.file)  # (T, values)
        cut = len(series) - int(len(series) * self.test_share)
        if self.standardise:
            spread = series[:cut].std(0)
            if not spread.all():
                raise WorkloadError("a constant series cannot be standardised", hint="give standardise = false")
            series = (series - series[:cut].mean(0)) / spread
        return Data(self._pieces(series[:cut], "training"), self._pieces(series[cut:], "test"))

    def _synthetic(self) -> NDArray[np.float64]:
        series = mackey_glass(self.steps)
        noise = np.random.default_rng(0).standard_normal(len(series))
        noisy: NDArray[np.float64] = series + self.noise * series.std() * noise
        return noisy[:, None]

    def _pieces(self, series: NDArray[np.float64], part: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        window = self.length + self.horizon
        if len(series) < window:
            raise WorkloadError(
                f"the {part} part of the series is too short",
                value=f"{len(series)} steps",
                allowed=f"at least length and horizon, {window}",
            )
        starts = np.arange(0, len(series) - window + 1, self.stride)
        indices = starts[:, None] + np.arange(window)
        pieces = series.astype(np.float32)[indices]  # (pieces, length + horizon, values)
        return pieces[:, : self.length], pieces[:, self.length :, 0]


def mackey_glass(steps: int) -> NDArray[np.float64]:
    """Generate a chaotic series of ``steps`` values, which about twenty values predict well and a few do not.

    dx/dt = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x, integrated with the fourth-order Runge-Kutta method in steps of
    1; the delayed value is interpolated linearly between steps. Source: Mackey and Glass 1977, Oscillation and chaos in
    physiological control systems (doi 10.1126/science.267326), with the constants usual in forecasting.
    """
    delay = 17
    x = np.full(delay + 1 + TRANSIENT_STEPS + steps, 1.2)

    def slope(value: float, delayed: float) -> float:
        return 0.2 * delayed / (1 + delayed**10) - 0.1 * value

    for step in range(delay, len(x) - 1):
        delayed, next_delayed = float(x[step - delay]), float(x[step - delay + 1])
        midway, value = (delayed + next_delayed) / 2, float(x[step])
        k1 = slope(value, delayed)
        k2 = slope(value + k1 / 2, midway)
        k3 = slope(value + k2 / 2, midway)
        k4 = slope(value + k3, next_delayed)
        x[step + 1] = value + (k1 + 2 * k2 + 2 * k3 + k4) / 6
    return x[-steps:]


def _read(file: File) -> NDArray[np.float64]:
    path = local(file)
    (series,) = read_arrays(path, ("series",))
    if series.ndim not in (1, 2) or series.dtype.kind not in "iuf":
        raise WorkloadError(
            f"the array series of {path}",
            value=f"{series.dtype} {series.shape}",
            allowed="numbers with the shape (steps,) or (steps, values)",
        )
    if not np.isfinite(series).all():
        raise WorkloadError(f"the array series of {path} holds NaN or infinite values", hint="clean the data")
    return series.reshape(len(series), -1).astype(np.float64)
