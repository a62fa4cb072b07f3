"""C++ that the native layers of images share: vectors, and memory that calls share."""

from __future__ import annotations

__all__ = ["HEAD"]

HEAD = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#if defined(__AVX512F__)
#include <immintrin.h>
constexpr int LANES = 16, TALL = 8, WIDE = 3;  // a tile of sums fits the vector registers
#elif defined(__AVX__)
constexpr int LANES = 8, TALL = 4, WIDE = 3;
#else
constexpr int LANES = 4, TALL = 4, WIDE = 3;
#endif
typedef int64_t i64;
typedef float V __attribute__((vector_size(LANES * 4)));
typedef float U __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

static inline V get(const float* from) { return *(const U*)from; }
static inline void put(float* to, V value) { *(U*)to = value; }

static inline void copy(float* __restrict to, const float* __restrict from, i64 count) {
#if defined(__AVX512F__)
  for (i64 j = 0; j < count; j += 16) {
    const __mmask16 lanes = count - j >= 16 ? 0xFFFF : (1u << (count - j)) - 1u;
    _mm512_mask_storeu_ps(to + j, lanes, _mm512_maskz_loadu_ps(lanes, from + j));
  }
#else
  memcpy(to, from, count * sizeof(float));
#endif
}

static inline float total(V value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(value);
#else
  float sum = 0.0f;
  for (int j = 0; j < LANES; ++j) sum += value[j];
  return sum;
#endif
}

// Memory of this thread that calls share, a slot for each use at once: fresh memory costs more than the arithmetic.
static float* scratch(int slot, i64 count) {
  static thread_local float* kept[4] = {};
  static thread_local i64 room[4] = {};
  if (room[slot] < count) {
    free(kept[slot]);
    room[slot] = (count + 15) / 16 * 16;
    if (!(kept[slot] = (float*)aligned_alloc(64, room[slot] * sizeof(float)))) abort();
  }
  return kept[slot];
}
static float* zeros(int slot, i64 count) { return (float*)memset(scratch(slot, count), 0, count * sizeof(float)); }
"""
