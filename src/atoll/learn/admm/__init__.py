"""The alternating direction method of multipliers with messages that differ by client, or tasks of their own shape: programs over a federation.

Methods with a server that combines one sum are algorithms of a ``Training`` in ``atoll.learn.algorithms``: LFedADMM, FedADMM, CEADMM, FastADMM,
AndersonADMM. Names here load at first use, because those algorithms use parts of this room.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .asynchronous import AsyncADMM
    from .attack import ratings_from_messages, ratings_from_sums
    from .factorisation import MatrixFactorisation
    from .graph_admm import DADMM, DLM
    from .mocha import Mocha
    from .multitask import MultiTaskADMM
    from .sums_only import SumsOnly
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asynchronous": ("AsyncADMM",),
            "attack": ("ratings_from_messages", "ratings_from_sums"),
            "factorisation": ("MatrixFactorisation",),
            "graph_admm": ("DADMM", "DLM"),
            "mocha": ("Mocha",),
            "multitask": ("MultiTaskADMM",),
            "sums_only": ("SumsOnly",),
        },
    )

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
