"""Second-order information over trees: conjugate gradients, quasi-Newton pairs, symmetric matrices, and the exact local problem of ADMM.

The iterations are written as states and steps, so that one local step of an algorithm can be one iteration. Nothing in them branches on a
value, so that the same code runs on NumPy and in traced PyTorch. ``apply`` is the matrix: a function from a tree to a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need

from .algorithm import Gradient
from .capabilities import CURVATURE

__all__ = [
    "CURVED",
    "Form",
    "augmented_minimum",
    "bfgs",
    "block_sr1",
    "cg",
    "cg_begin",
    "cg_step",
    "damp_operator",
    "hessian",
    "inverse_floored",
    "least_squares_begin",
    "least_squares_step",
    "pick",
    "ratio",
    "ravel",
    "restore",
    "shorten",
    "sr1_change",
    "step_params",
    "two_loop",
    "unravel",
]


Apply = Callable[[Tree], Tree]


CURVED = Need(CURVATURE, "needs the curvature of the loss", "a first-order method such as FedAvg")
"""The need of methods that use Hessian-vector products."""


def pick(condition: Any, a: Tree, b: Tree) -> Tree:
    """Return the tree ``a`` if a scalar condition is true, else ``b``."""
    return T.map(lambda x, y: T.where(condition, x, y), a, b)


def ratio(a: Any, b: Any) -> Any:
    """Return ``a / b`` for scalars if ``b > 0``, else 0."""
    choose, positive = T.namespace(b).where, b > 0
    return choose(positive, a / choose(positive, b, b * 0 + 1), a * 0)


def cg_begin(b: Tree) -> Tree:
    """Return the state of conjugate gradients on ``A x = b`` before the first iteration, ``x = 0``."""
    return {"x": T.zeros_like(b), "residual": b, "toward": b}


def cg_step(state: Tree, apply: Apply) -> Tree:
    """Run one iteration (Hestenes, Stiefel 1952). For a positive definite matrix, the result is exact after as many iterations as there are different eigenvalues.

    If the curvature along the search direction is not positive, the iteration stops there (Steihaug 1983); if that happens in the first
    iteration, ``x = b``.
    """
    x, r, p = state["x"], state["residual"], state["toward"]
    turned = apply(p)
    curve, size = T.dot(p, turned), T.dot(r, r)
    choose = T.namespace(size).where  # for scalars: there is no tree to walk
    first = choose(T.dot(x, x) > 0, size * 0, size * 0 + 1)
    alpha = choose(curve > 0, ratio(size, curve), first)
    goes = ratio(curve, curve)
    left = T.scale(T.sub(r, T.scale(turned, alpha)), goes)
    beta = ratio(T.dot(left, left), size)
    return {"x": T.add(x, T.scale(p, alpha)), "residual": left, "toward": T.add(left, T.scale(p, beta))}


def cg(apply: Apply, b: Tree, iterations: int) -> Tree:
    """Return ``x`` with ``A x = b`` after ``iterations`` iterations; see ``cg_step``."""
    state = cg_begin(b)
    for _ in range(iterations):
        state = cg_step(state, apply)
    return state["x"]


def damp_operator(apply: Apply, weight: Any) -> Apply:
    """Return ``A + weight I``."""
    return lambda vector: T.add(apply(vector), T.scale(vector, weight))


def least_squares_begin(b: Tree) -> Tree:
    """Return the state of ``least_squares_step`` before the first iteration, ``x = 0``; ``"image"`` is for ``A b``."""
    zero = T.zeros_like(b)
    nothing = T.dot(zero, zero)
    return {"x": zero, "residual": b, "toward": zero, "size": nothing, "stretch": nothing, "image": zero}


def least_squares_step(state: Tree, apply: Apply, damping: float = 0.0) -> Tree:
    """Run one iteration on ``min_x ||A x - b||^2 + damping ||x||^2`` for a symmetric ``A``, which can be singular or indefinite.

    This is conjugate gradients on the normal equations without forming them (CGLS; Paige, Saunders 1982). It converges to the pseudo-inverse
    ``A^+ b``, and with damping to ``(A^2 + damping I)^-1 A b``. An iteration takes two products with ``A``; the condition number counts twice.

    The iteration stops once the slope ``s = A r - damping x`` is at most the rounding of its terms, ``||s||^2 <= (64 eps)^2 (||A||^2 + damping)
    (||r||^2 + damping ||x||^2)``, with the largest ``||A||`` seen so far: following rounding errors would diverge without bound.
    """
    x, r = state["x"], state["residual"]
    slope = T.sub(apply(r), T.scale(x, damping))
    size = T.dot(slope, slope)
    xp = T.namespace(size)
    rounding = (64 * xp.finfo(size.dtype).eps) ** 2 * (state["stretch"] + damping)
    heard = size > rounding * (T.dot(r, r) + damping * T.dot(x, x))
    toward = T.add(slope, T.scale(state["toward"], ratio(size, state["size"])))
    turned = apply(toward)
    length, stretched = T.dot(toward, toward), T.dot(turned, turned)
    # The minimum along ``toward``, even if rounding has turned it.
    least = ratio(T.dot(slope, toward), stretched + damping * length)
    alpha = xp.where(heard, least, size * 0)
    seen = T.dot(state["image"], state["image"]) > 0
    return {
        "x": T.add(x, T.scale(toward, alpha)),
        "residual": T.sub(r, T.scale(turned, alpha)),
        "toward": toward,
        "size": size,
        "stretch": xp.maximum(state["stretch"], ratio(stretched, length)),
        "image": pick(seen, state["image"], slope),
    }


def ravel(tree: Tree) -> Any:
    """Return all entries as one vector, ``(d,)``."""
    leaves = T.leaves(tree)
    return T.namespace(leaves[0]).concatenate([leaf.reshape(-1) for leaf in leaves])


def unravel(array: Any, like: Tree) -> Tree:
    """Return a vector ``(d,)`` as a tree with the shapes of another one, or rows ``(m, d)`` as a tree with a leading axis of ``m``."""
    lead = tuple(array.shape[:-1])
    parts, at = [], 0
    for leaf in T.leaves(like):
        count = math.prod(leaf.shape)
        parts.append(array[..., at : at + count].reshape(lead + tuple(leaf.shape)))
        at += count
    return T.rebuild(like, parts)


def hessian(products: Callable[[Tree], Tree], like: Tree, rows: Any) -> Any:
    """Return rows ``(m, d)`` times a Hessian, ``rows H``; if the rows are the identity, this is the Hessian.

    Args:
        products: a gradient oracle's ``hvps`` at a point: many vectors in, as many out.
        like: a tree of the parameters' shapes.
        rows: the vectors, one per row.
    """
    turned = T.leaves(products(unravel(rows, like)))
    return T.namespace(turned[0]).concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in turned], -1)


def inverse_floored(matrix: np.ndarray, vector: np.ndarray, floor: float, *, size: bool = False) -> np.ndarray:
    """Return ``[A]_floor^-1 v``: a symmetric matrix with its eigenvalues (or, with ``size``, their magnitudes) raised to a floor, inverted."""
    values, axes = np.linalg.eigh(0.5 * (matrix + matrix.T))
    values = np.maximum(np.abs(values) if size else values, floor)
    return np.asarray(axes @ ((axes.T @ vector) / values))


def step_params(params: Tree, vector: np.ndarray) -> Tree:
    """Return ``params - vector`` for a vector ``(d,)``, at the server; dtypes stay those of the parameters."""
    return T.map(lambda leaf, by: leaf - by.astype(leaf.dtype), params, unravel(vector, params))


# ---------------------------------------------------------------- updates of an approximate Hessian at the server


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


# ---------------------------------------------------------------- short forms of symmetric matrices


Form = Literal["full", "rank", "top"]


def shorten(matrix: Any, form: Form, count: int) -> Tree:
    """Return a symmetric matrix ``(d, d)`` in a short form.

    Args:
        matrix: the matrix.
        form: ``"full"``: the upper triangle, ``d(d+1)/2`` floats. ``"rank"``: the ``count`` eigenpairs of largest magnitude, ``(d+1) count``
            floats: the nearest matrix of that rank. ``"top"``: the ``count`` entries of largest magnitude of the upper triangle, and their positions.
        count: see ``form``; not used by ``"full"``.
    """
    xp, d = T.namespace(matrix), matrix.shape[-1]
    if form == "rank":
        values, axes = xp.linalg.eigh(matrix)
        order = xp.argsort(-abs(values))[:count]
        return {"axes": axes[:, order], "values": values[order]}
    rows, columns = np.triu_indices(d)
    upper = matrix.reshape(-1)[rows * d + columns]
    if form == "full":
        return {"upper": upper}
    order = xp.argsort(-abs(upper))[:count]
    return {"places": order, "values": upper[order]}


def restore(short: Tree, d: int) -> Any:
    """Return the symmetric matrix ``(d, d)`` that a short form describes."""
    if "axes" in short:
        return (short["axes"] * short["values"]) @ short["axes"].T
    upper = short["upper"] if "upper" in short else _place_values(short["places"], short["values"], d * (d + 1) // 2)
    rows, columns = np.triu_indices(d)
    place = np.zeros((d, d), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return upper[place.reshape(-1)].reshape(d, d)


def _place_values(places: Any, values: Any, count: int) -> Any:
    """Return a vector with these values at these positions, and zeros elsewhere."""
    xp = T.namespace(values)
    if xp is np:
        found = np.zeros(count, dtype=values.dtype)
        found[places] = values
        return found
    return values.new_zeros(count).scatter(0, places, values)


# ---------------------------------------------------------------- the exact local problem of ADMM


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
        x = T.sub(here, cg(damp_operator(lambda v, p=here: grad.hvp(p, v), rho), slope, iterations))  # type: ignore[misc]
    return x
