"""Samples whose members nobody but the server knows, for privacy amplification."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties

from ..capabilities import BLIND
from .base import Candidates, Selection

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FixedSample", "PoissonSample"]


@dataclass(frozen=True)
class PoissonSample(Selection):
    """Each client takes part by a coin of its own: ``rate = count / clients``, independently in every round. A cohort may be empty.

    It is the sampling of most amplification bounds for data sets that differ by one client. McMahan et al. 2018, "Learning Differentially Private
    Recurrent Language Models". If devices are away, a client takes part with at most this rate.

    Attributes:
        count: expected clients per round; a fraction in (0, 1] is the rate itself.
    """

    count: int | float = 10
    random_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_count(self.count)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a blind selection."""
        return super().offers | {BLIND}

    def rate(self, population: int) -> float:
        """Return the probability with which a client takes part in a round."""
        return self.count if isinstance(self.count, float) else min(1.0, self.count / max(1, population))

    def cohort_size(self, population: int) -> int:
        """Return the expected size, rounded up."""
        return min(population, max(1, math.ceil(self.rate(population) * population - 1e-9)))

    def drawn(self, population: int) -> tuple[float, str] | None:
        """Return the rate of a Poisson sample."""
        return self.rate(population), "poisson"

    def init(self, parties: Parties) -> Tree:
        """Remember how many clients there are: the rate does not follow who is available."""
        return {"population": len(parties)}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the clients whose coins say so, in order."""
        del count
        coins = candidates.secret().uniform(len(candidates.parties))
        return np.flatnonzero(coins < self.rate(int(state["population"])))


@dataclass(frozen=True)
class FixedSample(Selection):
    """``count`` of all clients without replacement, drawn anew in every round. It amplifies privacy for data sets in which one client is replaced.

    If devices are away, the round invites those of the sample that are available, so that a client takes part with at most ``count / clients``.
    Wang, Balle, Kasiviswanathan 2019, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant".

    Attributes:
        count: clients per round; a fraction in (0, 1) means ``ceil(fraction * population)``.
    """

    count: int | float = 10
    random_size: ClassVar[bool] = True  # of those that are available

    def __post_init__(self) -> None:
        _require_count(self.count)

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a blind selection."""
        return super().offers | {BLIND}

    def distinct(self, population: int) -> int | None:
        """Return the cohort's size."""
        return self.cohort_size(population)

    def cohort_size(self, population: int) -> int:
        """Return ``count``, or the fraction of the population rounded up; at most the population."""
        if isinstance(self.count, float):
            return min(population, max(1, math.ceil(self.count * population - 1e-9)))
        return min(population, self.count)

    def drawn(self, population: int) -> tuple[float, str] | None:
        """Return the rate of a sample of fixed size."""
        return self.cohort_size(population) / max(1, population), "fixed"

    def init(self, parties: Parties) -> Tree:
        """Remember how many clients there are: the sample is of all of them."""
        return {"population": len(parties)}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the available clients of the sample, in random order."""
        del count
        population, there = int(state["population"]), len(candidates.parties)
        numbers, size = candidates.secret().stream(), self.cohort_size(population)
        found = size if there == population else int(numbers.hypergeometric(there, population - there, size))
        return numbers.choice(there, size=found, replace=False, shuffle=True)


def _require_count(count: float) -> None:
    if isinstance(count, float) and not 0.0 < count <= 1.0:
        raise ConfigError(f"count={count} is not a fraction", remedy="use a fraction in (0, 1] or a whole number")
    if not isinstance(count, float) and count < 1:
        raise ConfigError(f"count={count} clients", remedy="use at least 1")
