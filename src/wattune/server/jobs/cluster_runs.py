"""Proxy runs on a Ray cluster: the model and its files are sent along, so nodes only need wattune installed."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.proxy import ProxyRun
from wattune.proxy.ray_cluster import RETRIES, connected, outcome
from wattune.records import LearningCurve
from wattune.records.served import ServedModel
from wattune.server.jobs.sweep_unit import OnEvaluation, Sweep, Train, served_proxy

POLL_S = 1.0
"""Interval in seconds between checks for a cancelled run."""

MODELS = 4
"""Maximum number of models whose files stay in the cluster's object store."""


@contextmanager
def on_cluster(executor: str) -> Iterator[Train]:
    """Connect to the cluster; yield a function that trains a run on it. Raises: InputError if there is no cluster."""
    with connected(executor) as ray:
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
        references: dict[tuple[str, ...], Any] = {}
        lock = threading.Lock()

        def files(sweep: Sweep) -> Any:
            names = sweep.model.files
            with lock:
                if names not in references:
                    while len(references) >= MODELS:
                        del references[next(iter(references))]
                    references[names] = ray.put({name: sweep.files.read(name) for name in names})
                return references[names]

        def train(sweep: Sweep, run: ProxyRun, on_evaluation: OnEvaluation) -> LearningCurve:
            model = sweep.model.dump()
            task = remote.remote(model, files(sweep), sweep.workload.target, replace(run, folder=None))
            try:
                while not ray.wait([task], timeout=POLL_S)[0]:
                    on_evaluation(None)
            except BaseException:
                ray.cancel(task, force=True)
                raise
            curve: LearningCurve = outcome(ray, task)
            return curve

        yield train


def _train(model: dict[str, Any], files: dict[str, bytes], target: float | None, run: ProxyRun) -> LearningCurve:
    """Train a run on a node, with the files in a temporary folder."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="wattune-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        served_model = ServedModel.parse(model, source="the model of a sweep")
        return run.train(served_proxy(served_model, Path(folder).joinpath, target))
