"""Time and power at the clocks of memory and CPU, on sim:jetson-tx2 and on boards with other figures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.support.device_examples import make_work, run_steps

from wattune.devices import SimulatedDevice, builtin_board, open_device
from wattune.devices.simulator.board_file import SimulatedBoard
from wattune.devices.simulator.exact_steps import exact
from wattune.devices.simulator.roofline import idle, segments
from wattune.point import Knobs
from wattune.records import Operation, PhaseWork, StepWork

TX2 = builtin_board("jetson-tx2")
LOW = Knobs(clock_mhz=114.75, memory_clock_mhz=408.0, cpu_clock_mhz=345.6)
HIGH = Knobs(clock_mhz=1300.5, memory_clock_mhz=1866.0, cpu_clock_mhz=2035.2)
NAMES = ("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz")


def changed(board=TX2, **sections):
    data = board.model_dump()
    for name, values in sections.items():
        data[name] |= values
    return SimulatedBoard.model_validate(data)


def step_s(board, work, knobs):
    return math.fsum(part.seconds for part in segments(work, board.chip("gpu"), knobs))


works = st.builds(
    make_work,
    gflop=st.floats(0.01, 100),
    gigabytes=st.floats(0.001, 20),
    kernels=st.integers(0, 3000),
    host_s=st.floats(0, 0.1),
)
boards = st.builds(
    lambda share, hidden, form: changed(memory={"clock_share": share, "clock_form": form}, host={"hidden": hidden}),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["sum", "slower"]),
)


def test_the_board_has_three_clocks():
    device = open_device("sim:jetson-tx2")
    assert [knob.name for knob in device.knobs] == list(NAMES)
    assert (device.safest, device.current()) == (LOW, HIGH)
    assert len(device.combinations()) == math.prod(len(knob.values) for knob in device.knobs)


@given(board=boards, work=works, data=st.data())
def test_no_clock_makes_a_step_slower(board, work, data):
    knobs = Knobs({knob.name: data.draw(st.sampled_from(knob.values)) for knob in board.chip("gpu").knobs})
    for knob in board.chip("gpu").knobs:
        raised = knobs.replace(**{knob.name: knob.values[-1]})
        assert step_s(board, work, raised) <= step_s(board, work, knobs) * (1 + 1e-12)


@given(board=boards, work=works, data=st.data())
def test_hiding_the_host_never_makes_a_step_longer_than_adding_it_nor_shorter_than_either(board, work, data):
    knobs = Knobs({knob.name: data.draw(st.sampled_from(knob.values)) for knob in board.chip("gpu").knobs})
    silent = changed(board, host={"s_per_operation": 0.0, "s_per_optimizer_operation": 0.0})
    busy_s = step_s(silent, work, knobs)
    hidden_s, shown_s, added_s = (step_s(changed(board, host={"hidden": h}), work, knobs) for h in (1.0, 0.5, 0.0))
    issue_s = added_s - busy_s
    own_s = busy_s - sum(phase.host_s for phase in work.phases) * TX2.host.clocks_mhz[-1] / knobs["cpu_clock_mhz"]
    assert hidden_s == pytest.approx(busy_s - own_s + max(own_s, issue_s), rel=1e-9, abs=1e-12)
    assert hidden_s <= shown_s + 1e-12 <= added_s + 2e-12


@given(board=boards, work=works)
def test_power_at_rest_rises_with_the_memory_clock_and_stays_finite(board, work):
    chip = board.chip("gpu")
    settings = [LOW.replace(memory_clock_mhz=mhz) for mhz in chip.memory_clocks_mhz]
    at_rest = [idle(chip, knobs).power_w(0.0, 25.0) for knobs in settings]
    assert at_rest == sorted(at_rest)
    for knobs in (LOW, HIGH):
        for part in segments(work, chip, knobs):
            assert 0 < part.power_w(0.0, 25.0) < 100


def test_at_a_low_gpu_clock_the_memory_clock_hardly_matters_and_at_the_highest_it_decides():
    work = make_work(gigabytes=10.0, gflop=1.0, kernels=0, host_s=0.0)
    at_low, at_high = (
        step_s(TX2, work, knobs.replace(memory_clock_mhz=408.0))
        / step_s(TX2, work, knobs.replace(memory_clock_mhz=1866.0))
        for knobs in (HIGH.replace(clock_mhz=114.75), HIGH)
    )
    assert at_low < 1.1
    assert at_high == pytest.approx(1866 / 408)


def test_the_step_of_a_host_that_cannot_keep_up_follows_the_cpu_clock():
    work = make_work(gigabytes=0.001, gflop=0.001, kernels=2000, host_s=0.01)
    slow = step_s(TX2, work, HIGH.replace(cpu_clock_mhz=345.6))
    assert slow / step_s(TX2, work, HIGH) == pytest.approx(2035.2 / 345.6, rel=0.01)


def full_load(knobs):
    """VGG19 inference as `benchmarks/tx2_calibration.py` fits it."""
    groups = ((15.0e9, 0.4e9), (0.0, 0.524e9))
    operations = tuple(Operation(kind="other", flops=f, bytes=b, kernels=0) for f, b in groups)
    work = StepWork(
        samples=1,
        micro_batch_size=1,
        data_type="fp32",
        phases=(PhaseWork(phase="forward", operations=operations),),
        peak_memory_bytes=1e8,
    )
    return exact(TX2, "gpu", work)[knobs].power_mean_w


def test_full_load_draws_what_was_recorded():
    # Source: github thynics/jetson_dvfs, VGG19 in TensorRT: mean VDD_IN at the lowest and the highest GPU clock
    low_w, high_w = (full_load(HIGH.replace(clock_mhz=mhz)) for mhz in (114.75, 1300.5))
    assert low_w == pytest.approx(5.25, rel=0.1)
    assert high_w == pytest.approx(15.98, rel=0.1)
    assert high_w / low_w == pytest.approx(3.0, abs=0.3)


@pytest.mark.parametrize(
    ("section", "values", "allowed"),
    [
        ("memory", {"clock_w": (0.0, 1.0)}, "one clock_w per clock"),
        ("memory", {"clock_w": (0.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0)}, "clock_w that does not fall"),
        ("memory", {"clocks_mhz": None}, "one clock_w per clock"),
        ("memory", {"clock_form": "both"}, "slower"),
        ("host", {"voltage_v": None}, "together"),
        ("host", {"voltage_v": (0.7,)}, "one voltage_v per clock"),
        ("host", {"clocks_mhz": None, "voltage_v": None}, "only beside"),
        ("host", {"hidden": 1.1}, "less than or equal to 1"),
    ],
)
def test_contradictions_are_refused(section, values, allowed):
    with pytest.raises(ValidationError, match=allowed):
        changed(**{section: values})


def test_a_cpu_that_trains_has_no_second_clock_of_its_own():
    nano = builtin_board("jetson-nano").model_dump()
    nano["cpu"]["host"] |= {"clocks_mhz": (100.0,), "voltage_v": (0.7,)}
    with pytest.raises(ValidationError, match="host without clocks_mhz"):
        SimulatedBoard.model_validate(nano)


def test_the_new_figures_are_part_of_the_digest():
    for changes in ({"memory": {"clock_form": "sum"}}, {"memory": {"clock_w": None}}, {"host": {"hidden": 0.5}}):
        assert changed(**changes).digest != TX2.digest


def test_heat_leaves_the_other_clocks_alone():
    hot = SimulatedDevice(changed(thermal={"throttle_c": 41.0}))
    run_steps(hot, make_work(gflop=5000.0, kernels=0))
    assert hot.effective_mhz < 1300.5
    assert hot.current() == HIGH
