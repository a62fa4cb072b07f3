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
    """A random stream that no party can draw again: every generator starts from 256 fresh bits of an island's secret.

    Args:
        secret: the island's secret.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: Secret) -> None:
        super().__init__(0)
        self._secret = secret

    def child(self, *path: str | int) -> Rng:
        """Return the stream itself: a secret stream has no positions to return to."""
        del path
        return self

    def generator(self) -> np.random.Generator:
        """Return a generator with its own seed."""
        return self._secret.generator()


def is_private(algorithm: Algorithm) -> bool:
    """Return whether an algorithm promises privacy: whether it, or an algorithm inside it, has events."""
    return algorithm.overrides("events")


def released(algorithm: Algorithm, island: Island) -> Rng | None:
    """Prepare a local update: admit the data, record the release, and return the secret stream; ``None`` without privacy.

    Raises:
        DataError: the client's data break an assumption of the privacy guarantee.
    """
    if not is_private(algorithm):
        return None
    data = island.data
    algorithm.admit(data)
    for event in algorithm.events(len(data)):
        island.spend(event)
    return SecretStream(island.secret)


def refuse_reports(algorithm: Algorithm, reports: Mapping[str, Any]) -> None:
    """Refuse reports with a mechanism: they come from the raw data.

    Raises:
        CompositionError: the algorithm is private and there are reports.
    """
    if reports and is_private(algorithm):
        raise CompositionError(
            f"reports ({', '.join(map(repr, reports))}) would leave the clients without noise",
            where=type(algorithm).__name__,
            remedy="use a selection rule without reports, or the same algorithm without privacy",
        )


def require_mechanism_outside(algorithm: Algorithm) -> None:
    """Refuse a wrapper around a privacy mechanism with its own replies or steps.

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
