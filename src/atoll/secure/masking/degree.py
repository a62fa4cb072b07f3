"""How many neighbours and which threshold a masked sum needs, from the loss and corruption that are expected (Bell et al. 2020, semi-honest)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from atoll.core.errors import ConfigError

__all__ = ["MaskingPlan", "plan"]

SIGMA, ETA = 40, 30
"""Bits of security and of correctness: something goes wrong with a probability of at most ``2^-40`` and ``2^-30``."""


@dataclass(frozen=True)
class MaskingPlan:
    """The least degree, and the least threshold that it allows.

    Attributes:
        neighbours: neighbours of each party, ``k``.
        threshold: shares that open a seed, ``t``.
    """

    neighbours: int
    threshold: int


@functools.lru_cache(maxsize=256)
def plan(parties: int, loss: float, corrupt: float) -> MaskingPlan:
    """Find the least ``k`` for which a ``t`` exists, and the least such ``t``.

    The neighbours of a party are ``k`` of the other ``n - 1``, at random. With ``c = floor(corrupt n)`` corrupt parties and ``s = floor((1 - loss) n)`` that stay,

    * secrecy: ``n P[X >= t] <= 2^-40`` for ``X`` hypergeometric: ``k`` of ``n - 1`` with ``c`` marked;
    * recovery: ``n P[Y < t] <= 2^-30`` for ``Y`` hypergeometric: ``k`` of ``n - 1`` with ``s`` marked;
    * one piece: ``n (loss + corrupt)^k <= 2^-40``.

    ``k`` is even, half on each side of the ring, or all others. ``t`` is at least 2: one share alone would be the seed.

    Args:
        parties: ``n``.
        loss: share of the parties that drop out.
        corrupt: share of the parties that collude with the server.

    Raises:
        ConfigError: a number makes no sense, or no degree is enough.
    """
    if parties < 2 or not 0 <= loss < 1 or not 0 <= corrupt < 1 or loss + corrupt >= 1:
        raise ConfigError(
            f"parties={parties}, loss={loss}, corrupt={corrupt}",
            where="plan",
            remedy="use 2 parties or more, and shares whose sum is below 1",
        )
    bad, staying, others = (
        math.floor(corrupt * parties),
        min(parties - 1, math.floor((1 - loss) * parties)),
        parties - 1,
    )
    most_bad, most_lost = 2.0**-SIGMA / parties, 2.0**-ETA / parties
    pieces = 2 if loss + corrupt == 0 else math.ceil(math.log(2.0**-SIGMA / parties) / math.log(loss + corrupt))
    for k in range(max(1, min(pieces, others)), others + 1):
        if k % 2 and k < others:  # a ring has half of the neighbours on each side
            continue
        threshold = max(min(2, k), _least_secret(others, bad, k, most_bad))
        if threshold <= k and _below(others, staying, k, threshold) <= most_lost:
            return MaskingPlan(k, threshold)
    raise ConfigError(
        f"{parties} parties with a loss of {loss:g} and {corrupt:g} corrupt have no threshold that both keeps secrets and recovers",
        where="plan",
        remedy="invite more parties, or expect less loss or corruption",
    )


def _least_secret(others: int, marked: int, k: int, most: float) -> int:
    """The least ``t`` with ``P[X >= t] <= most``."""
    tail, t = 0.0, min(k, marked) + 1
    while t > 0:
        tail += _chance(others, marked, k, t - 1)
        if tail > most:
            return t
        t -= 1
    return 0


def _below(others: int, marked: int, k: int, t: int) -> float:
    """``P[Y < t]``."""
    return math.fsum(_chance(others, marked, k, i) for i in range(max(0, k - (others - marked)), t))


def _chance(others: int, marked: int, k: int, i: int) -> float:
    """``P[X = i]`` for ``k`` drawn of ``others``, ``marked`` of which count."""
    if i > marked or k - i > others - marked or i > k:
        return 0.0
    return math.exp(_choose(marked, i) + _choose(others - marked, k - i) - _choose(others, k))


@functools.lru_cache(maxsize=1 << 16)
def _choose(n: int, k: int) -> float:
    """The logarithm of a binomial coefficient."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
