"""Training at the times of a plan's schedule, and the carbon or money that it took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import training_runs as made

from wattune.cap import PowerCap
from wattune.cap_source import CapTrace
from wattune.errors import Interrupted
from wattune.goal import Goal
from wattune.planning import plan
from wattune.profiling import profile
from wattune.records import (
    CapInterval,
    EfficiencyPoint,
    IntensityValue,
    SampleEfficiency,
    Schedule,
    ScheduledTime,
)
from wattune.reporting import run_text
from wattune.training import train
from wattune.training.train import cap_of_schedule
from wattune.training.training_record import taken

KWH_J = 3.6e6


def schedule(*times, unit="gco2_per_kwh", forecast=((0, 400), (4, 100), (9, 500)), finish_s=20.0):
    return Schedule(
        unit=unit,
        times=tuple(ScheduledTime(from_s=from_s, until_s=until_s) for from_s, until_s in times),
        forecast=tuple(IntensityValue(time_s=time_s, value=value) for time_s, value in forecast),
        finish_s=finish_s,
        predicted=2.0,
        at_once=4.0,
        fastest_at_once=5.0,
    )


@pytest.fixture(scope="module")
def workload():
    return made.workload(target=None)


@pytest.fixture(scope="module")
def planned(workload):
    table = profile(made.nano(), workload, reference=False)
    points = (EfficiencyPoint(batch_size=b, relative_samples=r, samples=500 * r) for b, r in ((8, 0.5), (32, 1.0)))
    curve = SampleEfficiency(workload="points", reference_batch_size=32, points=tuple(points))
    best = plan(table, curve, cap=PowerCap(4.5), goal=Goal("energy", deadline_s=100.0))
    return best.model_copy(update={"schedule": schedule((4, 9), (12, None))})


@pytest.fixture(scope="module")
def trained(workload, planned):
    return train(made.nano(), workload, planned)


def test_it_trains_at_its_times_only(planned, trained):
    running = [one for one in trained.cap_intervals if one.pause is None]
    assert [round(one.time_s) for one in running] == [4, 12]
    assert {one.setting for one in running} == {planned.clock_mhz}
    assert {one.cap_w for one in running} == {4.5}
    assert trained.cap_intervals[0].pause == "more carbon now than later"
    for evaluation in trained.evaluations:
        assert 4 < evaluation.time_s < 9 or evaluation.time_s > 12
    assert trained.above_cap_s == 0


def test_the_carbon_is_that_of_every_joule_by_the_forecast(trained):
    by_interval = sum(one.energy_j for one in trained.cap_intervals)
    assert by_interval == pytest.approx(trained.energy_j, rel=0.01)
    assert 100 < 1000 * trained.emissions.emissions / (trained.energy_j / KWH_J) < 500
    text = run_text.schedule(trained.plan, trained)
    assert text.startswith("trains at 2 times of low carbon intensity, and ends after 20 s")
    assert "predicted 2 g of CO2 while it trains, 50 % less than without waiting and 60 % less than" in text


def test_a_tariff_gives_the_price(workload, planned):
    tariff = schedule((0, None), unit="price_per_kwh", forecast=((0, 0.25), (100, 0.5)))
    record = train(made.nano(), workload, planned.model_copy(update={"schedule": tariff}))
    assert record.energy_cost == pytest.approx(0.25 * record.energy_j / KWH_J, rel=0.01)
    assert record.emissions is None
    assert "in the currency of the tariff" in run_text.schedule(record.plan, record)


def test_an_interrupted_wait_continues(tmp_path, workload, planned, trained):
    checkpoint = tmp_path / "c"

    def interrupt(done, total, text):
        if text.startswith("waits: more carbon now than later, for"):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(made.nano(), workload, planned, checkpoint=checkpoint, progress=interrupt)
    resumed = train(made.nano(), workload, planned, checkpoint=checkpoint, resume=True)
    assert [e.metric for e in resumed.evaluations] == [e.metric for e in trained.evaluations]
    assert resumed.time_s == pytest.approx(trained.time_s, abs=0.5)
    assert [round(one.time_s) for one in resumed.cap_intervals if one.pause is None] == [4, 12]


def test_its_times_and_another_cap_hold_together(workload, planned):
    cap = CapTrace(times_s=(0.0, 6.0, 15.0), caps_w=(9.0, 0.0, 3.9))
    record = train(made.nano(), workload, planned, cap=cap)
    asked = {round(one.time_s): one.asked_w for one in record.cap_intervals}
    assert (asked[0], asked[4], asked[6], asked[15]) == (0.0, 4.5, 0.0, 3.9)  # the plan's cap is 4.5 W from 4 s on
    assert record.above_cap_s == 0
    assert record.emissions is not None


def test_without_a_cap_nothing_is_limited_while_it_trains(planned):
    free = planned.model_copy(update={"cap_w": None})
    caps = cap_of_schedule(free, schedule((0, 5), (8, None)))
    assert [caps.limit(caps.watts(t), None, None) is not None for t in (0, 5, 8)] == [True, False, True]
    assert caps.limit(caps.watts(0), None, None).limit_w is None


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 1e6), st.booleans()), min_size=1, max_size=6))
def test_under_one_intensity_it_is_that_of_the_energy(spans):
    begins = [sum(span for span, _, _ in spans[:index]) for index in range(len(spans))]
    intervals = tuple(
        CapInterval(time_s=begin_s, cap_time_s=begin_s + 7, energy_j=energy_j, pause="x" if paused else None)
        for begin_s, (_, energy_j, paused) in zip(begins, spans, strict=True)
    )
    flat = schedule((0, None), forecast=((0, 300), (10, 300)))
    end_s = sum(span for span, _, _ in spans)
    assert taken(flat, intervals, end_s) == pytest.approx(300 * sum(e for _, e, _ in spans) / KWH_J)
