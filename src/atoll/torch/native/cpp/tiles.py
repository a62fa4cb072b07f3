"""Small matrix products in C++: a block of the result stays in registers while the summed axis passes by.

A short program knows every size and stride of its products, so that the compiler unrolls those of small layers completely. A long one would
compile for seconds that way; there, products share functions that are told sizes and strides: about ten, for all sizes. Both add up in the
same order, so results are the same bits.
"""

from __future__ import annotations

__all__ = ["TILES"]

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
