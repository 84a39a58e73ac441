import re

import pytest
from tests.support import report_records as samples

from wattune.planning import with_evaluations
from wattune.reporting import phrases, plan_text, summary
from wattune.reporting.run_time import difference, evaluations


@pytest.fixture(scope="module")
def run():
    return samples.run()


@pytest.fixture(scope="module")
def whole(run):
    """The plan with its evaluations: 10 of 0.3 s, with checkpoints of 0.1 s."""
    return with_evaluations(run.plan, every_samples=1024, evaluation_s=0.3, checkpoint_s=0.1)


def test_the_prediction_has_evaluations(run, whole):
    assert whole.evaluations.number == 10
    assert re.search(r"time to target +31\.2 s  predicted\n", summary(whole))  # 27.2 s of steps and 4 s of evaluations
    assert "10 evaluations and checkpoints take 13 % of the predicted time" in summary(whole)
    assert "evaluations and checkpoints" not in summary(run.plan)


def test_fewer_evaluations_are_advised_with_what_they_save(run):
    dear = with_evaluations(run.plan, every_samples=256, evaluation_s=0.5, checkpoint_s=0.1)
    planned = dear.evaluations
    assert planned.advised_every_samples is not None
    assert evaluations(dear).endswith(
        f"take 46 % of the predicted time: `evaluate_every = {planned.advised_every_samples}` in place of 256 would "
        f"save about {phrases.seconds(planned.would_save_s)} ({phrases.percent(planned.would_save_s / dear.run_s)})"
    )


def test_the_difference_is_split_into_samples_steps_and_evaluations(run, whole):
    sample_s = whole.step_s / whole.batch_size
    taken = run.training.model_copy(
        update={
            "samples": 12_000,
            "time_s": 12_000 * sample_s * 1.02 + 4.5,
            "evaluation_s": 3.5,
            "checkpoint_s": 1.0,
        }
    )
    text = difference(whole, taken)
    longer_s = taken.time_s - whole.run_s
    assert text.startswith(f"It took {phrases.seconds(longer_s)} longer than predicted: ")
    samples_s = (12_000 - whole.expected_samples) * sample_s
    assert f"+{phrases.seconds(samples_s)} for 12,000 samples in place of 9,830" in text
    assert f"+{phrases.seconds(12_000 * sample_s * 0.02)} for the time of each step" in text
    assert text.endswith(f"+{phrases.seconds(4.5 - whole.evaluations.time_s)} for evaluations and checkpoints")
    # The three parts are the whole of it.
    assert samples_s + 12_000 * sample_s * 0.02 + 4.5 - whole.evaluations.time_s == pytest.approx(longer_s)
    assert text in summary(whole, taken)


def test_a_part_that_did_not_differ_is_zero(run, whole):
    samples_s = whole.step_s / whole.batch_size * 10_000
    times = {"samples": 10_000, "time_s": samples_s + 4.0 + 1e-12, "evaluation_s": 3.0, "checkpoint_s": 1.0}
    text = difference(whole, run.training.model_copy(update=times))
    assert "+0 s for the time of each step, +0 s for evaluations and checkpoints" in text


@pytest.mark.parametrize("update", [{"reached": False}, {"paused_s": 3.0}, {"evaluation_s": None}])
def test_no_split_is_made_up_for_another_run_than_was_predicted(run, whole, update):
    taken = run.training.model_copy(update={"evaluation_s": 3.0, "checkpoint_s": 1.0, **update})
    assert difference(whole, taken) == ""


def test_how_sure_is_said(run):
    plan = run.plan.model_copy(update={"p_over_cap": 0.004, "p_best": 0.37, "expected_loss": 0.19})
    text = summary(plan)
    assert "Confidence: 37 % that 16 is the fastest batch size; on average over what is unknown, it costs 19 %" in text
    assert "more than the fastest (more proxy runs would tell: --seeds)" in text
    assert "on this board, the chance of exceeding the cap is under 1 %" in text
    sure = plan_text.confidence(plan.model_copy(update={"p_best": 0.999, "expected_loss": 0.0}))
    assert sure.startswith("confidence: over 99 % that 16 is the fastest batch size; on this board")
