"""Keystream: the words that follow from a 32-byte seed, uniform in ``Z_2^p``.

The generator is AES-128 in counter mode (NIST SP 800-38A), of the library ``cryptography``: the first 16 bytes of the seed are the key, the others the first counter
block, and the words are the keystream's bytes, lowest first, in the dtype of words of ``p`` bits (1, 2, 4 or 8 bytes a word). Bits above ``p`` are keystream too. A
sum modulo ``2^p`` ignores them, so masking needs no masking of bits.

A seed is used for one stream only. `derived` makes independent seeds of one: HKDF-Expand of SHA-256 (RFC 5869), whose info names the use.

On two cores of a Xeon with AES instructions, AES-128-CTR of ``cryptography`` 50 makes 6.1 GB/s, AES-256-CTR 4.8 GB/s and ChaCha20 4.2 GB/s (the best of seven runs
of 8 MiB, ``benchmarks/secure_sums.py --keystream``); a new key costs 15 to 25 us.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
import math
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.core.message import Words
from atoll.core.message.words import word_dtype
from atoll.native import library_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Keystream",
    "NoiseStream",
    "SEED",
    "SOURCE",
    "StreamKernel",
    "add_between",
    "add_masks",
    "add_stream",
    "add_streams",
    "derived",
    "keystream",
    "opened",
    "require_library",
]


# ------------------------------------------------------------------ a native pass that makes keystream with the processor's AES instructions and adds it to words, for long masks
#
# It writes the bits that `atoll.secure.keystream` makes with the library ``cryptography``. It is faster for two reasons: it encrypts four counters at once where the
# processor can (VAES), and a word of the stream goes from the register into the sums, not through memory.
#
# The AES instructions take the same time for all keys and counters. Each process compares the pass with the library before its first use; where they differ, where there
# is no compiler, or on a processor without AES instructions, the library makes the stream.


SOURCE = r"""
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>

#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i)

struct Stream { __m128i keys[11]; uint64_t high, low; int64_t plus, minus; };

// FIPS 197, section 5.2: the round keys of AES-128.
template <int C> inline __m128i next_key(__m128i k) {
  const __m128i word = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k, C), 0xff);
  k = _mm_xor_si128(k, _mm_slli_si128(k, 4));
  k = _mm_xor_si128(k, _mm_slli_si128(k, 8));
  return _mm_xor_si128(k, word);
}
inline void expand(const uint8_t* key, __m128i* k) {
  k[0] = _mm_loadu_si128((const __m128i*)key);
  k[1] = next_key<1>(k[0]); k[2] = next_key<2>(k[1]); k[3] = next_key<4>(k[2]); k[4] = next_key<8>(k[3]); k[5] = next_key<16>(k[4]);
  k[6] = next_key<32>(k[5]); k[7] = next_key<64>(k[6]); k[8] = next_key<128>(k[7]); k[9] = next_key<27>(k[8]); k[10] = next_key<54>(k[9]);
}

#define BACKWARDS _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
template <int W> struct Sums;
#if defined(__VAES__) && defined(__AVX512BW__) && !defined(NARROW)
using Vector = __m512i;
constexpr int BLOCKS = 4;
inline Vector spread(__m128i x) { return _mm512_broadcast_i32x4(x); }
inline Vector exclusive(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
inline Vector round_of(Vector a, Vector k) { return _mm512_aesenc_epi128(a, k); }
inline Vector last_of(Vector a, Vector k) { return _mm512_aesenclast_epi128(a, k); }
inline Vector counters(uint64_t high, uint64_t low) {  // of 128 bits each, highest byte first: NIST SP 800-38A
  const Vector base = spread(_mm_set_epi64x(high, low)), next = _mm512_add_epi64(base, _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0));
  const __mmask8 carry = __mmask8(_mm512_cmplt_epu64_mask(next, base) << 1);
  return _mm512_shuffle_epi8(_mm512_mask_add_epi64(next, carry, next, _mm512_set1_epi64(1)), spread(BACKWARDS));
}
inline Vector load(const uint8_t* at) { return _mm512_loadu_si512(at); }
inline void store(uint8_t* at, Vector x) { _mm512_storeu_si512(at, x); }
#define SUMS(W, E) template <> struct Sums<W> { \
  static inline Vector add(Vector a, Vector b) { return _mm512_add_epi##E(a, b); } \
  static inline Vector sub(Vector a, Vector b) { return _mm512_sub_epi##E(a, b); } };
#else
using Vector = __m128i;
constexpr int BLOCKS = 1;
inline Vector spread(__m128i x) { return x; }
inline Vector exclusive(Vector a, Vector b) { return _mm_xor_si128(a, b); }
inline Vector round_of(Vector a, Vector k) { return _mm_aesenc_si128(a, k); }
inline Vector last_of(Vector a, Vector k) { return _mm_aesenclast_si128(a, k); }
inline Vector counters(uint64_t high, uint64_t low) { return _mm_shuffle_epi8(_mm_set_epi64x(high, low), BACKWARDS); }
inline Vector load(const uint8_t* at) { return _mm_loadu_si128((const __m128i*)at); }
inline void store(uint8_t* at, Vector x) { _mm_storeu_si128((__m128i*)at, x); }
#define SUMS(W, E) template <> struct Sums<W> { \
  static inline Vector add(Vector a, Vector b) { return _mm_add_epi##E(a, b); } \
  static inline Vector sub(Vector a, Vector b) { return _mm_sub_epi##E(a, b); } };
#endif
SUMS(1, 8) SUMS(2, 16) SUMS(4, 32) SUMS(8, 64)

constexpr int ABREAST = 8;  // vectors on their way: an AES instruction takes some cycles, and another can begin in each
constexpr size_t CHUNK = ABREAST * sizeof(Vector);

// Add `chunks` chunks of a stream, from its block `block` on, to one place and subtract them from another.
template <int W> void some(const Stream& s, uint64_t block, uint8_t* plus, uint8_t* minus, size_t chunks) {
  Vector k[11];
  EACH(i, 11) k[i] = spread(s.keys[i]);
  uint64_t low = s.low + block, high = s.high + (low < block);
  for (size_t c = 0; c < chunks; ++c) {
    Vector x[ABREAST];
    EACH(j, ABREAST) {
      const uint64_t mine = low + BLOCKS * j;
      x[j] = exclusive(counters(high + (mine < low), mine), k[0]);
    }
    EACH(r, 9) { EACH(j, ABREAST) x[j] = round_of(x[j], k[r + 1]); }
    EACH(j, ABREAST) x[j] = last_of(x[j], k[10]);
    if (plus) {
      uint8_t* at = plus + c * CHUNK;
      EACH(j, ABREAST) store(at + j * sizeof(Vector), Sums<W>::add(load(at + j * sizeof(Vector)), x[j]));
    }
    if (minus) {
      uint8_t* at = minus + c * CHUNK;
      EACH(j, ABREAST) store(at + j * sizeof(Vector), Sums<W>::sub(load(at + j * sizeof(Vector)), x[j]));
    }
    const uint64_t before = low;
    low += BLOCKS * ABREAST;
    high += low < before;
  }
}

template <int W> void all(uint8_t* const* rows, size_t nbytes, const Stream* streams, size_t count, size_t step) {
  alignas(64) uint8_t a[CHUNK], b[CHUNK];
  for (size_t start = 0; start < nbytes; start += step) {
    const size_t length = nbytes - start < step ? nbytes - start : step, chunks = length / CHUNK, rest = length % CHUNK, end = start + length - rest;
    for (size_t i = 0; i < count; ++i) {
      const Stream& s = streams[i];
      uint8_t *plus = s.plus < 0 ? nullptr : rows[s.plus], *minus = s.minus < 0 ? nullptr : rows[s.minus];
      some<W>(s, start / 16, plus ? plus + start : nullptr, minus ? minus + start : nullptr, chunks);
      if (!rest) continue;
      if (plus) memcpy(a, plus + end, rest);
      if (minus && minus != plus) memcpy(b, minus + end, rest);
      some<W>(s, end / 16, plus ? a : nullptr, minus ? (minus == plus ? a : b) : nullptr, 1);
      if (plus) memcpy(plus + end, a, rest);
      if (minus && minus != plus) memcpy(minus + end, b, rest);
    }
  }
}

extern "C" int64_t add_between(uint8_t* const* rows, size_t nbytes, int64_t width, const uint8_t* seeds, const int64_t* plus, const int64_t* minus, size_t count, size_t step) {
  const size_t size = (count * sizeof(Stream) + 63) / 64 * 64;
  Stream* s = (Stream*)aligned_alloc(64, size);
  if (!s) return 1;
  for (size_t i = 0; i < count; ++i) {
    uint64_t high, low;
    expand(seeds + 32 * i, s[i].keys);
    memcpy(&high, seeds + 32 * i + 16, 8);
    memcpy(&low, seeds + 32 * i + 24, 8);
    s[i].high = __builtin_bswap64(high); s[i].low = __builtin_bswap64(low);
    s[i].plus = plus[i]; s[i].minus = minus[i];
  }
  if (width == 1) all<1>(rows, nbytes, s, count, step);
  else if (width == 2) all<2>(rows, nbytes, s, count, step);
  else if (width == 4) all<4>(rows, nbytes, s, count, step);
  else all<8>(rows, nbytes, s, count, step);
  memset(s, 0, size);
  __asm__ __volatile__("" : : "r"(s) : "memory");  // so that the keys are really wiped
  free(s);
  return 0;
}
"""
_STEP = 1 << 13
"""Bytes of each row that a pass over all streams covers: the pieces of a hundred rows stay in a core's cache."""


class StreamKernel:
    """The compiled pass.

    Args:
        library: what `atoll.native.library_of` made of `SOURCE`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._call = library.add_between
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
        self._call.argtypes = [pointer, size, number, ctypes.c_char_p, pointer, pointer, size, size]
        self._call.restype = number

    @classmethod
    def here(cls) -> StreamKernel | None:
        """Return the pass, compiled on this machine the first time, or ``None`` where it cannot be used. ``ATOLL_NATIVE=0`` in the environment turns it off."""
        if os.environ.get("ATOLL_NATIVE") == "0" or sys.byteorder != "little":
            return None
        library = library_of(SOURCE)
        return None if library is None else cls(library)

    def add_between(
        self, rows: Sequence[NDArray[Any]], seeds: Sequence[bytes], plus: Sequence[int], minus: Sequence[int]
    ) -> bool:
        """Add the words of each seed to one row and subtract them from another, in place; see `atoll.secure.keystream.add_between`.

        Args:
            rows: unsigned arrays of one length and dtype, one-dimensional and contiguous.
            seeds: 32 bytes each.
            plus: the row to which each seed's words are added, -1 for none.
            minus: the row from which they are subtracted, -1 for none.

        Returns:
            Whether it was done; without memory for the keys nothing is changed.
        """
        places = np.array([row.ctypes.data for row in rows], dtype=np.uintp)
        to, of = np.array(plus, dtype=np.int64), np.array(minus, dtype=np.int64)
        first = rows[0]
        return not self._call(
            places.ctypes.data, first.nbytes, first.itemsize, b"".join(seeds), to.ctypes.data, of.ctypes.data,
            len(seeds), _STEP,
        )  # fmt: skip


# ------------------------------------------------------------------ keystream: the words that follow from a 32-byte seed, uniform in ``Z_2^p``


SEED = 32
"""Bytes of a seed."""
_PIECE = 1 << 16
"""Bytes of keystream made at once: they stay in the processor's cache until they are added."""
_ZEROS = bytes(_PIECE)
_LONG = 1 << 26
"""Bytes of keystream from which native code is worth loading, and the first time compiling."""


def require_library() -> None:
    """Raise an error if the library is missing.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    _ciphers()


def derived(seed: bytes, use: str, context: bytes = b"") -> bytes:
    """Return an independent seed for one use: HKDF-Expand with SHA-256, one block.

    Args:
        seed: 32 secret bytes, uniform.
        use: names the use, so that two uses never share a stream.
        context: what the seed is bound to, such as a hash of a round's parameters; parties with other contexts get unrelated seeds.

    Raises:
        ConfigError: the seed does not have 32 bytes.
    """
    label = use.encode()
    info = b"atoll secure " + len(label).to_bytes(2, "big") + label + context
    return hmac.digest(_check_seed(seed), info + b"\x01", hashlib.sha256)


def keystream(seed: bytes, bits: int, count: int) -> Words:
    """Return the first words of a seed, uniform in ``[0, 2^bits)``.

    Args:
        seed: 32 secret bytes, for this stream only.
        bits: word length ``p``.
        count: number of words.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """
    out = np.zeros(count, dtype=word_dtype(bits))
    add_stream(out, seed)
    return Words.of(Words.of(out, bits).reduced(), bits)


class Keystream:
    """The words of 64 bits of a seed, piece by piece: the source of a `atoll.privacy.discrete.DiscreteSampler`.

    Args:
        seed: 32 secret bytes, for this stream only.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, seed: bytes) -> None:
        self._cipher = opened(seed)

    def __call__(self, count: int) -> NDArray[np.uint64]:
        """Return the next words, uniform, shape ``(count,)``."""
        words = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        return words.astype(np.uint64, copy=False)


def add_stream(into: NDArray[Any], seed: bytes, *, subtract: bool = False) -> None:
    """Add the words of a seed to an array in place, modulo the dtype's ``2^(8 itemsize)``; see `add_streams`."""
    add_streams(into, [(seed, subtract)])


def add_streams(into: NDArray[Any], seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the words of many seeds to an array in place, modulo the dtype's ``2^(8 itemsize)``.

    Args:
        into: unsigned, one-dimensional, contiguous.
        seeds: 32 secret bytes each, for this stream only, and whether its words are subtracted.
    """
    add_between([into], ((seed, None, 0) if subtract else (seed, 0, None) for seed, subtract in seeds))


def add_between(rows: Sequence[NDArray[Any]], seeds: Iterable[tuple[bytes, int | None, int | None]]) -> None:
    """Add the words of each seed to one row and subtract them from another, in place: each stream is made once.

    Piece by piece, so that the pieces and the keystream of one seed at a time stay in the processor's cache. Long work is done in native code, with the same bits.

    Args:
        rows: unsigned arrays of one length and dtype, one-dimensional and contiguous.
        seeds: 32 secret bytes each, for this stream only; the row to which its words are added, and the one from which they are subtracted.
    """
    known = list(seeds)
    if not rows or not known:
        return
    if len(known) * rows[0].nbytes < _LONG or not _natively(rows, known):
        _by_library(rows, known)


def _by_library(rows: Sequence[NDArray[Any]], seeds: Sequence[tuple[bytes, int | None, int | None]]) -> None:
    """`add_between` with the library's cipher."""
    streams = [(opened(seed), plus, minus) for seed, plus, minus in seeds]
    first = rows[0]
    dtype = first.dtype if sys.byteorder == "little" else first.dtype.newbyteorder("<")
    step = _PIECE // dtype.itemsize
    buffer = bytearray(min(_PIECE, first.nbytes) + 16)
    for start in range(0, len(first), step):
        pieces = [row[start : start + step] for row in rows]
        zeros = _ZEROS if pieces[0].nbytes == _PIECE else _ZEROS[: pieces[0].nbytes]
        words = np.frombuffer(buffer, dtype=dtype, count=pieces[0].size)
        for stream, plus, minus in streams:
            stream.update_into(zeros, buffer)
            if plus is not None:
                np.add(pieces[plus], words, out=pieces[plus])
            if minus is not None:
                np.subtract(pieces[minus], words, out=pieces[minus])


def _natively(rows: Sequence[NDArray[Any]], seeds: Sequence[tuple[bytes, int | None, int | None]]) -> bool:
    """`add_between` in native code, and whether that was possible."""
    kernel = _sound_kernel()
    if kernel is None or not all(row.flags.c_contiguous and row.flags.writeable for row in rows):
        return False
    return kernel.add_between(
        rows,
        [_check_seed(seed) for seed, _, _ in seeds],
        [-1 if plus is None else plus for _, plus, _ in seeds],
        [-1 if minus is None else minus for _, _, minus in seeds],
    )


@functools.cache
def _sound_kernel() -> StreamKernel | None:
    """The native pass, if it makes the library's bits: for words of each length, with counters that carry into their upper half and around its end."""
    kernel = StreamKernel.here()
    if kernel is None:
        return None
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(4)]
    ends = [b"\xff" * 16, bytes(8) + b"\xff" * 8, b"\xff" * 15 + b"\xf0", keys[0][:16]]
    seeds = [key[:16] + end for key, end in zip(keys, ends, strict=True)]
    ways = [(0, 1), (1, -1), (-1, 0), (1, 0)]
    for width in (1, 2, 4, 8):
        expected, found = (np.arange(2 * 1029 * 8, dtype=f"u{width}").reshape(2, -1) for _ in range(2))
        pairs = [
            (s, None if plus < 0 else plus, None if minus < 0 else minus)
            for s, (plus, minus) in zip(seeds, ways, strict=True)
        ]
        _by_library(list(expected), pairs)
        done = kernel.add_between(list(found), seeds, [plus for plus, _ in ways], [minus for _, minus in ways])
        if not done or not np.array_equal(expected, found):
            return None
    return kernel


def add_masks(lanes: Mapping[str, NDArray[Any]], seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the streams of many seeds to all lanes of a party, in place.

    A lane has its own seed, `derived` from that of the pair with the lane's name.

    Args:
        lanes: lane's name -> its words, changed in place.
        seeds: a seed, and whether its words are subtracted.
    """
    known = list(seeds)
    for name, words in lanes.items():
        add_streams(words.view(np.ndarray), ((derived(seed, f"lane {name}"), subtract) for seed, subtract in known))


def _check_seed(seed: bytes) -> bytes:
    if not isinstance(seed, bytes) or len(seed) != SEED:
        shown = f"{len(seed)} bytes" if isinstance(seed, bytes) else type(seed).__name__
        raise ConfigError(f"a seed of {shown}", where="keystream", remedy=f"use {SEED} bytes of island.secret")
    return seed


def _ciphers() -> Any:
    return need("cryptography.hazmat.primitives.ciphers", "secure", "masking sums")


def opened(seed: bytes) -> Any:
    """Return the cipher of a seed's stream: ``update_into(zeros, buffer)`` writes its next bytes.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """
    ciphers = _ciphers()
    known = _check_seed(seed)
    return ciphers.Cipher(ciphers.algorithms.AES(known[:16]), ciphers.modes.CTR(known[16:])).encryptor()


# ------------------------------------------------------------------ random numbers of a keystream
#
# Random numbers of a keystream: standard normal numbers and biased coins that nobody without the 32-byte seed can predict.
# Normal numbers come from the transform of Box and Muller 1958: ``sqrt(-2 ln u) (cos t, sin t)`` with ``u`` uniform in (0, 1) and ``t`` uniform in ``[-pi, pi)``. They are
# floating-point numbers: ``t`` has 24 bits, and ``u`` has 31, or 80 where it is below ``2^-20``, so that the tails reach 10.5 standard deviations. Floating-point noise
# has gaps that an exact analysis of privacy would have to count (Mironov 2012, "On Significance of the Least Significant Bits for Differential Privacy").
#
# It is several times faster than the generators of NumPy (``benchmarks/example_privacy.py``).


_NORMALS_AT_ONCE = 1 << 14
"""Pairs made at once: their buffers stay in the processor's cache."""
_LEAST = 1e-15
"""Deviations below this, or above its inverse, are multiplied at the end."""
_SMALL = 1 << 12
"""Draws of ``u 2^32`` below this get 48 more bits."""
Transform = Callable[["NDArray[Any]", "NDArray[Any]", float], None]
"""``(words, out, deviation)``: write normal numbers made of 32-bit words, none of the first half below ``_SMALL``."""
_ZEROS_OF_NORMALS = memoryview(bytes(8 * _NORMALS_AT_ONCE))


class NoiseStream:
    """Numbers from AES-128 in counter mode; see the module.

    Args:
        seed: 32 secret bytes, for this stream only.

    Attributes:
        transform: a faster way from words to normal numbers, which differs by rounding only.

    Raises:
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = opened(seed)
        self._raw = bytearray(8 * _NORMALS_AT_ONCE + 16)
        self._work: list[NDArray[np.float32]] = []
        self.transform: Transform | None = None

    def normal(self, count: int, out: NDArray[np.float32] | None = None, deviation: float = 1.0) -> NDArray[np.float32]:
        """Return ``count`` normal numbers of mean 0, in float32; two calls for ``n`` give other numbers than one for ``2 n``.

        Args:
            count: how many.
            out: where to put them: float32, ``(count,)``, contiguous.
            deviation: their standard deviation.
        """
        made = np.empty(count, dtype=np.float32) if out is None else out
        if not _LEAST < deviation < 1.0 / _LEAST:  # its square may not be a float32
            np.multiply(self.normal(count, made), np.float32(deviation), out=made)
            return made
        self._work = self._work or [np.empty(_NORMALS_AT_ONCE, np.float32) for _ in range(3)]
        for start in range(0, count, 2 * _NORMALS_AT_ONCE):
            part = made[start : start + 2 * _NORMALS_AT_ONCE]
            pairs = -(-len(part) // 2)
            radius, angle, turned = (buffer[:pairs] for buffer in self._work)
            bits = self._words(2 * pairs, np.dtype("<u4"))
            if self.transform is not None and bits[:pairs].min(initial=_SMALL) >= _SMALL:
                self.transform(bits, part, deviation)
                continue
            np.multiply(bits[pairs:].view(np.int32), np.float32(math.pi / 2**31), out=angle, casting="unsafe")
            self._radii(bits[:pairs], radius, deviation)  # the last use of the words: it may draw more
            np.cos(angle, out=turned)
            np.multiply(radius, turned, out=part[:pairs])
            np.sin(angle, out=turned)
            np.multiply(radius[: len(part) - pairs], turned[: len(part) - pairs], out=part[pairs:])
        return made

    def coins(self, count: int, probability: float) -> NDArray[np.bool_]:
        """Return independent booleans, each true with the given probability, rounded down to a multiple of ``2^-64``.

        Raises:
            ConfigError: the probability is not between 0 and 1.
        """
        if not 0.0 <= probability <= 1.0:
            raise ConfigError(f"probability={probability}", where="NoiseStream", remedy="use a number in [0, 1]")
        if probability == 1.0:
            return np.ones(count, dtype=bool)
        below = np.uint64(int(math.ldexp(probability, 64)))
        made = np.empty(count, dtype=bool)
        for start in range(0, count, _NORMALS_AT_ONCE):
            part = made[start : start + _NORMALS_AT_ONCE]
            np.less(self._words(len(part), np.dtype("<u8")), below, out=part)
        return made

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next uniform words of 64 bits."""
        parts = [
            self._words(min(_NORMALS_AT_ONCE, count - at), np.dtype("<u8")).copy()
            for at in range(0, count, _NORMALS_AT_ONCE)
        ]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def _words(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the next words of the stream, in a buffer that the next call overwrites."""
        size = count * dtype.itemsize
        self._stream.update_into(_ZEROS_OF_NORMALS[:size], self._raw)
        return np.frombuffer(self._raw, dtype=dtype, count=count)

    def _radii(self, bits: NDArray[np.uint32], out: NDArray[np.float32], deviation: float = 1.0) -> None:
        """Write the deviation times ``sqrt(-2 ln u)``, with ``u = (bits | 1) / 2^32``; for the small ones, which make the tails, ``(bits + r) / 2^32`` with a uniform ``r``."""
        np.multiply(bits | np.uint32(1), np.float32(2.0**-32), out=out, casting="unsafe", dtype=np.float32)
        if bits.min(initial=_SMALL) < _SMALL:
            small = np.flatnonzero(bits < _SMALL)
            whole = bits[small].astype(np.float64)
            more = self._words(len(small), np.dtype("<u8")) >> np.uint64(16)
            out[small] = (whole + (more + 0.5) * 2.0**-48) * 2.0**-32
        np.log(out, out=out)
        out *= np.float32(-2.0 * deviation**2)
        np.sqrt(out, out=out)
