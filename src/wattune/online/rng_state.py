"""The random numbers that the order of a pass may follow from, kept and brought back."""

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
    """Those of the loader's own and of its sampler, each once."""
    found: list[torch.Generator] = []
    for holder in (loader, getattr(loader, "sampler", None)):
        own = getattr(holder, "generator", None)
        if isinstance(own, torch.Generator) and own not in found:
            found.append(own)
    return found


def states(loader: Any) -> list[Tensor]:
    """Of torch, Python and NumPy, and of the loader's own generators, as tensors."""
    _, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    assert name == "MT19937"
    return [
        torch.get_rng_state(),
        torch.tensor(words, dtype=torch.int64),
        torch.tensor(math.nan if gauss is None else gauss, dtype=torch.float64),
        torch.from_numpy(np.asarray(keys).astype(np.int64)),
        torch.tensor([position, has_gauss, cached], dtype=torch.float64),
        *(own.get_state() for own in generators(loader)),
    ]


def restore(loader: Any, kept: list[Tensor]) -> None:
    """Go on from ``states``; ``loader`` None: but for the generators of its own."""
    own_state, words, gauss, keys, rest, *others = kept
    torch.set_rng_state(own_state)
    pending = float(gauss)
    random.setstate((3, tuple(words.tolist()), None if math.isnan(pending) else pending))
    position, has_gauss, cached = rest.tolist()
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), int(position), int(has_gauss), cached))
    for own, state in zip(generators(loader), others, strict=False):
        own.set_state(state)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing that is drawn inside changes what the random generators give afterwards."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
