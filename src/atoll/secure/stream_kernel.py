"""A native pass that makes keystream with the processor's AES instructions and adds it to words, for long masks.

It writes the bits that `atoll.secure.keystream` makes with the library ``cryptography``. It is faster for two reasons: it encrypts four counters at once where the
processor can (VAES), and a word of the stream goes from the register into the sums, not through memory.

The AES instructions take the same time for all keys and counters. Each process compares the pass with the library before its first use; where they differ, where there
is no compiler, or on a processor without AES instructions, the library makes the stream.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.native import library_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["SOURCE", "StreamKernel"]

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
