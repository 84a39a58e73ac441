"""Records as text, text and one self-contained HTML file. Neither torch nor a device."""

from __future__ import annotations

from wattune.reporting.record_set import RecordSet, gather
from wattune.reporting.report import summary, write_report

__all__ = ["RecordSet", "gather", "summary", "write_report"]
