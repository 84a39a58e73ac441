"""Checkpoints of a session: the training state, the measurements of the board, and the position in the pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wattune.algorithms import check_state, load_checkpoint, save_checkpoint
from wattune.errors import InputError, RecordError
from wattune.loop.rng_state import restore
from wattune.loop.session_run import SessionRun
from wattune.point import BatchShape

if TYPE_CHECKING:
    from wattune.loop.session import Session


def save_session(session: Session, path: Path) -> None:
    """Write a checkpoint of the last complete step, replacing the file atomically.

    Raises: OutputError.
    """
    batch_source, run = session.batch_source, session.run
    own = {
        "random": [] if session.loop is None else session.loop.random,
        "pass_random": [] if batch_source is None else batch_source.random,
        "order_random": [] if batch_source is None else batch_source.order_random,
    }
    position = 0 if session.loop is None else session.loop.position
    order = {
        "order": 0 if session.loop is None else session.loop.order,
        "order_state": {} if batch_source is None else batch_source.order_state(),
        "in_pass": batch_source is not None and batch_source.in_pass,
        "ranks": session.size,
        "steps": run.steps,
    }
    if session.ranks is not None and not session.ranks.is_leader:
        save_checkpoint(own_file(path, session.ranks.rank), own, extra=order)
        return
    state = {
        "module": run.model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "scaler": None if session.asked.scaler is None else session.asked.scaler.state_dict(),
        **own,
    }
    extra = {
        **order,
        "session": identity(session),
        "passes": session.passes,
        "position": position,
        "recipe": session.recipe.state_dict(),
        "knowledge": session.sample_model.state_dict(),
        "run": run.state_dict(),
    }
    save_checkpoint(path, state, extra=extra)


def check_savable(session: Session) -> None:
    """Check, before anything is trained, that a checkpoint can be written. Raises: InputError."""
    try:
        parts = (session.run.model, session.optimizer, session.recipe)
        order = {} if session.batch_source is None else session.batch_source.order_state()
        check_state({"parts": [part.state_dict() for part in parts], "order": order})
    except TypeError as error:
        raise InputError(
            "the state of the model, the optimizer, a scheduler or the loader's sampler cannot be saved",
            value=str(error),
            hint="train without checkpoint=",
        ) from error


def own_file(path: Path, rank: int) -> Path:
    """The file of a rank: the checkpoint itself for rank 0, and beside it the random state of each other one."""
    return path if rank == 0 else path.with_name(f"{path.name}.rank{rank}")


def identity(session: Session) -> dict[str, Any]:
    """Properties that a session must share with the one that it resumes."""
    run = session.run
    return {
        "device": run.device.name,
        "model": type(run.model).__name__,
        "optimizer": type(session.optimizer).__name__,
        "batch_size": session.recipe.batch_size * session.size,
        "keep_recipe": session.recipe.keep,
        "changing_cap": True if isinstance(run, SessionRun) and run.capped.follows else None,
    }


class SessionCheckpoint:
    """A checkpoint of an earlier session, to resume from, with the random state in ``own``, this rank's file.

    Raises: RecordError if it cannot be read.
    """

    def __init__(self, path: Path, own: Path):
        self._path = path
        self.state, self.extra = load_checkpoint(path)
        try:
            self.run: dict[str, Any] = self.extra["run"]
        except KeyError:
            raise RecordError(
                f"{path} is not a checkpoint of a session", hint="give a checkpoint written by a session"
            ) from None

        self.ranks: int = self.extra.get("ranks", 1)
        self.steps: int = self.run["steps"]
        self._random = {name: self.state.get(name) for name in ("random", "pass_random", "order_random")}
        self._order: int | None = self.extra["order"]
        self._order_state: dict[str, Any] = self.extra.get("order_state", {})
        self._in_pass: bool = self.extra.get("in_pass", False)
        if own != path:
            state, extra = load_checkpoint(own) if own.exists() else ({}, {})
            is_same = (extra.get("ranks"), extra.get("steps")) == (self.ranks, self.steps)
            self._random, self._order = (state, extra["order"]) if is_same else ({}, None)
            self._order_state = extra.get("order_state", {}) if is_same else {}

    @property
    def shape(self) -> BatchShape | None:
        """The shape that a session under a cap that changes had chosen; None for another session."""
        shape = self.run["explorer"]["search"].get("shape")
        return None if shape is None else BatchShape(*shape)

    def load(self, session: Session) -> None:
        """Restore model, optimizer, schedule and search.

        Raises: RecordError if the checkpoint is of a different session.
        """
        here, there = {**identity(session), "ranks": session.size}, {**self.extra["session"], "ranks": self.ranks}
        leads = session.ranks is None or session.ranks.is_leader
        if not leads:
            del here["device"]
        differences = [
            f"{name} ({there.get(name)}, not {here[name]})" for name in here if there.get(name) != here[name]
        ]
        if differences:
            raise RecordError(
                f"the checkpoint {self._path} is of a different session, which differs in", value=", ".join(differences)
            )
        try:
            session.run.model.load_state_dict(self.state["module"])
            session.optimizer.load_state_dict(self.state["optimizer"])
            if session.asked.scaler is not None and self.state["scaler"] is not None:
                session.asked.scaler.load_state_dict(self.state["scaler"])
            session.recipe.load_state_dict(self.extra["recipe"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise RecordError(
                f"the checkpoint {self._path} does not fit model, optimizer or scheduler",
                value=(str(error).strip() or type(error).__name__).splitlines()[0],
            ) from error
        session.passes = self.extra["passes"]
        if session.loop is not None:
            session.loop.position = self.extra["position"]
        session.run.samples, session.run.steps = self.run["samples"], self.steps
        if leads:
            session.sample_model.load_state_dict(self.extra["knowledge"])
            session.run.load_state_dict(self.run)

    def start(self, session: Session) -> None:
        """Resume the interrupted pass at its position, in its order."""
        assert session.batch_source is not None
        assert session.loop is not None
        random, before_pass = self._random.get("random"), self._random.get("pass_random")
        if random:
            torch.set_rng_state(random[0])
            if session.run.on_cuda and len(random) > 1:
                torch.cuda.set_rng_state(random[1])
        session.loop.remember()
        session.batch_source.load_order_state(self._order_state)
        if session.loop.position == 0:
            if self._in_pass and before_pass:  # stopped before its first step: draw the same order
                restore(session.batch_source.loader, before_pass)
            session.batch_source.start()
            return
        session.recipe.resume_pass(self.extra["recipe"]["ticks"])
        session.loop.order = self._order or 0
        session.batch_source.start(
            skip=session.loop.position,
            random=before_pass or None,
            order_random=self._random.get("order_random") if before_pass else None,
            order=self._order,
        )
