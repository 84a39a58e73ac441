"""Recorded tables, replayed."""

import pytest
from tests.support.device_examples import make_table, make_work

from wattune.devices import Knob, Meter, ReplayDevice, open_device
from wattune.errors import InputError, OutOfDeviceMemory, RecordError, SensorError
from wattune.point import Knobs
from wattune.records import ProfileCell, ProfileTable


def measure(device, batch_size, knobs, steps=5):
    """As profiling does it: warm up, then some steps and at least three windows of the sensor."""
    work = make_work(batch_size)
    with device.at(knobs):
        with device.step(work):
            pass
        begin_s, count = device.now_s(), 0
        with Meter(device) as meter:
            while count < steps or device.now_s() - begin_s < 3 * device.sensor.window_s:
                with device.step(work):
                    pass
                count += 1
    return (device.now_s() - begin_s) / count, meter.figures()


@pytest.mark.parametrize("setting", ["clock_mhz", "power_limit_w", None])
def test_what_was_measured_comes_out_again(setting, tmp_path):
    table = make_table(setting)
    device = open_device(f"recorded:{table.save(tmp_path / 'profile.json')}")
    assert device.kind == "replayed"
    assert device.name == "bench-gpu"
    assert device.knobs == ((Knob(setting, (100.0, 150.0, 200.0)),) if setting else ())
    for cell in table.measured:
        step_s, figures = measure(device, cell.batch_size, cell.knobs)
        assert step_s == pytest.approx(cell.step_s)
        assert figures.power_peak_w == cell.power_peak_w
        assert figures.power_mean_w == pytest.approx(cell.power_mean_w, rel=0.015)
        assert figures.energy_j == pytest.approx(cell.power_mean_w * figures.time_s, rel=0.1)


def test_over_a_long_time_mean_and_energy_are_exact():
    device = ReplayDevice(make_table())
    cell = device.table.measured[0]
    _, figures = measure(device, cell.batch_size, cell.knobs, steps=3000)
    assert figures.power_mean_w == pytest.approx(cell.power_mean_w, rel=1e-3)
    assert figures.energy_j == pytest.approx(cell.power_mean_w * figures.time_s, rel=1e-3)


def test_a_peak_far_above_the_mean_is_made_up_for_by_positive_readings():
    cell = ProfileCell(batch_size=8, step_s=0.1, power_mean_w=50.0, power_peak_w=300.0)
    device = ReplayDevice(ProfileTable(device="spiky", workload="made-up", cells=(cell,)))
    seen = []
    with Meter(device, on_reading=lambda t, p: seen.append(p)) as meter:
        for _ in range(700):
            with device.step(make_work(8)):
                pass
    assert min(seen) > 0
    assert max(seen) == 300.0
    assert meter.figures().power_mean_w == pytest.approx(50.0, rel=0.01)


def test_a_cell_that_was_not_measured_is_refused_in_one_line():
    device = ReplayDevice(make_table("power_limit_w"))
    with pytest.raises(InputError, match="batch size 32 at power limit 200 W") as caught, device.step(make_work(32)):
        pytest.fail("the step began")
    assert "\n" not in str(caught.value)
    micro = make_work(8).model_copy(update={"micro_batch_size": 2})
    with pytest.raises(InputError, match=r"batch size 8 \(micro-batches of 2\)"), device.step(micro):
        pytest.fail("the step began")


def test_what_did_not_fit_does_not_fit_at_any_setting():
    device = ReplayDevice(make_table())
    for knobs in device.combinations():
        with device.at(knobs), pytest.raises(OutOfDeviceMemory, match="16 did not fit"), device.step(make_work(16)):
            pytest.fail("the step began")


def test_a_change_in_the_middle_of_a_step_replays_the_rest_of_another_cell():
    device = ReplayDevice(make_table())
    with (
        device.at(Knobs(clock_mhz=200.0)) as setting,
        device.every(0.05, lambda: setting.change(Knobs(clock_mhz=100.0))),
    ):
        with device.step(make_work(8)):
            pass
    # 0.1 s a step at 200 MHz, half of which has passed; 0.2 s at 100 MHz
    assert device.now_s() == pytest.approx(0.05 + 0.5 * 0.2)
    assert device.power_w() == 44.0 + 8


def test_an_evaluation_takes_its_share_of_a_step():
    device = ReplayDevice(make_table())
    evaluation = make_work(256, gflop=2.0, training=False)
    with pytest.raises(InputError, match="batch size 256"), device.step(evaluation):
        pytest.fail("nothing was replayed yet that it could be a share of")
    step = make_work(8, gflop=1.0)
    with device.step(step):
        pass
    before_s = device.now_s()
    with device.step(evaluation):
        pass
    assert device.now_s() - before_s == pytest.approx(0.1 * evaluation.flops / step.flops)


def test_there_is_no_reading_before_the_first_step():
    device = ReplayDevice(make_table())
    with pytest.raises(SensorError, match="before the first step"):
        device.power_w()


def test_tables_that_cannot_be_replayed_are_refused_in_one_line():
    clocks, limits = make_table("clock_mhz"), make_table("power_limit_w")
    mixed = clocks.model_copy(update={"cells": (*clocks.measured, *limits.measured)})
    nothing = clocks.model_copy(update={"cells": tuple(c for c in clocks.cells if c.out_of_memory)})
    for table in (mixed, nothing):
        with pytest.raises(RecordError) as caught:
            ReplayDevice(table)
        assert "\n" not in str(caught.value)


def test_a_state_of_another_recording_is_refused():
    device = ReplayDevice(make_table("clock_mhz"))
    with device.step(make_work(8)):
        pass
    with pytest.raises(InputError, match="another recording"):
        ReplayDevice(make_table(None)).load_state_dict(device.state_dict())
