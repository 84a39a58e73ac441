"""The commands beside an inference service: plan, train and run, and what they refuse."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SMALL = Path(__file__).with_name("small.toml")
DEVICE = ("--device", "sim:jetson-nano")


class Metrics(BaseHTTPRequestHandler):
    """Metrics of a service with a request at every seventh look."""

    looks = 0

    def do_GET(self):
        Metrics.looks += 1
        self.send_response(200)
        self.end_headers()
        waiting, running = Metrics.looks % 7 == 0, 0
        self.wfile.write(
            f'vllm:num_requests_waiting{{model_name="m"}} {waiting:.1f}\n'
            f'vllm:num_requests_running{{model_name="m"}} {running:.1f}\nother_total 3\n'.encode()
        )

    def log_message(self, *arguments):
        pass


@pytest.fixture
def port():
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_run_beside_a_service(wattune, tmp_path, port):
    folder = tmp_path / "run"
    bound = ("--latency", "60ms", "--service-time", "5ms")
    code, out, err = wattune("run", SMALL, *DEVICE, "--cap", "5W", "--beside", port, *bound, "--seeds", 1, "-o", folder)
    assert code in (0, 3), err
    plan, training = (json.loads((folder / f"{name}.json").read_text()) for name in ("plan", "training"))
    assert plan["latency"] == {"within_s": 0.06, "service_s": 0.005}
    assert plan["micro_batch_s"] <= 0.055
    assert any(candidate["micro_batch_size"] for candidate in plan["candidates"])
    assert training["yields"] > 0
    assert training["yielded_s"] > 0
    assert "Beside an inference service: a micro-batch takes" in out
    assert "Beside an inference service" in (folder / "report.html").read_text()
    again_code, _, again_err = wattune("run", "-o", folder, "--resume")
    assert again_code == code, again_err
    records = (folder / "profile.json", folder / "efficiency.json")
    planned_code, planned, _ = wattune("plan", *records, "--cap", "5W", *bound, "--json")
    assert planned_code == 0
    assert json.loads(planned)["micro_batch_s"] == plan["micro_batch_s"]
    refused_code, _, refused_err = wattune("plan", *records, "--cap", "5W", "--latency", "100us")
    assert refused_code == 2
    assert "no measured micro-batch under the cap fits the latency bound: 0.1 ms; allowed: at least" in refused_err[-1]
    alone = tmp_path / "alone.json"
    alone_code, _, alone_err = wattune("train", folder / "plan.json", SMALL, *DEVICE, "-o", alone)
    assert alone_code == code, alone_err
    metrics = [
        [entry["metric"] for entry in json.loads(path.read_text())["evaluations"]]
        for path in (alone, folder / "training.json")
    ]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--latency", "50ms"), "--latency needs --beside: 50ms"),
        (("--beside", "8002", "--latency", "-50ms"), "--latency: -50ms; allowed: a time above zero"),
        (("--beside", "8002", "--latency", "50"), "--latency: 50; allowed: a time above zero"),
        (("--beside", "8002", "--service-time", "5ms"), "--service-time: 5ms; allowed: with --latency"),
        (("--beside", "8002", "--latency", "50ms", "--service-time", "60ms"), "longer than the latency bound: 60 ms"),
        (("--beside", "eighty"), "--beside: eighty; allowed: a port from 1 to 65535"),
        (("--beside", "0"), "--beside: 0; allowed: a port from 1 to 65535"),
        (("--beside", "https://host/metrics"), "https://host/metrics; allowed: http://HOST:PORT/metrics"),
        (("--beside", "8002", "--server", "http://x", "--model", "m", "--data", "d"), "--beside and --server"),
    ],
)
def test_what_a_run_refuses(wattune, tmp_path, arguments, message):
    workload = () if "--server" in arguments else (SMALL,)
    code, _, err = wattune("run", *workload, *DEVICE, "--cap", "5W", *arguments, "-o", tmp_path / "run")
    assert code == 2
    assert message in err[-1]
    assert not (tmp_path / "run").exists()


def test_a_cap_that_changes_and_a_latency_bound(wattune, tmp_path):
    caps = tmp_path / "caps.csv"
    caps.write_text("seconds,watts\n0,5\n")
    arguments = ("--cap", caps, "--beside", 8002, "--latency", "50ms")
    code, _, err = wattune("run", SMALL, *DEVICE, *arguments, "-o", tmp_path / "run")
    assert code == 2
    assert "a latency bound" in err[-1]
