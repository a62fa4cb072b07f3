"""Sharings: schemes as objects that split values among the parties of a computation and put them together again.

A party's share of an array is a tuple of arrays of the same shape, its *parts*. All operations on parts are linear, entry by entry, so that additions and public
factors need no message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError

from .binary import Binary
from .domain import Array, Domain
from .field import Field
from .schemes import open_additive, open_replicated, open_shamir, split_additive, split_replicated, split_shamir
from .word_ring import WordRing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atoll.core.requests.island import Secret

__all__ = [
    "AdditiveSharing",
    "AuthenticatedSharing",
    "Parts",
    "ReplicatedSharing",
    "ShamirSharing",
    "Sharing",
    "sharing_of",
]

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


_DOMAINS: dict[str, type[Domain]] = {kind.name: kind for kind in (WordRing, Field, Binary)}


def domain_of(spec: Mapping[str, Any]) -> Domain:
    """The inverse of `Domain.spec`."""
    settings = dict(spec)
    return _DOMAINS[settings.pop("domain")](**settings)


_SHARINGS: dict[str, Any] = {
    kind.__name__: kind for kind in (AdditiveSharing, ReplicatedSharing, ShamirSharing, AuthenticatedSharing)
}


def sharing_of(spec: Mapping[str, Any]) -> Sharing:
    """The inverse of `Sharing.spec`."""
    settings = dict(spec)
    kind, n = _SHARINGS[settings.pop("sharing")], settings.pop("n")
    more = {"threshold": settings.pop("threshold")} if "threshold" in settings else {}
    made: Sharing = kind(domain_of(settings), n, **more)
    return made
