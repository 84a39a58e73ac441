from __future__ import annotations

import pytest
from tests.support.planning_tables import board, curve

from wattune.cap import PowerCap
from wattune.planning import plan, with_evaluations

SAMPLES = 12_800.0


@pytest.fixture
def chosen():
    """A plan that predicts 12,800 samples at its batch size."""
    one = plan(board(), curve(), cap=PowerCap(4.0))
    return one.model_copy(update={"predicted_s": SAMPLES / one.batch_size * one.step_s})


def test_evaluations_and_checkpoints_come_on_top_of_the_steps(chosen):
    whole = with_evaluations(chosen, every_samples=128, evaluation_s=0.05, checkpoint_s=0.01)
    assert whole.expected_samples == pytest.approx(SAMPLES)
    assert whole.evaluations.number == 100
    assert whole.evaluations.time_s == pytest.approx(6.0)
    assert whole.run_s == pytest.approx(chosen.predicted_s + 6.0)
    assert whole.predicted_s == chosen.predicted_s  # by its definition that of the steps
    assert whole.evaluations.energy_j == pytest.approx(6.0 * chosen.power_mean_w)
    at_rest = with_evaluations(
        chosen.model_copy(update={"rest_w": 1.5}), every_samples=128, evaluation_s=0.05, checkpoint_s=0.01
    )
    assert at_rest.run_j == pytest.approx(chosen.predicted_j + 5.0 * chosen.power_mean_w + 1.0 * 1.5)


def test_the_last_evaluation_may_come_after_the_predicted_samples(chosen):
    assert with_evaluations(chosen, every_samples=3000, evaluation_s=1, checkpoint_s=0).evaluations.number == 5


def test_a_plan_without_samples_has_no_evaluations(chosen):
    unknown = chosen.model_copy(update={"predicted_s": None})
    assert with_evaluations(unknown, every_samples=128, evaluation_s=1, checkpoint_s=0) == unknown
    assert unknown.run_s is None


def test_one_seed_is_said_to_leave_open_how_sure_the_choice_is():
    def notes(runs):
        efficiency = curve()
        points = tuple(point.model_copy(update={"runs": runs}) for point in efficiency.points)
        return plan(board(), efficiency.model_copy(update={"points": points}), cap=PowerCap(4.0)).notes

    assert any("how sure the choice of the batch size is, is not known" in note for note in notes(1))
    assert not any("how sure" in note for note in notes(3))
