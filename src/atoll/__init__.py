"""Atoll: federated computing for Python. Learn, query and find the truth over data that may not move.

`import atoll` loads NumPy only; everything else is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

__version__ = "0.1.0"

_WHERE = {
    "Algorithm": "learn",
    "AtollError": "core.errors",
    "Clip": "stages",
    "Evaluation": "learn",
    "Everyone": "learn",
    "FedAvg": "learn",
    "FedSGD": "learn",
    "Federation": "core.federation",
    "Identity": "core.stage",
    "MaxTime": "learn",
    "Mean": "core.aggregate",
    "Parts": "core.aggregate",
    "Patience": "learn",
    "Reducer": "core.reducer",
    "Result": "simulation",
    "Schedule": "learn",
    "Selection": "learn",
    "Stage": "core.stage",
    "StopTraining": "learn",
    "Sum": "core.aggregate",
    "Synchronous": "learn",
    "Target": "learn",
    "Training": "learn",
    "Uniform": "learn",
    "Vote": "core.aggregate",
    "simulate": "simulation",
    "task": "core.task",
}
_ROOMS = ("data", "devices", "engines", "models", "report", "reproduce", "runs", "testing")

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


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f".{name}", __name__)
    if name in _WHERE:
        value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'atoll' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
