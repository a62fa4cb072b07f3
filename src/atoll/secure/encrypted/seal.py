"""Microsoft SEAL as TenSEAL ships it: contexts, and objects as bytes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.extras import need

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["context", "context_for", "join", "load", "save", "seal", "split"]


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
