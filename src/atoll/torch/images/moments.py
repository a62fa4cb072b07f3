"""C++ of group normalisation, with what follows it: another tensor added, a ReLU, maximum pooling. One pass over a group for each of mean, variance and values."""

from __future__ import annotations

__all__ = ["MOMENTS", "POOLING", "TOGETHER"]

MOMENTS = r"""
struct Norm { i64 n, c, hw, groups, relu, h, w; };

template <class F, class G>
static inline float summed(i64 count, F many, G one) {
  V sums[4] = {};
  i64 i = 0;
  for (; i + 4 * LANES <= count; i += 4 * LANES)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sums[j] += many(i + j * LANES);
  for (; i + LANES <= count; i += LANES) sums[0] += many(i);
  float rest = 0.0f;
  for (; i < count; ++i) rest += one(i);
  return total((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

static inline void moments(const float* x, i64 count, float eps, float* mean, float* rate) {
  const float m = summed(count, [=](i64 i) { return get(x + i); }, [=](i64 i) { return x[i]; }) / count;
  const float v = summed(count, [=](i64 i) { const V d = get(x + i) - m; return d * d; }, [=](i64 i) { const float d = x[i] - m; return d * d; });
  *mean = m;
  *rate = 1.0f / sqrtf(v / count + eps);
}

// y = x a + b, plus another tensor; then zero instead of what is negative.
template <bool RELU, bool OTHER>
static inline void scaled(const float* x, const float* other, float* y, i64 count, float a, float b) {
  i64 i = 0;
  for (; i + LANES <= count; i += LANES) {
    V v = get(x + i) * a + b;
    if (OTHER) v += get(other + i);
    put(y + i, RELU ? (v < 0.0f ? V{} : v) : v);
  }
  for (; i < count; ++i) {
    float v = x[i] * a + b;
    if (OTHER) v += other[i];
    y[i] = RELU && v < 0.0f ? 0.0f : v;
  }
}

extern "C" void normalise(const Norm* norm, float eps, const float* x, const float* weights, const float* bias, const float* other, float* y, float* mean, float* rate) {
  const Norm a = *norm;
  const i64 some = a.c / a.groups;
  for (i64 n = 0; n < a.n; ++n)
    for (i64 g = 0; g < a.groups; ++g) {
      const i64 at = (n * a.c + g * some) * a.hw, k = n * a.groups + g;
      moments(x + at, some * a.hw, eps, mean + k, rate + k);
      for (i64 c = 0; c < some; ++c) {
        const float scale = rate[k] * (weights ? weights[g * some + c] : 1.0f), shift = (bias ? bias[g * some + c] : 0.0f) - mean[k] * scale;
        const i64 i = at + c * a.hw;
        if (a.relu && other) scaled<true, true>(x + i, other + i, y + i, a.hw, scale, shift);
        else if (a.relu) scaled<true, false>(x + i, other, y + i, a.hw, scale, shift);
        else if (other) scaled<false, true>(x + i, other + i, y + i, a.hw, scale, shift);
        else scaled<false, false>(x + i, other, y + i, a.hw, scale, shift);
      }
    }
}

// What a slope becomes below the activation.
static inline void masked(const float* d, const float* y, float* to, i64 count) {
  i64 i = 0;
  for (; i + LANES <= count; i += LANES) put(to + i, get(y + i) <= 0.0f ? V{} : get(d + i));
  for (; i < count; ++i) to[i] = y[i] <= 0.0f ? 0.0f : d[i];
}

// Slopes of one group: d of its channels one after another, below the activation.
static inline void group_slopes(i64 some, i64 hw, const float* d, const float* x, const float* weights, float mean, float rate, float* dx, float* dweights, float* dbias) {
  float along = 0.0f, all = 0.0f;
  for (i64 c = 0; c < some; ++c) {
    const float *e = d + c * hw, *z = x + c * hw, w = weights ? weights[c] : 1.0f;
    const float ds = summed(hw, [=](i64 i) { return get(e + i) * (get(z + i) - mean); }, [=](i64 i) { return e[i] * (z[i] - mean); }) * rate;
    const float db = summed(hw, [=](i64 i) { return get(e + i); }, [=](i64 i) { return e[i]; });
    if (dweights) dweights[c] += ds;
    if (dbias) dbias[c] += db;
    along += w * ds, all += w * db;
  }
  if (!dx) return;
  const float count = (float)(some * hw), slope = -along / count * rate * rate, level = -all / count * rate - slope * mean;
  for (i64 c = 0; c < some; ++c) {
    const float *e = d + c * hw, *z = x + c * hw, w = (weights ? weights[c] : 1.0f) * rate;
    float* to = dx + c * hw;
    i64 i = 0;
    for (; i + LANES <= hw; i += LANES) put(to + i, get(e + i) * w + (get(z + i) * slope + level));
    for (; i < hw; ++i) to[i] = e[i] * w + (z[i] * slope + level);
  }
}

extern "C" void normalise_slopes(const Norm* norm, const float* d, const float* y, const float* x, const float* weights, const float* mean, const float* rate, float* dx, float* dweights, float* dbias) {
  const Norm a = *norm;
  const i64 some = a.c / a.groups;
  float* kept = scratch(0, some * a.hw);
  for (i64 n = 0; n < a.n; ++n)
    for (i64 g = 0; g < a.groups; ++g) {
      const i64 at = (n * a.c + g * some) * a.hw, k = n * a.groups + g;
      const float* e = d + at;
      if (y) masked(e, y + at, kept, some * a.hw), e = kept;
      group_slopes(some, a.hw, e, x + at, weights ? weights + g * some : nullptr, mean[k], rate[k], dx ? dx + at : nullptr, dweights ? dweights + g * some : nullptr, dbias ? dbias + g * some : nullptr);
    }
}
"""
POOLING = r"""
// The largest entry of each window and its place there, row by row: the first of equal ones; what is not a number wins.
extern "C" void pool(const float* __restrict x, float* __restrict y, uint8_t* __restrict at, int64_t planes, int64_t h, int64_t w) {
  const int64_t rows = (h - K) / S + 1, columns = (w - K) / S + 1;
  for (int64_t p = 0; p < planes * rows; ++p) {
    const float* __restrict from = x + (p / rows) * h * w + (p % rows) * S * w;
    float* __restrict to = y + p * columns;
    uint8_t* __restrict place = at + p * columns;
#if defined(__AVX512F__)
    // Sixteen windows at once, the last ones with idle lanes: rows are too short for what a compiler makes of the loop below.
    const __m512i step = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(S));
    for (int64_t c = 0; c < columns; c += 16) {
      const __mmask16 lanes = columns - c >= 16 ? 0xFFFF : (1u << (columns - c)) - 1u;
      __m512 most = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, step, from + c * S, 4);
      __m512i found = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int i = 0; i < K; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < K; ++j) {
          const __m512 other = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, step, from + i * w + c * S + j, 4);
          const __mmask16 more = _mm512_cmp_ps_mask(other, most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(other, other, _CMP_UNORD_Q);
          most = _mm512_mask_mov_ps(most, more, other);
          found = _mm512_mask_mov_epi32(found, more, _mm512_set1_epi32(i * K + j));
        }
      _mm512_mask_storeu_ps(to + c, lanes, most);
      _mm512_mask_cvtepi32_storeu_epi8(place + c, lanes, found);
    }
    continue;
#endif
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      float most = from[c * S];
      int32_t found = 0;
#pragma GCC unroll 16
      for (int i = 0; i < K; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < K; ++j) {
          const float other = from[i * w + c * S + j];
          const bool more = (other > most) | (other != other);
          most = more ? other : most;
          found = more ? (int32_t)(i * K + j) : found;
        }
      to[c] = most;
      place[c] = (uint8_t)found;
    }
  }
}
extern "C" void unpool(const float* __restrict g, const uint8_t* __restrict at, float* __restrict x, int64_t planes, int64_t h, int64_t w) {
  const int64_t rows = (h - K) / S + 1, columns = (w - K) / S + 1;
  memset(x, 0, planes * h * w * sizeof(float));
  for (int64_t p = 0; p < planes * rows; ++p) {
    float* __restrict to = x + (p / rows) * h * w + (p % rows) * S * w;
    const float* __restrict from = g + p * columns;
    const uint8_t* __restrict place = at + p * columns;
    if constexpr (S >= K) {  // windows apart from one another
      for (int64_t c = 0; c < columns; ++c) to[(place[c] / K) * w + c * S + place[c] % K] = from[c];
      continue;
    }
    for (int i = 0; i < K; ++i)
#pragma GCC unroll 16
      for (int j = 0; j < K; ++j)
#pragma omp simd
        for (int64_t c = 0; c < columns; ++c) to[i * w + c * S + j] += place[c] == i * K + j ? from[c] : 0.0f;
  }
}
"""
TOGETHER = r"""
// Group normalisation, zero instead of what is negative, and pooling: what lies between stays in the cache.
extern "C" void normalise_pool(const Norm* norm, float eps, const float* x, const float* weights, const float* bias, float* y, uint8_t* at, float* mean, float* rate) {
  const Norm a = *norm;
  const i64 some = a.c / a.groups, rows = (a.h - K) / S + 1, columns = (a.w - K) / S + 1;
  float* plane = scratch(0, a.hw);
  for (i64 n = 0; n < a.n; ++n)
    for (i64 g = 0; g < a.groups; ++g) {
      const i64 first = n * a.c + g * some, k = n * a.groups + g;
      moments(x + first * a.hw, some * a.hw, eps, mean + k, rate + k);
      for (i64 c = 0; c < some; ++c) {
        const float scale = rate[k] * (weights ? weights[g * some + c] : 1.0f), shift = (bias ? bias[g * some + c] : 0.0f) - mean[k] * scale;
        scaled<true, false>(x + (first + c) * a.hw, nullptr, plane, a.hw, scale, shift);
        pool(plane, y + (first + c) * rows * columns, at + (first + c) * rows * columns, 1, a.h, a.w);
      }
    }
}

extern "C" void normalise_pool_slopes(const Norm* norm, const float* d, const float* y, const uint8_t* at, const float* x, const float* weights, const float* mean, const float* rate, float* dx, float* dweights, float* dbias) {
  const Norm a = *norm;
  const i64 some = a.c / a.groups, pooled = ((a.h - K) / S + 1) * ((a.w - K) / S + 1);
  float *planes = scratch(0, some * a.hw), *kept = scratch(1, some * pooled);
  for (i64 n = 0; n < a.n; ++n)
    for (i64 g = 0; g < a.groups; ++g) {
      const i64 first = n * a.c + g * some, k = n * a.groups + g;
      masked(d + first * pooled, y + first * pooled, kept, some * pooled);
      unpool(kept, at + first * pooled, planes, some, a.h, a.w);
      group_slopes(some, a.hw, planes, x + first * a.hw, weights ? weights + g * some : nullptr, mean[k], rate[k], dx ? dx + first * a.hw : nullptr, dweights ? dweights + g * some : nullptr, dbias ? dbias + g * some : nullptr);
    }
}
"""
