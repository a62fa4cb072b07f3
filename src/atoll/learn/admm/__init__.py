"""The alternating direction method of multipliers where messages differ by client or a task has its own shape: programs over a federation.

Methods whose server combines one sum are algorithms of a ``Training`` and lie in ``atoll.learn.algorithms``: LFedADMM, FedADMM, CEADMM, FastADMM,
AndersonADMM. Names here are loaded when they are first used, because those algorithms use parts of this room.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .asynchronous import AsyncADMM
    from .attack import ratings_from_messages, ratings_from_sums
    from .factorisation import MatrixFactorisation
    from .graph_admm import DADMM, DLM
    from .mocha import Mocha
    from .multitask import MultiTaskADMM
    from .sums_only import SumsOnly

__all__ = [
    "DADMM",
    "DLM",
    "AsyncADMM",
    "MatrixFactorisation",
    "Mocha",
    "MultiTaskADMM",
    "SumsOnly",
    "ratings_from_messages",
    "ratings_from_sums",
]

_WHERE = {
    "AsyncADMM": "asynchronous",
    "DADMM": "graph_admm",
    "DLM": "graph_admm",
    "MatrixFactorisation": "factorisation",
    "Mocha": "mocha",
    "MultiTaskADMM": "multitask",
    "SumsOnly": "sums_only",
    "ratings_from_messages": "attack",
    "ratings_from_sums": "attack",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'atoll.learn.admm' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value
