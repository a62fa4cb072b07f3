"""Randomness as an argument: streams identified by a path, never by the order of calls.

A key is 64 bits, derived from the job's seed and a path such as ``("round", 3, "client-17", "batches")``. Two programs that use the
same path get the same numbers, whatever ran before, on any engine, in any order. The keys of a whole cohort are derived at once as an
array, and mini-batch orders come from a counter-based hash, so that a thousand clients cost a few array operations.

These streams are reproducible and therefore **not secret**: noise, masks, shares and keys come from ``island.secret``.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from ..errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Rng",
    "child_keys",
    "hash64",
    "hash_names",
    "keyed",
    "mix64",
    "mix_key",
    "mix_keys",
    "name_key",
    "name_order",
    "shuffles",
]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MUL_1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL_2 = np.uint64(0x94D049BB133111EB)
_THIRTY, _TWENTY_SEVEN, _THIRTY_ONE = np.uint64(30), np.uint64(27), np.uint64(31)
_MASK = (1 << 64) - 1


@functools.lru_cache(maxsize=1 << 12)  # a program's paths share their beginnings, round after round
def hash64(*parts: str | int) -> int:
    """Hash a path to 64 bits with BLAKE2b; a part's type and length are part of the hash."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        # A number is encoded as "#5", and a text that begins with "#" differently, so that no text equals a number.
        text = f"#{int(part)}" if not isinstance(part, str) else f"#{part}" if part.startswith("#") else part
        raw = text.encode()
        digest.update(len(raw).to_bytes(4, "little"))
        digest.update(raw)
    return int.from_bytes(digest.digest(), "little")


def hash_names(names: Sequence[str]) -> NDArray[np.uint64]:
    """``hash64`` of each name, for many names at once."""
    digests = []
    for name in names:
        raw = (f"#{name}" if name.startswith("#") else name).encode()
        digests.append(hashlib.blake2b(len(raw).to_bytes(4, "little") + raw, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def name_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts names as people do: site-2 before site-10."""
    return [
        (int(part), "") if part.isdecimal() and len(part) < 20 else (-1, part) for part in re.split(r"(\d+)", name)
    ], name


def name_order(names: Sequence[str]) -> NDArray[np.int64]:
    """Return the positions of names in the order of `name_key`.

    What is drawn for named things, such as columns or clients, is drawn in this order: then nobody's order of listing them changes a draw. Names that are made on
    access, as those of a million simulated clients, have a method ``order`` instead.
    """
    known: Any = getattr(names, "order", None)
    if known is not None:
        return np.asarray(known(), dtype=np.int64)
    keys = [name_key(str(name)) for name in names]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the SplitMix64 finaliser (Steele, Lea and Flood 2014): a bijection that scatters every bit."""
    if not np.ndim(values):  # a NumPy scalar would warn of the intended overflow
        return np.asarray(_mix(int(values)), dtype=np.uint64)
    z = values + _GOLDEN
    for shift, factor in ((_THIRTY, _MUL_1), (_TWENTY_SEVEN, _MUL_2)):
        z ^= z >> shift
        z *= factor
    z ^= z >> _THIRTY_ONE
    return z


def _mix(value: int) -> int:
    """``mix64`` of one number, in plain integers: much cheaper than an array of one."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix_key(base: int, key: int) -> int:
    """``mix_keys`` of one key."""
    return _mix(key ^ _mix(base & _MASK))


def mix_keys(base: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Derive one key per entry of ``keys`` under the parent key ``base``."""
    return mix64(keys ^ np.uint64(_mix(base & _MASK)))


def child_keys(keys: NDArray[np.uint64], *path: str | int) -> NDArray[np.uint64]:
    """``Rng(key).child(*path).key`` of many keys at once."""
    for part in path:
        keys = mix64(mix64(keys) ^ np.uint64(hash64(part)))
    return keys


def shuffles(keys: NDArray[np.uint64], epochs: int, n: int) -> NDArray[np.int64]:
    """Return the mini-batch orders of many clients: permutations of ``range(n)``.

    Args:
        keys: one key per client, shape ``(clients,)``.
        epochs: passes over the data.
        n: examples of each client.

    Returns:
        Shape ``(clients, epochs, n)``. Entry ``[c, e]`` depends on ``keys[c]``, ``e`` and ``n`` alone.

    Each example gets 64 random bits, of which the lowest ``ceil(log2 n)`` are replaced by its number: sorting these
    words shuffles the numbers, several times faster than an argsort.
    """
    counter = np.arange(epochs * n, dtype=np.uint64).reshape(1, epochs, n)
    noise = mix64(mix64(np.asarray(keys, dtype=np.uint64))[:, None, None] ^ mix64(counter))
    number = np.uint64((1 << max(0, n - 1).bit_length()) - 1)
    noise &= ~number
    noise |= np.arange(n, dtype=np.uint64)
    noise.sort(axis=2)
    noise &= number
    return noise.view(np.int64)


class _Key(ISpawnableSeedSequence):
    """A seed that is a key already: it uses no system entropy, and streams that a user spawns from it are reproducible too."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.spawned = 0

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        """The key of Philox: two words of 64 bits."""
        return np.array([self.key, *[0] * (n_words - 1)], dtype)

    def spawn(self, n_children: int) -> list[_Key]:
        """The seeds of child streams."""
        first, self.spawned = self.spawned, self.spawned + n_children
        return [_Key(Rng(self.key).child("spawn", first + i).key) for i in range(n_children)]


def keyed(key: int) -> np.random.Generator:
    """Return a new NumPy generator: Philox (Salmon et al. 2011) with a key of 64 bits, at its beginning."""
    seed: Any = _Key(key & _MASK)
    return np.random.Generator(np.random.Philox(seed))


class Rng:
    """A reproducible random stream at a path.

    Args:
        key: 64 bits; ``Rng.of(seed)`` makes the root.

    Example:
        >>> root = Rng.of(0)
        >>> same = root.child("round", 3).child("client-17") == root.child("round", 3, "client-17")
        >>> float(root.child("noise").generator().random()) == float(root.child("noise").generator().random())
        True
    """

    __slots__ = ("key",)

    def __init__(self, key: int) -> None:
        self.key = key & _MASK

    @classmethod
    def of(cls, seed: int) -> Rng:
        """Return the root stream of a seed.

        Raises:
            ConfigError: the seed is not a whole number.
        """
        if not isinstance(seed, int | np.integer):
            raise ConfigError(f"seed={seed!r}", where="Rng", remedy="use a whole number, such as seed=0")
        return cls(hash64("atoll", int(seed)))

    def child(self, *path: str | int) -> Rng:
        """Return the child stream at a path."""
        key = self.key
        for part in path:
            key = _mix(hash64(part) ^ _mix(key))
        return Rng(key)

    def children(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the keys of many children at once; ``keys`` has ``hash64(name)`` of each."""
        return mix_keys(self.key, keys)

    def generator(self) -> np.random.Generator:
        """Return a new NumPy generator at the beginning of this stream."""
        return keyed(self.key)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Rng) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Rng({self.key:#018x})"
