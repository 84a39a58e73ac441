"""The meter on virtual and on real time."""

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.device_examples import FileDevice, make_work, quiet
from tests.support.real_time_device import TwoClocks

from wattune.cap import SensorLimit
from wattune.devices import Fault, Meter, Sensor, SimulatedDevice, builtin_board, open_device
from wattune.devices.virtual_time import Piece, VirtualDevice
from wattune.errors import SensorError
from wattune.point import Knobs


def train(device, steps, work=None):
    work = work or make_work(gflop=20)
    for _ in range(steps):
        with device.step(work):
            if device.executes_steps:
                time.sleep(0.01)


schedules = st.lists(
    st.tuples(st.sampled_from(builtin_board("jetson-nano").gpu.clocks_mhz), st.integers(0, 30), st.floats(0, 3)),
    min_size=1,
    max_size=8,
)


@given(schedules, st.floats(3.5, 6.5), st.sampled_from([5.0, 10.0, 30.0]))
def test_its_figures_are_the_simulators_within_one_percent_and_one_window(schedule, cap_w, rate_hz):
    device = SimulatedDevice(quiet())
    sensor = device.sensor
    device.wait(2.0)
    truth = device.ground_truth(cap_w)
    changes = 0
    with Meter(device, rate_hz=rate_hz, limit=SensorLimit(cap_w)) as meter:
        for clock, steps, rest_s in schedule:
            with device.at(Knobs(clock_mhz=clock)):
                train(device, steps)
            device.wait(rest_s)
            changes += 2
        device.wait(0.2)
    seen, exact = meter.figures(), truth.figures()
    assert seen.time_s == pytest.approx(exact.time_s)
    # One window of the sensor at the largest difference of power that this board has.
    assert seen.energy_j == pytest.approx(exact.energy_j, rel=0.01, abs=5.0 * (sensor.window_s + 1 / rate_hz))
    # Each crossing of the cap is seen up to one sampling period late.
    slack_s = sensor.window_s + 2 * (changes + 1) / rate_hz
    assert seen.above_cap_s == pytest.approx(exact.above_cap_s, rel=0.01, abs=slack_s)


def test_the_sensors_window_and_lag_are_known_to_it():
    # At rest before, working while measured: readings of the first half second still say "at rest".
    board = quiet()
    slow = board.sensor.model_copy(update={"window_s": 2.0, "period_s": 1.0, "lag_s": 0.5})
    device = SimulatedDevice(board.model_copy(update={"sensor": slow}))
    device.wait(10)
    truth = device.ground_truth(None)
    with Meter(device) as meter:
        train(device, 400)
    naive_j = meter.figures().power_mean_w * meter.figures().time_s
    exact_j = truth.figures().energy_j
    assert meter.figures().energy_j == pytest.approx(exact_j, rel=0.005)
    assert abs(naive_j - exact_j) > 2 * abs(meter.figures().energy_j - exact_j)


def test_mean_spread_and_peak_are_those_of_the_readings():
    device, seen = open_device("sim:jetson-nano"), []
    with Meter(device, limit=SensorLimit(5.2), on_reading=lambda t, p: seen.append((t, p))) as meter:
        train(device, 50)
    figures = meter.figures()
    watts = [power_w for _, power_w in seen]
    mean_w = sum(watts) / len(watts)
    assert figures.readings == len(watts) == pytest.approx(10 * figures.time_s, abs=1)
    assert figures.power_mean_w == pytest.approx(mean_w)
    assert figures.power_std_w == pytest.approx((sum((w - mean_w) ** 2 for w in watts) / len(watts)) ** 0.5)
    assert figures.power_peak_w == max(watts)
    assert figures.readings_above_cap == sum(w > 5.2 for w in watts) > 0
    assert meter.trace == seen


class Doubling(TwoClocks, VirtualDevice):
    """Its power is 2 W, and 6 W from the second second on; its sensor reads that at once."""

    sensor = Sensor(rail="made up")

    def power_w(self):
        return 2.0 if self.now_s() < 1.0 else 6.0

    def _check(self, work):
        pass

    def _pieces(self, work):
        return 1, lambda _: self._at_rest()

    def _at_rest(self):
        return Piece(1.0, self.power_w())


def test_a_reading_holds_until_the_next_one():
    """Power that rises between two readings counts from the second of them on, in energy as in time above the cap."""
    device = Doubling()
    device.wait(0.5)
    with Meter(device, rate_hz=1.25, limit=SensorLimit(5.0)) as meter:  # readings at 0.8, 1.6 and 2.4 s
        device.wait(2.0)
    figures = meter.figures()
    assert (figures.readings, figures.time_s) == (3, 2.0)
    assert figures.energy_j == pytest.approx(2.0 * (1.6 - 0.5) + 6.0 * (2.5 - 1.6))
    assert figures.above_cap_s == pytest.approx(2.5 - 1.6)


def test_it_can_be_asked_while_it_runs():
    device, asked = SimulatedDevice(quiet()), []
    with Meter(device, on_reading=lambda t, p: asked.append(meter.figures())) as meter:
        train(device, 20)
        assert meter.figures().time_s == device.now_s()
    assert [figures.readings for figures in asked] == list(range(1, len(asked) + 1))
    after = meter.figures()
    device.wait(100)
    assert meter.figures() == after


def test_something_shorter_than_a_sampling_period_still_has_a_reading():
    device = SimulatedDevice(quiet())
    device.wait(1.03)
    with Meter(device, rate_hz=1) as meter:
        device.wait(0.01)
    figures = meter.figures()
    assert figures.readings == 1
    assert figures.energy_j == pytest.approx(0.01 * device.power_w())


def test_without_a_reading_there_are_no_figures():
    device = open_device("sim:jetson-nano")
    with pytest.raises(SensorError, match="no reading"):
        Meter(device).figures()


def test_a_sensor_that_drops_out_is_an_error_and_never_a_zero():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=1, duration_s=3),)))
    seen = []
    meter = Meter(device, on_reading=lambda t, p: seen.append(p))

    def work():
        device.wait(2.5)
        assert meter.lost is None
        device.wait(1.0)
        assert "gives no reading" in str(meter.lost)

    with pytest.raises(SensorError, match="gives no reading"), meter:
        work()
    assert 0 < len(seen) <= 10
    assert min(seen) > 0
    with pytest.raises(SensorError):
        meter.figures()


def test_a_sensor_that_is_away_for_less_than_two_seconds_is_asked_again():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=1, duration_s=1.9),)))
    truth = device.ground_truth(None)
    with Meter(device) as meter:
        device.wait(5)
    figures = meter.figures()
    assert meter.lost is None
    assert figures.readings == pytest.approx(50 - 19, abs=1)
    assert figures.energy_j == pytest.approx(truth.figures().energy_j, rel=1e-3)


def test_who_asks_for_it_is_told_at_once_and_keeps_the_figures():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=1, duration_s=3),)))
    lost = []
    with Meter(device, on_lost=lambda error: lost.append((device.now_s(), error))) as meter:
        device.wait(10)
    assert [time_s for time_s, _ in lost] == [pytest.approx(3.0, abs=0.11)]
    assert meter.lost is lost[0][1]
    assert meter.figures().readings <= 10
    assert meter.figures().time_s == pytest.approx(10)


def test_a_read_that_hangs_is_noticed_from_outside(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.devices.meter.GONE_AFTER_S", 0.4)
    monkeypatch.setattr("wattune.devices.meter.ANSWER_WITHIN_S", 0.1)
    device, hang, lost = FileDevice(tmp_path), threading.Event(), []
    reads = device.power_w
    with Meter(device, rate_hz=50, on_lost=lost.append) as meter:
        time.sleep(0.1)
        assert meter.lost is None
        device.power_w = lambda: (hang.wait(5), reads())[1]
        time.sleep(0.6)
        assert "does not answer" in str(meter.lost)
        hang.set()
    assert len(lost) == 1
    assert meter.figures().readings > 0


def test_a_read_that_never_returns_does_not_keep_the_meter_open(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.devices.base.JOIN_S", 0.2)
    device, hang, hangs, seen = FileDevice(tmp_path), threading.Event(), threading.Event(), []
    reads = device.power_w
    with Meter(device, rate_hz=50, on_reading=lambda time_s, power_w: seen.append(power_w)) as meter:
        time.sleep(0.1)
        device.power_w = lambda: (hangs.set(), hang.wait(60), reads())[2]
        assert hangs.wait(30)
    assert "wattune-sampling" in [thread.name for thread in threading.enumerate()]  # it still hangs
    figures, count = meter.figures(), len(seen)
    assert figures.readings == count > 0
    device.power_file.write_text("9000\n")
    device.power_w = reads
    (late,) = [thread for thread in threading.enumerate() if thread.name == "wattune-sampling"]
    with meter:  # what comes late is no reading of a later stretch either
        hang.set()
        late.join(30)
        time.sleep(0.1)
    assert 9.0 in seen
    late = [thread for thread in threading.enumerate() if thread.name == "wattune-sampling"]
    assert late == []
    assert meter.figures().readings == len(seen)


def test_a_sensor_that_never_answered_is_an_error_on_leaving(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.devices.base.JOIN_S", 0.2)
    monkeypatch.setattr("wattune.devices.meter.GONE_AFTER_S", 0.1)
    monkeypatch.setattr("wattune.devices.meter.ANSWER_WITHIN_S", 0.1)
    device, hang = FileDevice(tmp_path), threading.Event()
    answers = []
    device.power_w = lambda: (hang.wait(60), answers.append(5.0), 5.0)[2]
    with pytest.raises(SensorError, match="does not answer"), Meter(device, rate_hz=50):
        time.sleep(0.1)
    assert answers == []  # nor did anybody wait for one
    hang.set()


def test_a_thread_that_was_kept_waiting_is_given_a_moment(tmp_path, monkeypatch):
    monkeypatch.setattr("wattune.devices.meter.GONE_AFTER_S", 0.3)
    device, hang = FileDevice(tmp_path), threading.Event()
    reads = device.power_w
    with Meter(device, rate_hz=50) as meter:
        time.sleep(0.1)
        device.power_w = lambda: (hang.wait(5), reads())[1]
        time.sleep(0.5)
        threading.Timer(0.1, hang.set).start()
        assert meter.lost is None


def test_what_was_raised_inside_comes_first():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=0, duration_s=10),)))

    def fail():
        device.wait(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), Meter(device):
        fail()


def test_a_reading_can_end_what_is_measured():
    class TooMuch(Exception):
        pass

    def look(time_s, power_w):
        if time_s > 1:
            raise TooMuch

    device = SimulatedDevice(quiet())
    with pytest.raises(TooMuch), Meter(device, on_reading=look):
        train(device, 1000)
    assert device.now_s() == pytest.approx(1.1)


def test_the_trace_of_a_long_run_is_thinned_and_keeps_its_peaks():
    device = SimulatedDevice(quiet(fault=(Fault(kind="power", time_s=700, duration_s=1, gain=1.5),)))
    with Meter(device) as meter:
        device.wait(1000)
    trace = meter.trace
    assert 900 < len(trace) <= 2000
    assert meter.figures().readings == 10_000
    assert max(power_w for _, power_w in trace) == meter.figures().power_peak_w
    assert [t for t, _ in trace] == sorted(t for t, _ in trace)


def test_it_goes_on_where_the_clock_of_the_device_began_anew(tmp_path):
    first = FileDevice(tmp_path)
    with Meter(first, rate_hz=100, limit=SensorLimit(4.0)) as meter:
        train(first, 20)
    before = meter.figures()
    state = json.loads(json.dumps(meter.state_dict()))
    second = FileDevice(tmp_path)
    with Meter(second, rate_hz=100, limit=SensorLimit(4.0)) as resumed:
        pass
    resumed = Meter(second, rate_hz=100, limit=SensorLimit(4.0))
    resumed.load_state_dict(state)
    assert resumed.figures() == before
    with resumed:
        train(second, 20)
    after = resumed.figures()
    assert after.readings > before.readings
    assert before.time_s + 0.2 <= after.time_s
    assert after.energy_j == pytest.approx(4.321 * after.time_s)
    assert after.above_cap_s == pytest.approx(after.time_s, abs=0.2)


@pytest.mark.parametrize("content", ["", "N/A"])
def test_on_real_time_a_broken_sensor_is_an_error(tmp_path, monkeypatch, content):
    device = FileDevice(tmp_path)

    def work():
        train(device, 5)
        device.power_file.write_text(content)
        train(device, 10)

    monkeypatch.setattr("wattune.devices.meter.GONE_AFTER_S", 0.02)
    with pytest.raises(SensorError, match="cannot be read"), Meter(device, rate_hz=50):
        work()
