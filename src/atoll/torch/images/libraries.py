"""The compiled layers of images: convolutions, and group normalisation with pooling."""

from __future__ import annotations

import ctypes
import functools

from atoll.native import library_of

from .correlation import CORRELATION
from .moments import MOMENTS, POOLING, TOGETHER
from .text import HEAD

__all__ = ["convolving", "normalising"]

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_NORM = (_ADDRESS, ctypes.c_float, *[_ADDRESS] * 7)
_POOL = (*[_ADDRESS] * 3, *[_NUMBER] * 3)


@functools.cache
def convolving() -> ctypes.CDLL | None:
    """Return the convolutions, for all shapes; ``None`` if nothing can be compiled."""
    made = library_of(f"{HEAD}\n{CORRELATION}")
    return made and _declared(
        made, convolve=(_ADDRESS,) * 5, convolve_weights=(_ADDRESS,) * 5, convolve_inputs=(_ADDRESS,) * 4
    )


@functools.cache
def normalising(size: int = 2, stride: int = 2) -> ctypes.CDLL | None:
    """Return group normalisation, and maximum pooling by windows of a size and stride; ``None`` if nothing can be compiled."""
    made = library_of("\n".join((HEAD, MOMENTS, f"constexpr i64 K = {size}, S = {stride};", POOLING, TOGETHER)))
    return made and _declared(
        made,
        pool=_POOL,
        unpool=_POOL,
        normalise=_NORM,
        normalise_slopes=(_ADDRESS,) * 10,
        normalise_pool=_NORM,
        normalise_pool_slopes=(_ADDRESS,) * 11,
    )


def _declared(library: ctypes.CDLL, **functions: tuple[type, ...]) -> ctypes.CDLL:
    for name, arguments in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, list(arguments)
    return library
