"""The work of a tick of the pipeline, and what the pipeline refuses to train."""

from __future__ import annotations

import pytest
import torch
from benchmarks.asyncfgd.memory_probe import measure
from tests.support.algorithm_examples import Example, vectors
from tests.support.pipeline_examples import layers, opened, trained
from torch import Tensor, nn

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward.forward_gradient import Estimate
from wattune.algorithms.forward.perturbed import Stage
from wattune.errors import InputError, WorkloadError

# --------------------------------------------------------------------------------------------- what it asks for


def wide(depth: int = 8, width: int = 64) -> Example:
    def build() -> nn.Module:
        inner = [part for _ in range(depth - 1) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(nn.Linear(12, width), *inner, nn.Linear(width, 4))

    return Example(build, vectors(), optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))


@pytest.mark.parametrize("perturb", ["weights", "activities"])
def test_memory_includes_the_old_parameters(perturb: str) -> None:
    """Of four modules 3 + 2 + 1 copies, beside what one batch takes in one thread without delays."""
    trainable = wide()
    delayed = opened(trainable, f"modules=4,perturb={perturb}", batch_size=256)
    copies = sum(stage.lag * sum(p.numel() * 4 for p in stage.trained) for stage in delayed.stages)
    peak = delayed.work().peak_memory_bytes
    delayed._estimate = Undelayed(perturb, ends=tuple(delayed.cuts))  # type: ignore[arg-type]
    assert copies > 4 * 64 * 64 * 4
    assert peak == delayed.work().peak_memory_bytes + copies


class Undelayed(Estimate):
    """The same modules without delays."""

    def stages(self, model: nn.Module, batch_size: int) -> list[Stage]:
        """Perturb the modules."""
        stages = super().stages(model, batch_size)
        for stage in stages:
            stage.lag = 0
        return stages


def test_a_tick_has_the_work_of_a_plain_step() -> None:
    plain = open_algorithm("forward-gradient", wide(), 256).work()
    assert opened(wide(), "modules=4", batch_size=256).work().flops == pytest.approx(plain.flops, rel=0.01)
    options = "modules=4,perturb=differences"
    tick, threads = (opened(wide(), options + more, batch_size=256).work() for more in ("", ",backend=threads"))
    assert tick.flops == threads.flops
    assert threads.peak_memory_bytes > 1.5 * tick.peak_memory_bytes


@pytest.mark.slow
def test_the_memory_of_threads_is_that_of_a_process() -> None:
    found = measure("async-fgd:modules=4,perturb=differences,backend=threads", "CNN, 64 layers", 64)
    # How far the modules' passes overlap depends on what else the machine does: 79 to 95 MB were seen.
    assert found["modelled_mb"] == pytest.approx(found["peak_mb"], rel=0.25)


# --------------------------------------------------------------------------------------------- what is refused


def test_a_model_that_cannot_be_cut_is_refused_in_one_line() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    trainable = Example(Whole, vectors())
    with pytest.raises(WorkloadError, match="a model that cannot be cut into parts: Whole") as found:
        opened(trainable, "modules=2")
    assert "\n" not in str(found.value)
    assert len(trained(trainable, "modules=1", 2)[1]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("modules=8", "number of modules: 8; allowed: 1 to 7"),
        ("modules=5,perturb=activities", "number of modules: 5; allowed: 1 to 4, the number of the model's blocks"),
        ("modules=0", "modules of the algorithm async-fgd: 0"),
        ("backend=processes", "allowed: sequential, threads"),
        ("modules=2,directions=4", "directions of async-fgd: 4; allowed: with perturb=activities"),
        ("backend=threads", "backend of async-fgd: threads; allowed: with perturb=differences"),
    ],
)
def test_invalid_options_are_refused(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        opened(layers(), options)


def test_micro_batches_are_refused() -> None:
    with pytest.raises(InputError, match="micro-batch size of async-fgd: 4; allowed: the batch size 8"):
        open_algorithm("async-fgd", layers(), 8, micro_batch_size=4)
