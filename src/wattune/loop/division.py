"""Proof that a batch may be divided: the gradient of its parts is the gradient of the whole batch.

The loss alone cannot tell. A loss with class weights is a weighted mean, a contrastive loss compares the samples of a
batch, a sum has no share, and at an untrained model all of them may be equal by value. So a batch runs once more, whole
and in parts, and the gradients are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wattune.loop.fit_check import unchanged
from wattune.loop.rng_state import undisturbed

BUCKETS: Final = 64
"""Numbers in a sketch of a tensor."""

CHUNK: Final = 2**20
"""Elements of a gradient that are sketched at a time, which bounds the memory."""

TOLERANCE: Final = 1e-4
"""Largest difference of the two gradients, as a share of their norm. Rounding in fp32 was seen to make 1e-7, and losses
that cannot be divided 2.8e-2 and more."""

LOW_TOLERANCE: Final = 3e-2
"""The same for fp16 and bf16."""

TF32_TOLERANCE: Final = 2e-3
"""The same on a GPU that may multiply in TF32."""

PARTS: Final = 4
"""Number of parts that a batch is divided into at first."""

DRAWS: Final = 8
"""Number of gradients whose means are compared if the loss draws random numbers."""

ERRORS: Final = 3.0
"""Standard errors by which these means may differ."""

AGAIN_AFTER: Final = 1000
"""Number of steps after which the division is proved again, at a trained model."""

TRIES: Final = 3
"""Number of batches that are tried if the gradient is zero or not finite, which tells nothing."""

Result = Literal["equal", "equal on average", "unequal", "unknown"]


class Verdict(NamedTuple):
    """Outcome of a proof. ``difference``: of the two gradients, as a share of their norm."""

    result: Result
    difference: float

    @property
    def is_equal(self) -> bool:
        """True if the batch may be divided."""
        return self.result in ("equal", "equal on average")


def sketch(parameters: Sequence[Tensor]) -> Tensor:
    """Sketch of the present gradients (parameters * BUCKETS,): each element is added to a bucket, with a sign.

    Buckets and signs are drawn at random, and are the same at each call. The norm of a sketch is about the norm of
    what was sketched, and the sketch of a difference is the difference of the sketches.

    Source: Charikar, Chen and Farach-Colton 2002, Finding Frequent Items in Data Streams (count sketch).
    """
    return torch.cat([_sketch(p.grad, seed) for seed, p in enumerate(parameters)])


def _sketch(gradient: Tensor | None, seed: int) -> Tensor:
    out = torch.zeros(BUCKETS)
    if gradient is None:
        return out
    flat = (gradient.to_dense() if gradient.is_sparse else gradient).detach().flatten()
    out = out.to(flat.device)
    generator = torch.Generator().manual_seed(seed)
    for chunk in torch.split(flat, CHUNK):
        drawn = torch.randint(2 * BUCKETS, (len(chunk),), generator=generator).to(flat.device)
        out.index_add_(0, drawn // 2, chunk.float() * (2 * (drawn % 2) - 1))
    return out.cpu()


class DivisionCheck:
    """Proofs for the batches of one run.

    ``at_once``: the first batch is proved before it is trained on. Otherwise a batch that was trained on is proved when
    a division is first wanted. ``smallest``: the smallest part for which the division is proved, None before the first
    proof; ``verdict``: of the latest proof.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], *, at_once: bool):
        self.at_once = at_once
        self.verdict: Verdict | None = None
        self.smallest: int | None = None
        self._model = model
        self._parameters = [p for p in parameters if p.requires_grad]
        self._again_at: float = AGAIN_AFTER
        self._tries = 0
        self._is_low = False

    def is_due(self, micro: int, steps: int) -> bool:
        """True if parts of ``micro`` samples have to be proved before the next step, after ``steps`` steps."""
        if self.verdict is not None and self.verdict.result == "unequal":
            return False
        return self.smallest is None or micro < self.smallest or steps >= self._again_at

    @contextmanager
    def trying(self, steps: int) -> Iterator[Trial]:
        """Context of a proof, which leaves no trace: no gradients, buffers, random state or mode of a module change."""
        # A framework may call modules inside the model only, such as those of a training_step.
        hooks = [m.register_forward_pre_hook(lambda *_: self._prepare()) for m in self._model.modules()]
        try:
            with unchanged(self._model, self._parameters):
                self._model.eval()
                yield Trial(self._parameters)
        finally:
            for hook in hooks:
                hook.remove()
        self._again_at = math.inf if steps >= AGAIN_AFTER else AGAIN_AFTER

    def tolerance(self) -> float:
        """Largest difference that counts as rounding."""
        if self._is_low or any(p.dtype in (torch.float16, torch.bfloat16) for p in self._parameters):
            return LOW_TOLERANCE
        is_cuda = any(p.device.type == "cuda" for p in self._parameters)
        return TF32_TOLERANCE if is_cuda and torch.backends.cudnn.allow_tf32 else TOLERANCE

    def conclude(self, verdict: Verdict, smallest: int) -> Verdict:
        """Keep the outcome for parts of ``smallest`` samples, and larger ones. Returns: the outcome so far."""
        self._tries = self._tries + 1 if verdict.result == "unknown" else 0
        if self._tries == TRIES:
            verdict = verdict._replace(result="unequal")
        self.verdict = verdict
        if verdict.is_equal:
            self.smallest = smallest if self.smallest is None else min(self.smallest, smallest)
        return verdict

    def _prepare(self) -> None:
        # Dropout off, and normalisation by its running statistics; before each pass, since a trainer's own step turns
        # the model to training.
        if self._model.training:
            self._model.eval()
        kind = next(self._model.parameters()).device.type
        if torch.is_autocast_enabled(kind):
            self._is_low = torch.get_autocast_dtype(kind) in (torch.float16, torch.bfloat16)


class Trial:
    """One proof: passes of a batch in parts, which ``plan`` asks for. ``add`` takes the loss of each part."""

    def __init__(self, parameters: Sequence[Tensor]):
        self._parameters = parameters
        self.verdict = Verdict("unknown", math.nan)
        self._sum = torch.zeros(())

    def plan(
        self, whole: Sequence[int], parts: Sequence[int], tolerance: Callable[[], float]
    ) -> Generator[Sequence[int], None, None]:
        """The division of each pass over the batch, ``whole`` or ``parts``; ``verdict`` is set when it stops."""
        first = yield from self._pass(whole)
        divided = yield from self._pass(parts)
        norm = float(first.norm())
        if not norm or not math.isfinite(norm):
            return
        most, difference = tolerance(), float((first - divided).norm()) / norm
        self.verdict = Verdict("equal", difference)
        if difference <= most:
            return
        other = yield from self._pass(whole, seed=1)
        self.verdict = Verdict("unequal", difference)
        if float((first - other).norm()) <= most * norm:
            return
        wholes, divisions = [first, other], [divided]  # the loss draws numbers: compare it on average
        for seed in range(2, DRAWS):
            wholes.append((yield from self._pass(whole, seed=seed)))
        for seed in range(DRAWS, 2 * DRAWS - 1):
            divisions.append((yield from self._pass(parts, seed=seed)))
        (one, one_error), (two, two_error) = _mean(wholes), _mean(divisions)
        apart = float((one - two).norm())
        is_equal = apart <= ERRORS * math.hypot(one_error, two_error)
        self.verdict = Verdict("equal on average" if is_equal else "unequal", apart / float(one.norm()))

    def _pass(self, sizes: Sequence[int], seed: int | None = None) -> Generator[Sequence[int], None, Tensor]:
        self._sum = torch.zeros(len(self._parameters) * BUCKETS)
        with undisturbed():  # so that the next pass draws the same numbers
            if seed is not None:
                torch.manual_seed(seed)
            yield sizes
        return self._sum

    def add(self, loss: Tensor, share: float) -> None:
        """Add the gradient of a part, which has this share of the samples."""
        self.measure(lambda: torch.autograd.backward(loss * share))

    def measure(self, passes: Callable[[], None]) -> None:
        """Add the gradient that forward and backward passes leave.

        They begin without gradients, so that nothing that the loop does to them between two parts matters.
        """
        for parameter in self._parameters:
            parameter.grad = None
        passes()
        self._sum += sketch(self._parameters)


def _mean(sketches: Sequence[Tensor]) -> tuple[Tensor, float]:
    """The mean, and its standard error."""
    all_of_them = torch.stack(list(sketches))
    return all_of_them.mean(0), math.sqrt(float(all_of_them.var(0).sum()) / len(sketches))
