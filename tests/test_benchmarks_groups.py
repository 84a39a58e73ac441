"""The best split of the benchmark of groups is that of all combinations."""

import itertools

import pytest
from benchmarks import groups
from benchmarks.groups import Case, best, compared, faster, members_of, thirstier
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


def test_a_group_is_at_least_as_fast_as_equal_shares(monkeypatch, capsys):
    monkeypatch.setattr(groups, "SHARES", tuple(share / 8 for share in range(1, 9)))
    figures = compared(Case("two", (NANO, thirstier(NANO, 1.1))), WORK)
    assert figures["of_equal"]["least"] >= 1.0 < figures["of_equal"]["highest"]
    assert figures["of_best_spinning"]["least"] == 1.0
    assert figures["impossible"]["group"] <= figures["impossible"]["equal"]
