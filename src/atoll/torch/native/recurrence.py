"""LSTM and GRU layers in native code: products of whole sequences where order does not matter, and small ones for each entry.

Input gates of all entries are one product, as are the gradients of all weights. Weights that a product reads by columns are transposed once for each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .writer import Body, KernelScript, NativeLeaf, Unsupported

__all__ = ["TEMPLATES", "recurrent_rules", "recurs"]

# A layer is one operation with a template of its own: traced, 80 entries of an LSTM are ten thousand operations, which neither fuse into one loop nor
# compile in the time that a run has.
TEMPLATES = r"""
template <int R, int C> static void transposed(const float* __restrict a, float* __restrict b) {
  for (int r0 = 0; r0 < R; r0 += 16)
    for (int c = 0; c < C; ++c)
      for (int r = r0; r < r0 + 16 && r < R; ++r) b[c * R + r] = a[r * C + c];
}
template <int ROWS_, int N, int STRIDE> static void column_sums(const float* __restrict a, float* __restrict to) {
  for (int n = 0; n < N; ++n) to[n] = 0.0f;
  for (int r = 0; r < ROWS_; ++r)
    for (int n = 0; n < N; ++n) to[n] += a[r * STRIDE + n];
}
template <int N, class F> INLINE void by_lanes(F f) {
  constexpr int whole = N / L * L;
  for (int j = 0; j < whole; j += L) f(j, V{});
  for (int j = whole; j < N; ++j) f(j, 0.0f);
}
INLINE V take(const float* p, V) { return load(p); }
INLINE float take(const float* p, float) { return *p; }
INLINE void put(float* p, V v) { store(p, v); }
INLINE void put(float* p, float v) { *p = v; }

template <int T, int B, int I, int H>
static void lstm_forward(const float* x, const float* h0, const float* c0, const float* w_ih, const float* w_hh, const float* bias,
                         float* __restrict y, float* __restrict last, float* __restrict saved, float* __restrict turned_) {
  constexpr int G = 4 * H;
  float *gates = saved, *cells = saved + T * B * G;
  transposed<G, I>(w_ih, turned_);
  for (int r = 0; r < T * B; ++r) memcpy(gates + r * G, bias, G * sizeof(float));
  outer<T * B, G, I, I, 1, G, G>(x, turned_, gates);
  transposed<G, H>(w_hh, turned_);
  for (int t = 0; t < T; ++t) {
    const float *h = t ? y + (t - 1) * B * H : h0, *c = t ? cells + (t - 1) * B * H : c0;
    float* g = gates + t * B * G;
    outer<B, G, H, H, 1, G, G>(h, turned_, g);
    for (int b = 0; b < B; ++b) {
      float *row = g + b * G, *cell = cells + (t * B + b) * H, *out = y + (t * B + b) * H;
      const float* before = c + b * H;
      by_lanes<H>([&](int j, auto kind) {
        const auto i = f_sigmoid(take(row + j, kind)), f = f_sigmoid(take(row + H + j, kind));
        const auto n = f_tanh(take(row + 2 * H + j, kind)), o = f_sigmoid(take(row + 3 * H + j, kind));
        const auto made = f * take(before + j, kind) + i * n;
        put(row + j, i), put(row + H + j, f), put(row + 2 * H + j, n), put(row + 3 * H + j, o);
        put(cell + j, made), put(out + j, o * f_tanh(made));
      });
    }
  }
  memcpy(last, cells + (T - 1) * B * H, B * H * sizeof(float));
}

template <int T, int B, int I, int H>
static void lstm_backward(const float* dy, const float* dlast, const float* y, const float* saved, const float* x, const float* h0,
                          const float* c0, const float* w_ih, const float* w_hh, float* __restrict dx, float* __restrict dh,
                          float* __restrict dc, float* __restrict dw_ih, float* __restrict dw_hh, float* __restrict dbias,
                          float* __restrict slopes) {
  constexpr int G = 4 * H;
  const float *gates = saved, *cells = saved + T * B * G;
  memset(dh, 0, B * H * sizeof(float));
  memcpy(dc, dlast, B * H * sizeof(float));
  for (int t = T - 1; t >= 0; --t) {
    const float* c = t ? cells + (t - 1) * B * H : c0;
    for (int b = 0; b < B; ++b) {
      const int at = t * B + b;
      const float *row = gates + at * G, *cell = cells + at * H, *before = c + b * H, *up = dy + at * H;
      float *to = slopes + at * G, *h = dh + b * H, *k = dc + b * H;
      by_lanes<H>([&](int j, auto kind) {
        const auto i = take(row + j, kind), f = take(row + H + j, kind), n = take(row + 2 * H + j, kind), o = take(row + 3 * H + j, kind);
        const auto end = f_tanh(take(cell + j, kind)), d = take(h + j, kind) + take(up + j, kind);
        const auto s = take(k + j, kind) + d * o * (1.0f - end * end);
        put(to + j, s * n * i * (1.0f - i)), put(to + H + j, s * take(before + j, kind) * f * (1.0f - f));
        put(to + 2 * H + j, s * i * (1.0f - n * n)), put(to + 3 * H + j, d * end * o * (1.0f - o));
        put(k + j, s * f);
      });
    }
    memset(dh, 0, B * H * sizeof(float));
    outer<B, H, G, G, 1, H, H>(slopes + t * B * G, w_hh, dh);
  }
  memset(dx, 0, T * B * I * sizeof(float));
  outer<T * B, I, G, G, 1, I, I>(slopes, w_ih, dx);
  memset(dw_ih, 0, G * I * sizeof(float));
  outer<G, I, T * B, 1, G, I, I>(slopes, x, dw_ih);
  memset(dw_hh, 0, G * H * sizeof(float));
  outer<G, H, B, 1, G, H, H>(slopes, h0, dw_hh);
  if constexpr (T > 1) outer<G, H, (T - 1) * B, 1, G, H, H>(slopes + B * G, y, dw_hh);
  column_sums<T * B, G, G>(slopes, dbias);
}

template <int T, int B, int I, int H>
static void gru_forward(const float* x, const float* h0, const float* w_ih, const float* w_hh, const float* b_ih, const float* b_hh,
                        float* __restrict y, float* __restrict saved, float* __restrict turned_, float* __restrict inner_) {
  constexpr int G = 3 * H, S = 4 * H;
  transposed<G, I>(w_ih, turned_);
  for (int r = 0; r < T * B; ++r) memcpy(saved + r * S, b_ih, G * sizeof(float));
  outer<T * B, G, I, I, 1, G, S>(x, turned_, saved);
  transposed<G, H>(w_hh, turned_);
  for (int t = 0; t < T; ++t) {
    const float* h = t ? y + (t - 1) * B * H : h0;
    for (int b = 0; b < B; ++b) memcpy(inner_ + b * G, b_hh, G * sizeof(float));
    outer<B, G, H, H, 1, G, G>(h, turned_, inner_);
    for (int b = 0; b < B; ++b) {
      float *row = saved + (t * B + b) * S, *out = y + (t * B + b) * H;
      const float *in = inner_ + b * G, *before = h + b * H;
      by_lanes<H>([&](int j, auto kind) {
        const auto r = f_sigmoid(take(row + j, kind) + take(in + j, kind)), z = f_sigmoid(take(row + H + j, kind) + take(in + H + j, kind));
        const auto held = take(in + 2 * H + j, kind), n = f_tanh(take(row + 2 * H + j, kind) + r * held);
        put(row + j, r), put(row + H + j, z), put(row + 2 * H + j, n), put(row + 3 * H + j, held);
        put(out + j, (1.0f - z) * n + z * take(before + j, kind));
      });
    }
  }
}

template <int T, int B, int I, int H>
static void gru_backward(const float* dy, const float* y, const float* saved, const float* x, const float* h0, const float* w_ih,
                         const float* w_hh, float* __restrict dx, float* __restrict dh, float* __restrict dw_ih, float* __restrict dw_hh,
                         float* __restrict db_ih, float* __restrict db_hh, float* __restrict slopes) {
  // Slopes of r, z, n, and of n's hidden part.
  constexpr int G = 3 * H, S = 4 * H;
  memset(dh, 0, B * H * sizeof(float));
  for (int t = T - 1; t >= 0; --t) {
    const float* h = t ? y + (t - 1) * B * H : h0;
    for (int b = 0; b < B; ++b) {
      const int at = t * B + b;
      const float *row = saved + at * S, *before = h + b * H, *up = dy + at * H;
      float *to = slopes + at * S, *d_ = dh + b * H;
      by_lanes<H>([&](int j, auto kind) {
        const auto r = take(row + j, kind), z = take(row + H + j, kind), n = take(row + 2 * H + j, kind), held = take(row + 3 * H + j, kind);
        const auto d = take(d_ + j, kind) + take(up + j, kind), dn = d * (1.0f - z) * (1.0f - n * n);
        put(to + j, dn * held * r * (1.0f - r)), put(to + H + j, d * (take(before + j, kind) - n) * z * (1.0f - z));
        put(to + 2 * H + j, dn), put(to + 3 * H + j, dn * r), put(d_ + j, d * z);
      });
    }
    outer<B, H, 2 * H, S, 1, H, H>(slopes + t * B * S, w_hh, dh);
    outer<B, H, H, S, 1, H, H>(slopes + t * B * S + 3 * H, w_hh + 2 * H * H, dh);
  }
  memset(dx, 0, T * B * I * sizeof(float));
  outer<T * B, I, G, S, 1, I, I>(slopes, w_ih, dx);
  memset(dw_ih, 0, G * I * sizeof(float));
  outer<G, I, T * B, 1, S, I, I>(slopes, x, dw_ih);
  memset(dw_hh, 0, G * H * sizeof(float));
  outer<2 * H, H, B, 1, S, H, H>(slopes, h0, dw_hh);
  outer<H, H, B, 1, S, H, H>(slopes + 3 * H, h0, dw_hh + 2 * H * H);
  if constexpr (T > 1) {
    outer<2 * H, H, (T - 1) * B, 1, S, H, H>(slopes + B * S, y, dw_hh);
    outer<H, H, (T - 1) * B, 1, S, H, H>(slopes + B * S + 3 * H, y, dw_hh + 2 * H * H);
  }
  column_sums<T * B, G, S>(slopes, db_ih);
  column_sums<T * B, 2 * H, S>(slopes, db_hh);
  column_sums<T * B, H, S>(slopes + 3 * H, db_hh + 2 * H);
}
"""
"""The C++ templates; a program that uses one has them after its preamble."""

_NAMES = "lstm_forward", "lstm_backward", "gru_forward", "gru_backward"

_F32 = torch.float32


def recurs(body: Body) -> bool:
    """Tell whether a text needs the templates."""
    return any(isinstance(line, str) and line.startswith(_NAMES) for line in body.lines)


def _dense(w: KernelScript, arg: Any) -> NativeLeaf:
    """Return a value in memory, row by row."""
    leaf = w.leaf(arg)
    if leaf.dtype != _F32:
        raise Unsupported(f"a recurrent layer of {leaf.dtype}")
    return leaf if leaf.at.is_contiguous() else w.store(leaf)


def _outputs(w: KernelScript, node: Node) -> list[NativeLeaf]:
    return [w.new(tuple(part.shape), _F32) for part in node.meta["val"]]


def _call(w: KernelScript, name: str, sizes: tuple[int, ...], leaves: list[NativeLeaf]) -> None:
    given = ", ".join(f"{leaf.name} + {leaf.at.storage_offset()}" for leaf in leaves)
    w.body.lines.append(f"{name}<{', '.join(map(str, sizes))}>({given});")


def _sizes(node: Node, x: int, h: int) -> tuple[int, int, int, int]:
    time, batch, inputs = node.args[x].meta["val"].shape  # type: ignore[union-attr]
    return time, batch, inputs, node.args[h].meta["val"].shape[-1]  # type: ignore[union-attr]


def _lstm(w: KernelScript, node: Node) -> list[NativeLeaf]:
    sizes = _sizes(node, 0, 1)
    given, made = [_dense(w, arg) for arg in node.args], _outputs(w, node)
    turned = w.new((4 * sizes[3] * max(sizes[2:]),), _F32)
    _call(w, "lstm_forward", sizes, [*given, *made, turned])
    return made


def _lstm_backward(w: KernelScript, node: Node) -> list[NativeLeaf]:
    sizes = _sizes(node, 4, 5)
    given, made = [_dense(w, arg) for arg in node.args], _outputs(w, node)
    slopes = w.new((sizes[0] * sizes[1] * 4 * sizes[3],), _F32)
    _call(w, "lstm_backward", sizes, [*given, *made, slopes])
    return made


def _gru(w: KernelScript, node: Node) -> list[NativeLeaf]:
    sizes = _sizes(node, 0, 1)
    given, made = [_dense(w, arg) for arg in node.args], _outputs(w, node)
    turned, inner = w.new((3 * sizes[3] * max(sizes[2:]),), _F32), w.new((sizes[1] * 3 * sizes[3],), _F32)
    _call(w, "gru_forward", sizes, [*given, *made, turned, inner])
    return made


def _gru_backward(w: KernelScript, node: Node) -> list[NativeLeaf]:
    sizes = _sizes(node, 3, 4)
    given, made = [_dense(w, arg) for arg in node.args], _outputs(w, node)
    slopes = w.new((sizes[0] * sizes[1] * 4 * sizes[3],), _F32)
    _call(w, "gru_backward", sizes, [*given, *made, slopes])
    return made


def recurrent_rules() -> dict[str, Callable[[KernelScript, Node], list[NativeLeaf]]]:
    """Return the rules by the name of the operation."""
    return {
        "atoll::lstm": _lstm,
        "atoll::lstm_backward": _lstm_backward,
        "atoll::gru": _gru,
        "atoll::gru_backward": _gru_backward,
    }
