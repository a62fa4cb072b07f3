"""BFV: exact whole numbers modulo t, several a slot."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.core.requests.island import Secret

from .scheme import Adder, Digits, Form, Numbers, Scheme, checked, from_slots, parties_of, slot_count, to_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree

__all__ = ["BFV", "CKKS", "RingScheme", "context", "context_for", "join", "load", "save", "seal", "split"]


# ------------------------------------------------------------------ microsoft SEAL as TenSEAL ships it: contexts, and objects as bytes


_STEP = 1024


def seal() -> Any:
    """Return the library.

    Raises:
        MissingExtraError: TenSEAL is not installed.
    """
    return need("tenseal.sealapi", "secure", "homomorphic encryption by BFV or CKKS")


@lru_cache(maxsize=16)
def context(kind: str, ring: int, primes: tuple[int, ...], plain: int = 0) -> Any:
    """Return a context at 128 bits of security, whose random numbers are the operating system's."""
    return _context(kind, ring, primes, plain, None)


def context_for(kind: str, ring: int, primes: tuple[int, ...], plain: int, secret: Secret) -> Any:
    """Return a context for one ciphertext or key.

    SEAL takes its random numbers from the operating system, as ``secret`` does. Only if secrets are seeded, in a simulation, they come from
    ``secret``; the library then needs a context for each, since one with a seed gives every ciphertext the same random numbers.
    """
    secret.drawn = True
    if not secret.seeded:
        return context(kind, ring, primes, plain)
    return _context(kind, ring, primes, plain, secret.uint64(8).tolist())


def _context(kind: str, ring: int, primes: tuple[int, ...], plain: int, seed: list[int] | None) -> Any:
    s = seal()
    made = s.EncryptionParameters(getattr(s.SCHEME_TYPE, kind))
    made.set_poly_modulus_degree(ring)
    made.set_coeff_modulus(s.CoeffModulus.Create(ring, list(primes)))
    if plain:
        made.set_plain_modulus(s.PlainModulus.Batching(ring, plain))
    if seed is not None:
        made.set_random_generator(s.Blake2xbPRNGFactory(seed))
    return s.SEALContext(made, True, s.SEC_LEVEL_TYPE.TC128)


def save(thing: Any) -> bytes:
    """Return an object of the library as bytes. It writes to paths only, so this is a file in memory where the system has those.

    SEAL compresses, so that the length of random numbers varies by a few bytes. Zeros fill it up to a multiple of 1024, and the size of a message does not depend on
    chance.
    """

    def emptied(path: str, file: Any) -> bytes:
        thing.save(path)
        return bytes(file.read())

    raw = bytes(_through_file(emptied))
    return raw.ljust(-(-(len(raw) + 16) // _STEP) * _STEP, b"\0")


def load(thing: Any, of: Any, raw: bytes) -> Any:
    """Fill an object of the library from bytes; SEAL checks that they are valid under the context.

    Raises:
        RuntimeError: they are not.
        ValueError: they are not.
    """

    def fill(path: str, file: Any) -> Any:
        file.write(raw)
        file.flush()
        thing.load(of, path)
        return thing

    return _through_file(fill)


def _through_file(act: Callable[[str, Any], Any]) -> Any:
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with os.fdopen(os.memfd_create("seal"), "r+b", buffering=0) as file:
            return act(f"/proc/self/fd/{file.fileno()}", file)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seal")
        with path.open("w+b", buffering=0) as file:
            return act(str(path), file)


def join(pieces: list[bytes]) -> NDArray[np.uint8]:
    """Return pieces as one array, each behind its length."""
    return np.frombuffer(b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces), dtype=np.uint8)


def split(sealed: NDArray[np.uint8]) -> list[bytes]:
    """Return the pieces of an array.

    Raises:
        ValueError: the array is none of ``join``.
    """
    raw, at, pieces = np.ascontiguousarray(sealed, dtype=np.uint8).tobytes(), 0, []
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if end > len(raw):
            raise ValueError("truncated")
        pieces.append(raw[at + 4 : end])
        at = end
    return pieces


# ------------------------------------------------------------------ BFV: exact whole numbers modulo t, several a slot


_NOISE = 10 * 15.2
"""Ten standard deviations of a fresh ciphertext's noise, ``sqrt((2 N / 3 + 1) / 12)`` after the special prime is divided out, for N = 4096."""


@dataclass(frozen=True)
class RingScheme(Scheme):
    """Base class of schemes over ``Z_q[x] / (x^N + 1)``: what BFV and CKKS share. A plaintext has ``slots`` slots of ``capacity`` bits."""

    kind: ClassVar[str] = ""

    @property
    def modulus(self) -> tuple[int, tuple[int, ...], int]:
        """The ring N, the bits of the primes (the last is the special one), and the bits of the plain modulus or 0."""
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """Bits of a slot, after adding up."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        """Slots of a ciphertext."""
        raise NotImplementedError

    def require(self) -> None:
        """Import TenSEAL."""
        seal()

    def make_keys(self, secret: Secret) -> tuple[Tree, Tree]:
        """Return a new public key and its private key."""
        s, made = seal(), context_for(self.kind, *self.modulus, secret)
        generator = s.KeyGenerator(made)
        key = s.PublicKey()
        generator.create_public_key(key)
        marks = {"scheme": self.name, "modulus": list(map(str, self.modulus))}
        return {**marks, "public": save(key)}, {**marks, "private": save(generator.secret_key())}

    def encrypt(self, public: Tree, numbers: Numbers, form: Form, secret: Secret) -> NDArray[np.uint8]:
        """Return the ciphertext: one of SEAL's for each block of slots. The arrays share blocks."""
        self.check(form)
        s, key = seal(), _public(self, self._raw(public, "public"))
        rows = zip(checked(numbers, form), form, strict=True)
        slots = np.concatenate([to_slots(row, each, self.capacity) for row, each in rows])
        pieces = []
        for start in range(0, len(slots), self.slots):
            made = context_for(self.kind, *self.modulus, secret)
            plain, sealed = (
                self._encode(_encoder(made, self.kind), slots[start : start + self.slots]),
                s.Ciphertext(made),
            )
            s.Encryptor(made, key).encrypt(plain, sealed)
            pieces.append(save(sealed))
        return join(pieces)

    def sealed_bytes(self, form: Form) -> int:
        """Return the bytes of a block, measured on one, for each block. They differ a little from block to block, since SEAL packs them."""
        return -(-sum(slot_count(each, self.capacity) for each in form) // self.slots) * self._block

    @cached_property
    def _block(self) -> int:
        secret = Secret(0)  # no key of a sum: what it seals is known
        public, _ = self.make_keys(secret)
        full = Digits(self.slots, 1, 1)
        return len(self.encrypt(public, [np.ones(self.slots, dtype=np.uint64)], [full], secret))

    def adder(self, public: Tree, form: Form) -> Adder:
        """Return a sum: one addition modulo q a coefficient."""
        self._raw(public, "public")
        return _RingSum(self, form)

    def decrypt(self, private: Tree, sealed: NDArray[np.uint8], form: Form) -> list[NDArray[np.uint64]]:
        """Return the sums."""
        s, made = seal(), context(self.kind, *self.modulus)
        raw = self._raw(private, "private")
        try:
            decryptor = s.Decryptor(made, load(s.SecretKey(), made, raw))
        except (RuntimeError, ValueError) as error:
            raise DataError("a private key that SEAL cannot read", where=self.name, remedy="make a new pair") from error
        encoder, plain, rows = _encoder(made, self.kind), s.Plaintext(), []
        for each in self.load(sealed, form):
            decryptor.decrypt(each, plain)
            rows.append(self._decode(encoder, plain))
        slots = np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint64)
        starts = np.cumsum([0, *(slot_count(each, self.capacity) for each in form)]).tolist()
        return [from_slots(slots[at:], each, self.capacity) for at, each in zip(starts, form, strict=False)]

    def _raw(self, key: Tree, part: str) -> bytes:
        found = self.own(key, "modulus", part)
        if list(found["modulus"]) != list(map(str, self.modulus)):
            raise DataError(
                f"a key for {', '.join(found['modulus'])}",
                where=self.name,
                remedy=f"use one for {', '.join(map(str, self.modulus))}",
            )
        return bytes(found[part])

    def load(self, sealed: NDArray[np.uint8], form: Form) -> list[Any]:
        """Return SEAL's ciphertexts.

        Raises:
            DataError: they are not sums of fresh ones under these parameters, as many as the form needs.
        """
        s, made = seal(), context(self.kind, *self.modulus)
        try:
            found = [load(s.Ciphertext(made), made, piece) for piece in split(sealed)]
        except (RuntimeError, ValueError, IndexError) as error:
            raise self.malformed(f"not one of SEAL under these parameters ({error})") from error
        count = sum(slot_count(each, self.capacity) for each in form)
        if len(found) != -(-count // self.slots):
            raise self.malformed(f"{len(found)} blocks, for {count} slots")
        fresh = made.first_parms_id()
        if any(each.size() != 2 or each.parms_id() != fresh or not self._fits(each) for each in found):
            raise self.malformed("not a sum of fresh ones")
        return found

    def _fits(self, sealed: Any) -> bool:
        return True

    def _encode(self, encoder: Any, slots: NDArray[np.uint64]) -> Any:
        raise NotImplementedError

    def _decode(self, encoder: Any, plain: Any) -> NDArray[np.uint64]:
        raise NotImplementedError


class _RingSum:
    """A sum of ciphertexts of a ring."""

    def __init__(self, scheme: RingScheme, form: Form) -> None:
        self._scheme, self._form = scheme, form
        self._evaluator = seal().Evaluator(context(scheme.kind, *scheme.modulus))
        self._total: list[Any] = []

    def add(self, sealed: NDArray[np.uint8]) -> None:
        found = self._scheme.load(sealed, self._form)
        for left, right in zip(self._total, found, strict=False):
            self._evaluator.add_inplace(left, right)
        self._total = self._total or found

    def sealed(self) -> NDArray[np.uint8]:
        if not self._total:
            raise self._scheme.nothing()
        return join([save(each) for each in self._total])


@dataclass(frozen=True)
class BFV(RingScheme):
    """Brakerski-Fan-Vercauteren encryption of whole numbers modulo a prime t (Fan and Vercauteren 2012), by SEAL.

    A ring of 4096 has 4096 slots. A slot holds as many numbers as fit: with ``plain_bits=43``, two whose sums have 21 bits. A ciphertext takes
    15.4 bytes a slot with up to 44 bits (q of ``plain_bits + 15`` bits), and 21.7 beyond. All sums are exact: the noise of n fresh ciphertexts stays below
    ``q / 2t`` up to 10 standard deviations, which ``check`` holds. The security is 128 bits against classical computers (HomomorphicEncryption.org, 2018):
    a modulus of at most 109 bits for this ring.

    Attributes:
        plain_bits: bits of t, 20 to 56. A larger slot holds more, in longer ciphertexts.
    """

    plain_bits: int = 43
    name: ClassVar[str] = "bfv"
    kind: ClassVar[str] = "BFV"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 20 <= self.plain_bits <= 56:
            raise ConfigError(f"plain_bits={self.plain_bits}", where="BFV", remedy="use 20 to 56")

    @classmethod
    def fitting(cls, width: int) -> BFV:
        """Return the plaintext that takes fewer bytes for sums of so many bits: 43 bits, or 56 in ciphertexts that are 1.4 times as long."""
        small, large = cls(), cls(plain_bits=56)
        slots = {each: slot_count(Digits(1000, width, 1), each.capacity) for each in (small, large)}
        return large if 1.4 * slots[large] < slots[small] else small

    @property
    def modulus(self) -> tuple[int, tuple[int, ...], int]:
        """A ring of 4096 and at most 109 bits of primes."""
        primes = (self.plain_bits + 15, 49) if self.plain_bits <= 44 else (36, 36, 37)
        return 4096, primes, self.plain_bits

    @property
    def capacity(self) -> int:
        """One bit less than t has."""
        return self.plain_bits - 1

    @property
    def slots(self) -> int:
        """As many as the ring has coefficients."""
        return 4096

    def check(self, form: Form) -> None:
        """Refuse more parties than the noise allows: ``sqrt(n) 10 sigma < q / 2t``."""
        q = sum(self.modulus[1][:-1])
        most = int((2.0 ** (q - 1 - self.plain_bits - 1) / _NOISE) ** 2)
        parties = parties_of(form, self.capacity)
        if parties > most:
            raise ConfigError(
                f"{parties} parties with plain_bits={self.plain_bits}",
                where="BFV",
                remedy=f"the noise allows {most} parties; use fewer plain_bits",
            )

    def _encode(self, encoder: Any, slots: NDArray[np.uint64]) -> Any:
        plain = seal().Plaintext()
        encoder.encode(slots.tolist(), plain)
        return plain

    def _decode(self, encoder: Any, plain: Any) -> NDArray[np.uint64]:
        return np.array(encoder.decode_uint64(plain), dtype=np.uint64)


def _encoder(made: Any, kind: str) -> Any:
    return seal().BatchEncoder(made) if kind == "BFV" else seal().CKKSEncoder(made)


@lru_cache(maxsize=8)
def _public(scheme: RingScheme, raw: bytes) -> Any:
    made = context(scheme.kind, *scheme.modulus)
    try:
        return load(seal().PublicKey(), made, raw)
    except (RuntimeError, ValueError) as error:
        raise DataError(
            "a public key that SEAL cannot read", where=scheme.name, remedy="ask for the key again"
        ) from error


# ------------------------------------------------------------------ CKKS: numbers with an error, rounded to the whole numbers that went in


@dataclass(frozen=True)
class CKKS(RingScheme):
    """Cheon-Kim-Kim-Song encryption (2017) of numbers with an error, by SEAL.

    The error of a sum of n ciphertexts has a standard deviation of ``sqrt(n N (2 N / 3 + 1) / 24) / 2^scale_bits``. ``check`` refuses a cohort for which ten
    of them reach 1/2, so that rounding gives the exact sum. Rounding also keeps the error at the key holder: it could reveal the private key (Li and
    Micciancio 2021).

    Attributes:
        ring: the ring's degree N.
        primes: bits of the primes of the modulus; the last is the special one, which ciphertexts do not have.
        scale_bits: bits behind the point.
        paired: two numbers a slot, as real and imaginary part. TenSEAL and NVFlare use the real part only.
    """

    ring: int = 4096
    primes: tuple[int, ...] = (58, 51)
    scale_bits: int = 20
    paired: bool = True
    name: ClassVar[str] = "ckks"
    kind: ClassVar[str] = "CKKS"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "primes", tuple(self.primes))
        if len(self.primes) < 2 or sum(self.primes[:-1]) - 2 - self.scale_bits < 8:
            raise ConfigError(
                f"scale_bits={self.scale_bits} with primes={self.primes}",
                where="CKKS",
                remedy="leave at least 10 bits of the modulus before the point",
            )

    @property
    def modulus(self) -> tuple[int, tuple[int, ...], int]:
        """The ring and its primes."""
        return self.ring, self.primes, 0

    @property
    def capacity(self) -> int:
        """Bits before the point; at most 40, since encoding is in double precision."""
        return min(40, sum(self.primes[:-1]) - 2 - self.scale_bits)

    @property
    def slots(self) -> int:
        """N numbers as complex pairs, N/2 as reals."""
        return self.ring if self.paired else self.ring // 2

    def error(self, parties: int) -> float:
        """Return the standard deviation of the error of a sum before rounding."""
        return sqrt(parties * self.ring * (2 * self.ring / 3 + 1) / 24) / 2.0**self.scale_bits

    def check(self, form: Form) -> None:
        """Refuse more parties than rounding can bear."""
        parties = parties_of(form, self.capacity)
        if 10 * self.error(parties) >= 0.5:
            raise ConfigError(
                f"{parties} parties with scale_bits={self.scale_bits}",
                where="CKKS",
                remedy=f"use at most {int((0.05 / self.error(1)) ** 2)} parties, or more scale_bits",
            )

    def _encode(self, encoder: Any, slots: NDArray[np.uint64]) -> Any:
        plain, row = seal().Plaintext(), np.zeros(self.slots)
        row[: len(slots)] = slots
        half = self.slots // 2
        values = (row[:half] + 1j * row[half:]).tolist() if self.paired else row.tolist()
        encoder.encode(values, 2.0**self.scale_bits, plain)
        return plain

    def _decode(self, encoder: Any, plain: Any) -> NDArray[np.uint64]:
        if self.paired:
            pairs = np.array(encoder.decode_complex(plain))
            row = np.concatenate([pairs.real, pairs.imag])
        else:
            row = np.array(encoder.decode_double(plain))
        return np.asarray(np.maximum(np.rint(row), 0.0), dtype=np.uint64)

    def _fits(self, sealed: Any) -> bool:
        return bool(sealed.scale == 2.0**self.scale_bits)
