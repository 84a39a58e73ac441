"""Workers on a Ray cluster: the same curves, even if a process of the cluster is killed."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from tests.proxy.test_proxy_ray import training
from tests.server.conftest import opened
from tests.server.test_server_chaos import SECOND_LONG, outcome, status_of, submitted
from tests.server.test_server_ingest import HEAD, arrays, written
from tests.support.server.served import model, request
from tests.support.server.serving import serving, wait_for

from wattune.server.ingest import add_model, read_model
from wattune.server.jobs.worker import Worker


@pytest.mark.slow
def test_cluster_sweep_equals_local_sweep(tmp_path):
    folder, asked = tmp_path / "store", request(seeds=3, batch_sizes=[16, 64])
    with opened(folder) as store:
        job_id = submitted(store, asked, **SECOND_LONG)
        with serving(folder, "--executor", "ray", "--workers", "2") as server:

            def two():
                found = training(server.process.pid)
                return len(found) == 2 and found

            at_once = wait_for(two, 120)
            os.kill(at_once[0], signal.SIGKILL)
            wait_for(lambda: status_of(store, job_id).ended, 200)
            assert status_of(store, job_id).state == "done", status_of(store, job_id).reason
            found = outcome(store, job_id)
            # Ray did the run again, and the queue did not even hear of it.
            assert {run.attempts for run in status_of(store, job_id).runs} == {1}
            # One that is cancelled leaves the cluster.
            long = model(**{**SECOND_LONG, "target": 0.9999, "budget_samples": 10**7}).dump()
            assert httpx.put(server.url + "/v1/models/digits", json=long, timeout=20).status_code == 200
            again = httpx.post(server.url + "/v1/jobs", json=asked.model_dump(mode="json"), timeout=20).json()["job"]
            wait_for(two)
            assert httpx.post(f"{server.url}/v1/jobs/{again}/cancel", timeout=20).json()["state"] == "cancelled"
            wait_for(lambda: not training(server.process.pid), 30)
            assert server.end() == 0
    with opened(tmp_path / "alone") as store:
        assert submitted(store, asked, **SECOND_LONG) == job_id
        worker = Worker("w1", store.database, store.settings.store)
        while worker.step():
            pass
        assert outcome(store, job_id) == found


@pytest.mark.slow
def test_weights_and_data_are_sent_to_the_cluster(tmp_path):
    """The store's files are not where a task looks for them: it gets them with the task."""
    from safetensors.torch import save_file

    from wattune.workloads.models import small_cnn

    save_file(small_cnn(classes=5, channels=1, width=4).state_dict(), tmp_path / "w.safetensors")
    folder = tmp_path / "store"
    with opened(folder) as store:
        arrays(tmp_path / "proxy.npz")
        proxy = 'target = 0.1\ndata = { source = "npz", train = "proxy.npz" }\n'
        path = written(tmp_path, proxy, HEAD + 'weights = "w.safetensors"\nreinitialise = ["fc"]\n')
        add_model(read_model(path), store.database, store.files)
        with serving(folder, "--executor", "ray") as server:
            body = request("mine", seeds=1).model_dump(mode="json")
            job_id = httpx.post(server.url + "/v1/jobs", json=body, timeout=20).json()["job"]
            wait_for(lambda: status_of(store, job_id).ended, 120)
            assert status_of(store, job_id).state == "done", status_of(store, job_id).reason
