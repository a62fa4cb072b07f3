"""Atoll: federated computing for Python. Learn, query and find the truth over data that may not move.

`import atoll` loads NumPy only; everything else is loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import data, devices, engines, models, report, reproduce, runs, testing
    from .core.algebra.aggregate import Mean, Parts, Sum, Vote
    from .core.errors import AtollError
    from .core.federation.ending import StopRun
    from .core.federation.federation import Federation
    from .core.federation.reducer import Reducer
    from .core.requests.stage import Stage
    from .core.requests.task import task
    from .learn import (
        Algorithm,
        Evaluation,
        Everyone,
        FedAvg,
        FedSGD,
        Schedule,
        Selection,
        Synchronous,
        Training,
        Uniform,
    )
    from .learn.algorithms import Scaffold, Upcycled
    from .rounds import MaxTime, Patience, Target
    from .secure import SecureAggregation
    from .simulation import Result, simulate
    from .stages import Clip, ScalarQuantizer
    from .sweeps import sweep
else:
    from .core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "core.algebra.aggregate": ("Mean", "Parts", "Sum", "Vote"),
            "core.federation.ending": ("StopRun",),
            "core.errors": ("AtollError",),
            "core.federation.federation": ("Federation",),
            "core.federation.reducer": ("Reducer",),
            "core.requests.stage": ("Stage",),
            "core.requests.task": ("task",),
            "learn": (
                "Algorithm",
                "Evaluation",
                "Everyone",
                "FedAvg",
                "FedSGD",
                "Schedule",
                "Selection",
                "Synchronous",
                "Training",
                "Uniform",
            ),
            "learn.algorithms": ("Scaffold", "Upcycled"),
            "rounds": ("MaxTime", "Patience", "Target"),
            "secure": ("SecureAggregation",),
            "simulation": ("Result", "simulate"),
            "stages": ("Clip", "ScalarQuantizer"),
            "sweeps": ("sweep",),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AtollError",
    "Clip",
    "Evaluation",
    "Everyone",
    "FedAvg",
    "FedSGD",
    "Federation",
    "MaxTime",
    "Mean",
    "Parts",
    "Patience",
    "Reducer",
    "Result",
    "Scaffold",
    "ScalarQuantizer",
    "Schedule",
    "SecureAggregation",
    "Selection",
    "Stage",
    "StopRun",
    "Sum",
    "Synchronous",
    "Target",
    "Training",
    "Uniform",
    "Upcycled",
    "Vote",
    "__version__",
    "data",
    "devices",
    "engines",
    "models",
    "report",
    "reproduce",
    "runs",
    "simulate",
    "sweep",
    "task",
    "testing",
]
