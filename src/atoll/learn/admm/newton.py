"""The exact local problem of ADMM, by Newton's method with conjugate gradients inside: nothing branches on a value."""

from __future__ import annotations

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient
from atoll.learn.numerics.curvature import cg, damped

__all__ = ["augmented_minimum"]


def augmented_minimum(
    grad: Gradient, at: Tree, dual: Tree, center: Tree, rho: float, newton: int, iterations: int
) -> Tree:
    """``argmin_x F(x) + <dual, x> + (rho/2) ||x - center||^2``.

    One Newton step is exact on a quadratic, and ``iterations`` as many as the parameters solve its system. Undamped: for losses
    whose curvature changes little between ``at`` and the minimum, which a large ``rho`` brings near.

    Args:
        grad: the oracle of ``F``, with Hessian-vector products.
        at: where to begin.
        dual: the multiplier.
        center: the consensus.
        rho: penalty.
        newton: Newton steps.
        iterations: conjugate gradients in each.
    """
    x = at
    for _ in range(newton):
        here = x
        slope = T.add(T.add(grad(here), dual), T.scale(T.sub(here, center), rho))
        x = T.sub(here, cg(damped(lambda v, p=here: grad.hvp(p, v), rho), slope, iterations))  # type: ignore[misc]
    return x
