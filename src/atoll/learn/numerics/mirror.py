"""Mirror maps: the geometry for descent on a composite objective.

For a strictly convex ``h``, ``dual(w) = grad h(w)`` and ``primal(z, c) = argmin_w h(w) + c ||w||_1 - <z, w>``, which is
``grad (h + c ||.||_1)^*(z)``. Pure functions over trees, on NumPy and in traced PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

__all__ = ["Entropy", "MirrorMap", "PNorm", "mirror_map", "soft"]


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
