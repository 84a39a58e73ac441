"""What a step takes on a simulated board, without a sensor."""

import pytest

from wattune.devices import SimulatedDevice, builtin_board
from wattune.devices.simulator.exact_steps import exact
from wattune.point import Knobs
from wattune.records import Operation, PhaseWork, StepWork

WORK = StepWork(
    samples=32,
    micro_batch_size=32,
    data_type="fp32",
    phases=(
        PhaseWork(phase="host", host_s=0.05),
        PhaseWork(phase="forward", operations=(Operation(kind="convolution", flops=20e9, bytes=1e9, kernels=60),)),
        PhaseWork(phase="optimizer", operations=(Operation(kind="optimizer", flops=1e6, bytes=8e8, kernels=100),)),
    ),
    peak_memory_bytes=1_000_000,
)


@pytest.mark.parametrize("clock", [76.8, 460.8, 921.6])
@pytest.mark.parametrize("window_s", [0.0, 0.1, 0.4, 3.0])
def test_exact_figures_are_those_of_the_simulated_board(clock, window_s):
    """Against the board itself, its sensor read without noise or steps over many trainings' worth of windows."""
    board = builtin_board("jetson-nano")
    sensor = {"resolution_w": 0.0, "noise_w": 0.0, "window_s": window_s, "period_s": 0.0137, "lag_s": 0.0}
    board = board.model_copy(update={"sensor": board.sensor.model_copy(update=sensor)})
    device = SimulatedDevice(board)
    knobs = Knobs(clock_mhz=clock)
    found = exact(board, "gpu", WORK)[knobs]
    readings = []
    with device.at(knobs):
        for step in range(60):
            begun_s = device.now_s()
            with device.every(0.0137, lambda: readings.append(device.power_w())), device.step(WORK):
                pass
            if step == 9:
                readings.clear()
        step_s = device.now_s() - begun_s
    assert found.step_s == pytest.approx(step_s)
    assert found.power_mean_w == pytest.approx(sum(readings) / len(readings), rel=0.01)
    assert max(readings) <= found.power_peak_w + 1e-9
    assert found.power_peak_w == pytest.approx(max(readings), rel=0.01)
