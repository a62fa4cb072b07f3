"""The transform of Box and Muller in vector code: from keystream to normal numbers at a third of the time of NumPy's functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.native import library_of

from ..native.switch import enabled

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["normal_transform"]

_SOURCE = r"""
#include <cmath>
#include <cstdint>

static inline float from_bits(int32_t i) { float f; __builtin_memcpy(&f, &i, 4); return f; }
static inline int32_t to_bits(float f) { int32_t i; __builtin_memcpy(&i, &f, 4); return i; }

// sin(2 pi a) for |a| <= 1/4, by its series to the 13th power: within 1e-7.
static inline float sine(float a) {
  const float x = a * 6.283185307179586f, y = x * x;
  return x * (1.f + y * (-1.6666667e-1f + y * (8.3333333e-3f + y * (-1.98412698e-4f + y * (2.75573192e-6f + y * (-2.50521084e-8f + y * 1.60590438e-10f))))));
}

// The logarithm of a positive normal number: that of its fraction in [sqrt(1/2), sqrt(2)) by the series of 2 atanh(z), and its exponent.
static inline float logarithm(float x) {
  const int32_t bits = to_bits(x), up = (bits - 0x3f3504f3) >> 23;
  const float f = from_bits(bits - (up << 23)), z = (f - 1.f) / (f + 1.f), w = z * z;
  const float series = 2.f * z * (1.f + w * (0.33333333f + w * (0.2f + w * (0.14285714f + w * 0.11111111f))));
  return float(up) * 0.6931471805599453f + series;
}

extern "C" void normals(const uint32_t* __restrict bits, const int32_t* __restrict angles, int64_t pairs, float factor, float* __restrict first,
                        float* __restrict second, int64_t more) {
  for (int64_t i = 0; i < more; ++i) {
    const float u = float(bits[i] | 1u) * 2.3283064365386963e-10f, a = float(angles[i]) * 2.3283064365386963e-10f;
    const float r = sqrtf(factor * logarithm(u)), b = fabsf(a);
    first[i] = r * sine(0.25f - b);
    second[i] = r * sine(b > 0.25f ? copysignf(0.5f - b, a) : a);
  }
  for (int64_t i = more; i < pairs; ++i) {
    const float u = float(bits[i] | 1u) * 2.3283064365386963e-10f, a = float(angles[i]) * 2.3283064365386963e-10f;
    first[i] = sqrtf(factor * logarithm(u)) * sine(0.25f - fabsf(a));
  }
}
"""


@cache
def normal_transform() -> Callable[[NDArray[Any], NDArray[Any], float], None] | None:
    """Return ``(words, out, deviation)``, which writes normal numbers made of 32-bit words; ``None`` without a compiler."""
    library = library_of(_SOURCE) if enabled() else None
    if library is None:
        return None
    run, pointer, number = library.normals, ctypes.c_void_p, ctypes.c_int64
    run.restype, run.argtypes = None, [pointer, pointer, number, ctypes.c_float, pointer, pointer, number]

    def transform(words: NDArray[Any], out: NDArray[Any], deviation: float) -> None:
        pairs = len(words) // 2
        bits, first = words.ctypes.data, out.ctypes.data
        factor = float(np.float32(-2.0 * deviation**2))
        run(bits, bits + 4 * pairs, pairs, factor, first, first + 4 * pairs, len(out) - pairs)

    return transform
