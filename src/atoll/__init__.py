"""Atoll: federated computing for Python. Learn, query and find the truth over data that may not move.

`import atoll` loads NumPy only; everything else is loaded when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import data, devices, engines, models, report, reproduce, runs, testing
    from .core.aggregate import Mean, Parts, Sum, Vote
    from .core.errors import AtollError
    from .core.federation import Federation
    from .core.reducer import Reducer
    from .core.stage import Identity, Stage
    from .core.task import task
    from .learn import (
        Algorithm,
        Evaluation,
        Everyone,
        FedAvg,
        FedSGD,
        MaxTime,
        Patience,
        Schedule,
        Selection,
        StopTraining,
        Synchronous,
        Target,
        Training,
        Uniform,
    )
    from .simulation import Result, simulate
    from .stages import Clip
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "core.aggregate": ("Mean", "Parts", "Sum", "Vote"),
            "core.errors": ("AtollError",),
            "core.federation": ("Federation",),
            "core.reducer": ("Reducer",),
            "core.stage": ("Identity", "Stage"),
            "core.task": ("task",),
            "learn": (
                "Algorithm",
                "Evaluation",
                "Everyone",
                "FedAvg",
                "FedSGD",
                "MaxTime",
                "Patience",
                "Schedule",
                "Selection",
                "StopTraining",
                "Synchronous",
                "Target",
                "Training",
                "Uniform",
            ),
            "simulation": ("Result", "simulate"),
            "stages": ("Clip",),
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
    "Identity",
    "MaxTime",
    "Mean",
    "Parts",
    "Patience",
    "Reducer",
    "Result",
    "Schedule",
    "Selection",
    "Stage",
    "StopTraining",
    "Sum",
    "Synchronous",
    "Target",
    "Training",
    "Uniform",
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
    "task",
    "testing",
]
