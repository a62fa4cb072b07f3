"""Schemes: how a secret becomes shares, one for each of n holders, and how enough of them give it back. No communication.

| scheme | secret is | holders needed | fewer learn |
| --- | --- | --- | --- |
| `split_additive` | the sum of the shares | all n | nothing |
| `split_additive` over `Binary` | the XOR of the shares | all n | nothing |
| `split_shamir` | the value at 0 of a polynomial of degree t - 1 (Shamir 1979) | any t | nothing |
| `split_replicated` | the sum of three parts; holder i has parts i and i + 1 (Ito, Saito, Nishizeki 1987) | any 2 of 3 | nothing |

All shares are linear: sums of shares are shares of sums. Every draw comes from ``island.secret``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError, DataError

from .domain import Array, Domain
from .field import Field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.core.requests.island import Secret

__all__ = [
    "lagrange",
    "open_additive",
    "open_replicated",
    "open_shamir",
    "split_additive",
    "split_replicated",
    "split_shamir",
]

_BLOCK = 1 << 14
"""Values whose polynomials are evaluated at once: they stay in the processor's cache."""


def split_additive(values: Array, n: int, domain: Domain, secret: Secret) -> list[Array]:
    """Split values into n shares that add up to them: n - 1 uniform ones, and what is missing.

    Args:
        values: elements of the domain, of any shape.
        n: number of holders, at least 2.
        domain: where the shares live; over `Binary` the sum is XOR.
        secret: where the randomness comes from.
    """
    if n < 2:
        raise ConfigError(
            f"{n} holders", where="split_additive", remedy="share among 2 or more: a single share is the value"
        )
    drawn = [domain.random(secret, values.shape) for _ in range(n - 1)]
    return [*drawn, domain.sub(values, functools.reduce(domain.add, drawn))]


def open_additive(shares: Sequence[Array], domain: Domain) -> Array:
    """The values of additive shares; all of them are needed."""
    return functools.reduce(domain.add, shares)


def split_shamir(values: Array, n: int, threshold: int, field: Field, secret: Secret) -> list[Array]:
    """Split values into n shares, any ``threshold`` of which give them back.

    Holder ``i`` gets ``f(i + 1)`` of a random polynomial ``f`` of degree ``threshold - 1`` with ``f(0)`` the value.

    Args:
        values: elements of the field, of any shape.
        n: number of holders.
        threshold: shares that give the values; fewer are independent of them.
        field: a field with more than n elements.
        secret: where the coefficients come from.

    Raises:
        ConfigError: the threshold is not 1 to n, or the field is too small.
    """
    if not 1 <= threshold <= n or n >= field.order:
        raise ConfigError(
            f"threshold={threshold} of {n} holders modulo {field.order}",
            where="split_shamir",
            remedy="use a threshold of 1 to the number of holders, and a prime above it",
        )
    flat = np.ravel(values)
    made = np.empty((n, flat.size), dtype=np.uint64)
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : begin + _BLOCK]
        line = [field.random(secret, block.shape) for _ in range(threshold - 1)]
        for x in range(1, n + 1):
            value = np.zeros_like(block)
            for coefficient in line:
                value = field.times(field.add(value, coefficient), x)
            made[x - 1, begin : begin + _BLOCK] = field.add(value, block)
    return list(made.reshape(n, *values.shape))


def open_shamir(shares: Mapping[int, Array], threshold: int, field: Field) -> Array:
    """The values of Shamir shares; all shares given are used to check that they fit together.

    Args:
        shares: holder's place, from 0 -> its share; ``threshold`` or more of them.
        threshold: shares that give the values.
        field: the field.

    Raises:
        DataError: there are fewer shares than the threshold, or they lie on no polynomial of that degree: one of them is wrong.
    """
    if len(shares) < threshold:
        raise DataError(
            f"{len(shares)} shares, and {threshold} are needed", where="open_shamir", remedy="wait for more holders"
        )
    places = sorted(shares)
    first, rest = places[:threshold], places[threshold:]
    for place in rest:  # what lies beyond the threshold must lie on the same polynomial
        expected = _combined(field, lagrange(tuple(first), field, at=place + 1), [shares[x] for x in first])
        if not np.array_equal(expected, shares[place]):
            raise DataError(
                f"the shares of holders {places} do not lie on one polynomial of degree {threshold - 1}",
                where="open_shamir",
                remedy="one of them is wrong: compare subsets of the shares, or use authenticated shares",
            )
    return _combined(field, lagrange(tuple(first), field), [shares[x] for x in first])


@functools.lru_cache(maxsize=4096)
def lagrange(places: tuple[int, ...], field: Field, at: int = 0) -> tuple[int, ...]:
    """The factor of each holder's share in the polynomial's value at a point: ``prod_(j != i) (at - x_j) / (x_i - x_j)``, with ``x = place + 1``."""
    made, p = [], field.prime
    for place in places:
        over = under = 1
        for other in places:
            if other != place:
                over = over * (at - other - 1) % p
                under = under * (place - other) % p
        made.append(over * pow(under, -1, p) % p)
    return tuple(made)


def split_replicated(values: Array, domain: Domain, secret: Secret) -> list[tuple[Array, Array]]:
    """Split values for three holders: three additive parts, of which holder ``i`` gets parts ``i`` and ``i + 1 (mod 3)``."""
    parts = split_additive(values, 3, domain, secret)
    return [(parts[i], parts[(i + 1) % 3]) for i in range(3)]


def open_replicated(shares: Mapping[int, tuple[Array, Array]], domain: Domain) -> Array:
    """The values of replicated shares, from any two holders; with all three, the copies are compared.

    Raises:
        DataError: fewer than two holders, or two copies of a part differ.
    """
    if len(shares) < 2:
        raise DataError(f"{len(shares)} of 3 holders", where="open_replicated", remedy="two holders are needed")
    parts: dict[int, Array] = {}
    for holder, pair in sorted(shares.items()):
        for part, value in zip((holder, (holder + 1) % 3), pair, strict=True):
            if part in parts and not np.array_equal(parts[part], value):
                raise DataError(
                    f"two copies of part {part} differ",
                    where="open_replicated",
                    remedy="one of the holders altered its shares",
                )
            parts[part] = value
    return functools.reduce(domain.add, (parts[i] for i in range(3)))


def _combined(field: Field, factors: Sequence[int], shares: Sequence[Array]) -> Array:
    terms = (field.mul(share, np.array(f, dtype=np.uint64)) for f, share in zip(factors, shares, strict=True))
    return functools.reduce(field.add, terms)
