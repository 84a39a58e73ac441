"""A session beside an inference service: requests go first, and micro-batches are as short as they have to be."""

from __future__ import annotations

import queue
import threading

import pytest
import torch
from tests.support.real_time_device import RealTimeDevice
from tests.support.sessions import (
    Numbered,
    board,
    convolutional,
    distance,
    loss_of,
    perceptron,
    pictures,
    plain,
)
from torch.utils.data import DataLoader

from wattune.devices.simulator.requests import SimulatedRequests
from wattune.errors import InputError
from wattune.online import capped
from wattune.records import Operation, PhaseWork, StepWork

ADAM = {"lr": 1e-2}

REQUEST = StepWork(
    samples=1,
    micro_batch_size=1,
    data_type="fp32",
    phases=(PhaseWork(phase="forward", operations=(Operation(kind="matmul", flops=1e8, bytes=1e6, kernels=20),)),),
    peak_memory_bytes=1e6,
)


def loader_of(data=None):
    return DataLoader(data or Numbered(), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))


def trained(passes, *, rate_hz=5.0, model=None, data=None, within_s=None, device=None, requests=None, **options):
    model, device = model or perceptron(), device or board()
    requests = requests or SimulatedRequests(device, REQUEST, rate_hz=rate_hz)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    sizes = []
    with capped(
        device=device, cap_w=4.5, model=model, optimizer=optimizer, loader=loader_of(data), keep_recipe=True, **options
    ) as session:
        session.yield_to(requests, within_s=within_s)
        for _ in range(passes):
            for batch in session.batches():
                sizes.append(batch.samples)
                session.backward(loss_of(model, batch))
    return model, session, requests, sizes


def test_the_trajectory_is_that_of_the_plain_loop():
    mine, session, requests, _ = trained(4, rate_hz=20.0)
    other = perceptron()
    plain(other, torch.optim.Adam(other.parameters(), **ADAM), loader_of(), 4)
    assert distance(mine, other) < 1e-5
    assert requests.latencies_s
    assert session.record.yields
    assert session.record.yielded_s > 0
    assert session.record.yields_cut_short == 0


@pytest.mark.slow
def test_micro_batches_are_made_short_enough():
    _, session, requests, sizes = trained(20, model=convolutional(), data=pictures(512), within_s=0.008)
    assert sizes[0] == 32
    assert 1 < sizes[-1] < 32
    assert any("micro-batches had at most" in note for note in session.record.notes)
    assert "micro-batches had at most" in session.explain()
    service_s = min(requests.latencies_s)
    _, _, longer, _ = trained(20, model=convolutional(), data=pictures(512))
    assert requests.share_within(0.008 + service_s) > 0.9 > longer.share_within(0.008 + service_s)


@pytest.mark.slow
def test_points_are_measured_between_requests():
    _, session, _, _ = trained(40, rate_hz=30.0, model=convolutional(), data=pictures(512))
    alone = board()
    model = convolutional()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    with capped(
        device=alone, cap_w=4.5, model=model, optimizer=optimizer, loader=loader_of(pictures(512)), keep_recipe=True
    ) as other:
        for _ in range(40):
            for batch in other.batches():
                other.backward(loss_of(model, batch))
    cells = {cell.point: cell.step_s for cell in session.record.table.cells}
    shared = [cell for cell in other.record.table.cells if cell.point in cells]
    assert shared
    for cell in shared:  # the time of the requests is not that of the steps
        assert cells[cell.point] == pytest.approx(cell.step_s, rel=0.05)


def test_a_queue_that_another_thread_empties():
    backlog = queue.Queue()
    is_over = threading.Event()

    def serve():
        while not is_over.wait(0.005):
            while not backlog.empty():
                backlog.get()

    device = RealTimeDevice()
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    server = threading.Thread(target=serve)
    server.start()
    try:
        with capped(
            device=device, cap_w=4.5, model=model, optimizer=optimizer, loader=loader_of(), micro_batch_size=8
        ) as session:
            session.yield_to(backlog)
            for index, batch in enumerate(session.batches()):
                assert backlog.empty()  # since the next micro-batch has begun
                if index % 4 == 1:
                    backlog.put("request")
                session.backward(loss_of(model, batch))
            session.make_room()
    finally:
        is_over.set()
        server.join()
    assert session.record.yields > 0


@pytest.mark.parametrize("within_s", [0, -0.1, float("nan"), "20ms", True])
def test_times_that_are_none(within_s):
    with pytest.raises(InputError, match="within_s"):
        trained(1, within_s=within_s)


@pytest.mark.parametrize("requests", ["service", 70000, object()])
def test_queues_that_are_none(requests):
    with pytest.raises(InputError, match="queue"):
        trained(1, requests=requests)


def test_a_loop_that_steps_itself_has_no_time_for_its_micro_batches():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    with capped(device=board(), cap_w=4.5, model=model, optimizer=optimizer, batch_size=32) as session:
        session.yield_to(lambda: 0)
        with pytest.raises(InputError, match="within_s"):
            session.yield_to(lambda: 0, within_s=0.01)
