"""Proximal operators of the regularisers that ADMM servers support, by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, nearest

from ..numerics.mirror import soft

__all__ = ["REGULARISERS", "check_regulariser", "group_soft", "nuclear_norm", "penalty", "prox", "svt"]

Array = np.ndarray[Any, np.dtype[Any]]

REGULARISERS = ("nuclear", "l1", "ridge", "none")
"""``||Z||_*``, ``sum |z|``, ``Tr(Z Z^T) = sum z^2`` and nothing."""


def group_soft(v: Array, tau: float) -> Array:
    """Return ``max(0, 1 - tau / ||v||) v``: the proximal operator of ``tau ||v||_2``."""
    length = float(np.linalg.norm(v))
    return v * max(0.0, 1.0 - tau / length) if length > 0 else v


def svt(matrix: Array, tau: float) -> Array:
    """Return ``U diag(max(s - tau, 0)) V^T`` with ``U diag(s) V^T`` the matrix: the proximal operator of ``tau ||.||_*``. Shape ``(m, n)``.

    Cai, Candès, Shen 2010, "A Singular Value Thresholding Algorithm for Matrix Completion".
    """
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    shrunk = np.maximum(values - tau, 0.0).astype(matrix.dtype)
    return np.asarray((left * shrunk) @ right)


def nuclear_norm(matrix: Array) -> float:
    """Return ``||Z||_*``, the sum of the singular values."""
    return float(np.linalg.svd(matrix, compute_uv=False).sum())


def check_regulariser(name: str, where: str) -> None:
    """Refuse an unknown regulariser.

    Raises:
        ConfigError: names the nearest known regulariser.
    """
    if name not in REGULARISERS:
        raise ConfigError(
            f"regulariser={name!r} is not known.{nearest(str(name), REGULARISERS)}",
            where=where,
            remedy=f"use one of {', '.join(REGULARISERS)}",
        )


def prox(name: str, value: Array, tau: float) -> Array:
    """Return ``argmin_Z tau R(Z) + 1/2 ||Z - value||^2`` for a regulariser of ``REGULARISERS``. ``"nuclear"`` does not change leaves other than matrices."""
    if name == "nuclear":
        return svt(value, tau) if np.ndim(value) == 2 else value
    if name == "l1":
        return np.asarray(soft(value, tau), dtype=value.dtype)
    return value / (1.0 + 2.0 * tau) if name == "ridge" else value


def penalty(name: str, value: Array) -> float:
    """Return ``R(Z)`` of the same regularisers."""
    if name == "nuclear":
        return nuclear_norm(value) if np.ndim(value) == 2 else 0.0
    if name == "l1":
        return float(np.abs(value).sum())
    return float((value**2).sum()) if name == "ridge" else 0.0
