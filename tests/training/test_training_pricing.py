from __future__ import annotations

import pytest
from tests.support import training_runs as made
from tests.support.device_examples import FileDevice

from wattune.errors import InputError, RecordError
from wattune.point import OperatingPoint
from wattune.proxy import sweep
from wattune.training import price, train


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [None, 4.25])
@pytest.mark.parametrize("batch_size", [8, 32])
def test_the_price_of_a_run_is_what_its_training_takes(tmp_path, batch_size, cap_w):
    workload = made.workload()
    (curve,) = sweep(workload, batch_sizes=[batch_size], seeds=[3], folder=None)
    changes = {"noise_w": 0.03, "resolution_w": 0.0405, "seed": 2}
    plan = made.plan(batch_size, cap_w=cap_w)
    trained = train(made.nano(**changes), workload, plan, seed=3, checkpoint=tmp_path / "c")
    device = made.nano(**changes)
    priced = price(curve, device, workload, plan.point, cap_w=cap_w)
    for field in ("reached", "ended", "samples", "time_s", "energy_j", "power_peak_w", "evaluations", "guard", "exact"):
        assert getattr(priced, field) == getattr(trained, field), field
    assert priced.provenance.seed == 3
    assert device.current() == device.combinations()[-1]


def test_a_run_without_the_target_is_priced_to_its_end_and_nothing_is_executed(monkeypatch):
    workload = made.workload(target=1.0, budget_samples=256)
    (curve,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=None)
    monkeypatch.setattr(type(workload), "evaluate", None)
    monkeypatch.setattr(type(workload), "batches", None)
    record = price(curve, made.nano(), workload, made.plan().point, cap_w=None)
    assert (record.reached, record.ended, record.samples) == (False, "budget used up", 256)


def test_what_cannot_be_priced_is_refused(tmp_path):
    workload = made.workload()
    (curve,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=None)
    with pytest.raises(InputError, match="real board"):
        price(curve, FileDevice(tmp_path), workload, OperatingPoint.of(8, clock_mhz=100.0), cap_w=None)
    with pytest.raises(InputError, match="batch size"):
        price(curve, made.nano(), workload, made.plan(32).point, cap_w=None)
    with pytest.raises(RecordError, match="other samples"):
        price(curve, made.nano(), made.workload(evaluate_every=128), made.plan().point, cap_w=None)
    with pytest.raises(RecordError, match="no evaluation"):
        price(curve.model_copy(update={"evaluations": ()}), made.nano(), workload, made.plan().point, cap_w=None)
