"""Runs of a server's sweeps on a Ray cluster: the model and its files travel with them, nodes need wattune alone."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.efficiency import Run
from wattune.efficiency.cluster import RETRIES, connected, outcome
from wattune.records import LearningCurve
from wattune.records.served import ServedModel
from wattune.server.jobs.sweep import Seen, Sweep, Train, served_proxy

LOOK_EVERY_S = 1.0
"""How often it is seen whether a run is still wanted."""

MODELS = 4
"""Of how many models the files are kept in the cluster's memory."""


@contextmanager
def on_cluster(executor: str) -> Iterator[Train]:
    """How a run is trained on the cluster. Raises: InputError where there is none."""
    with connected(executor) as ray:
        remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_train)
        sent: dict[tuple[str, ...], Any] = {}
        sending = threading.Lock()

        def files(sweep: Sweep) -> Any:
            names = sweep.model.files
            with sending:
                if names not in sent:
                    while len(sent) >= MODELS:
                        del sent[next(iter(sent))]
                    sent[names] = ray.put({name: sweep.files.read(name) for name in names})
                return sent[names]

        def train(sweep: Sweep, run: Run, seen: Seen) -> LearningCurve:
            model = sweep.model.dump()
            task = remote.remote(model, files(sweep), sweep.workload.target, replace(run, folder=None))
            try:
                while not ray.wait([task], timeout=LOOK_EVERY_S)[0]:
                    seen(None)
            except BaseException:
                ray.cancel(task, force=True)
                raise
            curve: LearningCurve = outcome(ray, task)
            return curve

        yield train


def _train(model: dict[str, Any], files: dict[str, bytes], target: float | None, run: Run) -> LearningCurve:
    """On a node: the files are written where they can be read, and are gone at the end."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="wattune-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        served = ServedModel.parse(model, source="the model of a sweep")
        return run.train(served_proxy(served, Path(folder).joinpath, target))
