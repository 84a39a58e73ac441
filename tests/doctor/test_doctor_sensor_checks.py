"""Checks of sensors: the findings match the properties that each was built with."""

from __future__ import annotations

import random

import pytest
from tests.support.live.tree import LiveTree
from tests.support.live_devices import virtual

from wattune.devices import Sensor
from wattune.doctor.sensor_checks import check_sensing
from wattune.errors import SensorError


class Bench:
    """Sensor on virtual time, with noise, and its own load."""

    words = "a switch"
    sensor = Sensor("VDD_IN")

    def __init__(self, *, noise_w=0.01, rest_w=3.0, busy_w=5.0, fails=0.0):
        self.noise_w, self.rest_w, self.busy_w, self.fails = noise_w, rest_w, busy_w, fails
        self.chance = random.Random(1)
        self.time_s, self.is_busy = 0.0, False

    def now_s(self):
        return self.time_s

    def wait(self, seconds):
        self.time_s += seconds

    def power_w(self):
        if self.chance.random() < self.fails:
            raise SensorError("bench: EIO")
        return (self.busy_w if self.is_busy else self.rest_w) + self.chance.gauss(0, self.noise_w)

    def begin(self):
        self.is_busy = True

    def end(self):
        self.is_busy = False


class LiveLoad:
    words = "a load"

    def __init__(self, tree):
        self.board = tree.board

    def begin(self):
        self.board.load = 1.0

    def end(self):
        self.board.load = 0.0


@pytest.mark.parametrize(
    ("bench", "states", "words"),
    [
        (Bench(), ["ok", "ok"], "VDD_IN: "),
        (Bench(fails=0.2), ["warn", "ok"], " readings failed: bench: EIO"),
        (Bench(busy_w=3.0), ["ok", "warn"], "stuck"),
        (Bench(noise_w=0.4, busy_w=3.5), ["warn", "warn"], "lost in the noise"),
        (Bench(fails=1.0), ["fail"], "EIO"),
    ],
)
def test_a_sensor_at_rest_and_under_a_step_of_load(bench, states, words):
    findings = check_sensing(bench, bench)
    assert [finding.state for finding in findings] == states
    assert any(words in finding.text + finding.fix for finding in findings)


@pytest.mark.parametrize("family", ["orin-nano", "nano", "cpu-laptop"])
def test_on_a_live_board(tmp_path, family):
    tree = LiveTree(tmp_path / family, family)
    before = tree.state()
    assert {finding.state for finding in check_sensing(virtual(tree), LiveLoad(tree))} == {"ok"}
    assert (tree.state(), list(tree.writes)) == (before, []), "nothing on the board is changed"
