"""Lightning under a power cap: one callback chooses batch size, micro-batches and clock while the Trainer trains.

    from wattune.integrations.lightning import PowerCap

    trainer = Trainer(callbacks=[PowerCap(10)])

The Trainer goes on to fetch, accumulate, step, validate and log; what the callback changes is how large the batches
are that it fetches and with which of them the optimizer steps. Everything that the user gave in batches or steps of
his own keeps its meaning in samples: ``limit_train_batches``, ``max_steps``, ``val_check_interval`` and schedulers
that tick with each step.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from torch import Tensor

from wattune.devices import Device
from wattune.errors import InputError, SensorError
from wattune.integrations.lightning_calendar import Calendar, state
from wattune.integrations.lightning_loader import Division, Passes, squared_norm
from wattune.records import CapSide, EfficiencyCurve, SessionRecord
from wattune.session import Session, capped
from wattune.session.knowledge import opened_curve
from wattune.session.optimizing import OVERFLOWS
from wattune.session.rows import batch_sizes as sizes_of
from wattune.session.trial import Trial


class PowerCap(Callback):
    """Trains below ``cap_w`` watts, as fast as the board can; see ``wattune.capped`` for the arguments.

    The batch size of the user's recipe is the loader's times ``accumulate_grad_batches``; ``keep_recipe`` leaves it as
    it is. The loss of ``training_step`` is taken to be a mean over the samples, and weighted by their number. The
    board is below the cap during the sanity check and validations, too, and afterwards as it was found. Lightning's
    checkpoints hold the search, so that a training goes on from one without probing again, and in the middle of an
    epoch with the samples that are left of it. ``session`` is the one under way, ``record`` says what it was.
    """

    def __init__(
        self,
        cap_w: float | None,
        *,
        device: str | Device = "auto",
        keep_recipe: bool = False,
        efficiency: EfficiencyCurve | str | Path | None = None,
        batch_sizes: Sequence[int] | None = None,
        cap_side: CapSide = "module",
        margin_w: float = 0.0,
        max_temp_c: float | None = None,
        record: str | Path | None = None,
        seed: int = 0,
    ):
        self.session: Session | None = None
        self.record: SessionRecord | None = None
        self._keep, self._efficiency, self._batch_sizes = keep_recipe, efficiency, batch_sizes
        self._options: dict[str, Any] = {
            "device": device,
            "cap_w": cap_w,
            "cap_side": cap_side,
            "margin_w": margin_w,
            "max_temp_c": max_temp_c,
            "record": record,
            "seed": seed,
        }
        self._trainer: Any  # some of what it has is set from elsewhere, and unknown to its type
        self._passes: Passes | None = None
        self._attached: Passes | None = None
        self._calendar: Calendar | None = None
        self._source: _DataLoaderSource | None = None
        self._kept: dict[str, Any] | None = None
        self._final: dict[str, Any] = {}
        self._evaluation: AbstractContextManager[None] | None = None
        self._first: tuple[int, Tensor] | None = None
        self._both: Tensor | None = None
        self._open = False

    # --------------------------------------------------------------------------------------------- before and after it

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stand between the Trainer and its loader. Raises: InputError for what cannot be honoured."""
        if stage != "fit":
            return
        _check(trainer, pl_module)
        self._trainer, self._passes, self._attached = trainer, None, None
        self._source = trainer.fit_loop._data_source
        trainer.fit_loop._data_source = _Source(self._source, self._take)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the board below the cap, before anything runs on it. Raises: InputError, DeviceError."""
        trainer.fit_loop.setup_data()
        passes, optimizer = self._passes, trainer.optimizers[0]
        if passes is None:
            return  # nothing to train on
        batch_size, parts = passes.feed.batch_size, trainer.accumulate_grad_batches
        curve, sizes = opened_curve(self._efficiency), self._batch_sizes
        if not self._keep:
            sizes = sizes_of(batch_size * parts, sizes, curve, keep=False, samples=passes.samples)
        self.record, self._evaluation, self._final = None, None, {}
        self.session = session = capped(
            model=pl_module,
            optimizer=optimizer,
            keep_recipe=self._keep,
            efficiency=curve,
            batch_sizes=sizes,
            batch_size=batch_size * parts,
            micro_batch_size=batch_size,
            **self._options,
        )
        session.options.loader = passes.loader
        _try_with(session, pl_module, batch_size)
        self._calendar = Calendar(trainer, batch_size, parts, moves=not self._keep)
        self._restored = self._restore(passes)
        session.__enter__()
        self._open = True
        self._in_step = self._is_stepped = self._is_backward = self._is_disturbed = self._has_gradients = False
        self._overflows, self._logged = 0, (0.0, 0.0)
        # After the session's own, which takes a step to be nothing but the optimizer's work: Lightning runs forward
        # and backward pass in there, too.
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: session.governor.book._in_optimizer(self._has_gradients)),
            optimizer.register_step_post_hook(lambda *_: self._has_stepped()),
        ]

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the board as it was found, and write the record."""
        self._close(None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """As ``on_fit_end``, where that did not come."""
        self._close(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """As ``on_fit_end``, whatever went wrong; a KeyboardInterrupt comes here, too."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if self._source is not None:
            self._trainer.fit_loop._data_source, self._source = self._source, None
        if not self._open or self.session is None or self._calendar is None:
            return
        self._open = False
        raised = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        try:
            self._end_evaluation(error or GeneratorExit())
        finally:
            try:
                self.session.__exit__(*raised)
            finally:
                self._give_back()

    def _give_back(self) -> None:
        assert self.session is not None
        assert self._calendar is not None
        self.record = self.session.record
        self._final = self._state()  # for who saves a checkpoint afterwards
        for hook in self._hooks:
            hook.remove()
        self._calendar.give_back(self._trainer)

    def _end_evaluation(self, error: BaseException | None) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            raised = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            evaluation.__exit__(*raised)

    # -------------------------------------------------------------------------------------------------------- training

    def _take(self, loader: Any) -> Passes:
        self._passes = Passes(loader, keep=self._keep)
        return self._passes

    def _attach(self) -> None:
        trainer, passes, session = self._trainer, self._passes, self.session
        if self._attached is passes or passes is None or session is None or self._calendar is None:
            return
        self._attached = passes
        self._calendar.read(trainer, passes.batches, passes.samples)
        self._calendar.take_over(trainer)
        passes.attach(session, trainer.accumulate_grad_batches)
        fetcher: Any = trainer.fit_loop._data_fetcher
        fetcher.length = None  # of the first pass, whose length was asked for before

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over what Lightning counts in batches."""
        self._attach()
        kept, self._restored = self._restored, None
        if kept is not None and self._passes is not None:
            # In the middle of an epoch, Lightning looks at these before it fetches.
            over = self._passes.samples is not None and kept["position"] >= self._passes.samples
            trainer.val_check_batch = kept["trainer"]["val_check_batch"]
            trainer.fit_loop.max_batches = (kept["trainer"]["max_batches"] if over else None) or float("inf")
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch &= over
            if kept["trainer"]["division"] is not None:
                self._trainer.accumulate_grad_batches = Division(1.0, **kept["trainer"]["division"])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A pass over the data set begins."""
        self._attach()
        passes = self._passes
        if passes is not None and self._calendar is not None:
            passes.cut(self._calendar.most(trainer))
            trainer.fit_loop.max_batches = passes.expected()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A micro-batch was fetched: say what is to be done with it."""
        passes, calendar = self._passes, self._calendar
        assert passes is not None
        assert calendar is not None
        passes.arrived()
        part = passes.part
        self._trainer.accumulate_grad_batches = Division(
            1.0 / part.share, first=part.first, last=part.last, ready=batch_idx + 1
        )
        if part.first:
            self._in_step, self._is_stepped, self._is_disturbed = True, False, False
            self._has_gradients, self._first, self._both = False, None, None
            self._planned = batch_idx + passes.micro_batches_left
            calendar.begin_step(trainer)
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = part.ends_pass
        trainer.fit_loop.max_batches = batch_idx + 1 if part.ends_pass else max(self._planned, batch_idx + 2)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The gradients of a micro-batch are there."""
        passes, session = self._passes, self.session
        if not self._open or not self._in_step or passes is None or session is None:
            return
        self._is_backward = True
        part = passes.part
        if passes.wants_norms and part.first and not part.last:
            with session.governor.book.uncounted():
                square = squared_norm(pl_module.parameters()) / (part.share * _scale(trainer)) ** 2
            self._first = part.samples, square

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """The gradients of a step are complete."""
        session = self.session
        if not self._open or not self._in_step or session is None:
            return
        book = session.governor.book
        if self._first is not None:
            scale = _scale(trainer) if getattr(optimizer, "_step_supports_amp_scaling", False) else 1.0
            with book.uncounted():
                self._both = torch.stack([self._first[1], squared_norm(pl_module.parameters()) / scale**2])
        self._has_gradients = True
        book._in_optimizer(True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A micro-batch was trained on; where it was the last of a step, the step is over. Raises: as the session."""
        passes, session, calendar = self._passes, self.session, self._calendar
        assert passes is not None
        assert session is not None
        assert calendar is not None
        if not passes.part.last:
            return
        self._in_step = False
        passes.position += passes.step_samples
        session.end_step(stepped=self._is_stepped and not self._is_disturbed)
        self._see_overflow(trainer)
        self._tell(session, passes.step_samples)
        calendar.end_step(trainer, pl_module, passes.position, passes.step_samples, is_end=passes.part.ends_pass)
        if trainer.loggers and trainer.global_step % self._trainer.log_every_n_steps == 0:
            self._log(session)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A pass is over, complete or not."""
        if self._passes is not None and self.session is not None:
            self.session.passes += self._passes.end_pass()
            self._in_step = False

    def _has_stepped(self) -> None:
        self._is_stepped = True

    def _see_overflow(self, trainer: Trainer) -> None:
        skipped = _scaler(trainer) is not None and self._is_backward and not self._is_stepped
        self._overflows = self._overflows + 1 if skipped else 0
        self._is_backward = False
        if self._overflows >= OVERFLOWS:
            raise InputError(
                "gradient scaling found no scale at which the gradients are finite",
                value=f"{self._overflows} steps in a row were skipped",
                hint="train in bf16 or fp32, lower the learning rate, or look for infinities in model and loss",
            )

    def _tell(self, session: Session, samples: int) -> None:
        if self._first is None or self._both is None or not self._is_stepped:
            return
        if session.knowledge.add(self._first[0], float(self._both[0]), samples, float(self._both[1])):
            session.governor.prober.search.relative(session.knowledge.relative)
            session.governor.prober.again()

    def _log(self, session: Session) -> None:
        try:
            figures = session.governor.meter.figures()
        except SensorError:  # no reading yet
            return
        point = {k: v for k, v in session.point.model_dump().items() if v is not None}
        values = {f"wattune/{name}": float(value) for name, value in point.items()}
        values["wattune/energy_j"] = figures.energy_j
        time_s, energy_j = self._logged
        if figures.time_s > time_s:
            values["wattune/power_w"] = (figures.energy_j - energy_j) / (figures.time_s - time_s)
        self._logged = figures.time_s, figures.energy_j
        for logger in self._trainer.loggers:
            # Beside what Lightning logs of the same step, whose number it counts from 0.
            logger.log_metrics(values, step=self._trainer.global_step - 1)

    # ------------------------------------------------------------------------------------------------------ evaluation

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nobody knows the power of an evaluation before. Raises: SafetyStop, DeviceError."""
        if not self._open or self.session is None:
            return
        if self._in_step:  # by the clock, in the middle of a step: a part of that, which is not like others then
            self._is_disturbed = True
            return
        self._evaluation = self.session.evaluation()
        self._evaluation.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Back to where training was. Raises: SafetyStop, DeviceError."""
        if self._open:
            self._end_evaluation(None)

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The search, what was taken so far, and where in the pass training is; for Lightning's checkpoints."""
        return self._state() if self._open else self._final

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict`` when the next training begins."""
        self._kept = state_dict

    def _state(self) -> dict[str, Any]:
        session, passes = self.session, self._passes
        assert session is not None
        assert passes is not None
        kept = {
            "recipe": self._recipe(session),
            "governor": session.governor.state_dict(),
            "knowledge": session.knowledge.state_dict(),
            "passes": session.passes,
            "position": passes.position,
            "samples": passes.samples,
            "trainer": state(self._trainer),
        }
        return {"session": json.dumps(kept), "random": passes.random}

    def _restore(self, passes: Passes) -> dict[str, Any] | None:
        found, self._kept = self._kept, None
        session = self.session
        if not found or session is None:
            return None
        kept: dict[str, Any] = json.loads(found["session"])
        if kept["samples"] == passes.samples:
            passes.resume(kept["position"], found["random"])
        session.passes = kept["passes"]
        if kept["recipe"] == self._recipe(session):
            session.knowledge.load_state_dict(kept["knowledge"])
            session.governor.load_state_dict(kept["governor"])
        else:
            session.governor.note("the checkpoint is of another board or recipe, so the search began anew")
        return kept

    def _recipe(self, session: Session) -> dict[str, Any]:
        recipe = session.recipe
        return {"device": session.governor.device.name, "batch_size": recipe.batch_size, "keep": recipe.keep}


class _Source(_DataLoaderSource):
    """Where Lightning takes the user's loader from."""

    def __init__(self, source: _DataLoaderSource, take: Callable[[Any], Passes]):
        super().__init__(source.instance, source.name)
        self._take = take

    def dataloader(self) -> Any:
        """The user's loader, as ``Passes``."""
        return self._take(super().dataloader())


def _check(trainer: Any, module: LightningModule) -> None:
    """Raises: InputError for what cannot be honoured."""
    if not module.automatic_optimization:
        raise InputError(
            "manual optimization: PowerCap cannot see what is a step there",
            value=type(module).__name__,
            hint="use automatic optimization, or wattune.capped in a loop of your own",
        )
    if trainer.world_size > 1:
        raise InputError("PowerCap holds one device", value=f"{trainer.world_size} processes", allowed="devices=1")
    if trainer.strategy.handles_gradient_accumulation:
        raise InputError("a strategy that accumulates gradients itself", value=type(trainer.strategy).__name__)
    for other in trainer.callbacks:
        if isinstance(other, (GradientAccumulationScheduler, StochasticWeightAveraging)):
            raise InputError("this callback chooses how many batches make a step, too", value=type(other).__name__)
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise InputError("training_step(dataloader_iter) fetches for itself", allowed="training_step(batch, batch_idx)")


def _try_with(session: Session, module: LightningModule, largest: int) -> None:
    """Try larger micro-batches with what ``training_step`` calls: rarely the LightningModule, mostly its one part."""
    weights = {id(p) for p in module.parameters() if p.requires_grad}
    holds = [child for child in module.children() if weights <= {id(p) for p in child.parameters()}]
    if len(holds) == 1:
        governor = session.governor
        governor.trial.close()
        governor.trial = Trial(governor.device, holds[0], largest, session.optimizer)


def _scaler(trainer: Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _scale(trainer: Trainer) -> float:
    scaler = _scaler(trainer)
    return 1.0 if scaler is None else float(scaler.get_scale())
