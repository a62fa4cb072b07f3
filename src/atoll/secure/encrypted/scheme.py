"""Schemes of additive encryption: keys, encrypt, add, decrypt. All are interchangeable, and all count in whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.validation import Checked

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = [
    "Adder",
    "Digits",
    "Form",
    "Numbers",
    "Scheme",
    "checked",
    "from_slots",
    "parties_of",
    "slot_count",
    "to_slots",
]


# ------------------------------------------------------------------ whole numbers on their way into plaintexts
#
# Whole numbers on their way into plaintexts: how many bits a party's number has, and how many their sum needs.


@dataclass(frozen=True)
class Digits:
    """What every party encrypts, the same at all parties and public.

    Attributes:
        size: how many numbers.
        bits: each party's numbers are in ``[0, 2^bits)``.
        parties: at most this many parties add up.

    Raises:
        ConfigError: a sum needs more than 64 bits.
    """

    size: int
    bits: int
    parties: int

    def __post_init__(self) -> None:
        if self.size < 0 or self.bits < 1 or self.parties < 1 or self.width > 64:
            raise ConfigError(
                f"{self.size} numbers of {self.bits} bits from {self.parties} parties",
                where="encrypted sum",
                remedy="a sum has at most 64 bits; use fewer bits a number",
            )

    @property
    def guard(self) -> int:
        """Guard bits: ``ceil(log2 parties)``."""
        return (self.parties - 1).bit_length()

    @property
    def width(self) -> int:
        """Bits of a sum: ``bits + ceil(log2 parties)``, so that no sum carries into its neighbour."""
        return self.bits + self.guard

    def check(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the numbers, after checking that they have this form.

        Raises:
            DataError: they have not.
        """
        found = np.ascontiguousarray(numbers, dtype=np.uint64).ravel()
        largest = int(found.max(initial=0))
        if found.size != self.size or largest >> self.bits:
            raise DataError(
                f"{found.size} numbers up to {largest}, for {self.size} numbers of {self.bits} bits",
                where="encrypted sum",
                remedy="encrypt what the form says",
            )
        return found


Form: TypeAlias = Sequence[Digits]
"""The arrays of one ciphertext."""
Numbers: TypeAlias = Sequence[NDArray[np.uint64]]
"""Arrays, one for each of a form."""


def checked(numbers: Numbers, form: Form) -> list[NDArray[np.uint64]]:
    """Return arrays, after checking that each has its form.

    Raises:
        DataError: one has not.
    """
    return [each.check(row) for each, row in zip(form, numbers, strict=True)]


def to_slots(numbers: NDArray[np.uint64], form: Digits, capacity: int) -> NDArray[np.uint64]:
    """Return the slots of a plaintext, each below ``2^capacity`` also after adding up.

    Several numbers share a slot, side by side, if their sums fit; a number whose sum is too wide takes several slots, low bits first.
    """
    if form.width <= capacity:
        per = capacity // form.width
        padded = np.zeros(-(-form.size // per) * per, dtype=np.uint64)
        padded[: form.size] = numbers
        rows = padded.reshape(-1, per)
        shifts = np.arange(per, dtype=np.uint64) * np.uint64(form.width)
        return np.asarray(np.bitwise_or.reduce(rows << shifts, axis=1), dtype=np.uint64)
    limb = _limb(form, capacity)
    shifts = np.arange(-(-form.bits // limb), dtype=np.uint64) * np.uint64(limb)
    return np.asarray((numbers[:, None] >> shifts) & _ones(limb)).ravel()


def from_slots(slots: NDArray[np.uint64], form: Digits, capacity: int) -> NDArray[np.uint64]:
    """Return the sums of the numbers from sums of slots; slots behind the last number are ignored."""
    if form.width <= capacity:
        per = capacity // form.width
        rows = slots[: -(-form.size // per)]
        shifts = np.arange(per, dtype=np.uint64) * np.uint64(form.width)
        return np.asarray((rows[:, None] >> shifts) & _ones(form.width)).ravel()[: form.size]
    limb = _limb(form, capacity)
    count = -(-form.bits // limb)
    shifts = np.arange(count, dtype=np.uint64) * np.uint64(limb)
    rows = slots[: form.size * count].reshape(-1, count)
    return np.asarray((rows << shifts).sum(axis=1, dtype=np.uint64))


def slot_count(form: Digits, capacity: int) -> int:
    """Return how many slots the numbers take."""
    if form.width <= capacity:
        return -(-form.size // (capacity // form.width))
    return form.size * -(-form.bits // _limb(form, capacity))


def parties_of(form: Form, capacity: int) -> int:
    """Return how many parties add up at most, after checking that their numbers fit slots."""
    for each in form:
        slot_count(each, capacity)
    return max((each.parties for each in form), default=0)


def _limb(form: Digits, capacity: int) -> int:
    if capacity <= form.guard:
        raise ConfigError(
            f"{form.parties} parties, in slots of {capacity} bits",
            where="encrypted sum",
            remedy="use fewer parties, or a scheme with larger plaintexts",
        )
    return capacity - form.guard


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


# ------------------------------------------------------------------ schemes of additive encryption
#
# Schemes of additive encryption: keys, encrypt, add, decrypt. All are interchangeable, and all count in whole numbers.


class Adder(Protocol):
    """A sum of ciphertexts."""

    def add(self, sealed: NDArray[np.uint8]) -> None:
        """Add a ciphertext.

        Raises:
            DataError: it is malformed; the sum is as before.
        """
        ...

    def sealed(self) -> NDArray[np.uint8]:
        """Return the ciphertext of the sum.

        Raises:
            DataError: nothing was added.
        """
        ...


@dataclass(frozen=True)
class Scheme(Checked):
    """Base class: encryption under which the sum of numbers is computed from their ciphertexts.

    Every ``decrypt(private, add(public, [encrypt(public, x_k) for k]))`` equals ``sum_k x_k`` in whole numbers. One ciphertext holds several arrays, each
    with a form of its own. It is an array of bytes, and keys are trees of bytes and numbers, so that both travel as messages.

    Attributes:
        name: how settings and keys call the scheme.
    """

    name: ClassVar[str] = ""

    def require(self) -> None:
        """Import the library.

        Raises:
            MissingExtraError: it is not installed.
        """
        raise NotImplementedError

    def make_keys(self, secret: Secret) -> tuple[Tree, Tree]:
        """Return a new public key and its private key."""
        raise NotImplementedError

    def check(self, form: Form) -> None:
        """Refuse numbers that the scheme cannot add up.

        Raises:
            ConfigError: they are too wide, or the parties too many.
        """
        raise NotImplementedError

    def encrypt(self, public: Tree, numbers: Numbers, form: Form, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertext of arrays of ``(size,)`` numbers below ``2^bits``.

        Raises:
            DataError: the numbers are not what the form says, or the key is no public key of this scheme.
        """
        raise NotImplementedError

    def most(self, parties: int) -> int:
        """Return how many bits a number may have that so many parties add up."""
        return 64 - (parties - 1).bit_length()

    def sealed_bytes(self, form: Form) -> int:
        """Return the bytes of a ciphertext of this form."""
        raise NotImplementedError

    def adder(self, public: Tree, form: Form) -> Adder:
        """Return what adds up ciphertexts of a form, one after another."""
        raise NotImplementedError

    def add(self, public: Tree, sealed: Iterable[NDArray[np.uint8]], form: Form) -> NDArray[np.uint8]:
        """Return the ciphertext of the sum.

        Raises:
            DataError: a ciphertext is malformed, or none was given.
        """
        total = self.adder(public, form)
        for each in sealed:
            total.add(each)
        return total.sealed()

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Form) -> list[NDArray[np.uint64]]:
        """Return the sums, ``(size,)`` each.

        Raises:
            DataError: the ciphertext is malformed, or the key is no private key of this scheme.
        """
        raise NotImplementedError

    def own(self, key: Tree, *parts: str) -> dict[str, Any]:
        """Return the key, after checking that it is one of this scheme with these parts.

        Raises:
            DataError: it is not.
        """
        if not isinstance(key, dict) or key.get("scheme") != self.name or any(part not in key for part in parts):
            kind = key.get("scheme", "no scheme") if isinstance(key, dict) else type(key).__name__
            raise DataError(
                f"a key of {kind!r} without {', '.join(parts)}" if kind == self.name else f"a key of {kind!r}",
                where=self.name,
                remedy=f"use a key that {type(self).__name__}().make_keys made",
            )
        return key

    def spec(self) -> dict[str, Any]:
        """Return the scheme as a message; see ``scheme_of``."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"scheme": self.name, **{name: list(v) if isinstance(v, tuple) else v for name, v in own.items()}}

    def nothing(self) -> DataError:
        """Return the error for a sum of nothing."""
        return DataError("no ciphertext", where=self.name, remedy="add up at least one")

    def malformed(self, why: str) -> DataError:
        """Return the error for a ciphertext that is none."""
        return DataError(
            f"a ciphertext that is {why}", where=self.name, remedy="send what encrypt returned, under the same key"
        )
