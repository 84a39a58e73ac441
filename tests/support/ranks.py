"""Data-parallel jobs of real processes over gloo, each rank a function of a test."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

WITHIN_S = 120.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["torch.distributed", "wattune.loop.capped", "wattune.integrations.lightning", "wattune.integrations.transformers"]
)


class Ended(NamedTuple):
    """A rank's end: what its function returned, the text of its error, what it printed to stderr, and its exit code."""

    value: Any
    error: str | None
    kind: str | None
    stderr: str
    code: int | None


class Job:
    """The processes of one job, started at once. ``function`` is called as ``function(rank, *arguments)``."""

    def __init__(self, function: Callable[..., Any], ranks: int, *arguments: Any, init: bool = True):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(ranks):
            mine, theirs = _context.Pipe(duplex=False)
            environment = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            process = _context.Process(target=_rank, args=(function, arguments, environment, init, theirs))
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self.processes.append(process)

    def ended(self, within_s: float = WITHIN_S) -> list[Ended]:
        """Wait for all ranks; those that do not end are killed, with the exit code None."""
        ends = []
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            value, error, kind, stderr = None, f"it did not end within {within_s:g} s", None, ""
            if pipe.poll(within_s):
                try:
                    value, error, kind, stderr = pipe.recv()
                except EOFError:
                    error = "it ended without a word"
            process.join(within_s)
            code = process.exitcode
            if process.is_alive():
                process.kill()
                process.join()
            ends.append(Ended(value, error, kind, stderr, code))
        return ends


def job(function: Callable[..., Any], ranks: int, *arguments: Any, init: bool = True) -> list[Ended]:
    """Run a job to its end."""
    return Job(function, ranks, *arguments, init=init).ended()


def values(ends: list[Ended]) -> list[Any]:
    """What the ranks returned, none of which may have failed."""
    assert [end.error for end in ends] == [None] * len(ends), "\n".join(str(end.error) for end in ends)
    return [end.value for end in ends]


def refusal(ends: list[Ended]) -> str:
    """The one line of a job that was refused, which rank 0 alone says; every rank ends with exit code 2."""
    assert [end.code for end in ends] == [2] * len(ends), [end.error for end in ends]
    lines = [line for end in ends for line in end.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert lines[0] in ends[0].stderr
    assert not any("Traceback" in end.stderr for end in ends)
    return lines[0]


def small(rank: int, **options: Any) -> tuple[Any, Any]:
    """A model whose steps take next to nothing, and its session, which keeps the recipe."""
    import torch
    from tests.support.sessions import perceptron
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import wattune

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 8), torch.randint(0, 2, (512,)))
    model = DistributedDataParallel(perceptron())
    usual: dict[str, Any] = {"device": "sim:jetson-nano", "cap_w": 5.0, "keep_recipe": True}
    if "batch_size" not in options:
        usual["loader"] = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, seed=1))
    usual["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, wattune.capped(model=model, **{**usual, **options})


def weights(model: Any) -> list[float]:
    """Every parameter in one row, which can be sent to another process."""
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


def apart(one: list[float], other: list[float]) -> float:
    """The largest difference of two models' weights."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _rank(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    init: bool,
    pipe: Connection,
) -> None:
    import tempfile
    import warnings

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    os.environ.update(environment)
    with tempfile.TemporaryFile() as stderr:
        os.dup2(stderr.fileno(), 2)
        value, error, kind = None, None, None
        try:
            if init:
                dist.init_process_group("gloo")
            value = function(int(environment["RANK"]), *arguments)
        except BaseException as caught:
            error, kind = "".join(traceback.format_exception(caught)), type(caught).__name__
            raise
        finally:
            stderr.flush()
            stderr.seek(0)
            pipe.send((value, error, kind, stderr.read().decode()))
            pipe.close()
            if init and error is None:
                dist.destroy_process_group()
