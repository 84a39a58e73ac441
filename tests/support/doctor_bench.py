"""Sensor on virtual time with an averaging window, an update period, quantisation and noise, and loads for it."""

from __future__ import annotations

import random

from wattune.devices import Sensor
from wattune.errors import SensorError


class Bench:
    name = "bench"

    def __init__(
        self, *, window_s=0.0, period_s=0.0, step_w=0.0, noise_w=0.0, rest_w=3.0, busy_w=5.0, fails=0, reported=None
    ):
        self.truth = Sensor("VDD_IN", step_w, period_s, window_s)
        self.sensor = reported or self.truth
        self.noise_w, self.rest_w, self.busy_w, self.fails = noise_w, rest_w, busy_w, fails
        self.chance = random.Random(1)
        self.time_s, self.begun_s, self.held = 0.0, None, (-1, 0.0)

    def now_s(self):
        return self.time_s

    def wait(self, seconds):
        self.time_s += seconds

    def power_w(self):
        if self.fails and self.chance.random() < self.fails:
            raise SensorError("bench: EIO")
        period_s = self.truth.period_s or 1e-9
        tick = int(self.time_s / period_s)
        if tick != self.held[0]:
            self.held = (tick, self.mean_w(tick * period_s) + self.chance.gauss(0, self.noise_w))
        step_w = self.truth.resolution_w
        return round(self.held[1] / step_w) * step_w if step_w else self.held[1]

    def mean_w(self, now_s):
        if self.begun_s is None:
            return self.rest_w
        since_s = now_s - self.begun_s
        share = min(1.0, max(0.0, since_s / self.truth.window_s if self.truth.window_s else float(since_s >= 0)))
        return self.rest_w + share * (self.busy_w - self.rest_w)


class Switch:
    words = "a switch"

    def __init__(self, bench):
        self.bench = bench

    def begin(self):
        self.bench.begun_s = self.bench.time_s

    def end(self):
        self.bench.begun_s = None


class LiveLoad:
    words = "a load"

    def __init__(self, tree):
        self.board = tree.board

    def begin(self):
        self.board.load = 1.0

    def end(self):
        self.board.load = 0.0
