"""Points of the rules, trained one after the other on a live board through its agent."""

import signal

import pytest
from tests.support import live_board
from tests.support.agent_socket import serving
from tests.support.cli_records import SMALL
from tests.support.live_board import CLOCK

from wattune.records import (
    Comparison,
    EfficiencyPoint,
    ProfileCell,
    ProfileTable,
    SampleEfficiency,
    TrainingRecord,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_points_are_trained_in_turn_and_a_stopped_comparison_continues(tmp_path):
    points = (EfficiencyPoint(batch_size=8, relative_samples=0.5), EfficiencyPoint(batch_size=32, relative_samples=1.0))
    efficiency, output = tmp_path / "efficiency.json", tmp_path / "comparison.json"
    SampleEfficiency(workload="small", target=0.93, reference_batch_size=32, points=points).save(efficiency)
    profile, folder = tmp_path / "profile.json", tmp_path / "comparison-curves"
    socket = tmp_path / "agent.sock"
    with live_board.live(tmp_path / "board") as board, serving(board.root, socket):
        device = f"agent:{socket}?knobs=gpu"
        clocks_mhz = sorted(int(hz) / 1e6 for hz in (board.root / CLOCK / "available_frequencies").read_text().split())
        cells = tuple(
            ProfileCell(
                batch_size=size, clock_mhz=mhz, step_s=size / mhz, power_mean_w=power_w, power_peak_w=power_w, steps=5
            )
            for size in (8, 32)
            for mhz in clocks_mhz
            if (power_w := 5.0 + mhz / 500 + size / 100)
        )
        ProfileTable(device="bench", workload="small", cells=cells).save(profile)
        command = ["compare", profile, efficiency, "--device", device, SMALL, "--cap", "7W", "--seeds", "1"]
        with live_board.wattune(board, *command, "-o", output) as process:
            assert live_board.wait_for(lambda: list(folder.glob("*.json")), 400)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130
        first = {path: path.read_bytes() for path in folder.glob("*.json")}
        with live_board.wattune(board, *command, "-o", output, "--resume") as process:
            assert process.wait(timeout=500) == 0, process.communicate()[0]
        assert live_board.wait_for(board.is_as_found, 20), board.changes()
    assert all(path.read_bytes() == content for path, content in first.items())
    rows = {row.rule: row for row in Comparison.load(output).rows}
    trained = [TrainingRecord.load(path) for path in folder.glob("*.json")]
    assert rows["wattune"].time_s in [record.time_s for record in trained]
    assert {record.plan.point for record in trained} <= {row.point for row in rows.values()}
    assert "on a real board" in rows["fastest"].why_not
    assert not list(folder.glob("*.safetensors"))
