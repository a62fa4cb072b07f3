"""Random numbers of a row: functions of the row's key, of the number of the draw and of nothing else.

All of them are exact: whole numbers, or sums and products of a few numbers. So a row gets the same bits alone, in a batch of any size,
in a block of clients and under ``torch.func.vmap``.
"""

from __future__ import annotations

import functools
import statistics
from typing import TYPE_CHECKING

import numpy as np
import torch

from atoll.torch.tracing.keyed import row_keys, scramble_positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "below",
    "between",
    "child_keys_of_rows",
    "children_of_rows",
    "coins",
    "compute_cos_sin",
    "normals",
    "quantile",
    "row_keys",
    "units",
    "words",
]

Tensor = torch.Tensor
_MASK = 0xFFFFFFFF
_CHILDREN = 1 << 20  # numbers of draws from here on make keys of the links of a chain


def child_keys_of_rows(keys: Tensor, number: int) -> Tensor:
    """Return the keys of a part of a view, such as link ``number`` of a chain; they are unrelated to the parent's draws."""
    pair = words(keys, _CHILDREN + number, 2)
    return (pair[..., 0] << 32) | pair[..., 1]


def children_of_rows(keys: Tensor, count: int) -> Tensor:
    """Return `child_keys_of_rows` of the numbers 0 to ``count - 1``, ``(B, count)``, in as many operations as those of one number."""
    numbers = torch.arange(_CHILDREN, _CHILDREN + count, device=keys.device, dtype=torch.int64).unsqueeze(-1)
    pair = words(keys.unsqueeze(-1), numbers, 2)
    return (pair[..., 0] << 32) | pair[..., 1]


def words(keys: Tensor, call: int | Tensor, n: int) -> Tensor:
    """Return ``n`` whole numbers in ``[0, 2^32)`` a row, ``(B, n)``."""
    position = torch.arange(n, device=keys.device, dtype=torch.int64)
    return scramble_positions(position, ((keys >> 32) & _MASK).unsqueeze(-1), (keys & _MASK).unsqueeze(-1), call)


def units(keys: Tensor, call: int, n: int) -> Tensor:
    """Return ``n`` numbers in ``[0, 1)`` a row, multiples of ``2^-24``, ``float32``, ``(B, n)``."""
    return (words(keys, call, n) >> 8).to(torch.float32) * 2.0**-24


def between(keys: Tensor, call: int, low: float, high: float) -> Tensor:
    """Return one number between ``low`` and ``high`` a row, ``float32``, ``(B,)``."""
    return units(keys, call, 1)[..., 0] * (high - low) + low


def below(keys: Tensor, call: int, n: int, most: int | Tensor) -> Tensor:
    """Return ``n`` whole numbers in ``[0, most)`` a row, ``(B, n)``; ``most`` is below ``2^31``, a number or ``(B, 1)``."""
    return (words(keys, call, n) * most) >> 32


def coins(keys: Tensor, call: int, n: int, p: float) -> Tensor:
    """Return ``n`` coins a row that are true with probability ``p``, ``(B, n)``."""
    return words(keys, call, n) < int(p * (_MASK + 1))


def normals(keys: Tensor, call: int, n: int) -> Tensor:
    """Return ``n`` standard normal numbers a row, ``float32``, ``(B, n)``.

    They are drawn from the 65,536 quantiles at ``(i + 1/2) / 65536``: the largest is 4.3, the variance 0.99998.
    """
    word = words(keys, call, (n + 1) // 2)
    at = torch.stack([word & 0xFFFF, word >> 16], -1).flatten(-2)[..., :n]
    return quantile(_normal_quantiles(), at)


def quantile(table: NDArray[np.float32], at: Tensor) -> Tensor:
    """Look numbers up in a table."""
    return torch.from_numpy(table).to(at.device)[at]


def compute_cos_sin(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of angles within ``[-pi, pi]``, ``float32``, by the series at half the angle: within ``1e-7``, and the same bits everywhere."""
    x = angle * 0.5
    y = (x * x).unsqueeze(-1)
    table = torch.from_numpy(_SERIES).to(angle.device)
    both = table[0].expand(*angle.shape, 2)  # sine and cosine side by side: half as many operations
    for pair in table[1:]:
        both = both * y + pair
    sine, cosine = both[..., 0] * x, both[..., 1]
    return 1.0 - 2.0 * (sine * sine), 2.0 * (sine * cosine)


# Taylor coefficients of sin(x)/x and cos(x) in x^2, the highest first; |x| <= pi/2, so the next terms are below 6e-11.
_SERIES = np.array(
    [
        (-7.647163731819816e-13, 1.605904383682161e-10, -2.505210838544172e-8, 2.755731922398589e-6, -1.984126984126984e-4, 8.333333333333333e-3, -1.666666666666667e-1, 1.0),
        (-1.147074559772972e-11, 2.08767569878681e-9, -2.755731922398589e-7, 2.48015873015873e-5, -1.388888888888889e-3, 4.166666666666667e-2, -0.5, 1.0),
    ],
    dtype=np.float32,
).T.copy()  # fmt: skip


@functools.lru_cache(maxsize=1)
def _normal_quantiles() -> NDArray[np.float32]:
    inverse = statistics.NormalDist().inv_cdf
    upper = np.array([inverse((i + 0.5) / 65536) for i in range(32768, 65536)], dtype=np.float32)
    return np.concatenate([-upper[::-1], upper])
