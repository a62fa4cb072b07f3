"""The C++ that every program has: vector arithmetic, tiles of products, and the loop over clients and steps."""

from __future__ import annotations

__all__ = ["LOOP", "PREAMBLE", "TILES"]

# The C++ that every native program begins with: vectors and elementary functions.
#
# ``exp`` and ``log`` follow S. Moshier's Cephes library (range reduction and minimax polynomials, about one unit in the
# last place), written without branches so that loops over them become vector code. Few headers are included, since every
# program reads them: the C++ headers for mathematics, atomics and ``min`` take longer to compile than many programs.


# L floats fill a vector register. A tile of a product is ROWS by COLS registers: 5 x 4 sums, 4 of a row and 1 factor are 25 of the 32 registers of AVX-512;
# 3 x 3, 3 and 1 are 13 of the 16 of AVX. A larger tile would spill to memory, and a smaller one waits for its loads.
PREAMBLE = r"""
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
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
#define APART static __attribute__((noinline))

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
#if defined(__AVX512F__)
// The first lanes of a vector, as many as are left.
struct Some {
  __mmask16 lanes;
  explicit Some(int left) : lanes((__mmask16)((1u << left) - 1u)) {}
  V load(const float* p) const { return (V)_mm512_maskz_loadu_ps(lanes, p); }
  void store(float* p, V v) const { _mm512_mask_storeu_ps(p, lanes, (__m512)v); }
};
#endif
INLINE float total(V v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float s = 0;
  for (int i = 0; i < L; ++i) s += v[i];
  return s;
#endif
}

// C[s] += the sum of all lanes of v[s]: up to four sums at once, in a tree of shuffles, cost as much as one and a half by themselves.
template <int S> INLINE void add_totals(const V* v, float* C) {
#if defined(__AVX512F__) && defined(__AVX512VL__)
  if constexpr (S > 1 && S <= 4) {
    const __m512 zero = _mm512_setzero_ps();
    const __m512 a = (__m512)v[0], b = (__m512)v[1], c = S > 2 ? (__m512)v[S > 2 ? 2 : 0] : zero, d = S > 3 ? (__m512)v[S - 1] : zero;
    const __m512d ab = (__m512d)(_mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b));
    const __m512d cd = (__m512d)(_mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d));
    const __m512 all = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    const __m256 half = _mm512_castps512_ps256(all) + (__m256)_mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)all, 1));
    const __m128 made = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
    constexpr __mmask8 kept = (1u << S) - 1u;
    if constexpr (S == 4) _mm_storeu_ps(C, _mm_loadu_ps(C) + made);
    else _mm_mask_storeu_ps(C, kept, _mm_maskz_loadu_ps(kept, C) + made);
    return;
  }
#endif
#pragma GCC unroll 8
  for (int s = 0; s < S; ++s) C[s] += total(v[s]);
}

typedef int32_t I __attribute__((vector_size(L * 4)));
INLINE V wide(V v) { return v; }
INLINE V wide(float a) { return a - V{}; }
INLINE I wide(int32_t a) { return a - I{}; }
INLINE float as_float(int32_t i) { float f; memcpy(&f, &i, 4); return f; }
INLINE int32_t as_int(float f) { int32_t i; memcpy(&i, &f, 4); return i; }
INLINE V as_float(I i) { return (V)i; }
INLINE I as_int(V v) { return (I)v; }
INLINE float number(int32_t i) { return (float)i; }
INLINE V number(I i) { return __builtin_convertvector(i, V); }
// One of two, by a truth for all or by one for each lane.
INLINE float pick(bool c, float a, float b) { return c ? a : b; }
template <class A, class B> INLINE auto pick(bool c, A a, B b) -> decltype(a + b) { return c ? wide(a) : wide(b); }
template <class A, class B> INLINE V pick(I c, A a, B b) { return c ? wide(a) : wide(b); }
INLINE int32_t pick_int(bool c, int32_t a, int32_t b) { return c ? a : b; }
INLINE I pick_int(I c, int32_t a, int32_t b) { return c ? wide(a) : wide(b); }
constexpr float INF = __builtin_inff();
constexpr float NOT_A_NUMBER = __builtin_nanf("");
template <class T> INLINE T f_exp(T x) {
  T y = pick(x > 88.72284f, 88.72284f, x);
  y = pick(y < -87.0f, -87.0f, y);
  const T shifted = y * 1.44269504088896341f + 12582912.0f;
  const T n = shifted - 12582912.0f;
  T r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  T p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // Half the power of two twice: near the largest float the whole one has no exponent left.
  const auto whole = as_int(shifted) - 0x4B400000;
  const auto half = whole >> 1;
  T made = p * as_float((half + 127) << 23) * as_float((whole - half + 127) << 23);
  made = pick(x > 88.72284f, INF, made);
  return pick(x < -87.33655f, 0.0f, made);
}
template <class T> INLINE T f_log(T x) {
  const auto tiny = x < 1.17549435e-38f;
  const T scaled = pick(tiny, x * 8388608.0f, x);
  const auto bits = as_int(scaled);
  auto e = ((bits >> 23) & 255) - 126 - pick_int(tiny, 23, 0);
  T m = as_float((bits & 0x007FFFFF) | 0x3F000000);
  const auto low = m < 0.70710678118654752f;
  e -= pick_int(low, 1, 0);
  m = pick(low, m + m - 1.0f, m - 1.0f);
  const T z = m * m, n = number(e);
  T p = 7.0376836292e-2f * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const T y = p * m * z + n * -2.12194440e-4f - 0.5f * z;
  T made = m + y + n * 0.693359375f;
  made = pick(x == INF, INF, made);
  made = pick(x == 0.0f, -INF, made);
  return pick(x >= 0.0f, made, NOT_A_NUMBER);
}
template <class T> INLINE T f_sigmoid(T x) { return 1.0f / (1.0f + f_exp(-x)); }
template <class T> INLINE T f_tanh(T x) {
  const T size = pick(x < 0.0f, -x, x), s = x * x;
  const T e = f_exp(-2.0f * size), big = (1.0f - e) / (1.0f + e);
  const T small = x * (1.0f + s * (-0.33333333f + s * (0.13333333f + s * (-0.05396825f + s * 0.02186949f))));
  return pick(size < 0.25f, small, pick(x < 0.0f, -big, big));
}
// Polynomials fitted here to erf(x) / x below 1 and to log(1 - erf(x)) from there on: within 1.8e-7 of erf everywhere.
template <class T> INLINE T f_erf(T x) {
  const T size = pick(x < 0.0f, -x, x), s = x * x;
  T p = -5.462937988e-04f * s + 4.870706238e-03f;
  p = p * s - 2.666381374e-02f;
  p = p * s + 1.127806455e-01f;
  p = p * s - 3.761194050e-01f;
  p = p * s + 1.128378868e+00f;
  const T u = pick(size > 3.95f, 3.95f, size);
  T q = -2.168685023e-05f * u + 4.413363931e-04f;
  q = q * u - 4.204561934e-03f;
  q = q * u + 2.520825714e-02f;
  q = q * u - 1.084185764e-01f;
  q = q * u - 6.332198977e-01f;
  q = q * u - 1.129578471e+00f;
  q = q * u + 1.880403288e-04f;
  const T big = 1.0f - f_exp(q);
  return pick(size < 1.0f, x * p, pick(x < 0.0f, -big, big));
}
INLINE float f_sqrt(float x) { return __builtin_sqrtf(x); }
// The larger and the smaller of two; one that is not a number wins, as in PyTorch.
template <class A, class B> INLINE auto larger(A a, B b) -> decltype(a + b) { return (a > b || a != a) ? a : b; }
template <class A, class B> INLINE auto smaller(A a, B b) -> decltype(a + b) { return (a < b || a != a) ? a : b; }
INLINE V larger(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
INLINE V smaller(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
INLINE V larger(V a, float b) { return larger(a, wide(b)); }
INLINE V smaller(V a, float b) { return smaller(a, wide(b)); }
INLINE V larger(float a, V b) { return larger(wide(a), b); }
INLINE V smaller(float a, V b) { return smaller(wide(a), b); }
template <class A> INLINE A relu(A a) { return a < A(0) ? A(0) : a; }
INLINE V relu(V a) { return a < V{} ? V{} : a; }
#if defined(__AVX512F__) && defined(__AVX512VL__)
INLINE V f_sqrt(V x) { return (V)_mm512_sqrt_ps((__m512)x); }
// The first lanes of a vector, and another number in the rest.
template <int T> INLINE V only_part(V v, float rest) {
  return (V)_mm512_mask_mov_ps(_mm512_set1_ps(rest), (__mmask16)((1u << T) - 1u), (__m512)v);
}
template <int STEP> INLINE V turned(V v) {
  if constexpr (STEP == 8) return (V)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0x4E);
  if constexpr (STEP == 4) return (V)_mm512_shuffle_f32x4((__m512)v, (__m512)v, 0xB1);
  if constexpr (STEP == 2) return (V)_mm512_permute_ps((__m512)v, 0x4E);
  return (V)_mm512_permute_ps((__m512)v, 0xB1);
}
INLINE float largest(V v) {
  v = larger(v, turned<8>(v)), v = larger(v, turned<4>(v)), v = larger(v, turned<2>(v)), v = larger(v, turned<1>(v));
  return v[0];
}
INLINE float smallest(V v) {
  v = smaller(v, turned<8>(v)), v = smaller(v, turned<4>(v)), v = smaller(v, turned<2>(v)), v = smaller(v, turned<1>(v));
  return v[0];
}
// The same for a vector of places.
template <int H, int W, int SY, int SX> INLINE V sampled(const float* image, V x, V y) {
  x = (x + 1.0f) * (0.5f * (W - 1)), y = (y + 1.0f) * (0.5f * (H - 1));
  x = x < -1.5f ? wide(-1.5f) : x, y = y < -1.5f ? wide(-1.5f) : y;
  x = x > W + 0.5f ? wide(W + 0.5f) : x, y = y > H + 0.5f ? wide(H + 0.5f) : y;
  I left = __builtin_convertvector(x, I), top = __builtin_convertvector(y, I);
  left += x < number(left), top += y < number(top);
  const V right = x - number(left), down = y - number(top), at_left = 1.0f - right, at_top = 1.0f - down;
  const auto in = [](I i, unsigned n) { return _mm512_cmplt_epu32_mask((__m512i)i, _mm512_set1_epi32((int)n)); };
  const __mmask16 l = in(left, W), r = in(left + 1, W), t = in(top, H), b = in(top + 1, H);
  const I at = top * SY + left * SX;
  const auto entries = [&](__mmask16 m, int more) {
    return (V)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, (__m512i)(at + more), image, 4);
  };
  return entries(l & t, 0) * (at_left * at_top) + entries(r & t, SX) * (right * at_top) + entries(l & b, SY) * (at_left * down)
      + entries(r & b, SY + SX) * (right * down);
}
#endif
INLINE i64 within(i64 i, i64 n, i64& bad) {
  i = i < 0 ? i + n : i;
  if (__builtin_expect(i < 0 || i >= n, 0)) { bad = 1; return 0; }
  return i;
}
// An image between its pixels, bilinearly, zero around it; -1 and 1 are the middles of the outermost pixels. Without branches, so that loops
// over it become vector code.
template <int H, int W, int SY, int SX> INLINE float sampled(const float* image, float x, float y) {
  x = (x + 1.0f) * (0.5f * (W - 1)), y = (y + 1.0f) * (0.5f * (H - 1));
  x = x < -1.5f ? -1.5f : x, y = y < -1.5f ? -1.5f : y;
  x = x > W + 0.5f ? W + 0.5f : x, y = y > H + 0.5f ? H + 0.5f : y;
  int32_t left = (int32_t)x, top = (int32_t)y;
  left -= x < (float)left, top -= y < (float)top;
  const float right = x - (float)left, down = y - (float)top;
  const bool l = left >= 0 && left < W, r = left >= -1 && left < W - 1, t = top >= 0 && top < H, b = top >= -1 && top < H - 1;
  const int32_t at = top * SY + left * SX;
  const float nw = image[l & t ? at : 0], ne = image[r & t ? at + SX : 0], sw = image[l & b ? at + SY : 0], se = image[r & b ? at + SY + SX : 0];
  const float w = l ? 1.0f - right : 0.0f, e = r ? right : 0.0f, n = t ? 1.0f - down : 0.0f, s = b ? down : 0.0f;
  return nw * (w * n) + ne * (e * n) + sw * (w * s) + se * (e * s);
}
"""


# Small matrix products in C++: a block of the result stays in registers while the summed axis passes by.
#
# A short program knows every size and stride of its products, so that the compiler unrolls those of small layers completely. A long one would
# compile for seconds that way; there, products share functions that are told sizes and strides: about ten, for all sizes. Both add up in the
# same order, so results are the same bits.


TILES = r"""
// Sizes and strides that the compiler knows, and those that it does not.
template <int M_, int N_, int K_, int AM_, int AK_, int BK_, int CM_> struct Known {
  static constexpr int M = M_, N = N_, K = K_, AM = AM_, AK = AK_, BK = BK_, CM = CM_;
};
struct Told {
  int M, N, K;
  i64 AM, AK, BK, CM;
};

// C += A B where rows of B and C are contiguous: R rows of C by G vectors, the last of T lanes.
template <int R, int G, int T, class S>
INLINE void outer_tile(const float* A, const float* B, float* C, S s) {
  V acc[R][G] = {};
#pragma GCC unroll 4
  for (int k = 0; k < s.K; ++k) {
    V b[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) b[g] = g + 1 < G ? load(B + k * s.BK + g * L) : load_part<T>(B + k * s.BK + g * L);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float a = A[r * s.AM + k * s.AK];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) acc[r][g] += a * b[g];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      float* c = C + r * s.CM + g * L;
      if (g + 1 < G) store(c, load(c) + acc[r][g]);
      else store_part<T>(c, load_part<T>(c) + acc[r][g]);
    }
}
template <int R, int G, int T>
APART void outer_apart(const float* A, const float* B, float* C, Told s) { outer_tile<R, G, T>(A, B, C, s); }
template <int R, int G, int T, class S>
INLINE void outer_block(const float* A, const float* B, float* C, S s) {
  if constexpr (LONG) outer_apart<R, G, T>(A, B, C, s);
  else outer_tile<R, G, T>(A, B, C, s);
}
template <int R, int REST, class S>
INLINE void outer_rows(const float* A, const float* B, float* C, S s) {
  constexpr int W = COLS * L;
  const int F = s.N / W;
  for (int f = 0; f < F; ++f) outer_block<R, COLS, L>(A, B + f * W, C + f * W, s);
  if constexpr (REST > 0) {
    constexpr int G = (REST + L - 1) / L, T = REST - (G - 1) * L;
    outer_block<R, G, T>(A, B + F * W, C + F * W, s);
  }
}
template <int MORE, int REST, class S>
INLINE void outer_all(const float* A, const float* B, float* C, S s) {
  const int F = s.M / ROWS;
  for (int f = 0; f < F; ++f) outer_rows<ROWS, REST>(A + f * ROWS * s.AM, B, C + f * ROWS * s.CM, s);
  if constexpr (MORE > 0) outer_rows<MORE, REST>(A + F * ROWS * s.AM, B, C + F * ROWS * s.CM, s);
}
template <int MORE, int REST>
APART void outer_any(const float* A, const float* B, float* C, Told s) { outer_all<MORE, REST>(A, B, C, s); }
template <int M, int N, int K, int AM, int AK, int BK, int CM>
static void outer(const float* __restrict A, const float* __restrict B, float* __restrict C) {
  constexpr int MORE = M % ROWS, REST = N % (COLS * L);
  if constexpr (LONG) outer_any<MORE, REST>(A, B, C, {M, N, K, AM, AK, BK, CM});
  else outer_all<MORE, REST>(A, B, C, Known<M, N, K, AM, AK, BK, CM>());
}

// C += A B where the summed axis is contiguous in both, and ends with T lanes: R rows of A by Q columns of B, which are `BK` apart.
template <int R, int Q, int T, class S>
INLINE void inner_tile(const float* A, const float* B, float* C, S s) {
  const int F = s.K / L;
  V acc[R][Q] = {};
  for (int f = 0; f < F; ++f) {
    V a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = load(A + r * s.AM + f * L);
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const V b = load(B + q * s.BK + f * L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][q] += a[r] * b;
    }
  }
  if constexpr (T > 0) {
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const V b = load_part<T>(B + q * s.BK + F * L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][q] += load_part<T>(A + r * s.AM + F * L) * b;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) add_totals<Q>(acc[r], C + r * s.CM);
}
template <int R, int Q, int T>
APART void inner_apart(const float* A, const float* B, float* C, Told s) { inner_tile<R, Q, T>(A, B, C, s); }
template <int R, int Q, int T, class S>
INLINE void inner_block(const float* A, const float* B, float* C, S s) {
  if constexpr (LONG) inner_apart<R, Q, T>(A, B, C, s);
  else inner_tile<R, Q, T>(A, B, C, s);
}
template <int MORE, int Q, int T, class S>
INLINE void inner_columns(const float* A, const float* B, float* C, S s) {
  const int F = s.M / ROWS;
  for (int f = 0; f < F; ++f) inner_block<ROWS, Q, T>(A + f * ROWS * s.AM, B, C + f * ROWS * s.CM, s);
  if constexpr (MORE > 0) inner_block<MORE, Q, T>(A + F * ROWS * s.AM, B, C + F * ROWS * s.CM, s);
}
template <int MORE, int REST, int T, class S>
INLINE void inner_all(const float* A, const float* B, float* C, S s) {
  const int F = s.N / COLS;
  for (int f = 0; f < F; ++f) inner_columns<MORE, COLS, T>(A, B + f * COLS * s.BK, C + f * COLS, s);
  if constexpr (REST > 0) inner_columns<MORE, REST, T>(A, B + F * COLS * s.BK, C + F * COLS, s);
}
template <int MORE, int REST, int T>
APART void inner_any(const float* A, const float* B, float* C, Told s) { inner_all<MORE, REST, T>(A, B, C, s); }
template <int M, int N, int K, int AM, int BN, int CM>
static void inner(const float* __restrict A, const float* __restrict B, float* __restrict C) {
  constexpr int MORE = M % ROWS, REST = N % COLS, T = K % L;
  if constexpr (LONG) inner_any<MORE, REST, T>(A, B, C, {M, N, K, AM, 1, BN, CM});
  else inner_all<MORE, REST, T>(A, B, C, Known<M, N, K, AM, 1, BN, CM>());
}
"""


# The C++ that every native program ends with: the loop over clients and their steps, and the threads that share it.


LOOP = r"""
// The clients are cut into parts, each with sums of its own, so that what comes out depends on the cut and never on the threads, which take
// one part after the other. Every thread but the caller's begins and ends within the call: a process may fork between calls.
struct Job {
  char** given;
  const i64 *rows, *begins;  // numbers of the rows of every step; null where they are drawn
  const uint8_t* active;
  const Draws* draws;
  i64 longest;  // steps of a client
  const i64* parts;
  i64 count;
  i64 next, bad;  // shared by the threads
};

// What a thread works in: the scratch memory, and the rows of two clients, since the next one's are fetched while one is at its last step.
struct Workspace {
  Scratch& scratch;
  char* room;
  i64 side;
};

// The rows of a step, which belong to client `c` or, where it has no such step, to one behind it, whose mini-batches are then drawn.
struct Reader {
  Job& job;
  Workspace& space;
  i64 holder, base;
  i64* rows;
  float* weights;

  void read(i64 at, Fetched& to) {
    if (!job.draws) return fetch(job.given, to, job.rows + at * BATCH, nullptr);
    if (!rows || at >= job.begins[holder + 1]) {
      while (job.begins[holder + 1] <= at) ++holder;
      base = job.begins[holder];
      space.side = 1 - space.side;
      rows = (i64*)(space.room + space.side * drawn_room(job.longest));
      weights = (float*)(rows + job.longest * BATCH);
      draw(*job.draws, holder, job.begins[holder + 1] - base, rows, weights, space.room + 2 * drawn_room(job.longest));
    }
    const i64 step = at - base;
    fetch(job.given, to, rows + step * BATCH, weights + step * BATCH);
    // In a client's first pass nobody has read its rows before.
    if (step * BATCH < job.draws->sizes[holder] && at + 1 < job.begins[holder + 1]) expect(job.given, rows + (step + 1) * BATCH);
  }
};

// For every client: the beginning, its steps but those that it sits out, the end. Rows of the pool are fetched one step ahead: the processor
// then copies them while it computes, and what it wrote is in the cache before it is read.
static void run_part(Job& job, i64 part, Workspace& space) {
  char *p[COUNT], *mine[COUNT];
  Scratch& scratch = space.scratch;
  i64 bad = 0, side = 0;
  const i64 *begins = job.begins, last = job.parts[part + 1], end = begins[last];
  for (int i = 0; i < COUNT; ++i) {
    mine[i] = job.given[i] + part * PER_PART[i];
    if (PER_PART[i]) memset(mine[i], 0, PER_PART[i]);
  }
  hold(mine, scratch);
  const auto next = [&](i64 at) { while (job.active && at < end && !job.active[at]) ++at; return at; };
  Reader reader{job, space, job.parts[part], 0, nullptr, nullptr};
  i64 ready = next(begins[job.parts[part]]);
  if (ready < end) reader.read(ready, scratch.fetched[0]);
  for (i64 c = job.parts[part]; c < last; ++c) {
    for (int i = 0; i < COUNT; ++i) p[i] = mine[i] + c * PER_CLIENT[i];
    start(p, scratch, bad);
    for (i64 at = ready; at < begins[c + 1]; at = ready) {
      for (int i = 0; i < COUNT; ++i) if (PER_STEP[i]) p[i] = mine[i] + at * PER_STEP[i];
      ready = next(at + 1);
      if (ready < end) reader.read(ready, scratch.fetched[1 - side]);
      point(p, scratch.fetched[side]);
      step(p, scratch, bad);
      side = 1 - side;
    }
    finish(p, scratch, bad);
  }
  if (bad) __atomic_store_n(&job.bad, 1, __ATOMIC_SEQ_CST);
}

struct Hand {
  Job* job;
  char* room;
  pthread_t thread;
};

constexpr i64 FIXED = (sizeof(Scratch) + 63) / 64 * 64;

static void* work(void* given) {
  const Hand& hand = *(Hand*)given;
  Workspace space{*(Scratch*)hand.room, hand.room + FIXED, 0};
  for (i64 part; (part = __atomic_fetch_add(&hand.job->next, 1, __ATOMIC_SEQ_CST)) < hand.job->count;) run_part(*hand.job, part, space);
  return nullptr;
}

// Bytes that a thread needs, given the most steps and rows of a client whose mini-batches are drawn.
extern "C" i64 room(i64 steps, i64 rows) { return FIXED + 2 * drawn_room(steps) + order_room(rows); }

extern "C" i64 run(
    char** given, char* room, i64 apart, const i64* rows, const i64* begins, const uint8_t* active, const Draws* draws, i64 longest,
    const i64* parts, i64 count, i64 threads) {
  Job job{given, rows, begins, active, draws, longest, parts, count, 0, 0};
  Hand hands[MOST];
  int busy = 1;
  hands[0] = {&job, room, {}};
  // Where the system gives no thread, the others do its work.
  for (; busy < threads; ++busy) {
    hands[busy] = {&job, room + busy * apart, {}};
    if (pthread_create(&hands[busy].thread, nullptr, work, &hands[busy])) break;
  }
  work(&hands[0]);
  for (int i = 1; i < busy; ++i) pthread_join(hands[i].thread, nullptr);
  return job.bad;
}
"""
