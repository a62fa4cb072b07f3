"""Updates of an approximate Hessian at the server, from steps and changes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T

__all__ = ["bfgs", "block_sr1", "sr1_change", "two_loop"]


def bfgs(hessian: np.ndarray, s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return ``B + q q^T/(q^T s) - B s s^T B/(s^T B s)``: the closest update with ``B s = q``, positive definite where ``q^T s > 0``."""
    turned = hessian @ s
    return np.asarray(hessian + np.outer(q, q) / (q @ s) - np.outer(turned, turned) / (s @ turned))


def two_loop(pairs: Sequence[Any], gradient: np.ndarray, first: float) -> np.ndarray:
    """Return ``B^-1 g`` for the ``B`` that BFGS builds from pairs ``{"s", "q"}``, oldest first, starting at ``B = I / first`` (Nocedal 1980)."""
    r = gradient.copy()
    alphas = []
    for pair in reversed(pairs):
        alphas.append((pair["s"] @ r) / (pair["q"] @ pair["s"]))
        r = r - alphas[-1] * pair["q"]
    r = first * r
    for pair, alpha in zip(pairs, reversed(alphas), strict=True):
        r = r + (alpha - (pair["q"] @ r) / (pair["q"] @ pair["s"])) * pair["s"]
    return r


def block_sr1(hessian: np.ndarray, sketch: np.ndarray, gap: np.ndarray, skip: float) -> np.ndarray:
    """Return ``B + D (S^T D)^+ D^T`` with ``D = H S - B S``: after it ``B S = H S``, for a symmetric, constant ``H``.

    Args:
        hessian: ``B``, ``(d, d)``.
        sketch: ``S`` with orthonormal columns, ``(d, m)``.
        gap: ``D``, ``(d, m)``.
        skip: see `sr1_change`.
    """
    return np.asarray(hessian + sr1_change(sketch, gap, skip))


def sr1_change(sketch: Any, gap: Any, skip: float) -> Any:
    """Return ``D (S^T D)^+ D^T``, on NumPy and PyTorch alike. It needs no ``B``, so a receiver of only ``D`` can add it to a sum of many ``B``.

    Directions ``u`` with ``|u^T S^T D u| <= skip ||D u||`` are skipped: their update would be a large number made of noise. If ``B - H`` is positive
    semidefinite, it stays so.
    """
    inner = sketch.T @ gap
    values, axes = T.namespace(inner).linalg.eigh(0.5 * (inner + inner.T))
    sides = gap @ axes
    kept = abs(values) > skip * (sides * sides).sum(0) ** 0.5
    inverse = T.where(kept, 1.0 / T.where(kept, values, values * 0 + 1), values * 0)
    return (sides * inverse) @ sides.T
