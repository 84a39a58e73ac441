"""Records as text, figures and one self-contained HTML file. Neither torch nor a device; plotly only in the report."""

from __future__ import annotations

from wattune.reporting.gathering import Records, gather
from wattune.reporting.report import write_report
from wattune.reporting.text import cap_table, comparison_table, summary

__all__ = ["Records", "cap_table", "comparison_table", "gather", "summary", "write_report"]
