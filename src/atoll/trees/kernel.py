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

__all__ = ["compiled", "gradient_histogram", "place_in_bins", "split_rows"]

_SOURCE = r"""
#include <cstdint>
extern "C" void histogram(const uint8_t* bins, const float* pairs, const int32_t* rows, int64_t n, int64_t features, int64_t width, double* out) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t row = rows[i];
    const uint8_t* mine = bins + row * features;
    if (i + 8 < n) __builtin_prefetch(bins + int64_t(rows[i + 8]) * features);
    const double g = pairs[2 * row], h = pairs[2 * row + 1];
    double* place = out;
    for (int64_t f = 0; f < features; ++f, place += 2 * width) {
      double* at = place + 2 * mine[f];
      at[0] += g; at[1] += h;
    }
  }
}
extern "C" void place(const float* column, int64_t n, const float* cuts, int64_t m, uint8_t* out, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = column[i];
    const float* base = cuts;
    int64_t left = m;
    while (left > 1) {
      const int64_t half = left >> 1;
      base += (base[half - 1] <= x) ? half : 0;
      left -= half;
    }
    out[i * stride] = uint8_t((base - cuts) + (left == 1 && *base <= x));
  }
}
extern "C" int64_t divide(const uint8_t* bins, int64_t features, int64_t feature, int64_t cut, const int32_t* rows, int64_t n, int32_t* left, int32_t* right) {
  int64_t l = 0, r = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t row = rows[i];
    const bool goes = bins[int64_t(row) * features + feature] <= cut;
    left[l] = row; right[r] = row;
    l += goes; r += !goes;
  }
  return l;
}
"""


@functools.cache
def compiled() -> Any:
    """The compiled loops, or ``None`` where nothing can compile them."""
    found = library_of(_SOURCE)
    if found is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.histogram.argtypes = [pointer, pointer, pointer, number, number, number, pointer]
    found.histogram.restype = None
    found.place.argtypes = [pointer, number, pointer, number, pointer, number]
    found.place.restype = None
    found.divide.argtypes = [pointer, number, number, number, pointer, number, pointer, pointer]
    found.divide.restype = number
    return found


def gradient_histogram(
    bins: NDArray[np.uint8], pairs: NDArray[np.float32], rows: NDArray[np.int32], width: int
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
    native = compiled()
    if native is not None:
        native.histogram(
            bins.ctypes.data, pairs.ctypes.data, rows.ctypes.data, len(rows), features, width, out.ctypes.data
        )
        return out
    mine, weights = bins[rows], pairs[rows].astype(np.float64)
    for f in range(features):
        column = mine[:, f].astype(np.int64)
        for k in (0, 1):
            out[f, :, k] = np.bincount(column, weights[:, k], width)
    return out


def split_rows(
    bins: NDArray[np.uint8], feature: int, cut: int, rows: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The rows of a node whose bin of a feature is at most ``cut``, and the others, both in order."""
    native = compiled()
    if native is None:
        goes = bins[rows, feature] <= cut
        return rows[goes], rows[~goes]
    left, right = np.empty(len(rows) + 1, np.int32), np.empty(len(rows) + 1, np.int32)
    n = native.divide(
        bins.ctypes.data, bins.shape[1], feature, cut, rows.ctypes.data, len(rows), left.ctypes.data, right.ctypes.data
    )
    return left[:n].copy(), right[: len(rows) - n].copy()


def place_in_bins(column: NDArray[np.float32], cuts: NDArray[np.float32], out: NDArray[np.uint8], feature: int) -> None:
    """Write the number of cuts that are not above each value into a column of ``out``, ``(rows, features)``."""
    native = compiled()
    if native is None:
        out[:, feature] = np.searchsorted(cuts, column, side="right")
        return
    column, cuts = np.ascontiguousarray(column), np.ascontiguousarray(cuts)
    features = out.shape[1]
    native.place(column.ctypes.data, len(column), cuts.ctypes.data, len(cuts), out.ctypes.data + feature, features)
