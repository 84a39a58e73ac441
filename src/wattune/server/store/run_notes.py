"""Tags and a note of a training run, by people: in a table of their own, so that a change rewrites no record."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import ColumnElement, delete
from sqlalchemy.orm import Session

from wattune.errors import InputError
from wattune.server.store.schema import RunNoteRow

TAG_CHARS, MOST_TAGS, NOTE_CHARS = 32, 10, 2000
"""Maximum number of characters of a tag, of tags of a run, and of characters of a note."""


def get(session: Session, training_id: str) -> tuple[str, str]:
    """Read the tags, separated by spaces, and the note of a run; empty texts if there are none."""
    row = session.get(RunNoteRow, training_id)
    return ("", "") if row is None else (row.tags, row.note)


def has_tag(tag: str) -> ColumnElement[bool]:
    """Condition of a query: a run has this tag."""
    return (" " + RunNoteRow.tags + " ").contains(f" {tag.lower()} ", autoescape=True)


def put(session: Session, training_id: str, tags: Iterable[str], note: str) -> None:
    """Replace tags and note of a run that exists. Raises: InputError."""
    names = sorted({tag.lower() for tag in tags})
    for name in names:
        if not re.fullmatch(rf"\w[\w.-]{{0,{TAG_CHARS - 1}}}", name):
            raise InputError("tag", value=name, allowed=f"up to {TAG_CHARS} letters, digits, '.', '_' and '-'")
    if len(names) > MOST_TAGS:
        raise InputError("tags", value=len(names), allowed=f"up to {MOST_TAGS}")
    note = "\n".join(note.splitlines()).strip()
    if len(note) > NOTE_CHARS:
        raise InputError("characters of the note", value=len(note), allowed=f"up to {NOTE_CHARS}")
    if names or note:
        session.merge(RunNoteRow(training_id=training_id, tags=" ".join(names), note=note))
    else:
        session.execute(delete(RunNoteRow).where(RunNoteRow.training_id == training_id))
