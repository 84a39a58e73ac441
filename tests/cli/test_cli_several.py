"""Several clocks of a live Jetson by the command line, through its agent."""

import pytest
from tests.support import live_board
from tests.support.agent_socket import serving
from tests.support.cli_records import SMALL

from wattune.records import ProfileTable


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], {"clock_mhz", "memory_clock_mhz", "cpu_clock_mhz"}),
        (["--set", "knobs=gpu,memory"], {"clock_mhz", "memory_clock_mhz"}),
    ],
)
def test_a_guided_profile_sets_the_clocks_and_restores_them(words, names, tmp_path):
    output = tmp_path / "profile.json"
    socket = tmp_path / "agent.sock"
    with live_board.live(tmp_path / "board") as board, serving(board.root, socket):
        command = ["profile", SMALL, "--device", f"agent:{socket}", "--cap", "7W", "--steps", "3", *words]
        with live_board.wattune(board, *command, "-o", output) as process:
            said = process.communicate(timeout=500)[0]
        assert process.returncode == 0, said
        assert live_board.wait_for(board.is_as_found, 20), board.changes()
    table = ProfileTable.load(output)
    assert table.strategy == "guided"  # the default for several clocks
    assert {frozenset(cell.knobs) for cell in table.cells} == {frozenset(names)}


def test_knobs_of_a_device_without_a_choice_are_refused(wattune):
    code, _, said = wattune("profile", "--device", "sim:jetson-nano", "--set", "knobs=gpu")
    assert code == 2
    assert any("knobs with this device" in line for line in said)
