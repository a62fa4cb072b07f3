"""C++ of image layers: convolutions as correlations, moments of groups, and the libraries made of them."""

from __future__ import annotations

import ctypes
import functools

from atoll.native import library_of

__all__ = ["CORRELATION", "HEAD", "MOMENTS", "POOLING", "TOGETHER", "convolving", "normalising"]

# C++ that the native layers of images share: vectors, and memory that calls share.


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


# C++ of convolutions: values, slopes of filters and slopes of inputs, for images in plain memory order.
#
# An image lies in planes with zeros around them. If rows follow one another, the place of a filter's entry is one distance for all output entries, and an output
# plane is a sum of shifted planes: vectors run over all rows at once, and tiles of eight planes by three vectors stay in registers. With a stride, there is a plane for
# each remainder of the places. Slopes of inputs are such sums too, for each remainder, and slopes of filters are products of shifted planes with planes of slopes.


CORRELATION = r"""
#include <vector>
#if defined(__AVX512F__)
#define HOLD(value) asm("" : "+v"(value))  // in a register: a load for each product would be the limit
#else
#define HOLD(value)
#endif
struct Shape { i64 n, ci, h, w, co, kh, kw, s, p, oh, ow; };
static inline i64 up(i64 count) { return (count + LANES - 1) / LANES * LANES; }
static inline i64 over(i64 a, i64 b) { return a <= 0 ? 0 : (a + b - 1) / b; }

// Entries of a row that lie apart by a stride, side by side.
static inline void apart(float* __restrict to, const float* __restrict from, i64 count, i64 s) {
#if defined(__AVX512F__)
  if (s == 2) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    for (i64 j = 0; j < count; j += 16) {
      const i64 left = 2 * (count - j) - 1;  // entries up to the last that is taken
      const __mmask32 lanes = left >= 32 ? 0xFFFFFFFF : (1u << left) - 1u;
      const __m512 low = _mm512_maskz_loadu_ps((__mmask16)lanes, from + 2 * j), high = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), from + 2 * j + 16);
      _mm512_mask_storeu_ps(to + j, count - j >= 16 ? 0xFFFF : (1u << (count - j)) - 1u, _mm512_permutex2var_ps(low, even, high));
    }
    return;
  }
#endif
  for (i64 j = 0; j < count; ++j) to[j] = from[s * j];
}

// Rows of a plane with a pitch into rows side by side; lanes past a row's end are overwritten by the next row.
static inline void tighten(float* __restrict to, const float* __restrict from, i64 rows, i64 columns, i64 pitch) {
  const float* end = to + rows * columns;
  for (i64 r = 0; r < rows; ++r, to += columns, from += pitch)
    for (i64 j = 0; j < columns; j += LANES) {
      if (to + j + LANES <= end) put(to + j, get(from + j));
      else copy(to + j, from + j, columns - j < LANES ? columns - j : LANES);
    }
}

template <int W>
static inline void tile(const float* in, const i64* off, const float* w, i64 taps, const float* first, float* out, i64 room) {
  V acc[TALL][W];
#pragma GCC unroll 8
  for (int o = 0; o < TALL; ++o)
#pragma GCC unroll 3
    for (int j = 0; j < W; ++j) acc[o][j] = first[o] - V{};
  for (i64 t = 0; t < taps; ++t, w += TALL) {
    const float* from = in + off[t];
    V x[W];
#pragma GCC unroll 3
    for (int j = 0; j < W; ++j) x[j] = get(from + j * LANES);
#pragma GCC unroll 8
    for (int o = 0; o < TALL; ++o) {
      const V k = w[o] - V{};
#pragma GCC unroll 3
      for (int j = 0; j < W; ++j) acc[o][j] += k * x[j];
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < TALL; ++o)
#pragma GCC unroll 3
    for (int j = 0; j < W; ++j) put(out + o * room + j * LANES, acc[o][j]);
}

// out[o][i] = first[o] + sum over taps of w[t][o] in[off[t] + i], for TALL planes of `room` entries.
static void correlate(const float* in, const i64* off, const float* w, i64 taps, const float* first, float* out, i64 room) {
  i64 i = 0;
  for (; i + WIDE * LANES <= room; i += WIDE * LANES) tile<WIDE>(in + i, off, w, taps, first, out + i, room);
  if (i + 2 * LANES <= room) tile<2>(in + i, off, w, taps, first, out + i, room);
  else if (i < room) tile<1>(in + i, off, w, taps, first, out + i, room);
}

// The sums of the lanes of four vectors, in a tree of shuffles.
static inline void totals(V a, V b, V c, V d, float* to) {
#if defined(__AVX512F__)
  const __m512 ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b), cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  const __m512 all = (__m512)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd) + (__m512)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd);
  const __m128 low = _mm512_castps512_ps128(all) + _mm512_extractf32x4_ps(all, 1), high = _mm512_extractf32x4_ps(all, 2) + _mm512_extractf32x4_ps(all, 3);
  _mm_storeu_ps(to, low + high);
#else
  to[0] = total(a), to[1] = total(b), to[2] = total(c), to[3] = total(d);
#endif
}

// to[o * step + t] += sum over images and i of d[o][i] x[off[t] + i], for T taps and TALL planes.
template <int T>
static inline void weigh(const float* d, i64 room, i64 dstep, const float* x, const i64* off, i64 xstep, i64 images, float* to, i64 step, i64 tall) {
  V acc[TALL][T] = {};
  for (i64 n = 0; n < images; ++n, d += dstep, x += xstep)
    for (i64 i = 0; i < room; i += LANES) {
      V v[T];
#pragma GCC unroll 3
      for (int t = 0; t < T; ++t) v[t] = get(x + off[t] + i);
#pragma GCC unroll 8
      for (int o = 0; o < TALL; ++o) {
        V g = *(const V*)(d + o * room + i);
        HOLD(g);
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t) acc[o][t] += g * v[t];
      }
    }
#pragma GCC unroll 3
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
    for (int o = 0; o < TALL; o += 4) {
      float sums[4];
      totals(acc[o][t], acc[o + 1][t], acc[o + 2][t], acc[o + 3][t], sums);
      for (int q = 0; q < 4 && o + q < tall; ++q) to[(o + q) * step + t] += sums[q];
    }
}

// Images with zeros around them; with a stride, in one plane for each remainder of the places. Padding on the right is that on the next row's left.
struct Input {
  i64 pitch, plane, room, size;
  std::vector<i64> off;
  explicit Input(const Shape& a) {
    pitch = a.s == 1 ? a.w + a.p : over(a.w + 2 * a.p, a.s);
    plane = over(a.h + 2 * a.p, a.s) * pitch;
    room = up(a.oh * pitch);
    size = a.ci * a.s * a.s * plane + a.kh * pitch + a.kw + WIDE * LANES;
    for (i64 c = 0; c < a.ci; ++c)
      for (i64 y = 0; y < a.kh; ++y)
        for (i64 x = 0; x < a.kw; ++x)
          off.push_back((c * a.s * a.s + y % a.s * a.s + x % a.s) * plane + y / a.s * pitch + x / a.s);
  }
  void spread(const Shape& a, const float* image, float* to) const {
    if (a.s == 1) {
      for (i64 c = 0; c < a.ci; ++c, to += plane)
        for (i64 y = 0; y < a.h; ++y, image += a.w) copy(to + (y + a.p) * pitch + a.p, image, a.w);
      return;
    }
    for (i64 b = 0; b < a.s && b < a.kw; ++b) {
      const i64 x = ((b - a.p) % a.s + a.s) % a.s, column = (x + a.p) / a.s, count = over(a.w - x, a.s);
      for (i64 y = 0; y < a.h; ++y) {
        const i64 r = (y + a.p) % a.s;
        if (r >= a.kh) continue;
        float* row = to + (r * a.s + b) * plane + (y + a.p) / a.s * pitch + column;
        for (i64 c = 0; c < a.ci; ++c) apart(row + c * a.s * a.s * plane, image + (c * a.h + y) * a.w + x, count, a.s);
      }
    }
  }
};

extern "C" void convolve(const Shape* shape, const float* x, const float* weights, const float* bias, float* y) {
  const Shape a = *shape;
  const Input grid(a);
  const i64 taps = grid.off.size(), blocks = over(a.co, TALL);
  float *w = zeros(0, blocks * taps * TALL), *first = zeros(1, blocks * TALL), *in = zeros(2, grid.size), *out = zeros(3, TALL * grid.room + LANES);
  for (i64 o = 0; o < a.co; ++o) {
    first[o] = bias ? bias[o] : 0.0f;
    for (i64 t = 0; t < taps; ++t) w[(o / TALL * taps + t) * TALL + o % TALL] = weights[o * taps + t];
  }
  for (i64 n = 0; n < a.n; ++n) {
    grid.spread(a, x + n * a.ci * a.h * a.w, in);
    for (i64 b = 0; b < blocks; ++b) {
      correlate(in, grid.off.data(), &w[b * taps * TALL], taps, &first[b * TALL], out, grid.room);
      for (i64 o = 0; o < TALL && b * TALL + o < a.co; ++o)
        tighten(y + (n * a.co + b * TALL + o) * a.oh * a.ow, &out[o * grid.room], a.oh, a.ow, grid.pitch);
    }
  }
}

extern "C" void convolve_weights(const Shape* shape, const float* d, const float* x, float* weights, float* bias) {
  const Shape a = *shape;
  const Input grid(a);
  const i64 taps = grid.off.size(), blocks = over(a.co, TALL), most = blocks * TALL * grid.room;
  i64 images = 49152 / (TALL * grid.room * sizeof(float));
  images = images < 1 ? 1 : images > a.n ? a.n : images;
  float *in = zeros(2, images * grid.size), *out = zeros(3, images * most);
  memset(weights, 0, a.co * taps * sizeof(float));
  for (i64 n = 0; n < a.n; n += images) {
    const i64 some = images < a.n - n ? images : a.n - n;
    for (i64 m = 0; m < some; ++m) {
      grid.spread(a, x + (n + m) * a.ci * a.h * a.w, &in[m * grid.size]);
      for (i64 o = 0; o < a.co; ++o)
        for (i64 r = 0; r < a.oh; ++r) copy(&out[m * most + o * grid.room + r * grid.pitch], d + (((n + m) * a.co + o) * a.oh + r) * a.ow, a.ow);
    }
    for (i64 b = 0; b < blocks; ++b) {
      const float* from = &out[b * TALL * grid.room];
      const i64 tall = a.co - b * TALL < TALL ? a.co - b * TALL : TALL;
      i64 t = 0;
      float* to = weights + b * TALL * taps;
      for (; t + 3 <= taps; t += 3) weigh<3>(from, grid.room, most, in, &grid.off[t], grid.size, some, to + t, taps, tall);
      for (; t < taps; ++t) weigh<1>(from, grid.room, most, in, &grid.off[t], grid.size, some, to + t, taps, tall);
    }
  }
  if (!bias) return;
  for (i64 o = 0; o < a.co; ++o) {
    double sum = 0.0;
    for (i64 n = 0; n < a.n; ++n) {
      const float* from = d + (n * a.co + o) * a.oh * a.ow;
      float plane = 0.0f;
#pragma omp simd reduction(+ : plane)
      for (i64 i = 0; i < a.oh * a.ow; ++i) plane += from[i];
      sum += plane;
    }
    bias[o] = (float)sum;
  }
}

// The places of an image whose number has one remainder: the first one, and how many.
struct Range { i64 first, count; };
static Range range(i64 size, i64 padding, i64 s, i64 remainder) {
  const i64 first = over(padding - remainder, s), last = size - 1 + padding - remainder;
  return {first, last < 0 ? 0 : last / s - first + 1};
}

extern "C" void convolve_inputs(const Shape* shape, const float* d, const float* weights, float* x) {
  const Shape a = *shape;
  const i64 qh = (a.kh - 1) / a.s, qw = (a.kw - 1) / a.s, blocks = over(a.ci, TALL);
  i64 top = qh, left = qw, rows = 0, pitch = 0;
  {
    i64 r0 = 1 << 30, c0 = 1 << 30;
    for (i64 b = 0; b < a.s; ++b) {
      const Range r = range(a.h, a.p, a.s, b), c = range(a.w, a.p, a.s, b);
      r0 = r.first < r0 ? r.first : r0, c0 = c.first < c0 ? c.first : c0;
      rows = r.first + r.count > rows ? r.first + r.count : rows;
      pitch = c.first + c.count > pitch ? c.first + c.count : pitch;
    }
    top -= r0, left -= c0;
  }
  pitch = a.ow + left > pitch ? a.ow + left : pitch;
  rows = (a.oh > rows ? a.oh : rows) + top + 1;
  const i64 plane = rows * pitch, room = up(over(a.h, a.s) * pitch + pitch);
  float *in = zeros(2, a.co * plane + room + WIDE * LANES), *out = zeros(3, a.s * (TALL * room + LANES)), *first = zeros(1, TALL);
  struct Phase { Range r, c; i64 taps, at; };
  std::vector<Phase> phases;
  std::vector<i64> off;
  const i64 all = a.co * a.kh * a.kw;
  float* w = scratch(0, blocks * all * TALL);
  for (i64 i = 0; i < a.s; ++i)
    for (i64 j = 0; j < a.s; ++j) {
      const Range r = range(a.h, a.p, a.s, i), c = range(a.w, a.p, a.s, j);
      const i64 at = off.size();
      for (i64 o = 0; o < a.co; ++o)
        for (i64 y = i; y < a.kh; y += a.s)
          for (i64 z = j; z < a.kw; z += a.s) {
            for (i64 b = 0; b < blocks; ++b) {
              float* to = w + (b * all + off.size()) * TALL;
              for (i64 q = 0; q < TALL; ++q) to[q] = b * TALL + q < a.ci ? weights[((o * a.ci + b * TALL + q) * a.kh + y) * a.kw + z] : 0.0f;
            }
            off.push_back(o * plane + (r.first - y / a.s + top) * pitch + c.first - z / a.s + left);
          }
      phases.push_back({r, c, (i64)off.size() - at, at});
    }
  for (i64 n = 0; n < a.n; ++n) {
    for (i64 o = 0; o < a.co; ++o)
      for (i64 r = 0; r < a.oh; ++r) copy(&in[o * plane + (r + top) * pitch + left], d + ((n * a.co + o) * a.oh + r) * a.ow, a.ow);
    for (i64 b = 0; b < blocks; ++b)
      for (i64 i = 0; i < a.s; ++i) {
        const Range rows = phases[i * a.s].r;
        const i64 used = up(rows.count * pitch);
        for (i64 j = 0; j < a.s; ++j) {
          const Phase& one = phases[i * a.s + j];
          correlate(in, off.data() + one.at, w + (b * all + one.at) * TALL, one.taps, first, &out[j * TALL * room], used);
        }
        for (i64 c = b * TALL; c < (b + 1) * TALL && c < a.ci; ++c) {
          float* image = x + (n * a.ci + c) * a.h * a.w;
          if (a.s == 1) { tighten(image, &out[(c - b * TALL) * used], a.h, a.w, pitch); continue; }
          for (i64 r = 0; r < rows.count; ++r) {
            float* to = image + (a.s * (rows.first + r) + i - a.p) * a.w;
            for (i64 j = 0; j < a.s; ++j) {
              const Range columns = phases[i * a.s + j].c;
              const float* from = &out[j * TALL * room + (c - b * TALL) * used + r * pitch];
              float* at = to + a.s * columns.first + j - a.p;
              if (a.s == 2) {
#pragma omp simd
                for (i64 k = 0; k < columns.count; ++k) at[2 * k] = from[k];
              } else
                for (i64 k = 0; k < columns.count; ++k) at[a.s * k] = from[k];
            }
          }
        }
      }
  }
}
"""


# C++ of group normalisation, with what follows it: another tensor added, a ReLU, maximum pooling. One pass over a group for each of mean, variance and values.


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


# The compiled layers of images: convolutions, and group normalisation with pooling.


_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_NORM = (_ADDRESS, ctypes.c_float, *[_ADDRESS] * 7)
_POOL = (*[_ADDRESS] * 3, *[_NUMBER] * 3)


@functools.cache
def convolving() -> ctypes.CDLL | None:
    """Return the convolutions, for all shapes; ``None`` if nothing can be compiled."""
    made = library_of(f"{HEAD}\n{CORRELATION}")
    return made and _declare_functions(
        made, convolve=(_ADDRESS,) * 5, convolve_weights=(_ADDRESS,) * 5, convolve_inputs=(_ADDRESS,) * 4
    )


@functools.cache
def normalising(size: int = 2, stride: int = 2) -> ctypes.CDLL | None:
    """Return group normalisation, and maximum pooling by windows of a size and stride; ``None`` if nothing can be compiled."""
    made = library_of("\n".join((HEAD, MOMENTS, f"constexpr i64 K = {size}, S = {stride};", POOLING, TOGETHER)))
    return made and _declare_functions(
        made,
        pool=_POOL,
        unpool=_POOL,
        normalise=_NORM,
        normalise_slopes=(_ADDRESS,) * 10,
        normalise_pool=_NORM,
        normalise_pool_slopes=(_ADDRESS,) * 11,
    )


def _declare_functions(library: ctypes.CDLL, **functions: tuple[type, ...]) -> ctypes.CDLL:
    for name, arguments in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, list(arguments)
    return library
