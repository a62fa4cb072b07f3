"""Paillier (1999), packed: many numbers a plaintext, noise from a fixed base, decryption modulo each prime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

from .scheme import Adder, Digits, Form, Numbers, Scheme, checked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = [
    "BatchCrypt",
    "Paillier",
    "PrivateKey",
    "PublicKey",
    "gmp",
    "pack",
    "per_plaintext",
    "public_key",
    "to_bytes",
    "to_number",
    "unpack",
]


# ------------------------------------------------------------------ numbers side by side in large whole numbers, and back


def per_plaintext(width: int, key_bits: int) -> int:
    """Return how many numbers of ``width`` bits fit below ``2^(key_bits - 1)``, and so below the modulus.

    Raises:
        ConfigError: not one.
    """
    if width >= key_bits:
        raise ConfigError(f"sums of {width} bits, in a modulus of {key_bits}", remedy="use a longer key")
    return (key_bits - 1) // width


def pack(numbers: NDArray[np.uint64], width: int, key_bits: int) -> list[int]:
    """Return whole numbers ``sum_j numbers[j] 2^(j width)``, the first one lowest."""
    per = per_plaintext(width, key_bits)
    rows = np.zeros((-(-numbers.size // per), per), dtype="<u8")
    rows.ravel()[: numbers.size] = numbers
    bits = np.unpackbits(rows.view(np.uint8).reshape(*rows.shape, 8), axis=2, bitorder="little")[:, :, :width]
    packed = np.packbits(bits.reshape(len(rows), per * width), axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def unpack(packed: Sequence[Any], size: int, width: int, key_bits: int) -> NDArray[np.uint64]:
    """Return the ``(size,)`` numbers of ``pack``, modulo ``2^width`` each."""
    per = per_plaintext(width, key_bits)
    count = -(-per * width // 8)
    mask = (1 << (8 * count)) - 1
    raw = b"".join((int(number) & mask).to_bytes(count, "little") for number in packed)
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(len(packed), count)
    bits = np.unpackbits(rows, axis=1, count=per * width, bitorder="little").reshape(-1, width)
    wide = np.zeros((len(bits), 64), dtype=np.uint8)
    wide[:, :width] = bits
    return np.asarray(np.packbits(wide, axis=1, bitorder="little").view("<u8").ravel()[:size], dtype=np.uint64)


# ------------------------------------------------------------------ paillier (1999), packed
#
# Paillier (1999), packed: many numbers a plaintext, noise from a fixed base, decryption modulo each prime.


_WINDOW = 8
"""Bits of an exponent that one multiplication handles; a table of ``2^8`` powers for each."""


def gmp() -> Any:
    """Return gmpy2.

    Raises:
        MissingExtraError: it is not installed.
    """
    return need("gmpy2", "secure", "Paillier encryption")


class PublicKey:
    """A modulus n and a random n-th power h, with the powers of h that encryption multiplies.

    ``Enc(m) = (1 + m n) h^a mod n^2``. Here h is ``-y^2`` to the n-th power for a random y, and a is uniform below ``2^(bits / 2)``
    (Damgard, Jurik and Nielsen 2010, section 4.2). A ciphertext costs ``bits / 16`` multiplications then, instead of the ``1.2 bits`` of ``r^n``.

    Args:
        n: the modulus.
        h: the base of the noise, modulo ``n^2``.
    """

    def __init__(self, n: Any, h: Any) -> None:
        self.n, self.h, self.square = gmp().mpz(n), gmp().mpz(h), gmp().mpz(n) ** 2

    @cached_property
    def bits(self) -> int:
        """Bits of the modulus."""
        return int(self.n.bit_length())

    @cached_property
    def bytes(self) -> int:
        """Bytes of a ciphertext."""
        return -(-2 * self.bits // 8)

    @cached_property
    def powers(self) -> list[list[Any]]:
        """``h^(d 256^i)`` in row i, column d."""
        rows, base = [], self.h
        for _ in range(-(-(self.bits // 2) // _WINDOW)):
            row = [gmp().mpz(1)]
            for _ in range((1 << _WINDOW) - 1):
                row.append(row[-1] * base % self.square)
            rows.append(row)
            base = row[-1] * base % self.square
        return rows

    def encrypt(self, m: Any, secret: Secret) -> Any:
        """Return the ciphertext of a whole number in ``[0, n)``."""
        sealed = 1 + m * self.n
        for digit, row in zip(secret.bytes(len(self.powers)), self.powers, strict=True):
            sealed = sealed * row[digit] % self.square
        return sealed


class PrivateKey:
    """The primes p and q; decryption is modulo ``p^2`` and ``q^2``, and joined by the Chinese remainder theorem (Paillier 1999, section 7).

    Args:
        p: a prime.
        q: another prime.
    """

    def __init__(self, p: Any, q: Any) -> None:
        mpz, invert = gmp().mpz, gmp().invert
        self.p, self.q = mpz(p), mpz(q)
        self.n = self.p * self.q
        self.parts = [
            (prime, prime**2, invert((pow(1 + self.n, prime - 1, prime**2) - 1) // prime, prime))
            for prime in (self.p, self.q)
        ]
        self.inverse = invert(self.p, self.q)

    def decrypt(self, sealed: Any) -> Any:
        """Return the whole number in ``[0, n)``."""
        m_p, m_q = (
            (gmp().powmod(sealed, prime - 1, square) - 1) // prime * factor % prime
            for prime, square, factor in self.parts
        )
        return m_p + self.p * ((m_q - m_p) * self.inverse % self.q)


@dataclass(frozen=True)
class Paillier(Scheme):
    """Paillier encryption of whole numbers modulo n, ``(key_bits - 1) / width`` sums a plaintext with guard bits between them.

    Ciphertexts multiply where their numbers add up; the sums are exact. 2048 bits of n give 112 bits of security, 3072 give 128 (NIST SP 800-57).
    A ciphertext has ``key_bits / 4`` bytes.

    Attributes:
        key_bits: bits of the modulus n, at least 2048; tests use shorter ones with ``insecure=True``.
        insecure: allow a modulus that can be factored.
    """

    key_bits: int = 2048
    insecure: bool = False
    name: ClassVar[str] = "paillier"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_bits < (128 if self.insecure else 2048) or self.key_bits % 16:
            raise ConfigError(
                f"key_bits={self.key_bits}",
                where=type(self).__name__,
                remedy="use 2048 or 3072: shorter moduli can be factored",
            )

    def require(self) -> None:
        """Import gmpy2."""
        gmp()

    def make_keys(self, secret: Secret) -> tuple[Tree, Tree]:
        """Return a new public key (n and h) and its private key (p and q)."""
        p = _prime(self.key_bits // 2, secret)
        q = _prime(self.key_bits // 2, secret)
        while (abs(p - q).bit_length() < self.key_bits // 2 - 100 and not self.insecure) or p == q:
            q = _prime(self.key_bits // 2, secret)
        n = p * q
        y = secret.integer(int(n) - 1) + 1
        h = gmp().powmod(-(y * y) % n, n, n * n)
        size = self.key_bits // 8
        public = {"scheme": self.name, "n": to_bytes(n, size), "h": to_bytes(h, 2 * size)}
        return public, {"scheme": self.name, "p": to_bytes(p, size // 2), "q": to_bytes(q, size // 2)}

    def check(self, form: Form) -> None:
        """Refuse numbers of which not one fits a plaintext."""
        self.blocks(form)

    def layout(self, form: Digits) -> tuple[int, int]:
        """Return how many fields the numbers take, and the bits of a field."""
        return form.size, form.width

    def coded(self, numbers: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return the fields of one party's numbers."""
        del form
        return numbers

    def decoded(self, fields: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return the sums from the fields of all."""
        del form
        return fields

    def blocks(self, form: Form) -> int:
        """Return how many ciphertexts the numbers take. Arrays share none."""
        layouts = (self.layout(each) for each in form)
        return sum(-(-size // per_plaintext(width, self.key_bits)) for size, width in layouts)

    def opened(self, plain: list[Any], form: Form) -> list[NDArray[np.uint64]]:
        """Return the sums from decrypted plaintexts."""
        found, at = [], 0
        for each in form:
            (size, width), end = self.layout(each), at + self.blocks([each])
            found.append(self.decoded(unpack(plain[at:end], size, width, self.key_bits), each))
            at = end
        return found

    def encrypt(self, public: Tree, numbers: Numbers, form: Form, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertexts, one behind the other."""
        key, plain = self._public(public), []
        for row, each in zip(checked(numbers, form), form, strict=True):
            plain += pack(self.coded(row, each), self.layout(each)[1], self.key_bits)
        sealed = b"".join(key.encrypt(m, secret).to_bytes(key.bytes, "little") for m in plain)
        return np.frombuffer(sealed, dtype=np.uint8)

    def sealed_bytes(self, form: Form) -> int:
        """Return ``2 key_bits`` for each plaintext."""
        return self.blocks(form) * (2 * self.key_bits // 8)

    def adder(self, public: Tree, form: Form) -> Adder:
        """Return a sum: a product modulo ``n^2`` for each ciphertext."""
        return _Product(self, self._public(public), form)

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Form) -> list[NDArray[np.uint64]]:
        """Return the sums, by both primes."""
        found = self.own(private, "p", "q")
        key = PrivateKey(to_number(found["p"]), to_number(found["q"]))
        public = PublicKey(key.n, 1)
        return self.opened([key.decrypt(c) for c in self.numbers(public, sealed, form)], form)

    def numbers(self, key: PublicKey, sealed: NDArray[np.uint8], form: Form) -> list[Any]:
        """Return ciphertexts as numbers, after checking that there are as many as the form says, each invertible modulo ``n^2``.

        Raises:
            DataError: they are not.
        """
        raw, step = np.ascontiguousarray(sealed, dtype=np.uint8).tobytes(), key.bytes
        if len(raw) != self.blocks(form) * step:
            raise self.malformed(f"{len(raw)} bytes, expected {self.blocks(form) * step}")
        mpz = gmp().mpz
        found = [mpz(int.from_bytes(raw[at : at + step], "little")) for at in range(0, len(raw), step)]
        # One gcd for all: a product is invertible if and only if each factor is.
        product = mpz(1)
        for c in found:
            product = product * c % key.n
        if any(not 0 < c < key.square for c in found) or (found and gmp().gcd(product, key.n) != 1):
            raise self.malformed("not invertible modulo n^2")
        return found

    def _public(self, key: Tree) -> PublicKey:
        found = self.own(key, "n", "h")
        made = public_key(bytes(found["n"]), bytes(found["h"]))
        if made.bits != self.key_bits:
            raise DataError(f"a key of {made.bits} bits", where=self.name, remedy=f"use one of {self.key_bits} bits")
        return made


class _Product:
    """A sum of ciphertexts."""

    def __init__(self, scheme: Paillier, key: PublicKey, form: Form) -> None:
        self._scheme, self._key, self._form = scheme, key, form
        self._total: list[Any] = []

    def add(self, sealed: NDArray[np.uint8]) -> None:
        found = self._scheme.numbers(self._key, sealed, self._form)
        pairs = zip(self._total, found, strict=False)
        self._total = [a * b % self._key.square for a, b in pairs] if self._total else found

    def sealed(self) -> NDArray[np.uint8]:
        if not self._total:
            raise self._scheme.nothing()
        raw = b"".join(c.to_bytes(self._key.bytes, "little") for c in self._total)
        return np.frombuffer(raw, dtype=np.uint8)


@lru_cache(maxsize=4)
def public_key(n: bytes, h: bytes) -> PublicKey:
    """Return a key from its bytes. The last ones stay, since their powers take time and ``bits^2 / 256`` bytes and more."""
    return PublicKey(to_number(n), to_number(h))


def _prime(bits: int, secret: Secret) -> Any:
    """A prime whose two highest bits are set, so that products have all bits; the error is below ``4^-40`` (Miller-Rabin), much less with Baillie-PSW."""
    while True:
        found = gmp().mpz(secret.integer(1 << (bits - 2)) | (3 << (bits - 2)) | 1)
        if gmp().is_strong_bpsw_prp(found) and gmp().is_prime(found, 40):
            return found


def to_bytes(number: Any, size: int) -> NDArray[np.uint8]:
    """Return a whole number as so many bytes, lowest first. Sizes do not depend on numbers, nor messages on chance."""
    return np.frombuffer(int(number).to_bytes(size, "little"), dtype=np.uint8)


def to_number(raw: Any) -> int:
    """The inverse of `to_bytes`."""
    return int.from_bytes(bytes(raw), "little")


# ------------------------------------------------------------------ batchCrypt (Zhang et al. 2020)
#
# BatchCrypt (Zhang et al. 2020): signed numbers in two's complement with two sign bits, batched under Paillier.


@dataclass(frozen=True)
class BatchCrypt(Paillier):
    """Batches of signed numbers, as section 4.2 of the paper codes them, under Paillier.

    A number x of ``[0, 2^bits)`` stands for ``v = x - 2^(bits - 1)``. Its field has, from the top: padding bits for the carries of the additions, two sign bits,
    and the bits of a sum. In a sum whose two sign bits differ, a number overflowed: decryption fails rather than return a wrong number.
    The first field counts the parties. A field is ``ceil(log2 parties) + 1`` bits wider than that of ``Paillier``, which codes the same numbers without signs.
    """

    name: ClassVar[str] = "batchcrypt"

    def most(self, parties: int) -> int:
        """Return how many bits a number may have: a field has at most 64, with the padding and the second sign bit."""
        return 63 - 2 * (parties - 1).bit_length()

    def layout(self, form: Digits) -> tuple[int, int]:
        """Return one field more than numbers, and the bits of a field with its padding."""
        width = _signed(form) + form.guard
        if width > 64:
            raise ConfigError(
                f"fields of {width} bits for numbers of {form.bits} bits",
                where="BatchCrypt",
                remedy="use fewer bits a number, or scheme='paillier'",
            )
        return form.size + 1, width

    def coded(self, numbers: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return a one, and the numbers in two's complement; the padding is 0."""
        signed = numbers - np.uint64(1 << (form.bits - 1))
        return np.concatenate([np.ones(1, dtype=np.uint64), signed & np.uint64((1 << _signed(form)) - 1)])

    def decoded(self, fields: NDArray[np.uint64], form: Digits) -> NDArray[np.uint64]:
        """Return the sums, after looking at the sign bits."""
        bits = _signed(form)
        parties, sums = fields[0], fields[1:] & np.uint64((1 << bits) - 1)
        first, second = sums >> np.uint64(bits - 1), sums >> np.uint64(bits - 2) & np.uint64(1)
        wrong = int((first != second).sum())
        if wrong or int(parties) > form.parties:
            raise DataError(
                f"{wrong} of {form.size} sums overflowed, of {int(parties)} parties",
                where="BatchCrypt",
                remedy=f"add up at most {form.parties} ciphertexts of one form, each once",
            )
        lifted = sums | np.where(first == 1, ~np.uint64((1 << bits) - 1), np.uint64(0))
        return np.asarray(lifted + parties * np.uint64(1 << (form.bits - 1)))


def _signed(form: Digits) -> int:
    """Bits of a sum with two sign bits: ``bits - 1`` of a value, the guard bits, and two."""
    return form.bits - 1 + form.guard + 2
