"""Reports: a page about a run, the comparison of runs, and trackers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compare import compare_runs, write_comparison
    from .facts import cite, partition_facts, summarise_data
    from .page import write_report
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "facts": ("cite", "partition_facts", "summarise_data"),
            "compare": ("compare_runs", "write_comparison"),
            "page": ("write_report",),
        },
    )

__all__ = ["cite", "compare_runs", "partition_facts", "summarise_data", "write_comparison", "write_report"]
