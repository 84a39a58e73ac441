"""The best division of a cap over boards, by which the jobs of several ranks are judged, is the best of all."""

import itertools

import pytest
from benchmarks.groups import best, faster, members_of, thirstier
from tests.support.device_examples import make_work

from wattune.devices import SimulatedDevice, builtin_board

NANO, WORK = builtin_board("jetson-nano"), make_work(8, gflop=20.0, gigabytes=1.0)


def members(*boards):
    return members_of([SimulatedDevice(board) for board in boards], WORK)


@pytest.mark.parametrize("spins", [True, False])
@pytest.mark.parametrize("other", [thirstier(NANO, 1.16), faster(NANO), builtin_board("jetson-tx2-nx")])
def test_no_combination_is_faster_below_the_cap(other, spins):
    pair = members(NANO, other)
    rates = []
    for row in itertools.product(*(member.steps for member in pair)):
        step_s = max(member.steps[knobs].step_s for member, knobs in zip(pair, row, strict=True))
        watts = sum(m.mean_w(knobs, step_s, spins=spins) for m, knobs in zip(pair, row, strict=True))
        rates.append((watts, 1 / step_s))
    for cap_w in (6.0, 7.5, 8.0, 8.5, 9.0, 10.0, 14.0):
        fastest = max((rate for watts, rate in rates if watts <= cap_w), default=None)
        assert best(pair, cap_w, spins=spins) == fastest
