"""Structured logs: one JSON object per line on stderr, with the id of the request it belongs to.

On a terminal, where a person looks for the server's address, only warnings and errors are printed, as plain text.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

REQUESTS = logging.getLogger("wattune_server.requests")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Formatter that writes a record as JSON, with the fields passed as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure() -> None:
    """Send the logs of wattune's server and of uvicorn to stderr."""
    handler, level = logging.StreamHandler(sys.stderr), logging.INFO
    if sys.stderr.isatty():
        level = logging.WARNING
        handler.setFormatter(logging.Formatter("wattune: %(levelname)s: %(message)s"))
    else:
        handler.setFormatter(JsonLines())
    for name in ("wattune_server", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # Requests are logged once, by our own middleware.
    logging.getLogger("uvicorn.access").handlers[:] = [logging.NullHandler()]
    logging.getLogger("uvicorn.access").propagate = False
