"""The queue of an inference service: what its metrics say, and connections that end."""

from __future__ import annotations

import queue
import socketserver
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.power import request_queue
from wattune.power.request_queue import GAUGES, MetricsQueue, count_of, queue_of

VLLM = """# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a b"} 1.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 5.0
vllm:kv_cache_usage_perc{model_name="a b"} 0.4
"""
TRITON = """nv_inference_count{model="x",version="1"} 91
nv_inference_pending_request_count{model="x",version="1"} 0
nv_inference_pending_request_count{model="y",version="1"} 3 1700000000000
"""


@pytest.mark.parametrize(
    ("text", "count"),
    [(VLLM, 3), (TRITON, 3), ("requests_waiting 2", 2), ("requests_waiting 0\nrequests_running 1\n", 1)],
)
def test_known_metrics(text, count):
    assert count_of(text) == count


@pytest.mark.parametrize(
    "text", ["", "up 1", "<html>", "requests_waiting", "# requests_waiting 2", "requests_waitings 2"]
)
def test_metrics_without_a_known_gauge(text):
    with pytest.raises(ValueError, match="no known gauge"):
        count_of(text)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "many"])
def test_values_that_are_no_number_of_requests(value):
    with pytest.raises(ValueError, match=value.strip("+")):
        count_of(f"requests_waiting {value}")


@given(
    st.lists(st.tuples(st.sampled_from(sorted(GAUGES)), st.integers(0, 1000)), min_size=1),
    st.text("ab\n#{} ", max_size=20),
)
def test_the_sum_of_all_gauges(gauges, other):
    text = "\n".join(f'{name}{{model="{index}"}} {value}' for index, (name, value) in enumerate(gauges))
    assert count_of(f"{other}\n{text}\n") == sum(value for _, value in gauges)


@pytest.fixture
def answering():
    """Start a server that gives these answers, byte by byte as they are, one connection each: returns its port."""
    servers = []

    def start(*answers):
        left = list(answers)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                while left and self.request.recv(65536):
                    answer = left.pop(0)
                    self.request.sendall(answer)
                    if b"keep-alive" not in answer:
                        return

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return server.server_address[1]

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(text, *, status="200 OK", headers=""):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{headers}\r\n{text}".encode()


def test_a_connection_that_the_service_closes_is_opened_again(answering):
    kept = answer("requests_waiting 1", headers="Connection: keep-alive\r\n")
    asked = queue_of(answering(kept, kept, answer("requests_waiting 2"), answer("requests_waiting 3")))
    assert [asked.waiting() for _ in range(4)] == [1, 1, 2, 3]
    assert asked.problem is None
    asked.close()


@pytest.mark.parametrize(
    "broken",
    [
        answer("requests_waiting 1", status="503 Busy"),
        answer("hello"),
        b"nonsense\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
    ],
)
def test_a_service_that_fails_is_asked_again_later(answering, broken, monkeypatch):
    asked = queue_of(answering(broken, answer("requests_waiting 4"), answer("requests_waiting 5")))
    assert asked.waiting() is None
    assert asked.problem is not None
    assert "\n" not in asked.problem
    assert asked.waiting() is None  # not asked yet
    monkeypatch.setattr(asked, "_due_s", 0.0)
    assert asked.waiting() == 4
    assert asked.problem is None
    asked.close()


def test_a_service_that_hangs(monkeypatch):
    monkeypatch.setattr(request_queue, "TIMEOUT_S", 0.05)
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as hanging:
        asked = MetricsQueue(f"http://127.0.0.1:{hanging.server_address[1]}/metrics")
        assert asked.waiting() is None
        assert "timed out" in asked.problem
        asked.close()


def test_queues_of_this_process():
    backlog = queue.Queue()
    backlog.put(1)

    class OnlyEmpty:
        def empty(self):
            return backlog.empty()

    assert [queue_of(one).waiting() for one in (backlog, OnlyEmpty(), lambda: 3)] == [1, 1, 3]
