"""Least squares of one statement: a linear model from aggregates that silos release, without a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need

from .databases.silo import quote

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .connection import JobConnection, SqlConnection, SqlResult

__all__ = ["LeastSquares", "fit_least_squares"]

INTERCEPT = "(intercept)"
"""What the constant term is called, as in R."""
_SINGULAR = 1e-9
"""Columns count as dependent if, scaled to variance 1, the smallest singular value of their correlations is at most this share of the largest. Released sums of doubles have errors of about 1e-12."""


@dataclass(frozen=True)
class LeastSquares:
    """A linear model ``y = b_0 + b_1 x_1 + … + error``.

    Attributes:
        terms: names of the coefficients: ``"(intercept)"``, then the columns.
        coefficients: in the units of ``y`` per unit of the column.
        errors: standard errors, for errors of the same variance in all rows; NaN without a degree of freedom.
        r2: share of the variance of ``y`` that the model explains; NaN if ``y`` is constant.
        rows: how many rows have a value in all columns.
        result: the answer that the model is made of, with what it cost and who learned what.
    """

    terms: tuple[str, ...]
    coefficients: NDArray[np.float64]
    errors: NDArray[np.float64]
    r2: float
    rows: int
    result: SqlResult = field(compare=False, repr=False)

    def __getitem__(self, term: str) -> float:
        """The coefficient of a term."""
        return float(self.coefficients[self.terms.index(term)])

    def df(self) -> Any:
        """A ``pandas.DataFrame`` with a row for each term: ``estimate``, ``error``, ``t``."""
        pd = need("pandas", "compare", "LeastSquares.df")
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = {"estimate": self.coefficients, "error": self.errors, "t": self.coefficients / self.errors}
        return pd.DataFrame(columns, index=list(self.terms))


def fit_least_squares(
    db: SqlConnection | JobConnection, table: str, y: str, x: Sequence[str], where: str = "", **settings: Any
) -> LeastSquares:
    """Fit a linear model to rows of all silos by one statement of aggregates.

    With ``S`` the covariances of the columns, ``c`` theirs with ``y``, ``m`` means and ``n`` rows: ``b = S⁻¹ c``, ``b_0 = m_y - b · m``, ``s² = n (v_y - b · c) / (n - k - 1)``, and the
    standard errors are the roots of the diagonal of ``s² (nS)⁻¹``, for the intercept of ``s² (1/n + m' (nS)⁻¹ m)``. Covariances come without the means, so that an offset of a column costs no digit.
    Rows with a NULL in one of the columns are left out.

    Args:
        db: of `connect`, or an analyst's.
        table: a table of the catalog.
        y: the column to explain.
        x: columns that explain it.
        where: a condition on rows, in SQL.
        settings: of `SqlConnection.sql`, such as ``strategy``.

    Raises:
        ConfigError: no column or one column twice is named; or as in `SqlConnection.sql`.
        PolicyError: a site does not release aggregates of a column.
        DataError: there are no rows, or the columns depend on each other.
    """
    names = [y, *x]
    if not x or len({name.lower() for name in names}) < len(names):
        raise ConfigError(f"y={y!r}, x={list(x)!r}", where="fit_least_squares", remedy="name one column for y, and other columns for x, each once")  # fmt: skip
    columns, k = [quote(name) for name in names], len(names)
    pairs = [(i, j) for i in range(k) for j in range(i, k)]
    # x with itself is a variance, which an exact scale of its own carries; a covariance needs two columns.
    second = [f"var_pop({columns[i]})" if i == j else f"covar_pop({columns[i]}, {columns[j]})" for i, j in pairs]
    there = [*(f"{column} IS NOT NULL" for column in columns), *([f"({where})"] if where else [])]
    text = f"SELECT count(*), {', '.join([f'avg({column})' for column in columns] + second)} FROM {quote(table)} WHERE {' AND '.join(there)}"  # fmt: skip
    result = db.sql(text, **settings)
    if not result.rows or result.rows[0][1] is None:
        raise DataError(f"no rows of {table} have a value in all of {', '.join(names)}", where="fit_least_squares", remedy="ask for columns that have values, or for more rows")  # fmt: skip
    rows, values = int(result.rows[0][0]), np.array(result.rows[0][1:], np.float64)
    mean, whole = values[:k], np.zeros((k, k))
    for (i, j), value in zip(pairs, values[k:], strict=True):
        whole[i, j] = whole[j, i] = value
    scale = np.sqrt(np.diag(whole)[1:])
    if not (scale > 0).all():
        raise DataError(f"column {x[int(np.argmin(scale))]!r} is the same in all {rows:,} rows", where="fit_least_squares", remedy="leave it out of x: the intercept stands for it")  # fmt: skip
    correlations = whole[1:, 1:] / np.outer(scale, scale)
    sizes = np.linalg.svd(correlations, compute_uv=False)
    if sizes[-1] <= _SINGULAR * sizes[0] or rows <= len(x):
        raise DataError(f"the columns {', '.join(x)} depend on each other in {rows:,} rows", where="fit_least_squares", remedy="leave one of them out of x, or ask for more rows")  # fmt: skip
    inverse = np.linalg.inv(correlations) / np.outer(scale, scale)
    slopes = np.linalg.solve(correlations, whole[1:, 0] / scale) / scale
    left = max(0.0, whole[0, 0] - float(slopes @ whole[1:, 0]))
    free = rows - k
    spread = rows * left / free if free else np.nan
    error = np.sqrt(spread * np.concatenate([[1 / rows + mean[1:] @ inverse @ mean[1:] / rows], np.diag(inverse) / rows]))  # fmt: skip
    r2 = 1 - left / whole[0, 0] if whole[0, 0] > 0 else float("nan")
    return LeastSquares((INTERCEPT, *x), np.array([mean[0] - slopes @ mean[1:], *slopes]), error, r2, rows, result)
