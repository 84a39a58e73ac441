"""A clock as the kernel keeps it: two limits that anyone may write, and a frequency that follows later.

Two kernels: ``refuses`` is the older one, where a minimum above the maximum is an error and a clamp by heat does not
show in the files; the newer one takes every value, remembers it, and shows what comes out of all that is asked for.
Sources: Linux ``drivers/devfreq/devfreq.c`` before and after its change to PM QoS (5.5), ``drivers/cpufreq/cpufreq.c``.
"""

from __future__ import annotations

import errno
import os


class LiveClock:
    """One pair of limits. Every number is in the files' own unit (Hz or kHz).

    ``listed``: the steps, ascending; ``any_step``: 0, or the driver takes any value and the clock moves in such steps.
    """

    def __init__(
        self,
        low_path: str,
        high_path: str,
        now_path: str,
        listed: list[int],
        *,
        low: int,
        high: int,
        now: int,
        refuses: bool,
        any_step: int = 0,
    ) -> None:
        self.low_path, self.high_path, self.now_path = low_path, high_path, now_path
        self.listed, self.refuses, self.any_step = listed, refuses, any_step
        self.settle_s = 0.05
        self.low, self.high, self.now = low, high, now
        self.clamp: int | None = None
        """What heat or a power budget lets through."""
        self.base: int | None = None
        """What is left while boost is off."""
        self.asleep = False
        """Without power: takes limits, but does not follow."""
        self._heading = now
        self.arrives_s: float | None = None

    # ---------------------------------------------------------------------------------------------------------- files

    def text(self, path: str) -> str:
        """What the file says now."""
        low, high = (self.low, self.high) if self.refuses else self._range()
        return str({self.low_path: low, self.high_path: high, self.now_path: self.now}[path])

    def write(self, path: str, text: str) -> None:
        """Take what somebody writes. Raises: OSError, as the kernel would."""
        try:
            value = int(text.strip())
        except ValueError:
            value = -1
        if value < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if path == self.low_path:
            value = value or self.listed[0]
            if self.refuses and value > self.high:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self.low = value
        elif path == self.high_path:
            value = value or self.listed[-1]
            if self.refuses and value < self.low:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self.high = value
        else:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    # ---------------------------------------------------------------------------------------------------------- clock

    def decide(self, now_s: float, load: float) -> None:
        """Head for where limits and load want the clock."""
        if self.asleep:
            return
        want = self._want(load)
        if want != self._heading:
            self._heading = want
            self.arrives_s = now_s + self.settle_s

    def arrive(self, now_s: float) -> None:
        """Be there, if it is time."""
        if self.arrives_s is not None and now_s >= self.arrives_s:
            self.now, self.arrives_s = self._heading, None

    def _range(self) -> tuple[int, int]:
        top = min(self.high, self.listed[-1], *(bound for bound in (self.clamp, self.base) if bound is not None))
        high = max(top, self.listed[0])
        return min(max(self.low, self.listed[0]), high), high

    def _want(self, load: float) -> int:
        low, high = self._range()
        asked = self.listed[0] + load * (self.listed[-1] - self.listed[0])
        value = min(max(asked, low), high)
        if self.any_step:
            return min(high, -int(-value // self.any_step) * self.any_step)
        # A value between two steps becomes the higher one, also above the limit: 950 MHz on a Nano gives 998.4.
        above = [step for step in self.listed if step >= value - 1000]
        step = above[0] if above else self.listed[-1]
        if self.clamp is not None and step > self.clamp:
            step = max([s for s in self.listed if s <= self.clamp] or self.listed[:1])
        return step
