import re

import pytest
from tests.support import report_records as samples

from wattune.planning import with_evaluations
from wattune.point import OperatingPoint
from wattune.records import Baseline, BoardEvent, CapInterval, ProfileCost, Provenance, Supply
from wattune.reporting import phrases, plan_text, run_text, summary
from wattune.reporting.text import table


@pytest.fixture(scope="module")
def run():
    return samples.run()


def test_the_whole_summary(run):
    text = summary(run.plan, run.training, run.comparison)
    assert (
        text
        == """\
resnet8-digits  ·  Jetson Nano 4 GB  ·  backprop  [simulated]

Batch size 16 at 921.6 MHz trains 1.91 times as fast as the best batch at its own clock and 2.24 times as fast as the \
largest batch at the fixed clock, under a cap of 5.2 W

speed-up              1.91×  over the best batch at its own clock, simulated
speed-up              2.24×  over the largest batch at the fixed clock, simulated
time to target       28.4 s  predicted 27.2 s
energy                144 J  predicted 139 J
mean power over 1 s  5.31 W  cap 5.2 W, 2 s above it
profiling             118 s  4.2 times this run

Profiling took 118 s and 512 J on the device in 84 probes, 6.4 s of it above the cap of 5.2 W. \
That is 4.2 times the time of this training run. \
It pays for itself after 3 runs like this, compared with the largest batch at the fixed clock.

Of the points measured under the cap, the fastest takes the least energy.

The cap of 5.2 W applies at the module, to the mean over 1 s of the readings of its power sensor. Shorter peaks may \
exceed it; no margin is kept.

No batch size of yours to compare with: the workload has no `batch_size`, or only two runs were made. \
Confidence: 69 % that 16 is the fastest batch size; on average over what is unknown, it costs 2 % more than the fastest.

Target reached (0.9532, target 0.95) after 10,240 samples.

time to target (s)  [simulated]
wattune                    █████████████████████ 28.6
largest batch, fixed clock ███████████████████████████████████████████████ 63.9
best batch, fixed clock    █████████████████████████████████████████████ 61.3
best batch, then clock     ████████████████████████████████████████ 54.7
fastest                    █████████████████████ 28.6

All rules  [simulated]
rule                        batch    setting           time  vs. wattune  energy
wattune                        16  921.6 MHz  28.6 ± 2.45 s        1.00x   139 J
largest batch, fixed clock    128  614.4 MHz  63.9 ± 5.48 s        2.24x   286 J
best batch, fixed clock         4  614.4 MHz  61.3 ± 5.26 s        2.15x   221 J
best batch, then clock          4  921.6 MHz  54.7 ± 4.69 s        1.91x   218 J
fastest                        16  921.6 MHz  28.6 ± 2.45 s        1.00x   139 J
largest batch, own clock      128  307.2 MHz              -            -       -
    1 of 3 runs did not reach the target
(vs. wattune: time divided by the time of wattune's pick; mean over 3 seeds)
"""
    )


def test_before_training_the_other_rules_are_predicted(run):
    text = summary(run.plan)
    assert "Other rules under the same cap  [predicted, simulated]\n" in text
    assert "largest batch, fixed clock    128  614.4 MHz  60.9 s        2.24x   286 J\n" in text
    assert "4.3 times the predicted time of a training run" in text
    assert "It is predicted to pay for itself after 4 runs like this" in text


def test_the_first_line_states_the_origin(run):
    origin = Provenance(kind=None)
    assert summary(run.plan.model_copy(update={"provenance": origin})).splitlines()[0].endswith("[origin unknown]")
    training = run.training.model_copy(update={"provenance": Provenance(kind="measured")})
    assert summary(run.plan, training).splitlines()[0].endswith("[simulated: plan; measured: training]")


def test_a_missed_target_stands_out(run):
    failed = run.training.model_copy(update={"reached": False, "ended": "stopped for safety"})
    text = summary(run.plan, failed)
    assert "TARGET NOT REACHED (0.9532, target 0.95) after 10,240 samples: stopped for safety" in text
    assert "Whether it pays for itself is unknown" in text
    assert "It pays for itself" not in text


def test_excluded_time_is_stated(run):
    origin = Provenance(kind="replayed", left_out="evaluations")
    text = summary(run.plan, run.training.model_copy(update={"provenance": origin}))
    assert "Time and energy exclude evaluations." in text


def test_a_run_shorter_than_the_window_of_its_sensor_says_so(run):
    plan = run.plan.model_copy(update={"sensor_window_s": 0.422})
    short = {"plan": plan, "time_s": 0.219, "readings": 2}
    said = (
        "Energy and power are mostly of the time before: the run took 0.219 s, and each reading is the mean of 0.422 s."
    )
    assert said in summary(plan, run.training.model_copy(update=short))
    assert "the time before" not in summary(plan, run.training.model_copy(update={**short, "time_s": 0.422}))


def test_without_a_cap_nothing_is_exceeded():
    run = samples.run(cap_w=None)
    text = summary(run.plan, run.training)
    assert "under a cap" not in text
    assert "above it" not in text


def test_the_meaning_of_the_cap_is_always_stated(run):
    supply = {"cap_side": "supply", "supply_cap_w": 7.0, "supply": Supply(other_w=1.1, efficiency=0.9)}
    plan = run.plan.model_copy(update={**supply, "margin_w": 0.2, "sensor_rail": "VDD_IN", "sensor_window_s": 0.42})
    text = summary(plan)
    assert "under a cap of 7 W at the supply\n" in text
    assert (
        "The cap of 7 W applies at the supply. That is 5.20 W at the module, for the mean over 1 s of the readings of "
        "its power sensor (VDD_IN): supply power is (module + 1.1 W) / 0.9. Shorter peaks may exceed it; a margin of "
        "0.2 W is kept below the cap."
    ) in text
    by_reading = run.plan.model_copy(update={"cap_window_s": None})
    assert "to every reading of its power sensor. Each reading is an average over 0.1 s" in plan_text.cap_meaning(
        by_reading
    )
    unknown = by_reading.model_copy(update={"sensor_window_s": None})
    assert "The averaging time of a reading is unknown; no margin is kept for peaks." in summary(unknown)
    assert "Readings are instantaneous; no margin" in summary(by_reading.model_copy(update={"sensor_window_s": 0.0}))
    assert plan_text.cap_meaning(run.plan.model_copy(update={"cap_w": None})) == ""
    comparison = run.comparison.model_copy(update={"cap_side": "supply", "supply_cap_w": 7.0})
    assert "under a cap of 7 W at the supply\n" in summary(comparison)


def test_the_cap_of_an_external_meter_is_at_that_meter(run):
    plan = run.plan.model_copy(update={"device": "external:read.sh", "sensor_rail": "external"})
    assert plan_text.cap_meaning(plan).startswith(
        "The cap of 5.2 W applies at your meter, to the mean over 1 s of its "
    )


def test_board_events_are_listed(run):
    events = tuple(BoardEvent(time_s=i, kind="throttled", text=f"held down by zone {i}") for i in range(11))
    events += (BoardEvent(time_s=11, kind="left out", text="4,000 events of the board"),)
    changes = {"ended": "stopped for safety", "reached": False, "reason": "7 W at the lowest setting"}
    heat = {"board_events": events, "max_temp_c": 80.0, "temperature_max_c": 81.25}
    text = summary(run.plan, run.training.model_copy(update={**changes, **heat}))
    assert "after 10,240 samples: stopped for safety, 7 W at the lowest setting" in text
    assert "\n3 s    throttled  held down by zone 3\n" in text
    assert "\n11 s    left out  4,000 events of the board\n" in text
    assert "zone 10" not in text
    assert "and 2 more in the record" in text
    assert "highest temperature 81.2 °C, limit 80 °C" in text


def test_wide_tables_keep_their_figures(run):
    clocks = {"clock_mhz": 1122.0, "memory_clock_mhz": 2133.0, "cpu_clock_mhz": 1190.4}
    baselines = tuple(row.model_copy(update=clocks) for row in run.plan.baselines)
    text = summary(run.plan.model_copy(update={**clocks, "baselines": baselines}))
    columns = r"rule +batch +setting +time +vs\. wattune +energy\n"
    assert re.search(columns, text)
    assert re.search(r"128  1122 MHz, memory 2133 MHz, CPU 1190.4 MHz  60\.9 s +2\.24x +286 J\n", text)

    named = run.comparison.rows[0].model_copy(update={"rule": "a rule of mine " * 7})
    text = summary(run.plan, run.training, run.comparison.model_copy(update={"rows": (named,)}))
    assert re.search(columns, text)
    assert re.search(r"(a rule of mine ){7} +16 +921\.6 MHz  28\.6 ± 2\.45 s +1\.00x +139 J\n", text)


def test_a_pause_has_its_reason(run):
    interval = CapInterval(time_s=0.0, asked_w=0.0, pause="no setting is under the cap of 1 W, and none may train")
    text = summary(run.plan, run.training.model_copy(update={"cap_intervals": (interval,)}))
    assert re.search(
        r"\n0 s +\S+ s +0 W +- +0 J +0 s\n    no setting is under the cap of 1 W, and none may train\n", text
    )


def test_columns_are_aligned():
    text = table(("rule", "time"), [("a", "1 s"), ("long name", "100 s", "a remark")])
    assert text == "rule        time\na            1 s\nlong name  100 s  a remark"


# ------------------------------------------------------------------------------------------------------------- words


def rival(chosen, speed_up):
    """The plan with one other rule, which takes ``speed_up`` times as long."""
    time = chosen.predicted_s * speed_up
    row = Baseline(rule=phrases.FIXED_CLOCK_RULE, batch_size=128, feasible=True, predicted_s=time, speed_up=speed_up)
    return chosen.model_copy(update={"baselines": (row,)})


def test_the_predicted_pay_back_of_profiling(run):
    cost = ProfileCost(time_s=run.plan.predicted_s / 2, energy_j=100, above_cap_s=0, probes=12, cap_w=4.5)
    pays = run_text.profiling_cost(cost, rival(run.plan, 1.6), None)
    assert pays.endswith(
        "none of it above the cap of 4.5 W. That is 50 % of the predicted time of a training run. It is predicted to "
        "pay for itself within one run, compared with the largest batch at the fixed clock."
    )
    later = run_text.profiling_cost(cost, rival(run.plan, 1.1), None)
    assert "It is predicted to pay for itself after 5 runs like this" in later
    never = run_text.profiling_cost(cost, rival(run.plan, 1.0), None)
    assert "It does not pay for itself: no time is predicted to be saved" in never
    above = rival(run.plan, 1.6)
    above = above.model_copy(update={"baselines": (above.baselines[0].model_copy(update={"feasible": False}),)})
    assert "pay for itself" not in run_text.profiling_cost(cost, above, None)  # nothing to compare with
    alone = run_text.profiling_cost(cost, None, None)
    assert alone.endswith("in 12 probes, none of it above the cap of 4.5 W.")
    uncapped = run_text.profiling_cost(cost.model_copy(update={"cap_w": None}), None, None)
    assert uncapped.endswith("in 12 probes.")  # without a cap nothing is above it


def test_the_training_record_determines_the_pay_back(run):
    cost = run.plan.profile_cost
    once = run.training.model_copy(update={"pays_after_trainings": 1})
    assert "It pays for itself within one run, compared with" in run_text.profiling_cost(cost, run.plan, once)
    none = run.training.model_copy(update={"pays_after_trainings": None, "plan": rival(run.plan, 0.9)})
    assert "It does not pay for itself" in run_text.profiling_cost(cost, None, none)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 s"), (0.0123, "12.3 ms"), (0.0996, "0.0996 s"), (43.04, "43 s"), (99.96, "100 s"),
     (119.6, "120 s"), (120.0, "2 min 00 s"), (3599.7, "60 min 00 s"), (7200.0, "2 h 00 min"),
     (90061.0, "25 h 01 min")],
)  # fmt: skip
def test_durations_have_fitting_units(value, text):
    assert phrases.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.5, "0.5 J"), (161.4, "161 J"), (999.7, "1,000 J"), (12345, "12.3 kJ"), (2e6, "2 MJ")],
)
def test_energies_have_fitting_units(value, text):
    assert phrases.joules(value) == text


def test_origins_are_never_mixed_up():
    assert phrases.origin(a="simulated", b="simulated") == "simulated"
    assert phrases.origin(step_times="simulated", samples="measured") == "step times simulated, samples measured"
    assert phrases.origin(step_times=None, samples="measured") == "step times of unknown origin, samples measured"
    assert phrases.origin(a=None) == "origin unknown"
    assert phrases.grouped({"profile": "simulated", "plan": "simulated"}) == "simulated"
    assert phrases.grouped({"profile": None, "plan": "measured"}) == "origin unknown: profile; measured: plan"


def test_operating_points_are_written_with_units():
    chosen = samples.other_actuator(limits=True).plan
    assert str(chosen.point) == "batch size 32 at power limit 150 W"
    small = OperatingPoint.of(32, 8)
    assert str(small) == "batch size 32 (micro-batches of 8)"
    assert (phrases.batch(small), phrases.setting(small)) == ("32 in 8s", "-")


@pytest.fixture(scope="module")
def whole(run):
    """The plan with its evaluations: 10 of 0.3 s, with checkpoints of 0.1 s."""
    return with_evaluations(run.plan, every_samples=1024, evaluation_s=0.3, checkpoint_s=0.1)


def test_the_prediction_has_evaluations(run, whole):
    assert whole.evaluations.number == 10
    assert re.search(r"time to target +31\.2 s  predicted\n", summary(whole))  # 27.2 s of steps and 4 s of evaluations
    assert "10 evaluations and checkpoints take 13 % of the predicted time" in summary(whole)
    assert "evaluations and checkpoints" not in summary(run.plan)


def test_how_sure_is_said(run):
    plan = run.plan.model_copy(update={"p_over_cap": 0.004, "p_best": 0.37, "expected_loss": 0.19})
    text = summary(plan)
    assert "Confidence: 37 % that 16 is the fastest batch size; on average over what is unknown, it costs 19 %" in text
    assert "more than the fastest (more proxy runs would tell: --seeds)" in text
    assert "on this board, the chance of exceeding the cap is under 1 %" in text
    sure = plan_text.confidence(plan.model_copy(update={"p_best": 0.999, "expected_loss": 0.0}))
    assert sure.startswith("confidence: over 99 % that 16 is the fastest batch size; on this board")
