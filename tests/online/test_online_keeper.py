from __future__ import annotations

import dataclasses
import json

import pytest

from wattune.devices import SimulatedDevice, builtin_board
from wattune.online.explorer import Explorer
from wattune.online.keeper import Keeper
from wattune.search.search import Row, Search
from wattune_agent.cap_guard import HEAT_PATIENCE_S, PATIENCE_S


class Warm(SimulatedDevice):
    """A board that is as warm as it is told to be."""

    temperature_c = 40.0

    def conditions(self):
        return dataclasses.replace(super().conditions(), temperature_c=self.temperature_c)


def seconds_until_stopped(keeper: Keeper, power_w: float, *, at_most: int) -> float | None:
    """Readings ten times a second, with an evaluation every two seconds, until training has to end."""
    for tenth in range(1, 10 * at_most):
        if tenth % 20 == 0:
            keeper.begin_evaluation()
        if tenth % 20 == 5:
            keeper.end_evaluation()
        keeper(tenth / 10, power_w)
        if keeper.stopped is not None:
            return tenth / 10
    return None


@pytest.mark.parametrize(
    ("power_w", "temperature_c", "patience_s"),
    [(6.0, 40.0, PATIENCE_S), (3.0, 95.0, HEAT_PATIENCE_S), (3.0, 40.0, None)],
    ids=["above the cap", "too hot", "fine"],
)
def test_the_patience_at_the_lowest_setting_does_not_begin_anew_with_each_evaluation(
    power_w, temperature_c, patience_s
):
    device = Warm(builtin_board("jetson-nano"))
    device.temperature_c = temperature_c
    with device.at(device.settings[0]) as setting:
        keeper = Keeper(device, setting, 5.0, 90.0)
        stopped_s = seconds_until_stopped(keeper, power_w, at_most=100)
    assert stopped_s == (None if patience_s is None else pytest.approx(patience_s, abs=1.5))


@pytest.mark.parametrize(
    ("before_w", "after_w", "goes_on"), [(5.0, 5.0, True), (5.0, 6.0, True), (5.0, 4.0, False), (None, 4.0, False)]
)
def test_what_evaluations_may_run_at_is_not_known_of_a_lower_cap(before_w, after_w, goes_on):
    device = Warm(builtin_board("jetson-nano"))
    with device.at(device.settings[0]) as setting:
        state = {**Keeper(device, setting, before_w).state_dict(), "reached": device.settings[3]}
        keeper = Keeper(device, setting, after_w)
        keeper.load_state_dict(json.loads(json.dumps(state, allow_nan=False)))
    assert keeper.state_dict()["reached"] == device.settings[3 if goes_on else 0]


def test_evaluations_that_become_a_part_of_a_probe_do_not_end_it():
    """One a second, and no reading in between until they count as a part of what is measured."""
    device = Warm(builtin_board("jetson-nano"))
    row = Row(32, 32)
    with device.at(device.settings[0]) as setting:
        keeper = Keeper(device, setting, 5.0)
        prober = Explorer(
            device,
            keeper,
            lambda without: Search([row], device.settings, cap_w=5.0, start=row, window_s=device.sensor.window_s),
            row,
            fits=lambda row: True,
            changed=lambda point, why: None,
        )
        prober.choose()
        for step in range(200):
            prober.begin(row, 0.0)
            device.wait(0.1)
            if prober.mixes_evaluations:
                keeper(device.now_s(), 3.0)
            prober.stepped(row, 0.1, device.now_s())
            if step % 10 == 9:
                keeper.begin_evaluation()
                keeper.end_evaluation()
    assert prober.mixes_evaluations
    assert prober.cells
