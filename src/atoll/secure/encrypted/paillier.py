"""Paillier (1999), packed: many numbers a plaintext, noise from a fixed base, decryption modulo each prime."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

from .bigints import pack, per_plaintext, unpack
from .digits import Digits
from .scheme import Scheme

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["Paillier", "PrivateKey", "PublicKey", "gmp", "public_key"]

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
        public = {"scheme": self.name, "n": _bytes(n), "h": _bytes(h)}
        return public, {"scheme": self.name, "p": _bytes(p), "q": _bytes(q)}

    def check(self, form: Digits) -> None:
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

    def blocks(self, form: Digits) -> int:
        """Return how many ciphertexts the numbers take."""
        size, width = self.layout(form)
        return -(-size // per_plaintext(width, self.key_bits))

    def opened(self, plain: list[Any], form: Digits) -> NDArray[np.uint64]:
        """Return the sums from decrypted plaintexts."""
        size, width = self.layout(form)
        return self.decoded(unpack(plain, size, width, self.key_bits), form)

    def encrypt(self, public: Tree, numbers: NDArray[np.uint64], form: Digits, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertexts, one behind the other."""
        key = self._public(public)
        plain = pack(self.coded(form.check(numbers), form), self.layout(form)[1], self.key_bits)
        sealed = b"".join(key.encrypt(m, secret).to_bytes(key.bytes, "little") for m in plain)
        return np.frombuffer(sealed, dtype=np.uint8)

    def add(self, public: Tree, sealed: Iterable[NDArray[np.uint8]], form: Digits) -> NDArray[np.uint8]:
        """Return the product modulo ``n^2`` of each ciphertext's column."""
        key, total = self._public(public), None
        for each in sealed:
            found = self.numbers(key, each, form)
            total = found if total is None else [a * b % key.square for a, b in zip(total, found, strict=True)]
        if total is None:
            raise DataError("no ciphertext", where=self.name, remedy="add up at least one")
        return np.frombuffer(b"".join(c.to_bytes(key.bytes, "little") for c in total), dtype=np.uint8)

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Digits) -> NDArray[np.uint64]:
        """Return the sums, by both primes."""
        found = self.own(private, "p", "q")
        key = PrivateKey(_number(found["p"]), _number(found["q"]))
        public = PublicKey(key.n, 1)
        return self.opened([key.decrypt(c) for c in self.numbers(public, sealed, form)], form)

    def numbers(self, key: PublicKey, sealed: NDArray[np.uint8], form: Digits) -> list[Any]:
        """Return ciphertexts as numbers, after checking that there are as many as the form says, each invertible modulo ``n^2``.

        Raises:
            DataError: they are not.
        """
        raw, step = np.ascontiguousarray(sealed, dtype=np.uint8).tobytes(), key.bytes
        if len(raw) != self.blocks(form) * step:
            raise self.malformed(f"{len(raw)} bytes, for {form.size} numbers of {form.width} bits")
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


@lru_cache(maxsize=4)
def public_key(n: bytes, h: bytes) -> PublicKey:
    """Return a key from its bytes. The last ones stay, since their powers take time and ``bits^2 / 256`` bytes and more."""
    return PublicKey(_number(n), _number(h))


def _prime(bits: int, secret: Secret) -> Any:
    """A prime whose two highest bits are set, so that products have all bits; the error is below ``4^-40`` (Miller-Rabin), much less with Baillie-PSW."""
    while True:
        found = gmp().mpz(secret.integer(1 << (bits - 2)) | (3 << (bits - 2)) | 1)
        if gmp().is_strong_bpsw_prp(found) and gmp().is_prime(found, 40):
            return found


def _bytes(number: Any) -> bytes:
    return int(number).to_bytes(-(-int(number).bit_length() // 8), "little")


def _number(raw: Any) -> int:
    return int.from_bytes(bytes(raw), "little")
