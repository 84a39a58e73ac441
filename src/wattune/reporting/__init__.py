"""Records as text, figures and one self-contained HTML file. Neither torch nor a device."""

from __future__ import annotations

from wattune.reporting.record_set import RecordSet, gather
from wattune.reporting.report import write_report
from wattune.reporting.text import comparison_table, summary

__all__ = ["RecordSet", "comparison_table", "gather", "summary", "write_report"]
