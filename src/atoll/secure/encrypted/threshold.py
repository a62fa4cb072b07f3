"""Threshold Paillier: any t of n parties decrypt together, fewer learn nothing (Damgard and Jurik 2001, after Shoup 2000).

A dealer makes the key. The modulus is ``n = p q`` with ``p = 2 p' + 1`` and ``q = 2 q' + 1`` (safe primes), and ``m = p' q'``. The private exponent is
``d = 0 mod m`` and ``d = 1 mod n``. The dealer shares d with a polynomial f of degree t - 1 modulo ``n m``, ``f(0) = d``, gives party i the share ``f(i)``, and forgets
the rest. With ``D = parties!``:

* party i answers a ciphertext c with ``c_i = c^(2 D f(i)) mod n^2``;
* any t answers give ``prod_i c_i^(2 l_i) = c^(4 D^2 d) = 1 + 4 D^2 M n``, where ``l_i = D prod_j j / (j - i)`` are Lagrange's whole numbers.

A party proves that it used its share: the exponent is the same as in its public ``v_i = v^(D f(i))`` (Chaum and Pedersen 1992, made
non-interactive by Fiat and Shamir). One proof covers all ciphertexts of an answer, for a random product of them, with exponents of 64 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import factorial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, QuorumError

from .paillier import Paillier, PublicKey, gmp, to_bytes, to_number
from .scheme import Form

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.island import Secret

__all__ = ["ThresholdPaillier", "safe_prime"]


# ------------------------------------------------------------------ safe primes: ``p = 2 p' + 1`` with p' prime


_SPAN = 1 << 18


def safe_prime(bits: int, secret: Secret) -> Any:
    """Return a safe prime whose two highest bits are set.

    It sieves stretches of candidates p' by the primes below 2^18, for p' and ``2 p' + 1`` at once, and tests what is left. A stretch begins at a random place.
    """
    g = gmp()
    small = _small(min(1 << 18, 1 << (bits // 2 - 2)))
    while True:
        start = g.mpz(secret.integer(1 << (bits - 3)) | (3 << (bits - 3)) | 1)
        open_ = np.ones(_SPAN, dtype=bool)  # candidate i is start + 2 i
        for r in small.tolist():
            rest, half = int(start % r), (r + 1) // 2
            open_[(-rest * half) % r :: r] = False  # r divides p'
            open_[((half - 1 - rest) * half) % r :: r] = False  # r divides 2 p' + 1
        for i in np.flatnonzero(open_).tolist():
            half_prime = start + 2 * i
            if half_prime.bit_length() != bits - 1:
                break
            if not g.is_fermat_prp(half_prime, 2) or not g.is_fermat_prp(2 * half_prime + 1, 2):
                continue
            if g.is_prime(half_prime, 40) and g.is_prime(2 * half_prime + 1, 40):
                return 2 * half_prime + 1


@lru_cache(maxsize=4)
def _small(below: int) -> NDArray[np.int64]:
    """The odd primes below a number (Eratosthenes)."""
    sieve = np.ones(below, dtype=bool)
    sieve[:2] = False
    for i in range(2, int(below**0.5) + 1):
        if sieve[i]:
            sieve[i * i :: i] = False
    return np.flatnonzero(sieve)[1:]


# ------------------------------------------------------------------ threshold Paillier
#
# Threshold Paillier: any t of n parties decrypt together, fewer learn nothing (Damgard and Jurik 2001, after Shoup 2000).


_CHALLENGE = 128
"""Bits of a proof's challenge: a party proves a wrong answer with probability ``2^-128`` a try."""
_MIX = 64
"""Bits of the exponents with which the ciphertexts of one answer are multiplied."""


@dataclass(frozen=True)
class ThresholdPaillier(Paillier):
    """Paillier whose private key nobody has. Encryption and sums are those of ``Paillier``.

    An answer costs an exponentiation by ``2 key_bits`` bits a ciphertext at each of t parties: about 0.4 ms a number with 2048 bits and 24 bits a sum.
    """

    name: ClassVar[str] = "paillier"

    def deal(self, parties: int, threshold: int, secret: Secret) -> tuple[Tree, list[Tree]]:
        """At the dealer: return a public key and a share for each party.

        Args:
            parties: how many shares.
            threshold: how many of them decrypt.
            secret: the dealer's entropy.

        Raises:
            ConfigError: the threshold is no number from 2 to ``parties``.
        """
        if not 2 <= threshold <= parties:
            raise ConfigError(
                f"threshold={threshold} of {parties} parties",
                where="threshold Paillier",
                remedy="use 2 to all of the parties",
            )
        p, q = safe_prime(self.key_bits // 2, secret), safe_prime(self.key_bits // 2, secret)
        while p == q:
            q = safe_prime(self.key_bits // 2, secret)
        n, m = p * q, (p - 1) * (q - 1) // 4
        exponent = m * gmp().invert(m, n)
        line = [exponent, *(secret.integer(int(n * m)) for _ in range(threshold - 1))]
        shares = [sum(c * i**k for k, c in enumerate(line)) % (n * m) for i in range(1, parties + 1)]
        r, y = secret.integer(int(n) - 1) + 1, secret.integer(int(n) - 1) + 1
        v = gmp().powmod(r, 2, n * n)
        known = [gmp().powmod(v, factorial(parties) * share, n * n) for share in shares]
        size = self.key_bits // 8
        public = {
            "scheme": self.name,
            "n": to_bytes(n, size),
            "h": to_bytes(gmp().powmod(-(y * y) % n, n, n * n), 2 * size),
            "threshold": threshold,
            "v": to_bytes(v, 2 * size),
            "shares": [to_bytes(each, 2 * size) for each in known],
        }
        return public, [
            {"scheme": self.name, "index": i, "parties": parties, "share": to_bytes(share, 2 * size)}
            for i, share in enumerate(shares, 1)
        ]

    def answer(self, public: Tree, share: Tree, sealed: NDArray[np.uint8], form: Form, secret: Secret) -> Tree:
        """At a party: return its part of the decryption, with a proof that it is right."""
        key, own = self._public(public), self.own(share, "index", "parties", "share")
        cs, power, g = self.numbers(key, sealed, form), factorial(own["parties"]) * to_number(own["share"]), gmp()
        parts = [g.powmod(c, 2 * power, key.square) for c in cs]
        base = _product(cs, _mixers(key, cs, parts), key)
        v = to_number(public["v"])
        # The nonce hides the exponent statistically: 128 bits more than challenge and exponent.
        room = 2 * key.bits + _CHALLENGE + 128 + factorial(own["parties"]).bit_length()
        nonce = secret.integer(1 << room)
        first, second = g.powmod(base, 2 * nonce, key.square), g.powmod(v, nonce, key.square)
        challenge = _challenge(key, own["index"], cs, parts, first, second)
        return {
            "index": own["index"],
            "parts": [to_bytes(part, key.bytes) for part in parts],
            "challenge": to_bytes(challenge, _CHALLENGE // 8),
            "response": to_bytes(nonce + challenge * power, room // 8 + 1),
        }

    def right(self, public: Tree, sealed: NDArray[np.uint8], form: Form, answer: Tree) -> bool:
        """Return whether a party's answer follows from its share."""
        key, g = self._public(public), gmp()
        cs = self.numbers(key, sealed, form)
        try:
            index, known = int(answer["index"]), to_number(public["shares"][int(answer["index"]) - 1])
            parts = [g.mpz(to_number(part)) for part in answer["parts"]]
            challenge, response = to_number(answer["challenge"]), to_number(answer["response"])
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        if index < 1 or len(parts) != len(cs) or any(not 0 < part < key.square for part in parts):
            return False
        mixers = _mixers(key, cs, parts)
        base, claimed = _product(cs, mixers, key), _product(parts, mixers, key)
        try:
            first = g.powmod(base, 2 * response, key.square) * g.powmod(claimed, -challenge, key.square) % key.square
            second = (
                g.powmod(to_number(public["v"]), response, key.square)
                * g.powmod(known, -challenge, key.square)
                % key.square
            )
        except ZeroDivisionError:
            return False
        return bool(challenge == _challenge(key, index, cs, parts, first, second))

    def combine(
        self, public: Tree, sealed: NDArray[np.uint8], form: Form, answers: Mapping[str, Tree]
    ) -> tuple[list[NDArray[np.uint64]], list[str]]:
        """Return the sums from the answers, party -> answer, and the parties whose answers are wrong.

        Raises:
            QuorumError: fewer right answers than the threshold.
        """
        key, found = self._public(public), self.own(public, "threshold", "v", "shares")
        threshold, parties = found["threshold"], len(found["shares"])
        right: dict[int, Tree] = {}
        wrong = []
        for name, answer in answers.items():
            if len(right) == threshold:
                break
            if self.right(public, sealed, form, answer) and answer["index"] not in right:
                right[answer["index"]] = answer
            else:
                wrong.append(name)
        if len(right) < threshold:
            raise QuorumError(
                f"{len(right)} right parts of a decryption, fewer than the threshold of {threshold}"
                + (f"; wrong ones from {', '.join(wrong)}" if wrong else ""),
                remedy="wait for more parties that hold shares",
            )
        g, delta = gmp(), factorial(parties)
        undo = g.invert(4 * delta**2, key.n)
        plain = []
        for at in range(self.blocks(form)):
            joined = g.mpz(1)
            for i, answer in right.items():
                part = g.mpz(to_number(answer["parts"][at]))
                joined = joined * g.powmod(part, 2 * _lagrange(i, right.keys(), delta), key.square) % key.square
            plain.append((joined - 1) // key.n * undo % key.n)
        return self.opened(plain, form), wrong


def _lagrange(i: int, among: Any, delta: int) -> int:
    top, bottom = delta, 1
    for j in among:
        if j != i:
            top, bottom = top * j, bottom * (j - i)
    return top // bottom


def _mixers(key: PublicKey, cs: list[Any], parts: list[Any]) -> list[int]:
    """An exponent for each ciphertext that follows from all of them and all parts, so that no party can choose its parts to fit."""
    seed = _digest(key, cs + parts)
    return [
        int.from_bytes(hashlib.blake2b(seed + i.to_bytes(8, "little"), digest_size=_MIX // 8).digest(), "little")
        for i in range(len(cs))
    ]


def _product(numbers: list[Any], exponents: list[int], key: PublicKey) -> Any:
    total = gmp().mpz(1)
    for number, exponent in zip(numbers, exponents, strict=True):
        total = total * gmp().powmod(number, exponent, key.square) % key.square
    return total


def _challenge(key: PublicKey, index: int, cs: list[Any], parts: list[Any], first: Any, second: Any) -> int:
    digest = _digest(key, [index, *cs, *parts, first, second])
    return int.from_bytes(digest[: _CHALLENGE // 8], "little")


def _digest(key: PublicKey, numbers: list[Any]) -> bytes:
    made = hashlib.blake2b(to_bytes(key.n, key.bytes).tobytes())
    for number in numbers:
        made.update(int(number).to_bytes(key.bytes, "little"))
    return made.digest()
