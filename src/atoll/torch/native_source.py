"""The C++ that every native program begins with: vectors, small matrix products, elementary functions.

Sizes and strides are template arguments, so that the compiler unrolls the products of small layers completely.
``exp`` and ``log`` follow S. Moshier's Cephes library (range reduction and minimax polynomials, about one unit in the
last place), written without branches so that loops over them become vector code.
"""

from __future__ import annotations

__all__ = ["EPILOGUE", "PREAMBLE"]

PREAMBLE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
constexpr int L = 16, ROWS = 5, COLS = 4;
#elif defined(__AVX__)
constexpr int L = 8, ROWS = 3, COLS = 3;
#else
constexpr int L = 4, ROWS = 2, COLS = 3;
#endif
typedef float V __attribute__((vector_size(L * 4)));
typedef float U __attribute__((vector_size(L * 4), aligned(4), may_alias));
typedef int64_t i64;
#define INLINE static inline __attribute__((always_inline))

INLINE V load(const float* p) { return *(const U*)p; }
INLINE void store(float* p, V v) { *(U*)p = v; }
template <int T> INLINE V load_part(const float* p) {
  if constexpr (T == L) return load(p);
#if defined(__AVX512F__)
  return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << T) - 1u), p);
#else
  V v = {};
  for (int i = 0; i < T; ++i) v[i] = p[i];
  return v;
#endif
}
template <int T> INLINE void store_part(float* p, V v) {
  if constexpr (T == L) { store(p, v); return; }
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << T) - 1u), (__m512)v);
#else
  for (int i = 0; i < T; ++i) p[i] = v[i];
#endif
}
INLINE float total(V v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s = 0;
  for (int i = 0; i < L; ++i) s += v[i];
  return s;
#endif
}

// C += A B where rows of B and C are contiguous: R rows of C by G vectors, the last of T lanes.
template <int R, int G, int T, int K, int AM, int AK, int BK, int CM>
INLINE void outer_tile(const float* A, const float* B, float* C) {
  V acc[R][G] = {};
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) {
    V b[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) b[g] = g + 1 < G ? load(B + k * BK + g * L) : load_part<T>(B + k * BK + g * L);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float a = A[r * AM + k * AK];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) acc[r][g] += a * b[g];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      float* c = C + r * CM + g * L;
      if (g + 1 < G) store(c, load(c) + acc[r][g]);
      else store_part<T>(c, load_part<T>(c) + acc[r][g]);
    }
}
template <int R, int N, int K, int AM, int AK, int BK, int CM>
INLINE void outer_rows(const float* A, const float* B, float* C) {
  constexpr int W = COLS * L, F = N / W, REST = N - F * W;
  for (int f = 0; f < F; ++f) outer_tile<R, COLS, L, K, AM, AK, BK, CM>(A, B + f * W, C + f * W);
  if constexpr (REST > 0) {
    constexpr int G = (REST + L - 1) / L, T = REST - (G - 1) * L;
    outer_tile<R, G, T, K, AM, AK, BK, CM>(A, B + F * W, C + F * W);
  }
}
template <int M, int N, int K, int AM, int AK, int BK, int CM>
static void outer(const float* __restrict A, const float* __restrict B, float* __restrict C) {
  constexpr int F = M / ROWS, REST = M - F * ROWS;
  for (int f = 0; f < F; ++f) outer_rows<ROWS, N, K, AM, AK, BK, CM>(A + f * ROWS * AM, B, C + f * ROWS * CM);
  if constexpr (REST > 0) outer_rows<REST, N, K, AM, AK, BK, CM>(A + F * ROWS * AM, B, C + F * ROWS * CM);
}

// C += A B where the summed axis is contiguous in both: R rows of A by S columns of B.
template <int R, int S, int K, int AM, int BN, int CM>
INLINE void inner_tile(const float* A, const float* B, float* C) {
  constexpr int F = K / L, T = K - F * L;
  V acc[R][S] = {};
  for (int f = 0; f < F; ++f) {
    V a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = load(A + r * AM + f * L);
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const V b = load(B + s * BN + f * L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][s] += a[r] * b;
    }
  }
  if constexpr (T > 0) {
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) {
      const V b = load_part<T>(B + s * BN + F * L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][s] += load_part<T>(A + r * AM + F * L) * b;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) C[r * CM + s] += total(acc[r][s]);
}
template <int M, int S, int K, int AM, int BN, int CM>
INLINE void inner_columns(const float* A, const float* B, float* C) {
  constexpr int F = M / ROWS, REST = M - F * ROWS;
  for (int f = 0; f < F; ++f) inner_tile<ROWS, S, K, AM, BN, CM>(A + f * ROWS * AM, B, C + f * ROWS * CM);
  if constexpr (REST > 0) inner_tile<REST, S, K, AM, BN, CM>(A + F * ROWS * AM, B, C + F * ROWS * CM);
}
template <int M, int N, int K, int AM, int BN, int CM>
static void inner(const float* __restrict A, const float* __restrict B, float* __restrict C) {
  constexpr int F = N / COLS, REST = N - F * COLS;
  for (int f = 0; f < F; ++f) inner_columns<M, COLS, K, AM, BN, CM>(A, B + f * COLS * BN, C + f * COLS);
  if constexpr (REST > 0) inner_columns<M, REST, K, AM, BN, CM>(A, B + F * COLS * BN, C + F * COLS);
}

INLINE float as_float(int32_t i) { float f; std::memcpy(&f, &i, 4); return f; }
INLINE int32_t as_int(float f) { int32_t i; std::memcpy(&i, &f, 4); return i; }
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
INLINE float f_exp(float x) {
  float y = x > 88.72284f ? 88.72284f : x;
  y = y < -87.0f ? -87.0f : y;
  const float shifted = y * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // Half the power of two twice: near the largest float the whole one has no exponent left.
  const int32_t whole = as_int(shifted) - 0x4B400000;
  const int32_t half = whole >> 1;
  float made = p * as_float((half + 127) << 23) * as_float((whole - half + 127) << 23);
  made = x > 88.72284f ? INF : made;
  return x < -87.33655f ? 0.0f : made;
}
INLINE float f_log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const int32_t bits = as_int(scaled);
  int32_t e = ((bits >> 23) & 255) - 126 - (tiny ? 23 : 0);
  float m = as_float((bits & 0x007FFFFF) | 0x3F000000);
  const bool low = m < 0.70710678118654752f;
  e -= low ? 1 : 0;
  m = low ? m + m - 1.0f : m - 1.0f;
  const float z = m * m, n = (float)e;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z + n * -2.12194440e-4f - 0.5f * z;
  float made = m + y + n * 0.693359375f;
  made = x == INF ? INF : made;
  made = x == 0.0f ? -INF : made;
  return x >= 0.0f ? made : NOT_A_NUMBER;
}
INLINE float f_sigmoid(float x) { return 1.0f / (1.0f + f_exp(-x)); }
INLINE float f_tanh(float x) {
  const float size = x < 0.0f ? -x : x, s = x * x;
  const float e = f_exp(-2.0f * size), big = (1.0f - e) / (1.0f + e);
  const float small = x * (1.0f + s * (-0.33333333f + s * (0.13333333f + s * (-0.05396825f + s * 0.02186949f))));
  return size < 0.25f ? small : (x < 0.0f ? -big : big);
}
// The larger and the smaller of two; one that is not a number wins, as in PyTorch.
template <class A, class B> INLINE auto larger(A a, B b) -> decltype(a + b) { return (a > b || a != a) ? a : b; }
template <class A, class B> INLINE auto smaller(A a, B b) -> decltype(a + b) { return (a < b || a != a) ? a : b; }
template <class A> INLINE A relu(A a) { return a < A(0) ? A(0) : a; }
INLINE i64 within(i64 i, i64 n, i64& bad) {
  i = i < 0 ? i + n : i;
  if (__builtin_expect(i < 0 || i >= n, 0)) { bad = 1; return 0; }
  return i;
}
"""

EPILOGUE = r"""
// For every client: the beginning, its steps but those that it sits out, the end. Rows of the pool are fetched as they are needed.
extern "C" i64 run(char** given, char* room, const i64* rows, const i64* begins, const uint8_t* active, i64 clients) {
  Scratch& scratch = *(Scratch*)room;
  char* p[COUNT];
  i64 bad = 0;
  for (i64 c = 0; c < clients; ++c) {
    for (int i = 0; i < COUNT; ++i) p[i] = given[i] + c * PER_CLIENT[i];
    start(p, scratch, bad);
    for (i64 at = begins[c]; at < begins[c + 1]; ++at) {
      if (active && !active[at]) continue;
      for (int i = 0; i < COUNT; ++i) if (PER_STEP[i]) p[i] = given[i] + at * PER_STEP[i];
      fetch(p, given, scratch, rows + at * BATCH);
      step(p, scratch, bad);
    }
    finish(p, scratch, bad);
  }
  return bad;
}
"""
