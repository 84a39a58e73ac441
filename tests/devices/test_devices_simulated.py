"""Simulated boards: time, power, sensor, heat, faults, and going on after a restart."""

import itertools
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.calls import calls_of
from tests.support.device_examples import make_work, quiet, run_steps

from wattune.cap import SensorLimit
from wattune.devices import Fault, Meter, SimulatedDevice, builtin_board, open_device
from wattune.devices.simulator.board_file import SimulatedBoard
from wattune.devices.simulator.roofline import segments
from wattune.errors import InputError, OutOfDeviceMemory, SensorError
from wattune.point import Knobs

TOP_MHZ = 921.6


def step_s(device, work):
    begin_s = device.now_s()
    run_steps(device, work)
    return device.now_s() - begin_s


def at_rest_w(device):
    device.wait(10)
    return device.power_w()


# ------------------------------------------------------------------------------------------------------ time and power


@st.composite
def boards(draw):
    """Board files that nobody has seen yet."""
    count = draw(st.integers(1, 6))
    clocks = sorted(draw(st.lists(st.floats(50, 5000), min_size=count, max_size=count, unique=True)))
    volts = sorted(draw(st.lists(st.floats(0.3, 2), min_size=count, max_size=count)))
    share, watts = st.floats(0, 1), st.floats(0, 100)
    achieved = draw(st.floats(1, 1000))
    data = builtin_board("jetson-nano").model_dump(exclude={"cpu"})
    data["gpu"] |= {"clocks_mhz": clocks, "voltage_v": volts, "half_speed_samples": draw(st.floats(0, 100))}
    data["gpu"] |= {"peak_gflops": {"fp32": draw(st.floats(100, 1e5))}, "efficiency": draw(st.floats(0.1, 1))}
    data["memory"] |= {"achieved_gbps": achieved, "optimizer_gbps": achieved, "bandwidth_gbps": achieved}
    data["memory"] |= {"clock_share": draw(share)}
    data["host"] |= {"s_per_operation": draw(st.floats(0, 1e-2)), "s_per_optimizer_operation": draw(st.floats(0, 1e-2))}
    data["power"] |= {"base_w": draw(st.floats(0.1, 100)), "compute_w_per_v2ghz": draw(watts)}
    data["power"] |= {"leakage_w_per_v3": draw(watts), "leakage_per_degree": draw(st.floats(0, 0.1))}
    data["power"] |= {"rise_s": draw(st.floats(0, 10))}
    data["thermal"] |= {"rth_c_per_w": 0.0}  # a chip that gets too hot is slower at a higher clock
    return SimulatedBoard.model_validate(data)


works = st.builds(
    make_work,
    st.integers(1, 512),
    gflop=st.floats(0, 100),
    gigabytes=st.floats(0, 10),
    kernels=st.integers(0, 5000),
    host_s=st.floats(1e-6, 10),
)


@given(boards(), works)
def test_unseen_work_on_unseen_boards_is_finite_and_never_slower_at_a_higher_clock(board, work):
    device = SimulatedDevice(board)
    times_s = []
    for knobs in device.combinations():
        with device.at(knobs):
            times_s.append(step_s(device, work))
        parts = segments(work, board.chip("gpu"), knobs)
        assert math.fsum(part.seconds for part in parts) == pytest.approx(times_s[-1], rel=1e-6)
        for part in parts:
            assert math.isfinite(part.power_w(board.power.leakage_per_degree, 150.0))
            assert part.steady_w >= board.power.base_w
    assert all(math.isfinite(seconds) and seconds > 0 for seconds in times_s)
    assert all(fast <= slow * (1 + 1e-9) for slow, fast in itertools.pairwise(times_s))
    assert device.power_w() > 0


def test_a_larger_batch_takes_longer_a_step_and_less_a_sample():
    device = open_device("sim:jetson-tx2-nx")
    small = step_s(device, make_work(4, gflop=4, gigabytes=0.4)) / 4
    large = step_s(device, make_work(64, gflop=64, gigabytes=6.4)) / 64
    assert large < small


def test_what_does_not_fit_says_by_how_much():
    device = open_device("sim:jetson-nano")
    with pytest.raises(OutOfDeviceMemory, match="batch size 8 does not fit sim:jetson-nano: 9537 MiB") as caught:
        step_s(device, make_work(memory_bytes=1e10))
    assert caught.value.needed_bytes == 1e10
    assert caught.value.available_bytes == device.memory_bytes == (3964 - 1200 - 1250) * 2**20


def test_half_precision_is_faster_and_what_maxwell_lacks_is_refused():
    device = open_device("sim:jetson-nano")
    single = step_s(device, make_work(gflop=50))
    assert step_s(device, make_work(gflop=50, data_type="fp16")) < single
    for data_type in ("bf16", "tf32"):
        with pytest.raises(InputError, match="allowed: fp16, fp32"):
            step_s(device, make_work(data_type=data_type))


def test_a_change_of_clock_in_the_middle_of_a_step_retimes_what_is_left():
    work = make_work(gflop=200, gigabytes=0, kernels=0, host_s=0)  # arithmetic alone: its time goes as 1 / f
    device = SimulatedDevice(quiet())
    with device.at(Knobs(clock_mhz=TOP_MHZ)):
        fast_s = step_s(device, work)
    with device.at(Knobs(clock_mhz=460.8)):
        slow_s = step_s(device, work)
    assert slow_s == pytest.approx(2 * fast_s)
    begin_s = device.now_s()
    with device.at(Knobs(clock_mhz=TOP_MHZ)) as setting:
        change_s = next(k for k in range(1, 10_000) if k * 0.1 > begin_s) * 0.1
        with device.every(0.1, lambda: setting.change(Knobs(clock_mhz=460.8))):
            took_s = step_s(device, work)
    done = (change_s - begin_s) / fast_s
    assert took_s == pytest.approx(change_s - begin_s + (1 - done) * slow_s)


def test_the_host_loads_data_while_the_gpu_only_ticks():
    chip = builtin_board("jetson-nano").chip("gpu")
    host, forward, *_ = segments(make_work(gflop=50), chip, Knobs(clock_mhz=TOP_MHZ))
    assert host.seconds == 0.001
    # P0 + 1/2 (0.377 V^3 + 2.138 V^2 f) at 1.04 V and 0.9216 GHz
    assert host.power_w(0, 25) == pytest.approx(3.60 + 0.5 * (0.377 * 1.04**3 + 2.138 * 1.04**2 * 0.9216))
    assert forward.power_w(0, 25) > host.power_w(0, 25) + 0.5


# -------------------------------------------------------------------------------------------------------------- sensor


def test_at_rest_the_board_draws_what_is_published():
    device = open_device("sim:jetson-nano")
    with device.at(Knobs(clock_mhz=76.8)):
        assert at_rest_w(device) == pytest.approx(1.4, abs=0.15)


def test_the_sensor_averages_over_its_window_lags_and_holds():
    board = quiet()
    sensor = board.sensor.model_copy(update={"period_s": 0.5, "window_s": 1.0, "lag_s": 0.25})
    device = SimulatedDevice(board.model_copy(update={"sensor": sensor}))
    low_w = at_rest_w(device)  # now at 10 s
    with device.at(Knobs(clock_mhz=76.8)):
        high_w, low_w = low_w, at_rest_w(device)  # now at 20 s, the clock is high again from here on
    assert high_w > low_w + 0.5
    for after_s, share in ((0.0, 0.0), (0.4, 0.0), (0.1, 0.25), (0.5, 0.75), (0.4, 0.75), (0.1, 1.0)):
        device.wait(after_s)
        assert device.power_w() == pytest.approx(low_w + share * (high_w - low_w)), device.now_s()


def test_an_instantaneous_sensor_shows_the_power_of_the_moment():
    board = quiet()
    sensor = board.sensor.model_copy(update={"period_s": 0.01, "window_s": 0.0, "lag_s": 0.0})
    device = SimulatedDevice(board.model_copy(update={"sensor": sensor}))
    chip = board.chip("gpu")
    work = make_work(gflop=100, gigabytes=0.1, host_s=0.1)
    seen = []
    with device.every(0.01, lambda: seen.append(device.power_w())):
        step_s(device, work)
    levels = {round(part.power_w(0, 25), 6) for part in segments(work, chip, Knobs(clock_mhz=TOP_MHZ))}
    assert {round(power_w, 6) for power_w in seen} <= levels
    assert max(seen) == pytest.approx(max(levels))


def test_readings_are_rounded_and_their_noise_is_cut_at_three_deviations():
    board = builtin_board("jetson-nano")
    exact_w = at_rest_w(SimulatedDevice(quiet(board)))
    noisy = quiet(board)
    noisy = noisy.model_copy(update={"sensor": noisy.sensor.model_copy(update={"noise_w": 0.1})})
    device, seen = SimulatedDevice(noisy, seed=7), []
    with device.every(noisy.sensor.period_s, lambda: seen.append(device.power_w() - exact_w)):
        device.wait(3000)
    assert statistics.stdev(seen) == pytest.approx(0.1, rel=0.1)
    assert 0.25 < max(map(abs, seen)) <= 0.3 + 1e-9
    device = SimulatedDevice(board)
    device.wait(10)
    assert (device.power_w() / 0.0405) == pytest.approx(round(device.power_w() / 0.0405))


def test_seeds_differ_in_noise_alone_and_a_reading_stays_until_the_next():
    first, second, same = (open_device("sim:jetson-nano", seed=seed) for seed in (1, 2, 1))
    readings = []
    for device in (first, second, same):
        seen = []
        with device.every(0.1, lambda device=device, seen=seen: seen.append(device.power_w())):
            for _ in range(50):
                step_s(device, make_work())
        readings.append(seen)
    assert first.now_s() == second.now_s()
    assert readings[0] == readings[2] != readings[1]
    assert first.power_w() == first.power_w()


# ----------------------------------------------------------------------------------------------------- heat and faults


def test_a_hot_chip_slows_down_and_recovers():
    board = quiet()
    hot = board.model_copy(update={"thermal": board.thermal.model_copy(update={"throttle_c": 44.0, "tau_s": 20.0})})
    device, work = SimulatedDevice(hot), make_work(gflop=50)
    cool_s = step_s(device, work)
    hottest = 0.0
    for _ in range(300):
        step_s(device, work)
        hottest = max(hottest, device.temperature_c)
    assert device.effective_mhz < device.current()["clock_mhz"] == TOP_MHZ
    assert step_s(device, work) > cool_s
    assert 44.0 < hottest < 46.0
    device.wait(100)
    assert device.effective_mhz == TOP_MHZ
    assert step_s(device, work) == pytest.approx(cool_s)


def test_the_chip_warms_towards_the_balance_with_its_time_constant():
    board = quiet()
    device = SimulatedDevice(board)
    with device.at(Knobs(clock_mhz=76.8)):
        device.wait(2000)
        low_c = device.temperature_c
    assert low_c == pytest.approx(25 + 4 * device.power_w())
    device.wait(90)
    part_c = device.temperature_c
    device.wait(2000)
    assert (part_c - low_c) / (device.temperature_c - low_c) == pytest.approx(1 - math.exp(-1), rel=1e-6)


def test_leakage_grows_with_temperature_where_the_file_says_so():
    board = quiet()
    leaky = board.model_copy(update={"power": board.power.model_copy(update={"leakage_per_degree": 0.02})})
    device = SimulatedDevice(leaky)
    device.wait(2000)
    leakage_w = 0.1885 * 1.04**3
    grown_w = leakage_w * (math.exp(0.02 * (device.temperature_c - 25)) - 1)
    device.wait(1)
    assert device.power_w() - at_rest_w(SimulatedDevice(board)) == pytest.approx(grown_w, rel=0.02)


def faulty(*faults: Fault) -> SimulatedDevice:
    return SimulatedDevice(quiet(fault=faults))


def test_a_power_fault_is_drawn_and_seen():
    device = faulty(Fault(kind="power", time_s=20, duration_s=2, gain=1.2))
    normal_w = at_rest_w(device)
    truth = device.ground_truth(1.1 * normal_w)
    device.wait(20)
    figures = truth.figures()
    assert figures.energy_j == pytest.approx(normal_w * (20 + 0.2 * 2))
    assert figures.above_cap_s == pytest.approx(2, abs=0.43)


def test_a_reading_fault_is_seen_and_not_drawn():
    device = faulty(Fault(kind="reading", time_s=20, duration_s=5, gain=1.5))
    normal_w = at_rest_w(device)
    truth = device.ground_truth(1.1 * normal_w)
    device.wait(12)
    assert device.power_w() == pytest.approx(1.5 * normal_w)
    device.wait(8)
    assert device.power_w() == pytest.approx(normal_w)
    assert truth.figures().above_cap_s == 0
    assert truth.figures().energy_j == pytest.approx(20 * normal_w)


def test_a_slowdown_stretches_steps_while_it_lasts():
    work = make_work()
    normal_s = step_s(faulty(), work)
    device = faulty(Fault(kind="slowdown", time_s=normal_s / 2, duration_s=100, gain=3.0))
    assert step_s(device, work) == pytest.approx(normal_s / 2 + 3 * normal_s / 2)
    assert step_s(device, work) == pytest.approx(3 * normal_s)
    device.wait(100)
    assert step_s(device, work) == pytest.approx(normal_s)


def test_a_sensor_that_drops_out_is_an_error():
    device = faulty(Fault(kind="dropout", time_s=20, duration_s=5))
    at_rest_w(device)
    device.wait(12)
    with pytest.raises(SensorError, match="POM_5V_IN gives no reading"):
        device.power_w()
    device.wait(5)
    assert device.power_w() > 0


# --------------------------------------------------------------------------------------------------------- accounting


def test_the_truth_is_the_sum_of_the_parts():
    board = quiet()
    device, work = SimulatedDevice(board), make_work(gflop=20)
    truth = device.ground_truth(None)
    joules = seconds = 0.0
    for clock in (TOP_MHZ, 384.0, 76.8):
        for part in segments(work, board.chip("gpu"), Knobs(clock_mhz=clock)):
            joules += 10 * part.seconds * part.power_w(0, 25)
            seconds += 10 * part.seconds
        with device.at(Knobs(clock_mhz=clock)):
            for _ in range(10):
                step_s(device, work)
    figures = truth.figures()
    assert figures.energy_j == pytest.approx(joules)
    assert figures.time_s == pytest.approx(seconds)
    assert figures.above_cap_s == 0


def test_time_above_the_cap_is_that_of_the_averaged_power():
    device = SimulatedDevice(quiet())
    low_w = at_rest_w(device)
    with device.at(Knobs(clock_mhz=76.8)):
        device.wait(10)
        truth = device.ground_truth(0.5 * (low_w + device.power_w()))
        with device.at(Knobs(clock_mhz=TOP_MHZ)):
            device.wait(5)
        device.wait(10)
    assert truth.figures().above_cap_s == pytest.approx(5, abs=0.43)


def test_a_negative_or_endless_wait_is_refused():
    device = open_device("sim:jetson-nano")
    for seconds in (-1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="cannot wait"):
            device.wait(seconds)


@pytest.mark.parametrize("stop_at", [1, 40, 99])
def test_a_training_that_goes_on_elsewhere_ends_with_the_same_figures(stop_at):
    board = builtin_board("jetson-nano").model_copy(
        update={"fault": (Fault(kind="power", time_s=12, duration_s=2, gain=1.2),)}
    )
    work, cap_w = make_work(gflop=20), 5.3

    def begin(seed):
        device = SimulatedDevice(board, seed=seed)
        return device, Meter(device, limit=SensorLimit(cap_w)), device.ground_truth(cap_w)

    def train(device, steps):
        for _ in range(steps):
            run_steps(device, work)
            device.wait(0.01)

    device, meter, truth = begin(seed=1)
    with meter:
        train(device, 100)

    first, first_meter, first_truth = begin(seed=1)
    with first_meter:
        train(first, stop_at)
        # As a checkpoint does it: in the middle of everything, as text.
        kept = json.dumps([first.state_dict(), first_meter.state_dict(), first_truth.state_dict()])
    second, second_meter, second_truth = begin(seed=99)
    for part, state in zip((second, second_meter, second_truth), json.loads(kept), strict=True):
        part.load_state_dict(state)
    with second_meter:
        train(second, 100 - stop_at)

    assert second_meter.figures() == meter.figures()
    assert second_truth.figures() == truth.figures()
    assert second_meter.trace == meter.trace
    assert second.state_dict() == device.state_dict()


def test_a_step_takes_few_calls_also_in_a_long_training():
    device, work = open_device("sim:jetson-nano"), make_work(gflop=10)
    truth = device.ground_truth(5.0)

    with Meter(device, limit=SensorLimit(5.0)) as meter:
        run_steps(device, work, 4000)
        assert calls_of(lambda: run_steps(device, work, 1000)) < 500 * 1000  # 5000 steps in less than a second
    assert meter.figures().energy_j == pytest.approx(truth.figures().energy_j, rel=0.01)
