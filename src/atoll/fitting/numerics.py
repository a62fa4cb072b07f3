"""Columns centred and scaled by sums over all rows, and the linear systems that follow.

Sums of products of raw columns lose what is small beside a column's offset or unit: a column of ``1e4 + N(0, 1)`` keeps half of its digits, one of ``1e8 + N(0, 1)`` none.
So the parties first add up rows (`add_up_rows`), then products of rows around the common means (`add_up_products`). From these the server knows the `Design`: centre and
spread of each column, rank and condition. All further sums are of ``z = (x - centre) / spread``; only results are in the columns' own units. A method that asks
again at its solution, as Newton's does, thereby refines it: the gradient comes from the rows and not from the products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Design",
    "add_up_products",
    "add_up_rows",
    "describe_design",
    "invert",
    "quantile_for",
    "is_separated",
    "solve",
    "two_sided_normal",
    "two_sided_t",
]

Numbers = NDArray[np.float64]
_EPS = float(np.finfo(np.float64).eps)
_CONSTANT = 16 * _EPS
"""A column whose spread is at most this share of its mean is constant: the mean itself is rounded."""
_DEPENDENT = 64 * _EPS
"""An eigenvalue of a correlation matrix that is at most this, times the number of columns, is 0 up to rounding."""
_INFORMATION, _MOVE = 1e-3, 0.1
_REFINEMENTS = 2
_ILL = 1e5


def add_up_rows(x: Numbers) -> dict[str, Any]:
    """The first sums of a party: ``x`` and the number of rows ``n``."""
    return {"x": x.sum(axis=0), "n": np.float64(len(x))}


def add_up_products(x: Numbers, mean: Any) -> dict[str, NDArray[Any]]:
    """The second sums of a party: ``xx``, the products around a mean, and ``off``, the sums around it, which would be 0 if the mean were not rounded."""
    moved = x - np.asarray(mean)
    return {"xx": moved.T @ moved, "off": moved.sum(axis=0)}


@dataclass(frozen=True)
class Design:
    """What is known of the columns of all rows.

    Attributes:
        n: rows.
        centre: mean of each column, ``(columns,)``.
        inverse: one over its standard deviation; 0 of a constant column, which the scaled rows then have as 0.
        gram: correlations, ``(columns, columns)``.
        basis: orthonormal directions of the scaled columns in which rows differ, ``(columns, rank)``.
        condition: the largest singular value of the scaled columns over the smallest; infinite if columns depend on each other.
    """

    n: float
    centre: Numbers
    inverse: Numbers
    gram: Numbers
    basis: Numbers
    condition: float

    @classmethod
    def of_sums(cls, n: float, mean: Any, sums: Mapping[str, NDArray[Any]]) -> Design:
        """The design of all parties' sums; see `add_up_products`."""
        off = np.asarray(sums["off"]) / n
        products = np.asarray(sums["xx"]) - n * np.outer(off, off)
        centre = np.asarray(mean) + off
        spread = np.sqrt(np.maximum(np.diag(products), 0.0) / n)
        with np.errstate(divide="ignore"):
            inverse = np.where(spread > _CONSTANT * np.abs(centre), 1 / spread, 0.0)
        gram = products * np.outer(inverse, inverse) / n
        values, vectors = np.linalg.eigh((gram + gram.T) / 2)
        varies = values > _DEPENDENT * max(1, len(values))
        whole = bool(varies.all())
        condition = math.sqrt(values[-1] / values[0]) if whole and len(values) else (1.0 if whole else math.inf)
        return cls(n, centre, inverse, gram, vectors[:, varies], condition)

    @classmethod
    def unpacked(cls, state: Mapping[str, Any]) -> Design:
        """The inverse of `packed`."""
        arrays = {name: np.asarray(state[name], dtype=np.float64) for name in ("centre", "inverse", "gram", "basis")}
        condition = math.inf if state["condition"] is None else float(state["condition"])
        return cls(n=float(state["n"]), **arrays, condition=condition)

    def packed(self) -> dict[str, Any]:
        """The design as part of a state."""
        condition = self.condition if math.isfinite(self.condition) else None
        arrays = {name: getattr(self, name) for name in ("centre", "inverse", "gram", "basis")}
        return {"n": self.n, **arrays, "condition": condition}

    @property
    def rank(self) -> int:
        """How many of the columns are not combinations of a constant and the others."""
        return int(self.basis.shape[1])

    @property
    def determined(self) -> NDArray[np.bool_]:
        """Which coefficients the rows determine: those along whose column no direction is free."""
        return np.asarray((self.basis**2).sum(axis=1) > 1 - 1e-8)

    @property
    def intercept_determined(self) -> bool:
        """Whether the rows determine the intercept: in no free direction the centre lies off the origin."""
        origin = self.centre * self.inverse
        beside = origin - self.basis @ (self.basis.T @ origin)
        return bool(np.linalg.norm(beside) <= 1e-8 * (1 + np.linalg.norm(origin)))

    def in_units(self, at: Numbers, level: float, spread: Numbers, penalty: float) -> tuple[Numbers, float, Numbers]:
        """Coefficients and intercept in the columns' own units, and their standard errors.

        Args:
            at: coefficients of the scaled columns.
            level: the linear predictor at the centre.
            spread: covariance of both, ``(columns + 1, columns + 1)``.
            penalty: of the fit; without one, what the rows do not determine has no standard error.
        """
        coef = self.inverse * at
        change = np.eye(len(at) + 1)
        change[:-1, :-1] = np.diag(self.inverse)
        change[-1, :-1] = -self.centre * self.inverse
        errors = np.sqrt(np.maximum(np.diag(change @ spread @ change.T), 0.0))
        errors[:-1][~(self.inverse > 0 if penalty else self.determined)] = np.nan
        if not (penalty or self.intercept_determined):
            errors[-1] = np.nan
        return coef, level - float(self.centre @ coef), errors

    def facts(self, penalty: float) -> dict[str, Any]:
        """What a result says of the columns: ``rank``, ``condition``, places of ``constant`` columns, and of ``undetermined`` coefficients."""
        constant = self.inverse == 0
        undetermined = np.zeros(0, np.int64) if penalty else np.flatnonzero(~self.determined & ~constant)
        return {
            "rank": self.rank,
            "condition": self.condition,
            "constant": np.flatnonzero(constant),
            "undetermined": undetermined,
        }

    def free(self, penalty: float) -> Numbers:
        """Directions in which a fit looks for its solution.

        Without a penalty these are the `basis`: of all solutions a fit gives the one that is shortest in standard deviations. With one, all columns that vary.
        """
        return np.eye(len(self.centre))[:, self.inverse > 0] if penalty else self.basis


def scale(x: Numbers, centre: Any, inverse: Any) -> Numbers:
    """``(x - centre) * inverse``."""
    return np.asarray((x - np.asarray(centre)) * np.asarray(inverse))


def solve(matrix: Numbers, right: Numbers) -> Numbers:
    """``A^-1 b`` of a symmetric ``A`` without negative eigenvalues, the shortest solution if it has no inverse.

    ``A`` is scaled to a diagonal of ones, factored by Cholesky, and the solution refined with residuals in extended precision (Higham 2002, chapter 12).
    """
    if not len(right):
        return np.zeros(0)
    matrix = (matrix + matrix.T) / 2
    size = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    size = np.where(size > 0, size, 1.0)
    scaled, goal = matrix / np.outer(size, size), right / size
    values, vectors = np.linalg.eigh(scaled)
    keep = values > _DEPENDENT * len(values) * max(1.0, float(values[-1]))
    if not keep.all():
        found = vectors[:, keep] @ ((vectors[:, keep].T @ goal) / values[keep])
        return np.asarray(found / size)
    try:
        lower = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return np.asarray(vectors @ ((vectors.T @ goal) / values) / size)
    wide = scaled.astype(np.longdouble)
    found = np.zeros_like(goal)
    for _ in range(1 + _REFINEMENTS):
        rest = np.asarray(goal - wide @ found, dtype=np.float64)
        found = found + np.linalg.solve(lower.T, np.linalg.solve(lower, rest))
    return np.asarray(found / size)


def invert(matrix: Numbers) -> Numbers:
    """``A^-1``, by columns as `solve` gives them."""
    made = np.stack([solve(matrix, one) for one in np.eye(len(matrix))], axis=1) if len(matrix) else np.zeros((0, 0))
    return np.asarray((made + made.T) / 2)


def is_separated(hessian: Numbers, gram: Numbers, step: Numbers, n: float, stuck: bool) -> bool:
    """Whether Newton's method ended because the loss flattens out on the way to infinity, and not at an optimum.

    Where classes can be told apart without an error, each step moves a row's linear predictor by about 1 for ever, while the weights of the rows go to 0. At an optimum the last step
    is tiny, and rows have weight. So both are asked: the sum of the rows' squared moves, ``d' G d``, is at least 0.1, and in some direction all rows together weigh less than
    a thousandth of one row.

    Args:
        hessian: at the end, in determined directions.
        gram: products of the rows in the same directions, so that ``H = G`` if each row had the weight 1.
        step: the last one.
        n: rows.
        stuck: whether even the smallest part of the last step lowered the loss no more, so that only its size counts.
    """
    if not len(step):
        return False
    if float(step @ gram @ step) < _MOVE or stuck:
        return float(step @ gram @ step) >= _MOVE
    values, vectors = np.linalg.eigh(gram)
    whiten = vectors / np.sqrt(values)
    least = float(np.linalg.eigvalsh(whiten.T @ hessian @ whiten)[0]) * n
    return least < _INFORMATION


def describe_design(features: Sequence[str], params: Mapping[str, Any]) -> list[str]:
    """What people must know of a fit's coefficients, a sentence each: constant and dependent columns, a bad condition, separation.

    Args:
        features: names of the columns.
        params: of a result that has `Design.facts`; of any other there is nothing to say.
    """
    if "rank" not in params:
        return []
    names = np.array(features, dtype=object)
    constant, free = (names[np.asarray(params[name], dtype=np.int64)].tolist() for name in ("constant", "undetermined"))
    notes = [f"column {name!r} is constant: its coefficient is 0 and has no standard error" for name in constant]
    if free:
        coded = (
            " (of a column of categories, encode='dummy' leaves one value out)"
            if any("=" in name for name in free)
            else ""
        )
        notes.append(
            f"rank {int(params['rank'])} of {len(names)} columns: {', '.join(free)} depend on each other, so their coefficients are one choice of many and have no standard "
            f"errors; predictions are the same for each. Leave a column out{coded}, or give alpha"
        )
    elif int(params["rank"]) < len(names) - len(constant):
        notes.append(
            f"rank {int(params['rank'])} of {len(names)} columns: some depend on each other, and the penalty alone shares their effect among them"
        )
    if bool(params.get("separated", False)):
        notes.append(
            "a combination of columns separates the rows, so the best coefficients are infinite: these are where the fit stopped, and have no standard errors. "
            "Give alpha, or leave a column out"
        )
    if _ILL < float(params["condition"]) < math.inf:
        notes.append(
            f"the scaled columns have the condition number {float(params['condition']):.1e}: columns nearly depend on each other"
        )
    return notes


# Tails of distributions, for p-values and intervals.


def two_sided_normal(value: float) -> float:
    """``P(|N(0, 1)| > value)``."""
    return math.erfc(abs(value) / math.sqrt(2))


def quantile_for(tail: float, freedom: float | None) -> float:
    """The value that is exceeded in size with chance ``tail``, of Student's t, or of the normal if ``freedom`` is ``None``; by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        over = two_sided_normal(middle) if freedom is None else two_sided_t(middle, freedom)
        low, high = (middle, high) if over > tail else (low, middle)
    return (low + high) / 2


def two_sided_t(value: float, freedom: float) -> float:
    """``P(|t| > value)`` of Student's t: the incomplete beta function ``I_x(freedom / 2, 1 / 2)`` at ``x = freedom / (freedom + value^2)``."""
    x = freedom / (freedom + value * value)
    return _incomplete_beta(freedom / 2, 0.5, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """``I_x(a, b)`` by its continued fraction (Abramowitz and Stegun, 26.5.8), evaluated as Lentz does."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    found, c, d = 1.0, 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    found = d
    for m in range(1, 1000):
        for part in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + part * d if abs(1 + part * d) > tiny else tiny)
            c = 1 + part / c if abs(1 + part / c) > tiny else tiny
            found *= d * c
        if abs(d * c - 1) < 4 * _EPS:
            break
    return front * found
