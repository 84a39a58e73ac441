"""Plans beside an inference service: only micro-batches that fit the slack of its latency bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.cap import PowerCap
from wattune.cap_trace import CapTrace
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.job import steps
from wattune.latency import LatencyBound, parse_latency
from wattune.planning import plan
from wattune.records import ProfileCell, ProfileTable

CLOCKS = (300.0, 600.0)


def cell(micro, clock_mhz, *, batch=32):
    # 10 ms of host a micro-batch, and 2 ms a sample at the higher clock.
    step_s = batch / micro * (0.01 + 0.002 * micro * CLOCKS[-1] / clock_mhz)
    power_w = 2.0 + micro / 32 + clock_mhz / 300
    return ProfileCell(
        batch_size=batch,
        micro_batch_size=None if micro == batch else micro,
        clock_mhz=clock_mhz,
        step_s=step_s,
        power_mean_w=power_w,
        power_peak_w=power_w,
        steps=5,
    )


TABLE = ProfileTable(device="board", workload="model", cells=tuple(cell(m, f) for m in (4, 8, 16, 32) for f in CLOCKS))
NO_CAP = PowerCap(window="peak")


def chosen(bound, cap=NO_CAP):
    return plan(TABLE, batch_size=32, cap=cap, latency=bound)


def test_without_a_bound_the_whole_batch_is_fastest():
    assert plan(TABLE, batch_size=32, cap=NO_CAP).point.micro_batch_size == 32


@pytest.mark.parametrize(("within_s", "micro"), [(0.0741, 32), (0.0739, 16), (0.0421, 16), (0.0419, 8), (0.0181, 4)])
def test_the_largest_micro_batch_that_fits(within_s, micro):
    picked = chosen(LatencyBound(within_s))
    assert picked.point.micro_batch_size == micro
    assert picked.micro_batch_s <= within_s
    assert picked.latency == LatencyBound(within_s)


def test_the_service_slows_down_with_the_clock():
    # 42 ms a micro-batch of 16 at the higher clock and 74 ms at the lower one, where the service takes 20 ms.
    low = PowerCap(limit_w=2.0 + 0.5 + 300 / 300, window="peak")
    assert chosen(LatencyBound(0.0941, 0.01), low).point.micro_batch_size == 16
    assert chosen(LatencyBound(0.0939, 0.01), low).point.micro_batch_size == 8
    assert chosen(LatencyBound(0.0521, 0.01)).point.micro_batch_size == 16


def test_the_plan_says_why_a_micro_batch_is_left_out():
    reasons = {candidate.point: candidate.why_not for candidate in chosen(LatencyBound(0.05, 0.008)).candidates}
    assert len(reasons) == len(TABLE.cells)
    assert reasons[TABLE.cells[-1].point] == "a micro-batch takes 74 ms, beside requests it may take 42 ms"


def test_a_service_that_is_too_slow_at_low_clocks():
    reasons = {c.point: c.why_not for c in chosen(LatencyBound(0.05, 0.026)).candidates}
    assert reasons[TABLE.cells[0].point] == "a request alone takes 52 ms, the bound is 50 ms"


def test_a_bound_that_no_micro_batch_fits_names_the_smallest():
    with pytest.raises(NoFeasiblePoint, match=r"10 ms; allowed: at least 23 ms, .*of 4\) at 600 MHz, takes 18 ms"):
        chosen(LatencyBound(0.01, 0.005))


def test_the_reason_is_the_cap_if_nothing_stays_under_it():
    with pytest.raises(CapError):
        chosen(LatencyBound(0.01), PowerCap(limit_w=1.0, window="peak"))


def test_only_what_stays_under_the_cap_is_named():
    with pytest.raises(NoFeasiblePoint, match="at 300 MHz"):
        chosen(LatencyBound(0.019), PowerCap(limit_w=3.3, window="peak"))


@given(within_s=st.floats(1e-3, 0.2), share=st.floats(0.0, 0.99))
def test_the_fastest_of_those_that_fit(within_s, share):
    bound = LatencyBound(within_s, share * within_s)
    fitting = [
        one
        for one in TABLE.cells
        if one.step_s / (32 / one.shape.micro) <= within_s - bound.service_s * CLOCKS[-1] / one.clock_mhz
    ]
    if not fitting:
        with pytest.raises(NoFeasiblePoint):
            chosen(bound)
        return
    assert chosen(bound).step_s == min(one.step_s for one in fitting)


@pytest.mark.parametrize(
    "values",
    [(0.0,), (-0.05,), (math.nan,), (math.inf,), (True,), ("50ms",), (0.05, -0.01), (0.05, 0.05)],
)
def test_bounds_that_are_none(values):
    with pytest.raises(InputError):
        LatencyBound(*values)


@pytest.mark.parametrize(("text", "seconds"), [("50ms", 0.05), ("0.2 s", 0.2), ("800us", 8e-4)])
def test_times(text, seconds):
    assert parse_latency(text, name="--latency") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["-50ms", "0ms", "50", "ms", "", "1min", "1e3ms", "٥ms"])
def test_texts_that_are_no_times(text):
    with pytest.raises(InputError, match="--latency"):
        parse_latency(text, name="--latency")


def test_a_cap_that_changes_is_refused():
    with pytest.raises(InputError, match="a cap that changes"):
        steps.plan(TABLE, batch_size=32, cap_w=CapTrace(times_s=(0.0,), caps_w=(6.0,)), latency=LatencyBound(0.05))


def test_the_record_keeps_the_bound(tmp_path):
    picked = chosen(LatencyBound(0.05, 0.008))
    picked.save(tmp_path / "plan.json")
    assert type(picked).load(tmp_path / "plan.json") == picked
