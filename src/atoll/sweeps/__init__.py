"""Sweeps: one job under several settings and seeds, each run in a folder of its own, over all cores, and resumable.

A sweep has *variants* (one choice of settings, with a label) and *seeds*. Its folder holds a run folder for each pair, named
``LABEL_seed-K``. A run that has finished is not repeated, and one that was stopped continues.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configured import sweep_config
    from .python import sweep
    from .result import SweepResult
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__, {"configured": ("sweep_config",), "python": ("sweep",), "result": ("SweepResult",)}
    )

__all__ = ["SweepResult", "sweep", "sweep_config"]
