"""Representative clients, chosen greedily from a random pool."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError

from .coverage import FacilityLocation, lazy_greedy

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["among_some", "require_pool"]


def require_pool(where: str, pool: float) -> None:
    """Refuse a share outside (0, 1].

    Raises:
        ConfigError: the share is outside.
    """
    if not 0 < pool <= 1:
        raise ConfigError(f"pool={pool}", where=where, remedy="use a share above 0 and up to 1")


def among_some(
    alike: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
    there: NDArray[np.int64],
    count: int,
    pool: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Choose clients that represent all clients, greedily, from a random pool of the available ones.

    Args:
        alike: similarities of all clients, ``(clients, clients)``.
        weights: weights of all clients; ``None`` weights them equally.
        there: available clients, as rows of ``alike``, ascending.
        count: the largest number of clients to choose.
        pool: share of ``there`` to consider, at least ``count`` clients.
        rng: draws the pool.

    Returns:
        Indices into ``there``, in the order of choice.
    """
    size = min(len(there), max(count, math.ceil(pool * len(there))))
    some = np.sort(rng.choice(len(there), size=size, replace=False))
    chosen, _ = lazy_greedy(_Among(alike, weights, among=there[some]), min(count, size))
    return np.asarray(some[chosen])


@dataclass(frozen=True, eq=False)
class _Among(FacilityLocation):
    """Facility location over all clients in which only some may be chosen."""

    among: NDArray[np.int64] = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.among)

    def gain(self, state: NDArray[np.float64], client: int) -> float:
        return super().gain(state, int(self.among[client]))

    def add(self, state: NDArray[np.float64], client: int) -> NDArray[np.float64]:
        return super().add(state, int(self.among[client]))
