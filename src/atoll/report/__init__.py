"""Reports: a page that shows what a run did, the comparison of runs, and trackers."""

from .citations import cite
from .compare import compare_runs, write_comparison
from .page import write_report
from .partition import partition_facts, summarise_data

__all__ = ["cite", "compare_runs", "partition_facts", "summarise_data", "write_comparison", "write_report"]
