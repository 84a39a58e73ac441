import pytest
import reporting_records as samples

from wattune.records import Baseline, BoardEvent, FirstTenth, FirstTenthSeen, ProfileCost, Provenance, Supply
from wattune.reporting import cap_table, comparison_table, summary, words
from wattune.reporting.text import table
from wattune.reporting.trainings import evaluations


@pytest.fixture(scope="module")
def run():
    return samples.run()


def test_the_whole_summary(run):
    assert (
        summary(run.plan, run.training, run.comparison)
        == """\
resnet8-digits, Jetson Nano 4 GB, under a cap of 5.2 W  [SIMULATED]

chosen: batch size 16 at 921.6 MHz

                predicted  simulated
time to target     27.2 s     28.4 s  predicted: steps only, with the proxy's samples
energy              139 J      144 J
peak power         5.16 W     6.12 W  cap 5.2 W exceeded, by readings over 0.1 s
above the cap                    2 s  exactly 2 s, by the simulator

The cap of 5.2 W holds at the module: for the readings of its power sensor. Each reading averages over 0.1 s, so \
shorter peaks may be higher without being seen; no margin below the cap is kept for them.

batch size 16 is the best one with a probability of 69 %, and expected to take 2 % longer than the best

target reached (0.9532, target 0.95) after 10,240 samples

compared under a cap of 5.2 W, mean over 3 seeds  [SIMULATED]
rule                        batch    setting              time           energy    peak  slower by  above fastest
wattune                        16  921.6 MHz  28.6 s +- 2.45 s  139 J +- 12.5 J  5.16 W      1.00x          3.1 %
largest batch, fixed clock    128  614.4 MHz  63.9 s +- 5.48 s  286 J +- 25.8 J  4.80 W      2.24x          131 %
best batch, fixed clock         4  614.4 MHz  61.3 s +- 5.26 s  221 J +- 19.9 J  3.88 W      2.15x          121 %
best batch, then clock          4  921.6 MHz  54.7 s +- 4.69 s  218 J +- 19.6 J  4.28 W      1.91x           97 %
fastest                        16  921.6 MHz  28.6 s +- 2.45 s  139 J +- 12.5 J  5.16 W      1.00x          3.1 %
largest batch, own clock      128  307.2 MHz                 -                -  5.10 W          -              -  \
1 of 3 runs did not reach the target

Profiling took 118 s and 512 J on the device in 84 probes, 6.4 s of it above the cap of 5.2 W. \
That is 4.2 times the time of this training. \
It has not paid with one training: it pays after 3 trainings, against the largest batch at the fixed clock.
"""
    )


def test_before_training_the_other_rules_are_predicted(run):
    text = summary(run.plan)
    assert "simulated" not in text
    assert "largest batch, fixed clock    128  614.4 MHz  60.9 s   286 J  4.80 W      2.24x\n" in text
    assert "4.3 times the predicted time of one training" in text
    assert "by the predictions it pays after 4 trainings" in text


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("simulated", "SIMULATED"),
        ("replayed", "RECORDED (replayed)"),
        ("recorded", "RECORDED"),
        ("measured", "MEASURED"),
        (None, "UNKNOWN ORIGIN"),
    ],
)
def test_the_first_line_says_where_the_figures_come_from(run, kind, word):
    first = summary(run.plan.model_copy(update={"provenance": Provenance(kind=kind)})).splitlines()[0]
    assert first.endswith(f"[{word}]")
    training = run.training.model_copy(update={"provenance": Provenance(kind=kind)})
    assert summary(run.plan, training).splitlines()[0].endswith(f"[{word}]")


def test_a_missed_target_stands_out(run):
    failed = run.training.model_copy(update={"reached": False, "ended": "stopped for safety"})
    text = summary(run.plan, failed)
    assert "TARGET NOT REACHED (0.9532, target 0.95) after 10,240 samples: stopped for safety" in text
    assert "it pays after" not in text
    assert "It has paid" not in text


def test_what_was_not_recorded_is_not_hidden(run):
    origin = Provenance(kind="replayed", left_out="evaluations")
    text = summary(run.plan, run.training.model_copy(update={"provenance": origin}))
    assert "Time and energy leave out evaluations." in text


def test_without_a_cap_nothing_is_exceeded():
    run = samples.run(cap_w=None)
    text = summary(run.plan, run.training)
    assert "without a power cap  [SIMULATED]" in text
    assert "above" not in text.split("other rules")[0]


def test_the_cap_table_has_a_line_for_every_cap(run):
    lines = cap_table(run.plan).splitlines()
    assert len(lines) == 1 + len(run.plan.gain_over_caps)
    assert lines[1].endswith("no measured point keeps it")
    assert lines[2].split() == ["3.44", "W", "16", "153.6", "MHz", "4.46x", "1.84x"]


def test_a_comparison_without_runs(run):
    rows = tuple(row.model_copy(update={"time_s": None, "speed_up": None}) for row in run.comparison.rows)
    text = comparison_table(run.comparison.model_copy(update={"rows": rows, "seeds": (0,), "cap_w": None}))
    assert text.startswith("compared without a power cap, one seed  [SIMULATED]")


def test_the_side_of_the_cap_the_window_and_the_margin_are_always_said(run):
    supply = {"cap_side": "supply", "supply_cap_w": 7.0, "supply": Supply(other_w=1.1, efficiency=0.9)}
    plan = run.plan.model_copy(update={**supply, "margin_w": 0.2, "sensor_rail": "VDD_IN", "sensor_window_s": 0.42})
    text = summary(plan)
    assert "under a cap of 7 W at the supply  [SIMULATED]" in text
    assert (
        "The cap of 7 W holds at the supply's terminals. That is 5.20 W for the readings of the module's power "
        "sensor (VDD_IN), by (module + 1.1 W) / 0.9. Each reading averages over 0.42 s, so shorter peaks may be "
        "higher without being seen; 0.2 W below the cap are kept for them."
    ) in text
    unknown = run.plan.model_copy(update={"sensor_window_s": None})
    assert "What time a reading averages over is not known; no margin below the cap is kept" in summary(unknown)
    assert "which are instantaneous; no margin" in summary(run.plan.model_copy(update={"sensor_window_s": 0.0}))
    assert words.side(run.plan.model_copy(update={"cap_w": None})) == ""
    comparison = run.comparison.model_copy(update={"cap_side": "supply", "supply_cap_w": 7.0})
    assert comparison_table(comparison).startswith("compared under a cap of 7 W at the supply, mean over 3 seeds")


def test_what_happened_to_the_board_is_told(run):
    events = tuple(BoardEvent(time_s=i, kind="throttled", text=f"held down by zone {i}") for i in range(7))
    changes = {"ended": "stopped for safety", "reached": False, "reason": "7 W at the lowest setting"}
    heat = {"board_events": events, "max_temp_c": 80.0, "temperature_max_c": 81.25}
    text = summary(run.plan, run.training.model_copy(update={**changes, **heat}))
    assert "after 10,240 samples: stopped for safety, 7 W at the lowest setting" in text
    assert "3 s: throttled: held down by zone 3" in text
    assert "zone 5" not in text
    assert "and 2 more in the record" in text
    assert "highest temperature 81.2 °C, limit 80 °C" in text


def first_tenth(**changes):
    expected = FirstTenth(progress=0.5, progress_low=0.4, progress_high=0.6, runs=3)
    return FirstTenthSeen(**{"samples": 900, "progress": 0.1, "expected": expected, "said": "It is slow.", **changes})


@pytest.mark.parametrize(("fits", "told"), [(False, True), (True, False), (None, False)])
def test_a_beginning_that_does_not_fit_is_told(run, fits, told):
    training = run.training.model_copy(update={"first_tenth": first_tenth(fits=fits)})
    assert ("It is slow." in summary(run.plan, training)) == told
    assert evaluations(training).note == ("It is slow." if told else "")
    assert evaluations(run.training).note == ""


def test_columns_are_aligned():
    text = table(("rule", "time"), [("a", "1 s"), ("long name", "100 s", "a remark")])
    assert text == "rule        time\na            1 s\nlong name  100 s  a remark"


# ------------------------------------------------------------------------------------------------------------- words


def rival(chosen, speed_up):
    """The plan with one other rule that takes so many times as long."""
    time = chosen.predicted_s * speed_up
    row = Baseline(rule=words.FIXED_CLOCK_RULE, batch_size=128, feasible=True, predicted_s=time, speed_up=speed_up)
    return chosen.model_copy(update={"baselines": (row,)})


def test_when_profiling_has_paid_is_said_plainly(run):
    cost = ProfileCost(time_s=run.plan.predicted_s / 2, energy_j=100, above_cap_s=0, probes=12, cap_w=4.5)
    pays = words.profiling_cost(cost, rival(run.plan, 1.6), None)
    assert pays.endswith(
        "none of it above the cap of 4.5 W. That is 50 % of the predicted time of one training. It has paid within one "
        "training, by the predictions compared with the largest batch at the fixed clock."
    )
    later = words.profiling_cost(cost, rival(run.plan, 1.1), None)
    assert "It has not paid with one training: by the predictions it pays after 5 trainings" in later
    never = words.profiling_cost(cost, rival(run.plan, 1.0), None)
    assert "It does not pay: by the predictions nothing is saved" in never
    alone = words.profiling_cost(cost, None, None)
    assert alone.endswith("in 12 probes, none of it above the cap of 4.5 W.")
    uncapped = words.profiling_cost(cost.model_copy(update={"cap_w": None}), None, None)
    assert uncapped.endswith("in 12 probes.")  # where there was no cap, nothing was above or below it


def test_the_record_decides_when_profiling_has_paid(run):
    cost = run.plan.profile_cost
    once = run.training.model_copy(update={"pays_after_trainings": 1})
    assert "It has paid within one training, compared with" in words.profiling_cost(cost, run.plan, once)
    none = run.training.model_copy(update={"pays_after_trainings": None, "plan": rival(run.plan, 0.9)})
    assert "It does not pay" in words.profiling_cost(cost, None, none)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 s"), (0.0123, "0.0123 s"), (43.04, "43 s"), (99.96, "100 s"), (119.6, "120 s"),
     (120.0, "2 min 00 s"), (3599.7, "60 min 00 s"), (7200.0, "2 h 00 min"), (90061.0, "25 h 01 min")],
)  # fmt: skip
def test_durations(value, text):
    assert words.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.5, "0.5 J"), (161.4, "161 J"), (999.7, "1,000 J"), (12345, "12.3 kJ"), (2e6, "2 MJ")],
)
def test_energies(value, text):
    assert words.joules(value) == text


def test_origins_are_never_mixed_up():
    assert words.origin(a="simulated", b="simulated") == "simulated"
    assert words.origin(step_times="simulated", samples="measured") == "step times simulated, samples measured"
    assert words.origin(step_times=None, samples="measured") == "step times of unknown origin, samples measured"
    assert words.origin(a=None) == "origin unknown"
    assert words.grouped({"profile": "simulated", "plan": "simulated"}) == "simulated"
    assert words.grouped({"profile": None, "plan": "measured"}) == "origin unknown: profile; measured: plan"


def test_points():
    chosen = samples.other_actuator(limits=True).plan
    assert words.point(chosen.point) == "batch size 32 at a power limit of 150 W"
    small = chosen.point.model_copy(update={"micro_batch_size": 8, "power_limit_w": None})
    assert words.point(small) == "batch size 32 (micro-batches of 8)"
    assert (words.batch(small), words.setting(small)) == ("32 in 8s", "-")
