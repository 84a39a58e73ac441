"""A cap that changes on a board that an agent holds: the agent is told each cap, and the clock follows."""

from __future__ import annotations

import json

import pytest
import torch
from tests.support.agent_socket import serving
from tests.support.cli_boards import limits
from tests.support.live_board import live

from wattune.cap_source import CapTrace
from wattune.loop.capped import capped

pytestmark = pytest.mark.slow


@pytest.fixture
def socket(tmp_path):
    root = tmp_path / "board"
    with live(root, throttled=False), serving(root, tmp_path / "agent.sock") as agent:
        before = limits(root)
        yield agent.socket
        assert limits(root) == before


def test_a_program_over_an_agent(wattune, tmp_path, socket):
    caps, report = tmp_path / "caps.csv", tmp_path / "report.json"
    caps.write_text("seconds,watts\n0,50\n3,40\n4,0\n6,40\n")
    script = "sleep 7"
    code, _, err = wattune(
        "guard", "--device", f"agent:{socket}", "--cap", caps, "-o", report, "--", "sh", "-c", script
    )
    assert code == 0, err
    record = json.loads(report.read_text())
    asked = [one["asked_w"] for one in record["cap_intervals"]]
    assert list(dict.fromkeys(asked)) == [50.0, 40.0, 0.0]
    assert asked[-1] == 40.0
    assert record["paused_s"] > 1.5
    assert record["above_cap_s"] == 0


def test_a_session_over_an_agent(socket):
    """The board idles: what is trained on is this computer."""
    model = torch.nn.Linear(8, 2)
    caps = CapTrace(times_s=(0.0, 4.0, 5.5), caps_w=(50.0, 0.0, 40.0))
    with capped(
        device=f"agent:{socket}?knobs=gpu",
        cap_w=caps,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=4,
    ) as session:
        device, steps_s = session.run.device, []
        while not steps_s or steps_s[-1] < 7.0:
            session.begin_step()
            steps_s.append(session.run.capped.meter.elapsed_s)
            device.wait(0.02)
            session.end_step()
    record = session.record
    assert not [at_s for at_s in steps_s if 4.0 < at_s < 5.4]
    assert [at_s for at_s in steps_s if at_s > 5.5]
    assert list(dict.fromkeys(one.asked_w for one in record.cap_intervals)) == [50.0, 0.0, 40.0]
    assert record.paused_s > 1.4
    assert record.above_cap_s == 0
    assert record.ended == "finished"
