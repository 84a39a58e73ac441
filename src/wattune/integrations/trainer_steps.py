"""The optimizer steps of one rank's Trainer, in micro-batches of the size that its session wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_map
from typing_extensions import Self

from wattune.devices import Device
from wattune.integrations.longest_rows import TokenCount
from wattune.integrations.micro_batch_passes import MicroBatchPasses, Rule
from wattune.integrations.row_groups import WHOLE, Inputs, rows, width
from wattune.online.loop_run import LoopRun
from wattune.online.micro_batching import shapes
from wattune.online.optimizer_step import Overflows
from wattune.online.ranks.gradient_sync import GradientSync
from wattune.online.session import Session
from wattune.point import BatchShape


class TrainerSteps:
    """Context of one run of a Trainer on one rank. All ranks find the same rule for the losses of parts, and know the
    longest row of any of them.

    The recipe is the user's: ``start`` has the rows of the optimizer step and of the micro-batch, per rank.
    """

    device: Device
    session: Session

    def __init__(self, trainer: Any, sync: GradientSync, *, ranks: int):
        self.passes = MicroBatchPasses(trainer, sync)
        self.start = BatchShape(self.passes.batch * trainer.args.gradient_accumulation_steps, self.passes.batch)
        self.count = TokenCount(self.passes.main)
        self.tokens_of_all: int | None = None
        """Tokens of all ranks, once the Trainer has ended its training."""
        self._ranks, self._trainer = ranks, trainer
        self._place = trainer.args.device
        self._batches: Sequence[Inputs] = ()
        self._shapes: list[tuple[int, int]] = []
        self._call: tuple[nn.Module, tuple[Any, ...]] | None = None
        self._samples_per_row = 1.0
        self._is_ready = self._in_step = False
        self._shares_longest = False
        self._longest_width = 0
        self._overflows = Overflows()

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.session.__exit__(kind, error, trace)

    @property
    def loop_run(self) -> LoopRun:
        """The session's run."""
        return self.session.run

    # ---------------------------------------------------------------------------------------------------------- steps

    def fetched(self, batches: Sequence[Inputs], seconds: float, *, first: bool) -> None:
        """Take the batches of the next optimizer step and the seconds to fetch them; ``first``: of a pass."""
        self._batches = batches
        self.passes.begin(len(batches))
        times = self.loop_run.times
        if first:
            times.starting_s += seconds
        else:
            times.waiting_s += seconds

    def begin(self, model: nn.Module, *others: Any) -> None:
        """Begin a step, before its first forward pass. Raises: SafetyStop, DeviceError, RankLost."""
        if self._in_step:
            return
        run, batches = self.loop_run, self._batches
        # What averages gradients over the ranks would wait for them in passes that this rank tries alone.
        self._call = (model if self._ranks == 1 else self._trainer.model), others
        self._shapes = [(rows(batch) or 1, width(batch, self.passes.main)) for batch in batches]
        is_first, self._is_ready = not self._is_ready, True
        if is_first:
            self._agree()
        self._look(self._longest_of_ranks(), is_first=is_first)
        self.passes.size = self.session.row.micro
        samples = round(sum(count for count, _ in self._shapes) * self._samples_per_row)
        key = tuple(shapes(batch) for batch in batches) if run.counter.counts else None
        self.session.begin_step(samples, key=key, data=list(batches))
        self._in_step = True

    def end(self, *, stepped: bool) -> None:
        """End a step that was taken, or skipped by gradient scaling. Raises: SafetyStop, DeviceError, InputError."""
        if not self._in_step:
            return
        self._in_step = False
        self._end(stepped=stepped)
        self._overflows.count(skipped=not stepped)

    def drop(self) -> None:
        """Drop the current step, if there is one."""
        self._in_step = False
        self.session.drop_step()

    def finish(self) -> None:
        """Take in that the Trainer has ended its training, on all ranks."""
        self.tokens_of_all = self.count.total
        if self._ranks > 1:
            total = torch.tensor(self.tokens_of_all, device=self._place)
            dist.all_reduce(total)
            self.tokens_of_all = int(total)

    def log_values(self, *, total: bool = False) -> dict[str, float]:
        """Values for the Trainer's log: those of rank 0."""
        return {}

    def _end(self, *, stepped: bool) -> None:
        self.count.add(self._batches)
        self.session.end_step(stepped=stepped)

    def _look(self, shared: Inputs | None, *, is_first: bool) -> None:
        """Look at the batches before the step; ``shared``: a batch of any rank, with a row longer than all before."""

    # --------------------------------------------------------------------------------------------- what all ranks know

    def _agree(self) -> None:
        """Find the rule for the losses of parts on the first batch, and whether the longest row is known."""
        run, passes = self.loop_run, self.passes
        count = rows(self._batches[0])
        self._samples_per_row = passes.batch / count if count else float(passes.batch)
        rules: tuple[Rule, ...] = () if passes.rule is None else (passes.rule,)
        if not rules and count == passes.batch and self.start.batch > 1:
            assert self._call is not None
            model, others = self._call
            with run.evaluation():
                rules = passes.fitting_rules(model, self._batches, *others)
        every = [(rules, self._how)]
        if self._ranks > 1:
            every *= self._ranks
            dist.all_gather_object(every, (rules, self._how))
        passes.rule = next((rule for rule in every[0][0] if all(rule in fitting for fitting, _ in every)), None)
        self._shares_longest = self._ranks > 1 and every[0][1] != WHOLE
        if passes.rule is None and self.start.batch > 1:
            why = "its loss is not the sum or mean of its parts'" if count == passes.batch else "it cannot be cut"
            run.note(f"the micro-batch size stays at {passes.batch}: {why}")

    @property
    def _how(self) -> str:
        """Source of the longest row, as rank 0 knows it."""
        return ""

    def _longest_of_ranks(self) -> Inputs | None:
        """The batch of any rank with a row longer than all before; None if there is none, or rank 0 knows anyway."""
        if not self._shares_longest:
            return None
        ranks, own = self._ranks, max(range(len(self._shapes)), key=lambda index: self._shapes[index][1])
        code = torch.tensor(self._shapes[own][1] * ranks + dist.get_rank(), device=self._place)
        dist.all_reduce(code, dist.ReduceOp.MAX)
        longest, rank = divmod(int(code), ranks)
        if longest <= self._longest_width:
            return None
        self._longest_width = longest
        box: list[Any] = [None]
        if dist.get_rank() == rank:
            box = [
                tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, self._batches[own])
            ]
        dist.broadcast_object_list(box, src=rank)
        batch: Inputs = box[0]
        return batch
