"""Reports: a page about a run, the comparison of runs, and trackers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .citations import cite
    from .compare import compare_runs, write_comparison
    from .page import write_report
    from .partition import partition_facts, summarise_data
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "citations": ("cite",),
            "compare": ("compare_runs", "write_comparison"),
            "page": ("write_report",),
            "partition": ("partition_facts", "summarise_data"),
        },
    )

__all__ = ["cite", "compare_runs", "partition_facts", "summarise_data", "write_comparison", "write_report"]
