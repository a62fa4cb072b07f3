"""A linear model from released aggregates is statsmodels' on all rows in one place, and shares' is that of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

from atoll.core.errors import ConfigError, DataError
from atoll.query import LeastSquares, fit_least_squares
from tests.support.silos import TableSource, connected

COLUMNS = ("age", "bmi", "pay", "same", "twice")
TYPES = dict.fromkeys(COLUMNS, "DOUBLE")
POLICY: dict[str, Any] = {"policy": {"min_count": 5}, "tables": {"people": {"columns": {name: {"level": "private", "release": "aggregate"} for name in COLUMNS}}}}  # fmt: skip


def table(offset: float = 0.0, scale: float = 1.0, rows: int = 90) -> Any:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 2))
    x[:, 1] += 0.9 * x[:, 0]
    age, bmi = 50 + 10 * x[:, 0], scale * (offset + 4 * x[:, 1])
    return np.stack([age, bmi, 1000 + 7 * x[:, 0] - 3 * x[:, 1] + rng.normal(size=rows), np.ones(rows), 2 * age], axis=1)  # fmt: skip


def silos(rows: Any) -> dict[str, TableSource]:
    cells = [[None if np.isnan(one) else float(one) for one in row] for row in rows]
    return {f"s{k}": TableSource({"people": (TYPES, [tuple(row) for row in cells[k::3]])}) for k in range(3)}


def fitted(rows: Any, x: list[str], **settings: Any) -> LeastSquares:
    with connected(silos(rows), POLICY) as db:
        return fit_least_squares(db, "people", "pay", x, **settings)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e9), (0.0, 1e-9)])
def test_it_is_the_model_of_all_rows_in_one_place(offset: float, scale: float) -> None:
    rows = table(offset, scale)
    rows[4, 0] = rows[9, 2] = np.nan  # left out
    found = fitted(rows, ["age", "bmi"], strategy="sums")
    whole = rows[~np.isnan(rows[:, :3]).any(axis=1)]
    expected = sm.OLS(whole[:, 2], np.stack([np.ones(len(whole)), whole[:, 0], whole[:, 1] / scale - offset], axis=1)).fit()  # fmt: skip
    units = [1.0, scale]
    np.testing.assert_allclose(found.coefficients[1:] * units, expected.params[1:], rtol=1e-8)
    np.testing.assert_allclose(found.errors[1:] * units, expected.bse[1:], rtol=1e-8)
    assert found.r2 == pytest.approx(expected.rsquared, rel=1e-10)
    assert (found.terms, found.rows) == (("(intercept)", "age", "bmi"), 88)
    if offset == 0:
        assert found["(intercept)"] == pytest.approx(expected.params[0], rel=1e-9)
        np.testing.assert_allclose(found.df()[["estimate", "error", "t"]].iloc[0], [expected.params[0], expected.bse[0], expected.tvalues[0]], rtol=1e-8)  # fmt: skip
    if scale != 1 or offset:
        return
    some = fitted(rows, ["age", "bmi"], where="age > 50 OR age < 20")
    kept = whole[(whole[:, 0] > 50) | (whole[:, 0] < 20)]
    assert some.rows == len(kept)
    assert some["age"] == pytest.approx(sm.OLS(kept[:, 2], sm.add_constant(kept[:, :2])).fit().params[1], rel=1e-6)  # fmt: skip


def test_what_has_no_answer_is_refused() -> None:
    rows = table()
    with pytest.raises(DataError, match=r"column 'same' is the same in all 90 rows"):
        fitted(rows, ["age", "same"])
    with pytest.raises(DataError, match=r"the columns age, twice depend on each other"):
        fitted(rows, ["age", "twice"])
    for x in ([], ["age", "AGE"], ["pay"]):
        with pytest.raises(ConfigError, match="name one column for y, and other columns for x"):
            fitted(rows, x)
    with pytest.raises(DataError, match="no rows of people"):
        fitted(np.full((20, 5), np.nan), ["age"])
