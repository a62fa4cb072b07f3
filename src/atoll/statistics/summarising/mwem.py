"""MWEM: multiplicative weights over a public domain, from the worst answers of private data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.event import Event, Laplace
from atoll.core.requests.island import Secret
from atoll.privacy import RandomisedResponse
from atoll.privacy.discrete import add_laplace, words_of
from atoll.privacy.discrete.laws import DIGITS

__all__ = ["Mwem"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Mwem:
    """Approximate a histogram by answers to linear queries.

    Hardt, Ligett, McSherry 2012, "A Simple and Practical Algorithm for Differentially Private Data Release", figure 1.
    In each of ``steps`` rounds the exponential mechanism chooses a query that is answered badly (``epsilon / (2 steps)``; one row changes an answer by at most
    1), Laplace noise of scale ``2 steps / epsilon`` measures it (``m``), and ``A(x) <- A(x) exp(q(x) (m - q(A)) / (2 n))``, normalised to ``n`` rows. The result is the
    mean of all ``A``. The number of rows is public: neighbours replace one row. Choices and measurements are drawn in whole steps, so that no last bits tell the data.

    Attributes:
        epsilon: of the whole.
        steps: rounds.
    """

    epsilon: float = 1.0
    steps: int = 10

    def __post_init__(self) -> None:
        if self.steps < 1 or not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(
                f"epsilon={self.epsilon}, steps={self.steps}",
                where="Mwem",
                remedy="use a finite epsilon above 0, and at least one step",
            )

    @property
    def events(self) -> tuple[Event, ...]:
        """What one histogram costs: the choices (randomised response is the worst of all that is equally private) and the measurements."""
        each = self.epsilon / (2 * self.steps)
        return (
            RandomisedResponse(unit="example", epsilon=each, count=self.steps),
            Laplace(unit="example", epsilon=each, count=self.steps),
        )

    def histogram(self, counts: Array, queries: Array, secret: Secret) -> Array:
        """Return an approximate histogram, ``(domain,)``, that sums to the number of rows.

        Args:
            counts: rows at each place of the domain, ``(domain,)``.
            queries: values in [0, 1], ``(queries, domain)``.
            secret: of the party.

        Raises:
            ConfigError: a query has a value outside [0, 1], so that one row could change its answer by more than 1.
        """
        if queries.size == 0 or queries.min() < 0 or queries.max() > 1:
            raise ConfigError("queries outside [0, 1]", where="Mwem", remedy="give queries with values in [0, 1]")
        n, draw, each = float(counts.sum()), secret.generator(), self.epsilon / (2 * self.steps)
        if n == 0:
            return np.zeros(len(counts))
        true = queries @ counts
        weights = np.full(len(counts), n / len(counts))
        total = np.zeros(len(counts))
        for _ in range(self.steps):
            errors = np.abs(true - queries @ weights)
            at = choose(errors, each, draw)
            measured = float(add_laplace(true[at], 1 / each, draw, 1.0))
            moved = np.log(weights) + queries[at] * (measured - queries[at] @ weights) / (2 * n)
            weights = np.exp(moved - moved.max())
            weights *= n / weights.sum()
            total += weights
        found: Array = total / self.steps
        return found


def choose(errors: Array, epsilon: float, draw: np.random.Generator) -> int:
    """Return a place by the exponential mechanism, ``P(i) ~ exp(epsilon error_i / 2)``, for errors that one row moves by at most 1.

    Errors count in steps of ``2^-20``, rounded down, which one row moves by at most ``2^20 + 1``. Weights have 60 digits, and 128 random bits choose.
    """
    steps = np.floor(errors * 2.0**20).astype(np.int64).tolist()
    most, bits = max(steps), [int(word) for word in words_of(draw)(2)]
    with localcontext(DIGITS):
        rate = Decimal(epsilon) / (2 * ((1 << 20) + 1))
        weights = [(rate * (step - most)).exp() for step in steps]
        left = sum(weights) * (Decimal((bits[0] << 64) | bits[1]) / Decimal(1 << 128))
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
    return len(steps) - 1
