"""Revisions of the training algorithms, which planning checks too: without torch."""

from __future__ import annotations

from wattune.errors import RecordError
from wattune.version import __version__

REVISIONS: dict[str, str] = {"async-fgd": "2", "backprop": "1", "forward-gradient": "1"}
"""Algorithm's name -> revision. The revision grows when the same name and options train something else than before, so
that records of both are not mixed. In revision 2 of async-fgd, activities are perturbed by default."""


def name_of(spec: str) -> str:
    """The algorithm's name without its revision and options."""
    return spec.partition(":")[0].partition("@")[0]


def revision_of(spec: str) -> str:
    """The revision in a record; the first one is not written."""
    return spec.partition(":")[0].partition("@")[2] or "1"


def check_revision(spec: str, software: str | None = None) -> None:
    """Refuse an algorithm that has another revision here. ``software``: what wrote its record.

    A name that is not known here passes: opening the algorithm says which names there are. Raises: RecordError.
    """
    revision = REVISIONS.get(name_of(spec))
    if revision not in (None, revision_of(spec)):
        raise RecordError(
            f"revision {revision_of(spec)} of the training algorithm",
            value=spec if software is None else f"{spec}, written by {software}",
            allowed=f"revision {revision}, which wattune {__version__} trains",
            hint="make profile, efficiency record and plan again: wattune profile, estimate and plan, or wattune run "
            "in a new folder",
        )
