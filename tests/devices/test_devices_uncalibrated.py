"""The boards that are known from data sheets alone: they say so everywhere, and keep within what the sheets allow."""

import re

import pytest

torch = pytest.importorskip("torch")

from tests.devices.test_devices_believable import work  # noqa: E402
from tests.support.device_examples import quiet  # noqa: E402

import wattune  # noqa: E402
from wattune.cli import main  # noqa: E402
from wattune.devices import SimulatedDevice, builtin_board, open_device  # noqa: E402
from wattune.devices.simulator.board_file import SimulatedBoard, board_names  # noqa: E402
from wattune.devices.simulator.exact_steps import exact  # noqa: E402
from wattune.records import EfficiencyPoint, SampleEfficiency  # noqa: E402
from wattune.reporting import summary  # noqa: E402
from wattune.workloads import Data, Workload  # noqa: E402

ORINS = ["jetson-orin-nano", "jetson-agx-orin"]
PARTLY = {"jetson-agx-orin": "partly calibrated"}
# Power of the module in watts: the least at rest in public logs, and the most of its power modes.
ENVELOPE_W = {"jetson-orin-nano": (4.2, 25.0), "jetson-agx-orin": (4.2, 60.0)}
SLOWER = {"jetson-orin-nano": "jetson-tx2-nx", "jetson-agx-orin": "jetson-orin-nano"}


def test_every_board_that_comes_along_says_whether_it_is_calibrated():
    assert {name: builtin_board(name).calibrated for name in board_names()} == {
        **dict.fromkeys(("jetson-nano", "jetson-tx2", "jetson-tx2-nx"), True),
        "jetson-orin-nano": False,
        "jetson-agx-orin": "energy over the GPU's clock",
    }


def test_a_file_that_says_nothing_of_it_is_not_called_uncalibrated():
    data = builtin_board("jetson-orin-nano").model_dump()
    del data["calibrated"]
    device = SimulatedDevice(SimulatedBoard.model_validate(data))
    assert "uncalibrated" not in device.mode
    assert device.problems == ()


@pytest.mark.parametrize("name", ORINS)
@pytest.mark.parametrize("processor", ["", ":cpu"])
def test_it_says_so_where_it_is_listed_and_opened(name, processor, capsys):
    device, label = open_device(f"sim:{name}{processor}"), PARTLY.get(name + processor, "uncalibrated")
    assert label in device.mode
    assert label in device.problems[0]
    assert main(["devices"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert re.search(rf"sim:{name}{processor}: [^;]+; \S+, {label}", listed)


@pytest.mark.parametrize("name", ORINS)
def test_it_says_so_in_the_profile_the_plan_and_what_is_shown_of_them(name):
    data = torch.zeros(64, 1, 8, 8), torch.zeros(64, dtype=torch.long)
    workload = Workload(
        "tiny",
        model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4)),
        data=Data(data, data),
        budget_samples=64,
        batch_sizes=(16, 32),
    )
    table, label = wattune.profile(f"sim:{name}", workload, reference=False), PARTLY.get(name, "uncalibrated")
    assert label in table.key.mode
    points = [EfficiencyPoint(batch_size=size, relative_samples=1.0) for size in (16, 32)]
    curve = SampleEfficiency(workload="tiny", reference_batch_size=32, points=tuple(points))
    plan = wattune.plan(table, curve, cap_w=None)
    assert label in summary(plan).lower()
    assert label in " ".join(plan.notes)


@pytest.mark.parametrize("name", ORINS)
def test_no_step_is_faster_than_the_data_sheet_allows(name):
    board = builtin_board(name)
    for batch_size in (8, 32, 128):
        step = work(32, batch_size)
        found = exact(board, "gpu", step)
        for knobs, one in found.items():
            peak = board.gpu.peak_gflops["fp32"] * 1e9 * knobs["clock_mhz"] / board.gpu.clocks_mhz[-1]
            assert one.step_s > step.flops / peak
            assert one.step_s > sum(phase.bytes for phase in step.phases) / (board.memory.bandwidth_gbps * 1e9)
        assert [one.step_s for one in found.values()] == sorted((one.step_s for one in found.values()), reverse=True)
        slower = exact(builtin_board(SLOWER[name]), "gpu", step)
        assert found[max(found)].step_s < slower[max(slower)].step_s


@pytest.mark.parametrize("name", ORINS)
def test_power_stays_within_the_module(name):
    board = builtin_board(name)
    low_w, high_w = ENVELOPE_W[name]
    for batch_size in (8, 128):
        watts = [one.power_mean_w for one in exact(board, "gpu", work(32, batch_size)).values()]
        assert watts == sorted(watts)
        assert low_w < watts[0]
        assert watts[-1] < high_w
    for processor in ("gpu", "cpu"):
        device = SimulatedDevice(quiet(board), processor)
        with device.at(device.combinations()[0]):
            device.wait(1.0)
            assert low_w < device.power_w() < 11.0
