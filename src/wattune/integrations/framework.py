"""A session in another library's training loop, which keeps its own steps and sizes: settings alone are chosen."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from wattune.loop.capped import capped
from wattune.loop.ranks.channel import FRAMEWORK_TIMEOUT_S
from wattune.loop.request import check_device, session_goal
from wattune.loop.session import Session
from wattune.loop.session_cap import constant_cap
from wattune.point import BatchShape


def checked(where: str, **options: Any) -> dict[str, Any]:
    """Arguments of ``wattune.capped`` that ``where`` was called with. Raises: InputError."""
    check_device(options["device"])
    return {**options, "cap_w": constant_cap(options["cap_w"], where), "goal": session_goal(options["goal"])}


def new_session(
    model: nn.Module, optimizer: Optimizer, own: BatchShape, options: dict[str, Any], state: dict[str, Any] | None
) -> Session:
    """Make a session that trains in the user's ``own`` shape, and continues from the ``state`` of an earlier one.

    Raises: InputError, DeviceError.
    """
    session = capped(
        model=model,
        optimizer=optimizer,
        keep_recipe=True,
        batch_size=own.batch,
        micro_batch_size=own.micro,
        rank_timeout_s=FRAMEWORK_TIMEOUT_S,
        **options,
    )
    run = session.run
    run.keeps_row = True
    if state is None:
        return session
    session.passes = state["passes"]
    if leads(session):
        before = state["ranks"], state["batch_size"], state["name"]
        if before == (session.size, own.batch, run.device.name):
            run.load_state_dict(state)
        else:
            run.note("the checkpoint is of another board, batch size or number of processes: the search starts over")
    return session


def leads(session: Session) -> bool:
    """True if this process chooses the settings."""
    return session.ranks is None or session.ranks.is_leader


def state_of(session: Session) -> dict[str, Any]:
    """The search, time and energy so far, as JSON values, for a checkpoint of the library."""
    own = {"ranks": session.size, "batch_size": session.recipe.batch_size, "passes": session.passes}
    return {**session.run.state_dict(), **own}
