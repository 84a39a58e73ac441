"""Training beside an inference service: requests go first between micro-batches, and the trajectory stays the same."""

from __future__ import annotations

import multiprocessing
import queue
import socket
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from tests.support import training_runs as made
from tests.support.real_time_device import RealTimeDevice

from wattune.algorithms import open_algorithm
from wattune.cap import PowerCap
from wattune.devices.simulator.requests import SimulatedRequests
from wattune.errors import InputError
from wattune.planning import plan
from wattune.power import beside as beside_module
from wattune.power.request_queue import CalledQueue, queue_of
from wattune.profiling import profile
from wattune.training import train

PLAN = made.plan(batch_size=32, micro_batch_size=8)


@pytest.fixture(scope="module")
def workload():
    return made.workload(target=None)


@pytest.fixture(scope="module")
def alone(workload):
    return train(made.nano(), workload, PLAN)


def requests_on(device, workload, rate_hz=10.0):
    return SimulatedRequests(
        device, open_algorithm("backprop", workload, 8).evaluation_work(4), rate_hz=rate_hz, seed=3
    )


def events(record):
    return [event.text for event in record.board_events if event.kind == "inference"]


def longest_part_s(device, workload):
    work = open_algorithm("backprop", workload, 32, micro_batch_size=8).work()
    return device.exact_steps(work)[device.knobs_from(PLAN.clock_mhz)].step_s / 4


def test_the_trajectory_is_that_of_training_alone(workload, alone):
    device = made.nano()
    requests = requests_on(device, workload)
    record = train(device, workload, PLAN, queue=requests)
    assert made.trajectory(record) == made.trajectory(alone)
    assert record.yields
    assert record.yields_cut_short == 0
    # Training itself takes as long as alone: the rest is the time of the requests.
    assert record.exact.time_s == pytest.approx(alone.exact.time_s + record.yielded_s, rel=0.01)
    assert alone.yields is None


def test_a_lone_request_waits_for_one_micro_batch_at_most(workload):
    device = made.nano()
    requests = requests_on(device, workload, rate_hz=2.0)
    train(device, workload, PLAN, queue=requests)
    work_s = device.exact_steps(requests._work)[device.knobs_from(PLAN.clock_mhz)].step_s
    within_s = longest_part_s(device, workload) + work_s
    assert len(requests.latencies_s) > 5
    assert requests.share_within(within_s) > 0.9  # a second request may wait for the first one as well
    assert requests.share_within(work_s) < 0.5


def test_without_micro_batches_a_request_waits_for_the_step(workload):
    device = made.nano()
    requests = requests_on(device, workload, rate_hz=5.0)
    train(device, workload, made.plan(batch_size=32), queue=requests)
    work_s = device.exact_steps(requests._work)[device.knobs_from(PLAN.clock_mhz)].step_s
    assert requests.share_within(longest_part_s(device, workload) + work_s) < 0.8


def test_resuming_beside_requests(workload, alone, tmp_path):
    class Stop(Exception):
        pass

    def stop(evaluation, readings):
        if evaluation.samples >= 1024:
            raise Stop

    device, path = made.nano(), tmp_path / "checkpoint"
    requests = requests_on(device, workload)
    with pytest.raises(Stop):
        train(device, workload, PLAN, queue=requests, checkpoint=path, on_evaluation=stop)
    device = made.nano()
    record = train(device, workload, PLAN, queue=requests_on(device, workload), checkpoint=path, resume=True)
    assert made.trajectory(record) == made.trajectory(alone)
    assert record.yielded_s > 0


def test_a_service_that_is_never_idle_does_not_stop_training(workload, alone, monkeypatch):
    monkeypatch.setattr(beside_module, "LONGEST_S", 0.05)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    record = train(made.nano(), workload, PLAN, queue=CalledQueue(lambda: 1))
    assert made.trajectory(record) == made.trajectory(alone)
    assert record.yields == record.yields_cut_short > 0
    assert events(record) == ["requests waited for longer than 0.05 s: one micro-batch runs after each such wait"]


class Service(BaseHTTPRequestHandler):
    """An inference service: POST runs a request, GET /metrics tells how many there are."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer
    lock = threading.Lock()
    present = 0
    answers: ClassVar[list[str]] = []  # in place of the metrics

    def do_POST(self):
        with Service.lock:
            Service.present += 1
        time.sleep(0.01)
        with Service.lock:
            Service.present -= 1
        self._answer("done")

    def do_GET(self):
        present = f"# TYPE requests_waiting gauge\nrequests_waiting {self.present}\n"
        self._answer(Service.answers.pop(0) if Service.answers else present)

    def _answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        pass


def serve(ports, metrics):
    """In another process."""
    Service.answers = metrics
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    ports.put(server.server_port)
    server.serve_forever()


@pytest.fixture
def service():
    """Start an inference service in a process of its own: returns its port, given answers in place of metrics."""
    processes = []

    def start(*metrics):
        context = multiprocessing.get_context("spawn")
        ports = context.Queue()
        process = context.Process(target=serve, args=(ports, list(metrics)), daemon=True)
        process.start()
        processes.append(process)
        return ports.get(timeout=60)

    yield start
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.slow
def test_the_time_of_requests_is_no_drift_from_the_plan():
    workload = made.workload(target=None, budget_samples=8192, evaluate_every=2048, micro_batch_sizes=(8,))
    table = profile(made.nano(), workload, reference=False)
    planned = plan(table, batch_size=32, cap=PowerCap.of(4.5))
    device = made.nano()
    # A tenth of the time, in a few long pieces: in between the sensor shows training alone.
    work = open_algorithm("backprop", workload, 8).evaluation_work(100)
    record = train(device, workload, planned, queue=SimulatedRequests(device, work, rate_hz=0.5, seed=3))
    assert record.yielded_s > 0.06 * record.time_s
    assert not record.replanned
    assert not [event for event in record.board_events if event.kind == "plan stale"]


@pytest.mark.slow
def test_beside_a_real_service(workload, service):
    port = service()
    is_over = threading.Event()
    answered = []

    def ask():
        while not is_over.is_set():
            begun_s = time.monotonic()
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b"x", timeout=10).read()
            answered.append(time.monotonic() - begun_s)
            time.sleep(0.01)

    client = threading.Thread(target=ask)
    client.start()
    try:
        plan = PLAN.model_copy(update={"clock_mhz": 200.0})
        record = train(RealTimeDevice(), workload, plan, queue=queue_of(port))
    finally:
        is_over.set()
        client.join()
    assert answered
    assert record.yields
    assert record.yielded_s > 0
    assert not events(record)
    assert made.trajectory(record) == made.trajectory(train(RealTimeDevice(), workload, plan))


@pytest.mark.slow
def test_a_service_that_talks_nonsense(workload, alone, service):
    record = train(made.nano(), workload, PLAN, queue=queue_of(service(*["requests_waiting many\n"] * 10**4)))
    assert made.trajectory(record) == made.trajectory(alone)
    assert len(events(record)) == 1
    assert "training does not wait for requests" in events(record)[0]
    assert record.yields == 0


def test_a_service_that_is_gone(workload, alone):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = []
    record = train(
        made.nano(), workload, PLAN, queue=queue_of(port), progress=lambda done, total, text: lines.append(text)
    )
    assert made.trajectory(record) == made.trajectory(alone)
    assert lines[0] == events(record)[0]
    assert len(events(record)) == 1
    assert f"127.0.0.1:{port}/metrics" in events(record)[0]


def test_a_service_that_returns(workload, monkeypatch):
    requests = CalledQueue(lambda: 0)
    looks = iter(range(10**6))

    def waiting():
        requests.problem = "no answer" if 10 <= next(looks) < 20 else None
        return None if requests.problem else 0

    monkeypatch.setattr(requests, "waiting", waiting)
    record = train(made.nano(), workload, PLAN, queue=requests)
    assert events(record) == ["training does not wait for requests: no answer", "the inference service answers again"]


def test_a_queue_of_this_process(workload):
    backlog = queue.Queue()
    for _ in range(3):
        backlog.put("request")

    class Draining:
        def qsize(self):
            size = backlog.qsize()
            if size:
                backlog.get()
            return size

    assert train(made.nano(), workload, PLAN, queue=queue_of(Draining())).yields == 1


@pytest.mark.parametrize(
    "bad", [0, 65536, -1, True, "8002x", "https://host/metrics", "http://", "http://a:b/", 1.5, None]
)
def test_a_queue_that_is_none(bad):
    with pytest.raises(InputError):
        queue_of(bad)
