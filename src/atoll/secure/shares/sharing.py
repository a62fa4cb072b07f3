"""Sharings: schemes as objects that split values among the parties of a computation and put them together again.

A party's share of an array is a tuple of arrays of the same shape, its *parts*. All operations on parts are linear, entry by entry, so that additions and public
factors need no message.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError

from ..keystream import SEED
from .domain import Array, Binary, Domain, Field, SeededWords, WordRing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.core.requests.island import Secret

    from .domain import WordSource

__all__ = [
    "AdditiveSharing",
    "AuthenticatedSharing",
    "BitSharing",
    "Parts",
    "ReplicatedSharing",
    "ShamirSharing",
    "Sharing",
    "expand_share",
    "interpolate",
    "lagrange",
    "open_additive",
    "open_packed",
    "open_replicated",
    "open_shamir",
    "sharing_of",
    "split_additive",
    "split_packed",
    "split_replicated",
    "split_seeded",
    "split_shamir",
]


# ------------------------------------------------------------------ schemes
#
# Schemes: how a secret becomes shares, one for each of n holders, and how enough of them give it back. No communication.
# | scheme | secret is | holders needed | fewer learn |
# | --- | --- | --- | --- |
# | `split_additive` | the sum of the shares | all n | nothing |
# | `split_additive` over `Binary` | the XOR of the shares | all n | nothing |
# | `split_shamir` | the value at 0 of a polynomial of degree t - 1 (Shamir 1979) | any t | nothing |
# | `split_seeded` | the same; t - 1 shares follow from seeds | any t | nothing, if a keystream looks random |
# | `split_replicated` | the sum of three parts; holder i has parts i and i + 1 (Ito, Saito, Nishizeki 1987) | any 2 of 3 | nothing |
#
# All shares are linear: sums of shares are shares of sums. Every draw comes from ``island.secret``.


_BLOCK = 1 << 14
"""Values whose coefficients are drawn at once: they stay in the processor's cache."""
_STEPS = 8
"""Threshold up to which polynomials are evaluated step by step; above it products of matrices are faster."""


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


def split_shamir(values: Array, n: int, threshold: int, field: Field, secret: WordSource) -> list[Array]:
    """Split values into n shares, any ``threshold`` of which give them back.

    Holder ``i`` gets ``f(i + 1)`` of a random polynomial ``f`` of degree ``threshold - 1`` with ``f(0)`` the value.

    Args:
        values: elements of the field, of any shape.
        n: number of holders.
        threshold: shares that give the values; fewer are independent of them.
        field: a field with more than n elements.
        secret: where the polynomials come from.

    Raises:
        ConfigError: the threshold is not 1 to n, or the field is too small.
    """
    _require_threshold(n, threshold, field, "split_shamir")
    flat = np.ravel(values)
    if threshold > _STEPS:
        first = [field.random(secret, flat.shape) for _ in range(threshold - 1)]
        return [row.reshape(values.shape) for row in (*first, *_complete_shares([flat], first, n, field))]
    made = np.empty((n, flat.size), dtype=np.uint64)
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : begin + _BLOCK]
        line = [field.random(secret, block.shape) for _ in range(threshold - 1)]  # highest power first
        for x in range(1, n + 1):  # Horner's rule is the fastest way for few coefficients
            value = np.zeros_like(block)
            for coefficient in line:
                value = field.times(field.add(value, coefficient), x)
            made[x - 1, begin : begin + _BLOCK] = field.add(value, block)
    return list(made.reshape(n, *values.shape))


def split_seeded(values: Array, n: int, threshold: int, field: Field, secret: WordSource) -> list[bytes | Array]:
    """Split values as `split_shamir` does, into ``threshold - 1`` seeds and ``n - threshold + 1`` arrays.

    The value and any ``threshold - 1`` shares fix the polynomial. So the shares of the first holders may follow from seeds of 32 bytes (`expand_share`), each of which its holder alone has, and the others' are
    interpolated. This is ``threshold - 1`` arrays less to compute and to send. Fewer shares than the threshold are independent of the values for whoever cannot tell AES-128 in counter mode from chance.

    Args:
        values: elements of the field, ``(values,)``.
        n: number of holders.
        threshold: shares that give the values.
        field: a field with more than n elements.
        secret: where the seeds come from.

    Raises:
        ConfigError: as `split_shamir`.
    """
    _require_threshold(n, threshold, field, "split_seeded")
    seeds, first = _draw_seeded(threshold - 1, values.size, field, secret)
    return [*seeds, *_complete_shares([values], first, n, field)]


def split_packed(
    values: Array, n: int, threshold: int, pack: int, field: Field, secret: WordSource, *, seeds: bool = True
) -> list[bytes | Array]:
    """Split values so that each share stands for several of them (Franklin and Yung 1992).

    A polynomial of degree ``threshold + pack - 2`` takes ``pack`` values at 0, -1, -2, …, and the shares of the first ``threshold - 1`` holders at their points. So shares are shorter by the factor ``pack``, fewer than ``threshold`` of them are
    independent of the values, and ``threshold + pack - 1`` give them back (`atoll.secure.shares.open_packed`). Shares of several splits add up to shares of the sums.

    Args:
        values: elements of the field, ``(values,)``.
        n: number of holders.
        threshold: fewer shares are independent of the values.
        pack: values of a polynomial.
        field: a field with more than ``n + pack`` elements.
        secret: where the polynomials come from.
        seeds: whether the shares of the first holders follow from seeds of 32 bytes, as those of `split_seeded` do.

    Raises:
        ConfigError: the threshold is not 1 to ``n - pack + 1``, or the field is too small.

    Example:
        >>> from atoll.core.requests.island import Secret
        >>> from atoll.secure.shares import Field, open_packed
        >>> field = Field()
        >>> shares = split_packed(field.of([3, 1, 4, 1, 5]), 6, 2, 3, field, Secret())
        >>> open_packed({place: expand_share(shares[place], 2, field) for place in (0, 2, 3, 5)}, 2, 3, 5, field).tolist()
        [3, 1, 4, 1, 5]
    """
    if pack < 1 or not 1 <= threshold <= n - pack + 1 or n + pack >= field.order:
        raise ConfigError(f"threshold={threshold} and pack={pack} of {n} holders modulo {field.order}", where="split_packed", remedy="use threshold + pack - 1 of at most the number of holders, and a larger prime")  # fmt: skip
    rows = _pack_rows(np.ravel(values), pack)
    drawn, first = _draw_seeded(threshold - 1, rows.shape[1], field, secret)
    return [*(drawn if seeds else first), *_complete_shares(rows, first, n, field)]


def _pack_rows(values: Array, pack: int) -> Array:
    """Values in rows, with zeros at the end, ``(pack, ceil(values / pack))``: a column is one polynomial's."""
    width = -(-values.size // pack)
    rows = np.zeros(pack * width, dtype=np.uint64)
    rows[: values.size] = values
    return rows.reshape(pack, width)


def open_packed(shares: Mapping[int, Array], threshold: int, pack: int, count: int, field: Field) -> Array:
    """The values of packed shares, all of which must be right, ``(count,)``. `atoll.secure.shares.correct_shamir` with the threshold ``threshold + pack - 1`` finds wrong ones.

    Args:
        shares: holder's place, from 0 -> its share, ``(ceil(count / pack),)``; ``threshold + pack - 1`` or more of them.
        threshold: that of `split_packed`.
        pack: values of a polynomial.
        count: how many values there are.
        field: the field.

    Raises:
        DataError: there are fewer shares.
    """
    needed = threshold + pack - 1
    if len(shares) < needed:
        raise DataError(f"{len(shares)} shares, and {needed} are needed", where="open_packed", remedy="wait for more holders, or pack fewer values")  # fmt: skip
    first = tuple(sorted(shares)[:needed])
    found = interpolate([shares[place] for place in first], first, tuple(range(0, -pack, -1)), field)
    return np.ravel(found)[:count]


def expand_share(share: bytes | Array, count: int, field: Field) -> Array:
    """Return a holder's share of `split_seeded` as an array, ``(count,)``: the one that follows from its seed, or itself.

    Raises:
        ConfigError: a seed does not have 32 bytes.
    """
    if isinstance(share, bytes):
        return field.random(SeededWords(share, "share"), (count,))
    return share.astype(np.uint64, copy=False)


def _require_threshold(n: int, threshold: int, field: Field, where: str) -> None:
    if 1 <= threshold <= n < field.order:
        return
    raise ConfigError(
        f"threshold={threshold} of {n} holders modulo {field.order}",
        where=where,
        remedy="use a threshold of 1 to the number of holders, and a prime above it",
    )


def _draw_seeded(holders: int, count: int, field: Field, secret: WordSource) -> tuple[list[bytes], list[Array]]:
    """Seeds of the first holders, and the shares that follow from them."""
    drawn = secret.uint64((holders, SEED // 8)).astype("<u8")
    seeds = [row.tobytes() for row in drawn]
    return seeds, [expand_share(seed, count, field) for seed in seeds]


def _complete_shares(rows: Sequence[Array] | Array, first: Sequence[Array], n: int, field: Field) -> Array:
    """The shares of the other holders, ``(n - len(first), values)``: rows of values at 0, -1, -2, … and the first holders' shares fix the polynomials."""
    given = len(first)
    places = (*range(-1, -len(rows) - 1, -1), *range(given))
    return interpolate([*rows, *first], places, tuple(range(given + 1, n + 1)), field)


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
    first, rest = tuple(places[:threshold]), places[threshold:]
    points = (0, *(place + 1 for place in rest))  # what lies beyond the threshold must lie on the same polynomial
    found = interpolate([shares[x] for x in first], first, points, field)
    if any(not np.array_equal(row, shares[place]) for row, place in zip(found[1:], rest, strict=True)):
        raise DataError(
            f"the shares of holders {places} do not lie on one polynomial of degree {threshold - 1}",
            where="open_shamir",
            remedy="one of them is wrong: `correct_shamir` says which, if there are two shares more than the threshold for each wrong one",
        )
    return np.asarray(found[0])


def interpolate(shares: Sequence[Array], places: tuple[int, ...], points: tuple[int, ...], field: Field) -> Array:
    """The polynomial through shares at some points, none of which is a holder's: ``(points, *shape of a share)``. The point of place ``i`` is ``i + 1``, so the values are those of place -1."""
    shape = np.shape(shares[0])
    if len(places) * len(points) <= _STEPS:
        return np.stack([_combined(field, lagrange(places, field, at=point), shares) for point in points])
    rows = np.stack([np.ravel(share) for share in shares])
    return field.dot(_lagrange_rows(places, points, field), rows).reshape(len(points), *shape)


@functools.lru_cache(maxsize=64)
def _lagrange_rows(places: tuple[int, ...], points: tuple[int, ...], field: Field) -> Array:
    """`lagrange` for each of several points: ``prod_j (at - x_j) w_i / (at - x_i)``, where ``w_i = 1 / prod_(j != i) (x_i - x_j)`` is worked out once."""
    p = field.prime
    weights = [pow(math.prod(place - other for other in places if other != place), -1, p) for place in places]
    made = np.empty((len(points), len(places)), dtype=np.uint64)
    for row, at in enumerate(points):
        gaps = [at - place - 1 for place in places]
        whole = functools.reduce(lambda x, gap: x * gap % p, gaps, 1)
        made[row] = [whole * weight % p * pow(gap, -1, p) % p for weight, gap in zip(weights, gaps, strict=True)]
    made.flags.writeable = False
    return made


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


# ------------------------------------------------------------------ sharings
#
# Sharings: schemes as objects that split values among the parties of a computation and put them together again.


Parts = tuple[Array, ...]


@dataclass(frozen=True)
class Sharing:
    """Base class.

    Attributes:
        domain: where the values live.
        n: number of parties.
        parts: arrays of a party's share.
    """

    parts: ClassVar[int] = 1
    domain: Domain
    n: int

    def split(self, values: Array, secret: Secret) -> list[Parts]:
        """The parts of each party."""
        raise NotImplementedError

    def constant(self, values: Array, me: int) -> Parts:
        """Party ``me``'s parts of public values."""
        raise NotImplementedError

    def joined(self, shares: Sequence[Parts]) -> Array:
        """The values, from the parts of all parties.

        Raises:
            LetterError: the parts do not fit together: one of them was altered.
        """
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        """The sharing as plain values, for arguments of tasks."""
        return {"sharing": type(self).__name__, "n": self.n, **self.domain.spec()}


@dataclass(frozen=True)
class AdditiveSharing(Sharing):
    """One part: the shares of all parties add up to the value."""

    def split(self, values: Array, secret: Secret) -> list[Parts]:
        """Uniform shares that add up."""
        return [(share,) for share in split_additive(values, self.n, self.domain, secret)]

    def constant(self, values: Array, me: int) -> Parts:
        """The first party's share is the value."""
        return (values if me == 0 else np.zeros_like(values),)

    def joined(self, shares: Sequence[Parts]) -> Array:
        """The sum."""
        return open_additive([parts[0] for parts in shares], self.domain)


@dataclass(frozen=True)
class ReplicatedSharing(Sharing):
    """Two parts of three: party ``i`` has parts ``i`` and ``i + 1 (mod 3)`` of a value that is their sum."""

    parts: ClassVar[int] = 2
    n: int = 3

    def __post_init__(self) -> None:
        if self.n != 3:
            raise ConfigError(f"{self.n} parties", where="ReplicatedSharing", remedy="use 3, or an additive sharing")

    def split(self, values: Array, secret: Secret) -> list[Parts]:
        """Two parts a party."""
        return list(split_replicated(values, self.domain, secret))

    def constant(self, values: Array, me: int) -> Parts:
        """Part 0 is the value, the others are 0."""
        nothing = np.zeros_like(values)
        return (values if me == 0 else nothing, values if me == 2 else nothing)

    def joined(self, shares: Sequence[Parts]) -> Array:
        """The sum of the three parts; both copies of each must agree."""
        try:
            return open_replicated({i: (parts[0], parts[1]) for i, parts in enumerate(shares)}, self.domain)
        except DataError as error:
            raise LetterError(str(error)) from error


@dataclass(frozen=True)
class ShamirSharing(Sharing):
    """One part: the value of a polynomial of degree ``threshold - 1``.

    Attributes:
        threshold: shares that give the value. Multiplication needs ``n >= 2 threshold - 1``.
    """

    domain: Field
    threshold: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= self.n:
            remedy = "use a threshold of 1 to the number of parties"
            raise ConfigError(f"threshold={self.threshold} of {self.n} parties", where="ShamirSharing", remedy=remedy)

    def split(self, values: Array, secret: Secret) -> list[Parts]:
        """The polynomial's value at each party's place."""
        return [(share,) for share in split_shamir(values, self.n, self.threshold, self.domain, secret)]

    def constant(self, values: Array, me: int) -> Parts:
        """A constant polynomial."""
        del me
        return (values,)

    def joined(self, shares: Sequence[Parts]) -> Array:
        """The value at 0; shares beyond the threshold must lie on the same polynomial."""
        try:
            return open_shamir({i: parts[0] for i, parts in enumerate(shares)}, self.threshold, self.domain)
        except DataError as error:
            raise LetterError(str(error)) from error

    def spec(self) -> dict[str, Any]:
        """The sharing as plain values."""
        return {**super().spec(), "threshold": self.threshold}


@dataclass(frozen=True)
class AuthenticatedSharing(Sharing):
    """Two parts: additive shares of the value ``x`` and of its code ``alpha x``, under a key ``alpha`` of which each party has an additive share.

    Whoever alters a share must alter the code by ``alpha`` times as much, and nobody knows ``alpha``. Over a field this is SPDZ (Damgård et al. 2012): a wrong
    opening passes with probability ``1/p``. Over ``WordRing(k)`` it is SPDZ2k (Cramer et al. 2018): shares live in ``Z_2^64``, of which the low ``k`` bits are the
    value, and a wrong opening passes with probability ``2^-(64 - k)`` up to a small factor.

    Attributes:
        domain: a field of at least ``2^24`` elements, or a ring of at most 40 bits.
        key: ``alpha`` at the dealer; at a party its share ``alpha_i``.
    """

    parts: ClassVar[int] = 2
    key: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.domain, Field) and self.domain.prime < 1 << 24:
            raise ConfigError(
                f"authenticated shares over {self.domain}: a wrong opening would pass with probability 1/{self.domain.prime}",
                where="AuthenticatedSharing",
                remedy="use Field(), whose probability is 2^-61, or a prime above 2^24",
            )
        if not (isinstance(self.domain, Field) or (isinstance(self.domain, WordRing) and self.domain.k <= 40)):
            raise ConfigError(
                f"authenticated shares over {self.domain}",
                where="AuthenticatedSharing",
                remedy="use Field(), or WordRing(k) with k up to 40: the other bits of a word protect it",
            )

    @property
    def wide(self) -> Domain:
        """Where shares and codes live: ``Z_2^64`` for a ring."""
        return WordRing(64) if isinstance(self.domain, WordRing) else self.domain

    def keyed(self, key: int) -> AuthenticatedSharing:
        """The same sharing with a key, or a party's share of it."""
        return AuthenticatedSharing(self.domain, self.n, key)

    def split(self, values: Array, secret: Secret) -> list[Parts]:
        """Shares of the values and of their codes, at the dealer."""
        codes = self.wide.mul(values, np.array(self.key, dtype=np.uint64))
        both = (split_additive(rows, self.n, self.wide, secret) for rows in (values, codes))
        return list(zip(*both, strict=True))

    def constant(self, values: Array, me: int) -> Parts:
        """The first party's share is the value, and each party's code share is ``alpha_i`` times it."""
        own = values if me == 0 else np.zeros_like(values)
        return (own, self.wide.mul(values, np.array(self.key, dtype=np.uint64)))

    def joined(self, shares: Sequence[Parts]) -> Array:
        """The sum of the shares, unchecked: `AuthenticatedComputation.open` checks it."""
        return open_additive([parts[0] for parts in shares], self.wide)


@dataclass(frozen=True)
class BitSharing(Sharing):
    """Bits with codes: a bit ``x`` is a word ``x alpha`` of 64 bits, of which each party has a part, and the parts add up by XOR.

    ``alpha`` is uniform but for its lowest bit, which is 1, so the lowest bits of the parts add up to ``x`` and the other 63 are its code. An altered bit passes with a probability of ``2^-63``. The dealer
    makes them; see `atoll.secure.shares.AuthenticatedBits`.
    """

    domain: Binary


_DOMAINS: dict[str, type[Domain]] = {kind.name: kind for kind in (WordRing, Field, Binary)}


def domain_of(spec: Mapping[str, Any]) -> Domain:
    """The inverse of `Domain.spec`."""
    settings = dict(spec)
    return _DOMAINS[settings.pop("domain")](**settings)


_SHARINGS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (AdditiveSharing, ReplicatedSharing, ShamirSharing, AuthenticatedSharing, BitSharing)
}


def sharing_of(spec: Mapping[str, Any]) -> Sharing:
    """The inverse of `Sharing.spec`."""
    settings = dict(spec)
    kind, n = _SHARINGS[settings.pop("sharing")], settings.pop("n")
    more = {"threshold": settings.pop("threshold")} if "threshold" in settings else {}
    made: Sharing = kind(domain_of(settings), n, **more)
    return made
