"""NaN has many bit patterns; the canonical encoding writes one."""

from __future__ import annotations

import numpy as np

from atoll.core.message.arrays import Array

__all__ = ["one_nan"]


def one_nan(array: Array) -> Array:
    """Return ``array`` with every NaN (of a complex number: every part) written with the same bits.

    The array itself comes back where it holds no NaN.
    """
    if array.dtype.kind not in "fc":
        return array
    missing = np.isnan(array)
    if not missing.any():
        return array
    fixed = np.array(array, order="C")
    parts = fixed.reshape(-1).view(fixed.real.dtype)
    parts[np.isnan(parts)] = np.nan
    return fixed
