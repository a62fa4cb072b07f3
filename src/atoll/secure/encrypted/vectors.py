"""Vectors of Paillier ciphertexts: one party encrypts many numbers under its own key, and others add them up by index or with weights of their own.

Beside the packed sums of `Paillier`, which treat ciphertexts as they come, these are the operations of protocols between two parties:

* the key's owner encrypts modulo ``p^2`` and ``q^2`` and joins the two by the Chinese remainder theorem;
* several small numbers, such as a gradient and a second derivative, share a ciphertext (`JoinedFields`), and sums of many ciphertexts share one on their way back;
* sums by index (a histogram of ciphertexts) take one multiplication modulo ``n^2`` a number;
* sums with whole weights take one for each digit of 8 bits and number, and about ``2^9`` for each digit and sum (Pippenger 1976), not one power a number.

Before sums go back, their holder multiplies them by fresh noise: the owner knows the noise of its own ciphertexts, and could else look for the ones that were multiplied. The
noise is a random n-th power, not a power of the owner's ``h``: of an ``h`` that it chose, such as -1, the owner could see through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from timeit import timeit
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError

from .paillier import Paillier, PrivateKey, PublicKey, gmp, public_key, to_number, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["JoinedFields", "KeyOwner", "SealedVector", "time_product"]

SHORT = 448
"""Bits of a short exponent of the noise: four times the 112 bits of security of a modulus of 2048 bits."""
_WINDOW = 8
"""Bits of an exponent, or of a weight, that one multiplication handles."""
_BLOCK = 256
"""Numbers that are encrypted together."""


@dataclass(frozen=True)
class JoinedFields:
    """Several signed numbers side by side in one plaintext, with room for their sums.

    Number ``i`` of a row adds ``x_i 2^(i width)``; a sum of up to ``terms`` rows never reaches its neighbour.

    Attributes:
        fields: numbers in a row.
        bits: each is below ``2^bits`` in magnitude.
        terms: at most so many rows add up.

    Raises:
        ConfigError: a sum needs more than 64 bits with its sign.
    """

    fields: int
    bits: int
    terms: int

    def __post_init__(self) -> None:
        if self.fields < 1 or self.bits < 1 or self.terms < 1 or self.width > 64:
            raise ConfigError(
                f"sums of {self.terms} numbers of {self.bits} bits may overflow: {self.fields} of them need {self.width} bits each, and have at most 64",
                where="JoinedFields",
                remedy="use fewer rows, or numbers of fewer bits",
            )

    @property
    def width(self) -> int:
        """Bits of a number's sum, with its sign."""
        return self.bits + int(self.terms).bit_length() + 1

    def per_plaintext(self, key_bits: int) -> int:
        """How many sums of rows fit a plaintext.

        Raises:
            ConfigError: not one.
        """
        found = (key_bits - 2) // (self.fields * self.width)
        if found < 1:
            raise ConfigError(
                f"{self.fields} numbers of {self.width} bits in a modulus of {key_bits}",
                where="JoinedFields",
                remedy="use a longer key",
            )
        return found

    def join(self, rows: NDArray[np.int64]) -> list[int]:
        """Whole numbers, one for each row of ``(rows, fields)``.

        Raises:
            DataError: a number has more than ``bits`` bits, so that sums may overflow.
        """
        found = np.asarray(rows, np.int64)
        if found.ndim != 2 or found.shape[1] != self.fields or (np.abs(found) >> self.bits).any():
            raise DataError(
                f"rows of shape {found.shape} up to {int(np.abs(found).max(initial=0))}, for {self.fields} numbers of {self.bits} bits",
                where="JoinedFields",
                remedy="join what the fields have room for",
            )
        columns = [column.tolist() for column in found.T]
        made: list[int] = columns[-1]
        for column in reversed(columns[:-1]):
            made = [(high << self.width) + low for high, low in zip(made, column, strict=True)]
        return made

    def split(self, packed: Sequence[int], sums: int, key_bits: int) -> NDArray[np.int64]:
        """The sums in plaintexts that hold several each, ``(sums, fields)``; the inverse of `SealedVector.pack`."""
        per = self.per_plaintext(key_bits) * self.fields
        half = 1 << (self.width - 1)
        shift = sum(half << (i * self.width) for i in range(per))
        size = self.width * per
        raised = [(int(one) + shift) & ((1 << size) - 1) for one in packed]
        count = (key_bits - 1) // self.width  # how many `unpack` looks for
        raw = unpack(raised, len(raised) * count, self.width, key_bits).reshape(len(raised), count)[:, :per]
        found = (raw - np.uint64(half)).view(np.int64).reshape(-1, self.fields)
        return found[:sums]


class KeyOwner:
    """The owner of a Paillier key: encrypts modulo both primes, and decrypts.

    Args:
        cipher: the length of the key.
        secret: the owner's entropy.
        keys: public and private key, to go on with ones that were made before.
        short: whether the noise ``h^a`` has exponents of 448 bits, not of half the modulus' length. That it cannot be told from a full one then is an assumption beside
            Paillier's own (discrete logarithms with short exponents; Damgard, Jurik and Nielsen 2010, section 4.2); it takes less than half the time.
    """

    def __init__(
        self, cipher: Paillier, secret: Secret, keys: Sequence[Tree] | None = None, short: bool = False
    ) -> None:
        cipher.require()
        self.cipher, self._secret, self.short = cipher, secret, short
        public, private = keys or cipher.make_keys(secret)
        self.keys: list[Tree] = [public, private]
        found = cipher.own(private, "p", "q")
        self._private = PrivateKey(to_number(found["p"]), to_number(found["q"]))
        self._h = gmp().mpz(to_number(cipher.own(public, "n", "h")["h"]))

    @property
    def public(self) -> Tree:
        """The public key."""
        return self.keys[0]

    @property
    def modulus(self) -> int:
        """The modulus n."""
        return int(self._private.n)

    @cached_property
    def _tables(self) -> list[list[list[Any]]]:
        """For each prime: ``h^(d 256^i)`` modulo its square in row i, column d."""
        bits = min(SHORT, self.cipher.key_bits // 2) if self.short else self.cipher.key_bits // 2
        made = []
        for prime in (self._private.p, self._private.q):
            rows, square, base = [], prime**2, self._h % prime**2
            for _ in range(-(-bits // _WINDOW)):
                row = [gmp().mpz(1)]
                for _ in range((1 << _WINDOW) - 1):
                    row.append(row[-1] * base % square)
                rows.append(row)
                base = row[-1] * base % square
            made.append(rows)
        return made

    def encrypt(self, numbers: Sequence[int]) -> NDArray[np.uint8]:
        """Ciphertexts of whole numbers between ``-n / 2`` and ``n / 2``, ``(numbers, key_bits / 4)``."""
        key, (left, right) = self._private, self._tables
        p2, q2, n, size = key.p**2, key.q**2, key.n, self.cipher.key_bits // 4
        inverse, drawn, made = gmp().invert(p2, q2), self._secret.bytes(len(left) * len(numbers)), []
        for begin in range(0, len(numbers), _BLOCK):
            plain = [1 + (m % n) * n for m in numbers[begin : begin + _BLOCK]]
            digits = drawn[begin * len(left) : (begin + len(plain)) * len(left)]
            first = self._times_noise([m % p2 for m in plain], digits, left, p2)
            second = self._times_noise([m % q2 for m in plain], digits, right, q2)
            made += [a + p2 * ((b - a) * inverse % q2) for a, b in zip(first, second, strict=True)]
        raw = b"".join(int(c).to_bytes(size, "little") for c in made)
        return np.frombuffer(raw, np.uint8).reshape(len(made), size)

    @staticmethod
    def _times_noise(plain: list[Any], digits: bytes, rows: list[list[Any]], square: Any) -> list[Any]:
        """Numbers times powers of h: all of a block by one row of powers after the other, so that row and numbers stay in the cache."""
        for i, row in enumerate(rows):
            plain = [m * row[d] % square for m, d in zip(plain, digits[i :: len(rows)], strict=True)]
        return plain

    def decrypt(self, sealed: NDArray[np.uint8]) -> list[int]:
        """The whole numbers between ``-n / 2`` and ``n / 2`` of ciphertexts, ``(numbers, key_bits / 4)``.

        Raises:
            DataError: a ciphertext is malformed.
        """
        half, n = self._private.n // 2, self._private.n
        found = _numbers(self.cipher, PublicKey(n, 1), sealed)
        plain = (self._private.decrypt(c) for c in found)
        return [int(m - n if m > half else m) for m in plain]


class SealedVector:
    """Ciphertexts under another party's key, as they were received.

    Args:
        cipher: the length of the key.
        public: the key.
        sealed: ``(numbers, key_bits / 4)``.

    Raises:
        DataError: the key is shorter than agreed or no key of this scheme, or a ciphertext is not invertible modulo ``n^2``.
    """

    def __init__(self, cipher: Paillier, public: Tree, sealed: NDArray[np.uint8]) -> None:
        cipher.require()
        found = cipher.own(public, "n", "h")
        self.cipher, self.key = cipher, public_key(bytes(found["n"]), bytes(found["h"]))
        n, h = self.key.n, self.key.h
        if self.key.bits != cipher.key_bits or n % 2 == 0 or not 1 < h < self.key.square or gmp().gcd(h, n) != 1:
            raise DataError(
                f"a public key of {self.key.bits} bits that is none of {cipher.key_bits}",
                where=cipher.name,
                remedy=f"use one that Paillier(key_bits={cipher.key_bits}).make_keys made",
            )
        self.numbers = _numbers(cipher, self.key, sealed)

    def __len__(self) -> int:
        return len(self.numbers)

    def add_by_index(self, index: NDArray[Any], size: int, rows: NDArray[Any] | None = None) -> list[Any]:
        """Ciphertexts of the sums of the numbers with each index.

        Args:
            index: of each of ``rows``, from 0 to ``size - 1``; others are left out.
            size: how many sums.
            rows: which numbers; by default all.
        """
        total, square, one = [None] * size, self.key.square, gmp().mpz(1)
        chosen = range(len(self.numbers)) if rows is None else np.asarray(rows).tolist()
        sums: list[Any] = total
        for row, at in zip(chosen, np.asarray(index).tolist(), strict=True):
            if 0 <= at < size:
                before = sums[at]
                sums[at] = self.numbers[row] if before is None else before * self.numbers[row] % square
        return [one if each is None else each for each in sums]

    def weighted_sums(self, weights: NDArray[np.int64]) -> list[Any]:
        """Ciphertexts of ``sum_i weights[i, j] x_i`` for each column j of whole weights of at most 62 bits, ``(numbers, sums)``.

        For each digit d of 8 bits, the ciphertexts of a column are first added up by their digit, and ``sum_d d S_d`` follows by running sums.
        """
        found = np.asarray(weights, np.int64)
        if found.ndim != 2 or len(found) != len(self.numbers):
            raise DataError(
                f"weights of shape {found.shape} for {len(self.numbers)} ciphertexts",
                where="weighted_sums",
                remedy="give one row of weights a ciphertext",
            )
        return [self._weighted_sum(column) for column in found.T]

    def _weighted_sum(self, weights: NDArray[np.int64]) -> Any:
        square, sizes = self.key.square, np.abs(weights)
        top = int(sizes.max(initial=0)).bit_length()
        made = [gmp().mpz(1), gmp().mpz(1)]  # of positive weights, and of negative ones
        for begin in reversed(range(0, top, _WINDOW)):
            digit = (sizes >> begin) & ((1 << _WINDOW) - 1)
            for sign, part in ((0, weights > 0), (1, weights < 0)):
                rows = np.flatnonzero(part & (digit > 0))
                by_digit = self.add_by_index(digit[rows] - 1, (1 << _WINDOW) - 1, rows)
                running = total = gmp().mpz(1)
                for one in reversed(by_digit):
                    running = running * one % square
                    total = total * running % square
                made[sign] = gmp().powmod(made[sign], 1 << _WINDOW, square) * total % square
        return made[0] * gmp().invert(made[1], square) % square

    def pack(self, sums: Sequence[Any], fields: JoinedFields, secret: Secret) -> NDArray[np.uint8]:
        """Several sums in each ciphertext, with fresh noise, ``(ciphertexts, key_bits / 4)``.

        Args:
            sums: what `add_by_index` returned, of numbers that `JoinedFields.join` made.
            fields: their form.
            secret: this party's entropy.

        Raises:
            ConfigError: more numbers may have been added up than the fields have room for.
        """
        if len(self.numbers) > fields.terms:
            raise ConfigError(
                f"sums of {len(self.numbers)} numbers may overflow fields for {fields.terms}",
                where="SealedVector.pack",
                remedy="agree on fields for as many rows as there are",
            )
        per, shift = fields.per_plaintext(self.cipher.key_bits), 1 << (fields.fields * fields.width)
        square, made = self.key.square, []
        for begin in range(0, len(sums), per):
            joined = gmp().mpz(1)
            for one in reversed(sums[begin : begin + per]):
                joined = gmp().powmod(joined, shift, square) * one % square
            made.append(joined)
        return self.blind(made, secret)

    def blind(self, sums: Sequence[Any], secret: Secret) -> NDArray[np.uint8]:
        """Sums with fresh noise, as they go back to the key's owner, ``(sums, key_bits / 4)``.

        Args:
            sums: what `add_by_index` or `weighted_sums` returned.
            secret: this party's entropy.
        """
        square, size, made = self.key.square, self.cipher.key_bits // 4, []
        for one in sums:
            noise = gmp().powmod(secret.integer(int(self.key.n) - 1) + 1, self.key.n, square)
            made.append(int(one * noise % square).to_bytes(size, "little"))
        return np.frombuffer(b"".join(made), np.uint8).reshape(len(made), size)


def time_product(bits: int) -> float:
    """Seconds of a product modulo a number of so many bits, on this machine: for predictions of costs."""
    modulus = gmp().mpz(2) ** bits - 189
    a, b = modulus // 3, modulus // 7
    return min(timeit(lambda: a * b % modulus, number=500) for _ in range(3)) / 500


def _numbers(cipher: Paillier, key: PublicKey, sealed: Any) -> list[Any]:
    """Ciphertexts as numbers, after checking that each is invertible modulo ``n^2``."""
    raw, size = np.ascontiguousarray(sealed), cipher.key_bits // 4
    if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] != size:
        raise cipher.malformed(f"{raw.dtype} of shape {raw.shape}, expected bytes of shape (numbers, {size})")
    mpz, product = gmp().mpz, gmp().mpz(1)
    found = [mpz(int.from_bytes(row.tobytes(), "little")) for row in raw]
    for c in found:
        product = product * c % key.n
    if any(not 0 < c < key.square for c in found) or (found and gmp().gcd(product, key.n) != 1):
        raise cipher.malformed("not invertible modulo n^2")
    return found
