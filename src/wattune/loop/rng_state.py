"""State of the random number generators that the order of a pass may depend on: saved, restored and protected."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def generators(loader: Any) -> list[torch.Generator]:
    """The generators of the loader and of its sampler, each of them once."""
    own: list[torch.Generator] = []
    for holder in (loader, getattr(loader, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and generator not in own:
            own.append(generator)
    return own


def states(loader: Any) -> list[Tensor]:
    """The states of torch, Python and NumPy, and of the loader's own generators (None: without them), as tensors."""
    _, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    assert name == "MT19937"
    return [
        torch.get_rng_state(),
        torch.tensor(words, dtype=torch.int64),
        torch.tensor(math.nan if gauss is None else gauss, dtype=torch.float64),
        torch.from_numpy(np.asarray(keys).astype(np.int64)),
        torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        *(generator.get_state() for generator in generators(loader)),
    ]


def restore(loader: Any, saved: list[Tensor]) -> None:
    """Restore ``states``; ``loader`` None: without a loader's own generators."""
    torch_state, words, gauss, keys, rest, *others = saved
    torch.set_rng_state(torch_state)
    pending = float(gauss)
    random.setstate((3, tuple(words.tolist()), None if math.isnan(pending) else pending))
    position, has_gauss, cached = rest.tolist()
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    for generator, state in zip(generators(loader), others, strict=False):
        generator.set_state(state)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context whose draws do not change the random numbers after it."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def state_of(one: Any) -> Any:
    """State of a generator of torch, Python or NumPy, as JSON values; None for anything else."""
    if isinstance(one, torch.Generator):
        return one.get_state().tolist()
    if isinstance(one, np.random.Generator):
        return _plain(one.bit_generator.state)
    if isinstance(one, np.random.RandomState):
        return _plain(one.get_state(legacy=False))
    # A subclass with a method of its own may have a state of any form, or none.
    if isinstance(one, random.Random) and type(one).getstate is random.Random.getstate:
        version, words, gauss = one.getstate()
        return [version, list(words), gauss]
    return None


def set_state(one: Any, state: Any) -> None:
    """Set a generator to ``state_of``."""
    if isinstance(one, torch.Generator):
        one.set_state(torch.tensor(state, dtype=torch.uint8))
    elif isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    elif isinstance(one, np.random.RandomState):
        one.set_state(state)
    else:
        version, words, gauss = state
        one.setstate((version, tuple(words), gauss))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
