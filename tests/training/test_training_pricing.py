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


def test_nothing_is_executed(monkeypatch):
    workload = made.workload()
    (curve,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=None)
    monkeypatch.setattr(type(workload), "evaluate", None)
    monkeypatch.setattr(type(workload), "batches", None)
    assert price(curve, made.nano(), workload, made.plan().point, cap_w=None).reached


def test_a_run_without_the_target_is_priced_to_its_end():
    workload = made.workload(target=1.0, budget_samples=256)
    (curve,) = sweep(workload, batch_sizes=[8], seeds=[0], folder=None)
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("margin_w", [0.0, 0.03, 0.05])
def test_with_noise_few_readings_are_above_the_cap_and_each_is_answered(seed, margin_w):
    """At a point whose true power is up to a few standard deviations of the noise below the cap, for ten minutes."""
    noise_w, workload, point = 0.03, made.long_workload(), made.plan().point
    quiet = price(made.long_curve(10), made.nano(), workload, point, cap_w=None)
    cap_w = quiet.power_peak_w + margin_w
    device = made.nano(noise_w=noise_w, resolution_w=0.0405, seed=seed)
    record = price(made.long_curve(600), device, workload, point, cap_w=cap_w)
    assert record.readings > 5900
    assert 0 < record.readings_above_cap < 0.01 * record.readings
    assert record.power_peak_w <= cap_w + 3 * noise_w
    assert all(event.action != "at lowest" for event in record.guard)
    downs = [event.time_s for event in record.guard if event.action == "down"]
    settle_s = device.sensor.settle_s
    for sample in record.trace:
        if sample.power_w > cap_w:
            assert any(down <= sample.time_s <= down + settle_s for down in downs)
    assert len(record.guard) < 20
