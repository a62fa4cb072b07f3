"""Updates of an approximate Hessian at the server, from moves and changes of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["bfgs", "block_sr1", "two_loop"]


def bfgs(hessian: np.ndarray, s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """``B + q q^T/(q^T s) - B s s^T B/(s^T B s)``: the closest update with ``B s = q``, positive definite where ``q^T s > 0``."""
    turned = hessian @ s
    return np.asarray(hessian + np.outer(q, q) / (q @ s) - np.outer(turned, turned) / (s @ turned))


def two_loop(pairs: Sequence[Any], gradient: np.ndarray, first: float) -> np.ndarray:
    """``B^-1 g`` for the ``B`` that BFGS makes of some pairs ``{"s", "q"}``, oldest first, from ``B = I / first`` (Nocedal 1980)."""
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
    """``B + D (S^T D)^+ D^T`` with ``D = H S - B S``: after it ``B S = H S``, for a symmetric ``H`` that stands still.

    Args:
        hessian: ``B``, ``(d, d)``.
        sketch: ``S`` with orthonormal columns, ``(d, m)``.
        gap: ``D``, ``(d, m)``.
        skip: directions ``u`` with ``|u^T S^T D u| <= skip ||D u||`` are left out: their update would be a large number made of noise.
    """
    inner = sketch.T @ gap
    values, axes = np.linalg.eigh(0.5 * (inner + inner.T))
    sides = gap @ axes
    kept = np.abs(values) > skip * np.linalg.norm(sides, axis=0)
    sides, values = sides[:, kept], values[kept]
    return np.asarray(hessian + (sides / values) @ sides.T)
