"""Releases under privacy: the ledger first, then noise from the island's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CompositionError
from atoll.core.rng import Rng

from .wrapped import Wrapped, overrides

if TYPE_CHECKING:
    from atoll.core.island import Island, Secret

    from .algorithm import Algorithm

__all__ = ["SecretStream", "is_private", "refuse_reports", "released", "require_private_reply"]


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
        seed = np.random.SeedSequence(int.from_bytes(self._secret.bytes(32), "little"), pool_size=8)
        return np.random.Generator(np.random.Philox(seed))


def is_private(algorithm: Algorithm) -> bool:
    """Whether an algorithm promises privacy: it, or one that it wraps, names its events."""
    return overrides(algorithm, "events")


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


def require_private_reply(algorithm: Algorithm, learner: Any) -> None:
    """Refuse compositions in which something leaves a client beside the mechanism, before anyone is contacted.

    Raises:
        CompositionError: a wrapper around the mechanism makes replies or steps of its own, or the learner sends more than the reply.
    """
    if not is_private(algorithm):
        return
    if not getattr(learner, "releases", False):
        raise CompositionError(
            f"{type(learner).__name__} does not spend privacy events",
            where="Training.model",
            remedy="use a PyTorch module or atoll.models.linear",
        )
    if learner.buffers():
        raise CompositionError(
            "running statistics of normalisation layers would leave the clients without noise",
            where="Training.buffers",
            remedy="use buffers='local', or a model without batch normalisation",
        )
    outer = algorithm
    while isinstance(outer, Wrapped) and type(outer).events is Wrapped.events:
        for name in ("passes", "draw", "start", "direction", "step", "finish"):
            if getattr(type(outer), name) is not getattr(Wrapped, name):
                raise CompositionError(
                    f"{type(outer).__name__} changes what clients do around a privacy mechanism",
                    where="Training.algorithm",
                    remedy=f"put the mechanism outside: OutputPerturbation(base={type(outer).__name__}(...))",
                )
        outer = outer.base
