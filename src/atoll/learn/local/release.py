"""Releases under privacy: the ledger first, then noise from the island's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError

from ..hooks import STEP_HOOKS, changes
from ..wrapped import Wrapped

if TYPE_CHECKING:
    from atoll.core.requests.island import Island, Secret

    from ..algorithm import Algorithm

__all__ = ["SecretStream", "is_private", "refuse_reports", "released", "require_mechanism_outside"]


class SecretStream(Rng):
    """A stream of numbers that nobody can draw again: every generator begins at 256 fresh bits of an island's secret.

    Args:
        secret: the island's.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: Secret) -> None:
        super().__init__(0)
        self._secret = secret

    def child(self, *path: str | int) -> Rng:
        """Itself: a secret stream has no places to come back to."""
        del path
        return self

    def generator(self) -> np.random.Generator:
        """A generator with a seed of its own."""
        return self._secret.generator()


def is_private(algorithm: Algorithm) -> bool:
    """Whether an algorithm promises privacy: it, or one that it wraps, names its events."""
    return algorithm.overrides("events")


def released(algorithm: Algorithm, island: Island) -> Rng | None:
    """Before a local update: admit the data, write what will be released, and hand out the secret stream; ``None`` without privacy.

    Raises:
        DataError: the client's data break what its privacy rests on.
    """
    if not is_private(algorithm):
        return None
    data = island.data
    algorithm.admit(data)
    for event in algorithm.events(len(data)):
        island.spend(event)
    return SecretStream(island.secret)


def refuse_reports(algorithm: Algorithm, reports: Mapping[str, Any]) -> None:
    """Refuse reports beside a mechanism: they are made of the raw data.

    Raises:
        CompositionError: the algorithm is private and something is asked for.
    """
    if reports and is_private(algorithm):
        raise CompositionError(
            f"reports ({', '.join(map(repr, reports))}) would leave the clients without noise",
            where=type(algorithm).__name__,
            remedy="use a selection rule that asks for none, or the same algorithm without privacy",
        )


def require_mechanism_outside(algorithm: Algorithm) -> None:
    """Refuse a wrapper around a privacy mechanism that makes replies or steps of its own.

    Raises:
        CompositionError: names the wrapper.
    """
    outer = algorithm
    while isinstance(outer, Wrapped) and not changes(outer, Wrapped, "events"):
        if PROTECTION in outer.base.offers and changes(outer, Wrapped, *STEP_HOOKS, "start", "finish"):
            raise CompositionError(
                f"{type(outer).__name__} changes what clients do around a privacy mechanism",
                where="Training.algorithm",
                remedy=f"put the mechanism outside: OutputPerturbation(base={type(outer).__name__}(...))",
            )
        outer = outer.base
