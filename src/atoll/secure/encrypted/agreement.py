"""What all parties of one encrypted sum are told, and check before they encrypt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, DataError, PolicyError

from ..ballot import Electorate
from ..keystream import derived, keystream
from ..words import FixedPoint, WordLayout
from .bfv import BFV, CKKS
from .paillier import BatchCrypt, Paillier
from .scheme import Digits, Scheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = [
    "EncryptedAgreement",
    "Lane",
    "PRIMES",
    "key_hash",
    "lanes_of",
    "numbers_of",
    "pads",
    "right",
    "scheme_named",
    "scheme_of",
    "tag_form",
    "tags",
    "words_of",
]


# ------------------------------------------------------------------ from a party's words to the numbers that it encrypts, and from their sums back to sums of words
#
# A word of p bits in a sum of n parties is at most ``2^(p - 1 - g)`` in magnitude, ``g = ceil(log2 n)``: the codec sees to that. A party encrypts
# ``u = word + 2^(p - 1 - g) mod 2^p``, a whole number of ``p - g`` bits; sums of n of them need p bits. Words that an uplink stage makes wrap around
# instead. They travel as they are, and their sums need ``p + g`` bits; where that is more than a scheme takes, low and high half travel apart.


_HALF = 32


@dataclass(frozen=True)
class Lane:
    """A lane of words as numbers to encrypt.

    Attributes:
        name: the lane's.
        bits: word length p.
        size: number of words.
        parties: at most so many add up.
        wraps: whether words wrap around.
        most: bits of the largest number that the scheme takes; larger ones travel in halves.
    """

    name: str
    bits: int
    size: int
    parties: int
    wraps: bool
    most: int

    @property
    def offset(self) -> int:
        """What a party adds to each word, ``2^(p - 1 - g)``; 0 for words that wrap around."""
        return 0 if self.wraps else 1 << (self.bits - 1 - (self.parties - 1).bit_length())

    @property
    def form(self) -> list[Digits]:
        """The numbers' form: one array, or two halves."""
        bits = self.bits if self.wraps else self.bits - (self.parties - 1).bit_length()
        parts = (bits,) if bits <= self.most else (_HALF, bits - _HALF)
        return [Digits(self.size, each, self.parties) for each in parts]

    def numbers(self, words: NDArray[Any]) -> list[NDArray[np.uint64]]:
        """Return a party's numbers from its words, ``(size,)``."""
        plain = (words.view(np.ndarray).astype(np.uint64) + np.uint64(self.offset)) & _ones(self.bits)
        if len(self.form) == 1:
            return [plain]
        return [plain & _ones(_HALF), plain >> np.uint64(_HALF)]

    def words(self, sums: Sequence[NDArray[np.uint64]], n: int) -> NDArray[np.uint64]:
        """Return the sum of the words of n parties, modulo ``2^p``, from the sums of their numbers."""
        total = sums[0] if len(sums) == 1 else sums[0] + (sums[1] << np.uint64(_HALF))
        return np.asarray((total - np.uint64((n * self.offset) & 0xFFFF_FFFF_FFFF_FFFF)) & _ones(self.bits))


def lanes_of(layout: WordLayout, most: int) -> list[Lane]:
    """Return the lanes of a layout, in order.

    Args:
        layout: of the totals.
        most: bits of the largest number that the scheme takes; see ``Scheme.most``.
    """
    made = {str(slot.bits) for slot in layout.slots if slot.unit is None}
    return [Lane(name, int(name), size, layout.parties, name in made, most) for name, size in layout.lengths.items()]


def numbers_of(lanes: Sequence[Lane], words: Mapping[str, NDArray[Any]]) -> list[NDArray[np.uint64]]:
    """Return a party's arrays to encrypt."""
    return [numbers for lane in lanes for numbers in lane.numbers(words[lane.name])]


def words_of(lanes: Sequence[Lane], sums: Sequence[NDArray[np.uint64]], n: int) -> dict[str, NDArray[np.uint64]]:
    """Return the sum of each lane's words from the sums of the arrays."""
    found, at = {}, 0
    for lane in lanes:
        end = at + len(lane.form)
        found[lane.name] = lane.words(sums[at:end], n)
        at = end
    return found


def _ones(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


# ------------------------------------------------------------------ tags
#
# Tags: how the key holder knows that what it opens is the sum of the parties that it was told of, each once and unaltered.
# With numbers ``u_ij`` of party i, secret weights ``k_j`` that the holder shares with the parties, and a pad ``r_i`` that party i tells the holder alone,
#
# ``tag_i = sum_j k_j u_ij + r_i  mod q``,
#
# travels encrypted beside the numbers and adds up with them. The holder requires ``sum_i tag_i = sum_j k_j (sum_i u_ij) + sum_i r_i``. A server that leaves out, repeats,
# scales or mixes ciphertexts would have to guess a linear relation of values that it does not know. There are two tags with independent weights modulo each of two
# primes just below 2^31, so a forgery passes with probability below 2^-61. With one prime q, a server could add q times a party's small number to the sum of its column: tags
# modulo q do not see that, and the holder would open it. A multiple of both primes has 62 bits, more than the numbers that a slot holds. A party that colludes
# with the server knows the weights, and voids this.


PRIMES = (2**31 - 1, 2**31 - 1, 2**31 - 19, 2**31 - 19)
"""The modulus of each tag; all are prime."""


def tag_form(parties: int) -> Digits:
    """Return the form of the tags."""
    return Digits(len(PRIMES), 31, parties)


def pads(secret: Secret) -> list[int]:
    """Return a party's pads, uniform modulo the primes."""
    return [secret.integer(prime) for prime in PRIMES]


def tags(seed: bytes, numbers: Sequence[NDArray[np.uint64]], pad: Sequence[int]) -> NDArray[np.uint64]:
    """Return a party's tags.

    Args:
        seed: 32 secret bytes, from which the weights follow.
        numbers: what the party encrypts.
        pad: from `pads`.
    """
    return np.array([(s + r) % q for s, r, q in zip(_sums(seed, numbers), pad, PRIMES, strict=True)], dtype=np.uint64)


def right(
    seed: bytes,
    sums: Sequence[NDArray[np.uint64]],
    tagged: NDArray[np.uint64],
    padding: Iterable[Sequence[Any]],
) -> bool:
    """Return whether sums have the tags that they must have.

    Args:
        seed: as in `tags`.
        sums: of the parties' numbers.
        tagged: sums of the parties' tags.
        padding: the pads of the parties that should be in them.
    """
    total = np.array([*padding], dtype=object).reshape(-1, len(PRIMES)).sum(axis=0)
    expected = [(s + int(r)) % q for s, r, q in zip(_sums(seed, sums), total, PRIMES, strict=True)]
    return expected == [int(t) % q for t, q in zip(tagged, PRIMES, strict=True)]


def _sums(seed: bytes, numbers: Sequence[NDArray[np.uint64]]) -> list[int]:
    """``sum_j k_j u_j mod q`` for each of the tags."""
    found = []
    for tag, modulus in enumerate(PRIMES):
        total, prime = 0, np.uint64(modulus)
        for i, row in enumerate(numbers):
            # 64 random bits modulo q are uniform up to 2^-33.
            weights = keystream(derived(seed, f"tag {tag} array {i}"), 64, row.size).view(np.ndarray) % prime
            total += int((weights * (row % prime) % prime).sum(dtype=np.uint64))
        found.append(total % modulus)
    return found


# ------------------------------------------------------------------ what all parties of one encrypted sum are told, and check before they encrypt


@dataclass(frozen=True)
class EncryptedAgreement:
    """The terms of one encrypted sum.

    Attributes:
        names: the cohort, in order.
        scheme: of encryption.
        least: smallest number of parties in the sum.
        threshold: how many parties decrypt together; 0 if a key holder does.
        codec: how numbers become words.
        bound: largest magnitude of an update's values, as the uplink promises it.
        signs: whether votes are -1, 0 and 1; see `WordLayout`.
        active: whether the parties of a threshold open only what they have added up themselves.
    """

    names: tuple[str, ...]
    scheme: Scheme
    least: int
    threshold: int
    codec: FixedPoint
    bound: float | None = None
    signs: bool = True
    active: bool = False

    def message(self) -> Tree:
        """The agreement as a message."""
        own = {name: getattr(self, name) for name in ("least", "threshold", "bound", "signs", "active")}
        return {**own, "names": list(self.names), "scheme": self.scheme.spec(), "codec": asdict(self.codec)}

    @classmethod
    def of(cls, message: Any, *, real: bool) -> EncryptedAgreement:
        """The inverse of `message`, checked.

        Args:
            message: what the server sent.
            real: whether this is no simulation, so that keys that can be broken are refused.

        Raises:
            PolicyError: it is no agreement, or one that protects nobody.
        """
        try:
            settings = {
                "names": tuple(message["names"]),
                "scheme": scheme_of(message["scheme"]),
                "codec": FixedPoint(**message["codec"]),
            }
            made = cls(**{**message, **settings})
            sound = 2 <= made.least <= len(set(made.names)) == len(made.names) and (
                made.threshold == 0 or 2 <= made.threshold <= len(made.names)
            )
        except (TypeError, KeyError, ValueError, AtollError) as error:
            raise PolicyError(
                f"terms of an encrypted sum that cannot be read: {error}", where="encrypted sum"
            ) from error
        if not sound:
            raise PolicyError(
                f"an encrypted sum of {len(made.names)} parties, at least {made.least}, with a threshold of {made.threshold}",
                where="encrypted sum",
                remedy="look at the server: a sum needs two parties and more",
            )
        if real and getattr(made.scheme, "insecure", False):
            raise PolicyError(
                f"keys of {getattr(made.scheme, 'key_bits', 0)} bits, which can be broken",
                where="encrypted sum",
                remedy="use key_bits=2048 or more; insecure=True is for tests",
            )
        return made

    @property
    def fingerprint(self) -> bytes:
        """A hash of the terms. Who makes the keys tells it to the parties: a server that tells them other terms is refused."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def electorate(self) -> Electorate:
        """Who votes on the set of the sum."""
        return Electorate(self.names, self.least, self.fingerprint)

    def layout(self, form: Tree) -> WordLayout:
        """The layout of totals of a form."""
        return WordLayout(form, self.codec, len(self.names), self.bound, signs=self.signs)

    def lanes(self, layout: WordLayout) -> list[Lane]:
        """The lanes of a layout as numbers to encrypt."""
        return lanes_of(layout, self.scheme.most(len(self.names)))

    def form(self, lanes: list[Lane]) -> list[Digits]:
        """The arrays of a ciphertext: those of the lanes, and with a key holder the tags."""
        arrays = [each for lane in lanes for each in lane.form]
        return arrays if self.threshold else [*arrays, tag_form(len(self.names))]

    def require_set(self, kept: list[str], me: str = "") -> None:
        """Refuse to open a sum of too few, or one of others than the cohort.

        Raises:
            PolicyError: it is one.
        """
        if len(set(kept)) != len(kept) or not set(kept) <= set(self.names) or len(kept) < self.least:
            raise PolicyError(
                f"a sum of {len(kept)} parties, {len(set(kept) & set(self.names))} of them in the cohort, with at least {self.least}",
                where="encrypted sum",
                remedy="look at the server: it asks for a sum that nobody agreed to",
            )
        if me and me not in kept:
            raise PolicyError(
                "a sum without this party's own numbers",
                where=me,
                remedy="look at the server: it asks for a sum that nobody agreed to",
            )


def key_hash(public: Tree) -> bytes:
    """Return a hash of a public key, which its maker sends to the parties in sealed letters."""
    return bytes.fromhex(M.fingerprint(public))


def scheme_named(scheme: str | Scheme) -> Scheme:
    """Return the scheme of a name: ``bfv``, ``ckks``, ``paillier`` or ``batchcrypt``.

    Raises:
        ConfigError: no scheme has this name.
    """
    if isinstance(scheme, Scheme):
        return scheme
    known = _schemes()
    if scheme not in known:
        raise ConfigError(f"scheme={scheme!r}", where="encrypted sum", remedy=f"use one of {', '.join(known)}")
    return known[scheme]()


def scheme_of(spec: Tree) -> Scheme:
    """Return the scheme of a message; the inverse of ``Scheme.spec``.

    Raises:
        DataError: the message is no scheme.
    """
    settings = dict(spec) if isinstance(spec, dict) else {}
    try:
        return _schemes()[settings.pop("scheme", "")](**settings)
    except (KeyError, TypeError, ConfigError) as error:
        raise DataError(
            f"no scheme of encryption: {error}", remedy="use the same version of Atoll everywhere"
        ) from error


def _schemes() -> dict[str, type[Scheme]]:
    return {made.name: made for made in (BFV, CKKS, Paillier, BatchCrypt)}
