"""The loops over rows: bins of values, histograms of gradients, and rows that go left or right. Compiled where a C++ compiler is, in NumPy elsewhere.

Both give the same numbers to rounding: the compiled loops add the rows in their order, in double precision.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.native import library_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bins = Any
"""An array of bins, ``(rows, features)``: 8 bits a bin, or 16 where 256 bins and one for missing values need them."""

__all__ = ["compiled", "gradient_histogram", "place_in_bins", "split_rows"]

_SOURCE = r"""
#include <cstdint>
template <typename Bin>
inline void histogram(const Bin* bins, const float* pairs, const int32_t* rows, int64_t n, int64_t features, int64_t width, double* out) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[i];
    const Bin* mine = bins + row * features;
    if (i + 8 < n) __builtin_prefetch(bins + int64_t(rows[i + 8]) * features);
    const double g = pairs[2 * row], h = pairs[2 * row + 1];
    double* place = out;
    for (int64_t f = 0; f < features; ++f, place += 2 * width) {
      double* at = place + 2 * mine[f];
      at[0] += g; at[1] += h;
    }
  }
}
template <typename Bin>
inline void place(const float* column, int64_t n, const float* cuts, int64_t m, int64_t missing, Bin* out, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = column[i];
    if (x != x) { out[i * stride] = Bin(missing); continue; }
    const float* base = cuts;
    int64_t left = m;
    while (left > 1) {
      const int64_t half = left >> 1;
      base += (base[half - 1] <= x) ? half : 0;
      left -= half;
    }
    out[i * stride] = Bin((base - cuts) + (left == 1 && *base <= x));
  }
}
template <typename Bin>
inline int64_t divide(const Bin* bins, int64_t features, int64_t feature, int64_t cut, int64_t also, const int32_t* rows, int64_t n, int32_t* left, int32_t* right) {
  int64_t l = 0, r = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t row = rows[i];
    const int64_t bin = bins[int64_t(row) * features + feature];
    const bool goes = (bin <= cut) | (bin == also);
    left[l] = row; right[r] = row;
    l += goes; r += !goes;
  }
  return l;
}
#define FOR(Bin, name) \
extern "C" void histogram##name(const Bin* bins, const float* pairs, const int32_t* rows, int64_t n, int64_t features, int64_t width, double* out) { \
  histogram<Bin>(bins, pairs, rows, n, features, width, out); } \
extern "C" void place##name(const float* column, int64_t n, const float* cuts, int64_t m, int64_t missing, Bin* out, int64_t stride) { \
  place<Bin>(column, n, cuts, m, missing, out, stride); } \
extern "C" int64_t divide##name(const Bin* bins, int64_t features, int64_t feature, int64_t cut, int64_t also, const int32_t* rows, int64_t n, int32_t* left, int32_t* right) { \
  return divide<Bin>(bins, features, feature, cut, also, rows, n, left, right); }
FOR(uint8_t, 8)
FOR(uint16_t, 16)
"""


@functools.cache
def compiled() -> Any:
    """The compiled loops, or ``None`` where nothing can compile them."""
    found = library_of(_SOURCE)
    if found is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for bits in (8, 16):
        histogram, place, divide = (getattr(found, f"{name}{bits}") for name in ("histogram", "place", "divide"))
        histogram.argtypes = [pointer, pointer, pointer, number, number, number, pointer]
        place.argtypes = [pointer, number, pointer, number, number, pointer, number]
        divide.argtypes = [pointer, number, number, number, number, pointer, number, pointer, pointer]
        histogram.restype, place.restype, divide.restype = None, None, number
    return found


def _loop(name: str, bins: Bins) -> Any:
    """The compiled loop for this kind of bins, or ``None``."""
    native = compiled()
    return None if native is None else getattr(native, f"{name}{8 * bins.dtype.itemsize}")


def gradient_histogram(
    bins: Bins, pairs: NDArray[np.float32], rows: NDArray[np.int32], width: int
) -> NDArray[np.float64]:
    """Sums of gradients and second derivatives of some rows by feature and bin.

    Args:
        bins: bin of each value, ``(all rows, features)``.
        pairs: gradient and second derivative of each row, ``(all rows, 2)``.
        rows: the rows of a node.
        width: number of bins.

    Returns:
        ``(features, width, 2)``.
    """
    features = bins.shape[1]
    out = np.zeros((features, width, 2))
    loop = _loop("histogram", bins)
    if loop is not None:
        loop(bins.ctypes.data, pairs.ctypes.data, rows.ctypes.data, len(rows), features, width, out.ctypes.data)
        return out
    mine, weights = bins[rows], pairs[rows].astype(np.float64)
    for f in range(features):
        column = mine[:, f].astype(np.int64)
        for k in (0, 1):
            out[f, :, k] = np.bincount(column, weights[:, k], width)
    return out


def split_rows(
    bins: Bins, feature: int, cut: int, rows: NDArray[np.int32], also: int = -1
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The rows of a node whose bin of a feature is at most ``cut`` or is ``also``, and the others, both in order."""
    loop = _loop("divide", bins)
    if loop is None:
        mine = bins[rows, feature].astype(np.int64)
        goes = (mine <= cut) | (mine == also)
        return rows[goes], rows[~goes]
    left, right = np.empty(len(rows) + 1, np.int32), np.empty(len(rows) + 1, np.int32)
    width, n = bins.shape[1], len(rows)
    n = loop(bins.ctypes.data, width, feature, cut, also, rows.ctypes.data, n, left.ctypes.data, right.ctypes.data)
    return left[:n].copy(), right[: len(rows) - n].copy()


def place_in_bins(
    column: NDArray[np.float32], cuts: NDArray[np.float32], out: Bins, feature: int, missing: int = 0
) -> None:
    """Write the number of cuts that are not above each value, or ``missing`` for NaN, into a column of ``out``, ``(rows, features)``."""
    loop = _loop("place", out)
    if loop is None:
        out[:, feature] = np.where(np.isnan(column), missing, np.searchsorted(cuts, column, side="right"))
        return
    column, cuts = np.ascontiguousarray(column), np.ascontiguousarray(cuts)
    features = out.shape[1]
    place = out.ctypes.data + feature * out.dtype.itemsize
    loop(column.ctypes.data, len(column), cuts.ctypes.data, len(cuts), missing, place, features)
