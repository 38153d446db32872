"""What runs recorded, as one self-contained HTML file, plots and a table for the terminal."""

from wechsel_jax.report.curves import steps_needed
from wechsel_jax.report.page import write_report
from wechsel_jax.report.records import RunRecord, read_run
from wechsel_jax.report.table import comparison_table

__all__ = ["RunRecord", "comparison_table", "read_run", "steps_needed", "write_report"]
