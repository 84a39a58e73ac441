"""Other work on the board goes first: a session waits before a step, and points are measured as without waits."""

from __future__ import annotations

import queue
import threading

import pytest
import torch
from tests.support import sessions
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import Numbered, board, convolutional, distance, perceptron, pictures, plain
from torch.utils.data import DataLoader


def trained(passes, model, data=None, **options):
    options |= {"optimizer": torch.optim.Adam(model.parameters(), lr=1e-2), "loader": loader_of(data or Numbered())}
    return sessions.trained(model, passes=passes, keep_recipe=True, **options).record


def loader_of(data):
    return DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))


def test_the_trajectory_is_that_of_the_plain_loop():
    device, mine, other = board(), perceptron(), perceptron()
    record = trained(4, mine, device=device, yield_to=lambda: device.now_s() % 0.5 < 0.1)
    plain(other, torch.optim.Adam(other.parameters(), lr=1e-2), loader_of(Numbered()), 4)
    assert distance(mine, other) < 1e-5
    assert record.paused_s > 0


@pytest.mark.slow
def test_points_are_measured_without_the_waits():
    device, data = board(), pictures(512)
    record = trained(40, convolutional(), data, device=device, yield_to=lambda: device.now_s() % 5.0 < 0.5)
    alone = trained(40, convolutional(), data, device=board())
    cells = {cell.point: cell.step_s for cell in record.table.cells}
    shared = [cell for cell in alone.table.cells if cell.point in cells]
    assert shared
    for cell in shared:
        assert cells[cell.point] == pytest.approx(cell.step_s, rel=0.05)
    assert record.paused_s > 0.05 * record.time_s
    assert alone.paused_s is None


def test_a_queue_that_another_thread_empties():
    backlog, is_over = queue.Queue(), threading.Event()
    backlog.put("a request")

    def serve():
        while not is_over.wait(0.02):
            while not backlog.empty():
                backlog.get()

    server = threading.Thread(target=serve)
    server.start()
    try:
        record = trained(1, perceptron(), device=RealTimeDevice(), yield_to=lambda: backlog.qsize() > 0)
    finally:
        is_over.set()
        server.join()
    assert record.paused_s > 0
    assert record.samples == len(Numbered())
