"""Parts of a loop that Hugging Face Accelerate has prepared: the user's own optimizer and scheduler, and the order of a
rank's samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, Sampler

from wattune.errors import InputError
from wattune.loop.batch_source import remade


def own_optimizer(optimizer: Any) -> tuple[Any, Any]:
    """The optimizer that Accelerate has wrapped, and its gradient scaler; any other as it is, with None.

    Raises: InputError if Accelerate accumulates gradients, which the session does itself.
    """
    if not _is_prepared(optimizer):
        return optimizer, None
    if (steps := optimizer.gradient_state.num_steps) != 1:
        hint = "give the loader the samples of an optimizer step, and micro_batch_size= those that fit"
        raise InputError("Accelerate's gradient_accumulation_steps", value=steps, allowed="1", hint=hint)
    return optimizer.optimizer, optimizer.scaler


def own_scheduler(scheduler: Any, ranks: int) -> Any:
    """The scheduler that Accelerate has wrapped; any other as it is. Raises: InputError if it steps once per rank."""
    if not _is_prepared(scheduler):
        return scheduler
    if ranks > 1 and scheduler.step_with_optimizer and not scheduler.split_batches:
        raise InputError(
            f"Accelerate's scheduler takes {ranks} steps for each one of the optimizer",
            value=type(scheduler.scheduler).__name__,
            hint="leave it out of accelerator.prepare(), and count its steps in those of the optimizer",
        )
    return scheduler.scheduler


def own_loader(loader: Any) -> Any:
    """A plain loader with the batches of this rank, if Accelerate has made its own of a plain one; any other as it is.

    Batches stay on the CPU: the session moves its micro-batches to the model's device.
    """
    if not _is_prepared(loader) or type(loader).__name__ != "DataLoaderShard":
        return loader
    batches = loader.batch_sampler
    whole = getattr(batches, "batch_sampler", batches)
    if type(whole) is not BatchSampler or isinstance(loader.dataset, IterableDataset) or loader.skip_batches:
        return loader
    order = RankOrder(loader)
    return remade(loader, sampler=order, batch_size=order.batch_size)


class RankOrder(Sampler[int]):
    """The samples of this rank in the order in which Accelerate's loader has them, epoch after epoch."""

    def __init__(self, loader: Any):
        self._loader, self._batches = loader, loader.batch_sampler
        self._ranks: int = getattr(self._batches, "num_processes", 1)
        splits = getattr(self._batches, "split_batches", False)
        self.batch_size: int = self._batches.batch_size // (self._ranks if splits else 1)

    @property
    def generator(self) -> Any:
        """The generator of the user's sampler."""
        whole = getattr(self._batches, "batch_sampler", self._batches)
        return getattr(whole.sampler, "generator", None)

    def state_dict(self) -> dict[str, int]:
        """Number of the next pass, which Accelerate seeds the order by."""
        return {"iteration": self._loader.iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from ``state_dict``."""
        self._loader.iteration = state["iteration"]

    def __iter__(self) -> Iterator[int]:
        from accelerate.utils import synchronize_rng_states

        loader = self._loader
        if loader.rng_types is not None:
            synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
        loader.set_epoch(loader.iteration)
        for batch in self._batches:
            yield from batch
        loader.iteration += 1

    def __len__(self) -> int:
        batches: Any = self._batches
        if batches.drop_last or (self._ranks > 1 and batches.even_batches):
            return len(batches) * self.batch_size
        if self._ranks == 1:
            return len(batches.sampler)
        rank: int = batches.process_index
        total, size = len(batches.batch_sampler.sampler), self.batch_size
        if batches.split_batches:
            step = size * self._ranks
            return total // step * size + min(max(0, total % step - rank * size), size)
        return sum(min(size, total - begin) for begin in range(rank * size, total, self._ranks * size))


def _is_prepared(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "accelerate"
