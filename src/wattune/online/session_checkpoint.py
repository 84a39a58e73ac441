"""Checkpoints of a session: the training state, the measurements of the board, and the position in the pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wattune.algorithms import load_checkpoint, save_checkpoint
from wattune.errors import InputError, RecordError
from wattune.online.session_run import run_state

if TYPE_CHECKING:
    from wattune.online.session import Session


def save_session(session: Session, path: Path) -> None:
    """Write a checkpoint of the last complete step, replacing the file atomically.

    Raises: OutputError; InputError for an optimizer or a scheduler whose state cannot be written.
    """
    batch_source, run = session.batch_source, session.run
    state = {
        "module": run.model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "scaler": None if session.scaler is None else session.scaler.state_dict(),
        "random": [] if session.loop is None else session.loop.random,
        "pass_random": [] if batch_source is None else batch_source.random,
    }
    extra = {
        "session": identity(session),
        "passes": session.passes,
        "position": 0 if session.loop is None else session.loop.position,
        "order": 0 if session.loop is None else session.loop.order,
        "recipe": session.recipe.state_dict(),
        "knowledge": session.sample_model.state_dict(),
        "run": run.state_dict(),
    }
    try:
        save_checkpoint(path, state, extra=extra)
    except TypeError as error:
        raise InputError(
            "the state of the optimizer or a scheduler cannot be saved",
            value=str(error),
            hint="train without checkpoint=",
        ) from error


def identity(session: Session) -> dict[str, Any]:
    """Properties that a session must share with the one that it resumes."""
    run = session.run
    return {
        "device": run.device.name,
        "model": type(run.model).__name__,
        "optimizer": type(session.optimizer).__name__,
        "batch_size": session.recipe.batch_size,
        "keep_recipe": session.recipe.keep,
    }


class SessionCheckpoint:
    """A checkpoint of an earlier session, to resume from. Raises: RecordError if it cannot be read."""

    def __init__(self, path: Path):
        self._path = path
        self.state, self.extra = load_checkpoint(path)
        try:
            self.run = run_state(self.extra)
        except KeyError:
            raise RecordError(
                f"{path} is not a checkpoint of a session", hint="give a checkpoint written by a session"
            ) from None

    def load(self, session: Session) -> None:
        """Restore model, optimizer, schedule and search.

        Raises: RecordError if the checkpoint is of a different session.
        """
        here, there = identity(session), self.extra["session"]
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
            if session.scaler is not None and self.state["scaler"] is not None:
                session.scaler.load_state_dict(self.state["scaler"])
            session.recipe.load_state_dict(self.extra["recipe"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise RecordError(
                f"the checkpoint {self._path} does not fit model, optimizer or scheduler",
                value=(str(error).strip() or type(error).__name__).splitlines()[0],
            ) from error
        session.passes = self.extra["passes"]
        if session.loop is not None:
            session.loop.position = self.extra["position"]
        session.sample_model.load_state_dict(self.extra["knowledge"])
        session.run.load_state_dict(self.run)

    def start(self, session: Session) -> None:
        """Resume the interrupted pass at its position, in its order."""
        assert session.batch_source is not None
        assert session.loop is not None
        random = self.state["random"]
        if random:
            torch.set_rng_state(random[0])
            if session.run.on_cuda and len(random) > 1:
                torch.cuda.set_rng_state(random[1])
        session.loop.remember()
        if session.loop.position == 0:
            session.batch_source.start()
            return
        session.recipe.resume_pass(self.extra["recipe"]["ticks"])
        session.loop.order = order = self.extra["order"]
        session.batch_source.start(skip=session.loop.position, random=self.state["pass_random"], order=order)
