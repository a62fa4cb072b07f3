"""The exact local problem of ADMM, by Newton's method with conjugate gradients inside, without branching on a value."""

from __future__ import annotations

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient
from atoll.learn.numerics.curvature import cg, damped

__all__ = ["augmented_minimum"]


def augmented_minimum(
    grad: Gradient, at: Tree, dual: Tree, center: Tree, rho: float, newton: int, iterations: int
) -> Tree:
    """Return ``argmin_x F(x) + <dual, x> + (rho/2) ||x - center||^2``.

    One Newton step is exact on a quadratic if ``iterations`` equals the number of parameters. It is undamped, for losses
    with curvature that changes little between ``at`` and the minimum, which a large ``rho`` brings close.

    Args:
        grad: the oracle of ``F``, with Hessian-vector products.
        at: the starting point.
        dual: the multiplier.
        center: the consensus.
        rho: the penalty.
        newton: number of Newton steps.
        iterations: conjugate-gradient iterations per Newton step.
    """
    x = at
    for _ in range(newton):
        here = x
        slope = T.add(T.add(grad(here), dual), T.scale(T.sub(here, center), rho))
        x = T.sub(here, cg(damped(lambda v, p=here: grad.hvp(p, v), rho), slope, iterations))  # type: ignore[misc]
    return x
