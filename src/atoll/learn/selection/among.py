"""The clients that stand for everybody, chosen greedily among some that are drawn."""

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
        ConfigError: it is.
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
    """Choose those that stand for everybody, greedily, among some that are drawn of those who are there.

    Args:
        alike: similarities of everybody, ``(clients, clients)``.
        weights: of everybody, or alike.
        there: who may be chosen, as rows of ``alike``, ascending.
        count: how many are chosen, at most.
        pool: share of ``there`` that is considered, at least ``count`` of them.
        rng: draws them.

    Returns:
        Indices into ``there``, in the order of choice.
    """
    size = min(len(there), max(count, math.ceil(pool * len(there))))
    some = np.sort(rng.choice(len(there), size=size, replace=False))
    chosen, _ = lazy_greedy(_Among(alike, weights, among=there[some]), min(count, size))
    return np.asarray(some[chosen])


@dataclass(frozen=True, eq=False)
class _Among(FacilityLocation):
    """Facility location where everybody counts and only some may be chosen."""

    among: NDArray[np.int64] = field(kw_only=True)

    def __len__(self) -> int:
        return len(self.among)

    def gain(self, state: NDArray[np.float64], client: int) -> float:
        return super().gain(state, int(self.among[client]))

    def add(self, state: NDArray[np.float64], client: int) -> NDArray[np.float64]:
        return super().add(state, int(self.among[client]))
