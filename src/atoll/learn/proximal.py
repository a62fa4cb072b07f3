"""Mirror maps and proximal operators: the geometry of composite objectives, and clients without rows in ADMM.

For a strictly convex ``h``, ``dual(w) = grad h(w)`` and ``primal(z, c) = argmin_w h(w) + c ||w||_1 - <z, w>``, which is
``grad (h + c ||.||_1)^*(z)``. Pure functions over trees, on NumPy and in traced PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, nearest

__all__ = [
    "Entropy",
    "MirrorMap",
    "PNorm",
    "check_regulariser",
    "mirror_map",
    "nuclear_norm",
    "or_rest",
    "penalty",
    "present",
    "prox",
    "soft",
    "svt",
]


class MirrorMap(Protocol):
    """The functions of a mirror map."""

    def start(self, params: Tree) -> Tree:
        """Return where a training starts, given the model's own initial parameters."""
        ...

    def dual(self, w: Tree) -> Tree:
        """Return ``grad h(w)``."""
        ...

    def primal(self, z: Tree, threshold: Any) -> Tree:
        """Return ``grad (h + threshold ||.||_1)^*(z)``."""
        ...


def soft(tree: Tree, threshold: Any) -> Tree:
    """Return ``sign(z) max(|z| - threshold, 0)``, entry by entry: the proximal map of ``threshold ||.||_1``."""

    def one(leaf: Any) -> Any:
        rest = abs(leaf) - threshold
        return T.sign(leaf) * (rest * (rest > 0))

    return T.map(one, tree)


@dataclass(frozen=True)
class PNorm:
    """``h(w) = 1/2 ||w||_p^2`` over all leaves, ``1 < p <= 2``; ``p=2`` is Euclidean and ``p`` near 1 favours sparse models.

    ``grad h(w)_j = sign(w_j) |w_j|^(p-1) / ||w||_p^(p-2)``; its inverse is the same with ``q = p/(p-1)``. A solution of the thresholded problem
    has ``grad h(w) = soft(z, c)``, because ``grad h`` keeps signs. Gentile 2003, "The Robustness of the p-Norm Algorithms".
    """

    p: float = 2.0

    def __post_init__(self) -> None:
        if not 1.0 < self.p <= 2.0:
            raise ConfigError(f"p={self.p}", where="PNorm", remedy="use a number above 1 and at most 2")

    def start(self, params: Tree) -> Tree:
        """Start with the parameters as given."""
        return params

    def dual(self, w: Tree) -> Tree:
        """Return ``grad h(w)``."""
        return _power(w, self.p)

    def primal(self, z: Tree, threshold: Any) -> Tree:
        """Return ``grad h^*(soft(z, threshold))``."""
        return _power(soft(z, threshold), self.p / (self.p - 1.0))


def _power(tree: Tree, p: float) -> Tree:
    if p == 2.0:
        return tree
    total: Any = 0.0
    for leaf in T.leaves(tree):
        total = total + (abs(leaf) ** p).sum()
    total = total + (total == 0)  # the gradient at zero is zero
    length = total ** ((2.0 - p) / p)
    return T.map(lambda leaf: (T.sign(leaf) * abs(leaf) ** (p - 1.0)) * _like(length, leaf), tree)


def _like(number: Any, leaf: Any) -> Any:
    """Return a scalar in a leaf's dtype, so that float32 stays float32."""
    if hasattr(number, "astype"):
        return number.astype(leaf.dtype)
    return number.to(leaf.dtype) if hasattr(number, "to") else number


@dataclass(frozen=True)
class Entropy:
    """Negative entropy on the probability simplex, one simplex per leaf: ``h(w) = sum_j w_j log w_j``.

    ``grad h(w) = 1 + log w`` and ``primal`` is the softmax. The 1-norm is constant there, so a threshold changes nothing. Mirror descent with
    it is the method of exponentiated gradients (Kivinen, Warmuth 1997). It starts at the uniform distribution, the minimum of ``h``.
    """

    def start(self, params: Tree) -> Tree:
        """Start with the uniform distribution."""
        return T.map(lambda leaf: T.zeros_like(leaf) + 1.0 / T.size(leaf), params)

    def dual(self, w: Tree) -> Tree:
        """Return ``1 + log w``, with the smallest normal number in place of zeros."""

        def one(leaf: Any) -> Any:
            xp = T.namespace(leaf)
            least = xp.finfo(leaf.dtype).tiny
            return 1.0 + xp.log(leaf * (leaf > least) + least * (leaf <= least))

        return T.map(one, w)

    def primal(self, z: Tree, threshold: Any) -> Tree:
        """Return the softmax of each leaf."""
        del threshold

        def one(leaf: Any) -> Any:
            raised = T.namespace(leaf).exp(leaf - leaf.max())
            return raised / raised.sum()

        return T.map(one, z)


def mirror_map(name: str, p: float) -> MirrorMap:
    """Return a map by name: ``"euclid"``, ``"entropy"`` or ``"pnorm"``.

    Raises:
        ConfigError: the name is unknown, or ``p`` does not fit.
    """
    if name == "entropy":
        return Entropy()
    if name not in ("euclid", "pnorm"):
        raise ConfigError(f"mirror={name!r}", remedy="use one of euclid, entropy, pnorm")
    return PNorm(p if name == "pnorm" else 2.0)


# ---------------------------------------------------------------- proximal operators of the regularisers


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


# ---------------------------------------------------------------- clients without rows in ADMM


def present(steps: Any) -> Any:
    """Return 1.0 for a client that took a step, 0.0 for one without rows."""
    return 1.0 * (steps > 0)


def or_rest(here: Any, found: Tree, rest: Tree) -> Tree:
    """Return ``found``, bit for bit, for a client that is ``present``, otherwise ``rest``.

    A client without rows takes no step. If its multiplier still followed ``rho (x - z)``, it would pull ``z`` to the client's constant ``x``.
    """
    return T.add(T.scale(found, here), T.scale(rest, 1.0 - here))
