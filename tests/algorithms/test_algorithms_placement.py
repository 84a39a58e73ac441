"""Processors of training, and recognition of out-of-memory errors."""

from __future__ import annotations

import gc
import weakref
from itertools import islice

import pytest
import torch
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import noisy_points, points

from wattune.algorithms import memory_errors, open_algorithm, place, release
from wattune.algorithms.algorithm import part
from wattune.algorithms.backprop import Backprop
from wattune.errors import DeviceError, InputError, OutOfDeviceMemory

# As libraries and drivers put it; the last two are what a Jetson answers.
SHORTAGES = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 3.86 GiB total capacity)"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError(),
    RuntimeError("NvMapMemAllocInternalTagged: 1075072515 error 12"),
    RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp":1016'),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: str(error)[:24])
def test_every_out_of_memory_error_is_recognised(error):
    with pytest.raises(OutOfDeviceMemory, match=r"^a step does not fit in memory: ") as caught, memory_errors("a step"):
        raise error
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), DeviceError("x")])
def test_other_errors_pass_through(error):
    with pytest.raises(type(error)) as caught, memory_errors("a step"):
        raise error
    assert caught.value is error


def test_an_out_of_memory_error_names_the_step():
    trainable = points()
    algorithm = open_algorithm("backprop", trainable, 8, micro_batch_size=4)

    def full(output, target):
        raise SHORTAGES[-1]

    trainable.loss = full
    with pytest.raises(OutOfDeviceMemory, match="a step with micro-batches of 4 does not fit"):
        next(algorithm.run(trainable.batches(8)))


def test_without_a_gpu_everything_is_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert place("cpu") == place("gpu") == torch.device("cpu")
    one, other = (open_algorithm("backprop", points(), 8, on=on) for on in ("cpu", "gpu"))
    for algorithm in (one, other):
        list(algorithm.run(islice(points().batches(8), 3)))
    assert_same(one.state_dict(), other.state_dict())


def test_the_model_goes_to_the_given_device():
    # "meta" computes nothing, and shows that model, optimizer and batches all went there.
    algorithm = Backprop(points(), 8, on=torch.device("meta"))
    assert {p.device.type for p in algorithm.module.parameters()} == {"meta"}
    assert {p.device.type for group in algorithm._optimizer.param_groups for p in group["params"]} == {"meta"}
    x, y = part(next(points().batches(8)), 0, 4, algorithm._device)
    assert (x.device.type, y.device.type, len(x)) == ("meta", "meta", 4)


def test_a_state_of_another_processor_is_refused():
    algorithm = open_algorithm("backprop", points(), 8)
    state = algorithm.state_dict()
    state["random"] = [*state["random"], torch.zeros(16, dtype=torch.uint8)]
    with pytest.raises(InputError, match="another processor"):
        algorithm.load_state_dict(state)


def test_unreferenced_memory_is_released():
    class Ring:
        pass

    ring = Ring()
    ring.itself = ring
    gone = weakref.ref(ring)
    gc.disable()
    try:
        del ring
        assert gone() is not None
        release()
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.hardware
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_on_a_real_gpu_it_learns_as_on_the_cpu_and_resumes():
    trainable = noisy_points()
    whole = open_algorithm("backprop", trainable, 16, on="gpu")
    steps = list(whole.run(islice(trainable.batches(16), 20)))
    plain = list(open_algorithm("backprop", points(), 16).run(islice(points().batches(16), 5)))
    there = list(open_algorithm("backprop", points(), 16, on="gpu").run(islice(points().batches(16), 5)))
    assert [s.loss for s in there] == pytest.approx([s.loss for s in plain], rel=1e-3)
    assert steps[-1].loss < steps[0].loss
    begun = open_algorithm("backprop", trainable, 16, on="gpu")
    list(begun.run(islice(trainable.batches(16), 10)))
    resumed = open_algorithm("backprop", trainable, 16, on="gpu")
    resumed.load_state_dict(begun.state_dict())
    list(resumed.run(islice(trainable.batches(16, start=160), 10)))
    assert_same(resumed.state_dict(), whole.state_dict())
    with pytest.raises(OutOfDeviceMemory), memory_errors("too much"):
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert whole.work().flops > 0
