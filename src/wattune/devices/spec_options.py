"""Options behind a device's name: ``jetson?root=/tmp/tree&knobs=gpu``."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

from wattune.errors import InputError, did_you_mean


def split_options(rest: str, mark: str, allowed: Iterable[str], *, device: str) -> tuple[str, dict[str, str]]:
    """Split a name into the text before the last ``mark`` and the options behind it.

    A special character in an option (``&``, ``%``) is percent-encoded as in a URL, ``%26`` for ``&``.

    Raises: InputError for an option that is not allowed, has no value or is given twice.
    """
    before, found, query = rest.rpartition(mark)
    if not found:
        return rest, {}
    options: dict[str, str] = {}
    known = ", ".join(sorted(allowed)) or "none"
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name not in allowed or not value or name in options:
            hint = None if name in allowed else did_you_mean(name, allowed)
            raise InputError(
                f"{device}: not an option", value=part, allowed=f"once each, with =value: {known}", hint=hint
            )
        options[name] = unquote(value)
    return before, options


def with_options(spec: str, **options: object) -> str:
    """``spec`` with options added; those that are None are left out."""
    added = "&".join(f"{name}={quote(str(value), safe='/')}" for name, value in options.items() if value is not None)
    if not added:
        return spec
    return f"{spec}{'&' if '?' in spec else '?'}{added}"
