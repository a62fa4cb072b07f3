"""A column without a value has no kind of its own: it is what it is at the other parties, in statistics and in fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import DataError
from atoll.fitting import GLM, Columns, Fit, Ridge
from atoll.reducers import SecureAggregation
from atoll.statistics import Statistics

FULL = pd.DataFrame(
    {
        "v": [1.0, 2, 2, 3, 3, 4, 4, 5],
        "n": [1.5, 2, 2, 3, 5, 4, 4, 2],
        "g": list("xyxyxxyx"),
        "died": [0, 1, 0, 1, 1, 0, 0, 1],
    }
)
SOME = FULL.iloc[:4].assign(v=[2.0, 3, 4, 3])
EMPTY: dict[str, Any] = {
    "None": SOME.assign(g=None, n=None),
    "NaN": SOME.assign(g=np.nan, n=np.nan),
    "empty text": SOME.assign(g="", n=""),
    "no rows": FULL.iloc[:0],
    "no rows of text": FULL.iloc[:0].astype({"g": "string", "n": "string"}),
}
ORDERS = pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["full first", "empty first"])
KINDS = pytest.mark.parametrize("how", list(EMPTY))


def run(job: Any, how: str, order: tuple[str, ...]) -> Any:
    data = {"a": FULL, "b": EMPTY[how]}
    return atoll.simulate(job, {name: data[name] for name in order}, engine="inline", progress=False).outcome


@pytest.mark.every(3)
@KINDS
@ORDERS
@pytest.mark.parametrize(
    "job",
    [
        Statistics(bins=3, quantiles=[0.5], correlations=True),
        Statistics(bins=3, reducer=SecureAggregation(), categories={"g": ["x", "y"]}),
    ],
    ids=["by site", "by sums"],
)
def test_statistics_of_an_empty_column_are_those_of_the_other_parties(how: str, order: Any, job: Any) -> None:
    found, rows = run(job, how, order), len(EMPTY[how])
    text, number = found["g"].plain(), found["n"].plain()
    assert (text["kind"], text["count"], text["missing"], text["values"]) == ("category", 8, rows, {"x": 5, "y": 3})
    assert (number["kind"], number["count"], number["missing"]) == ("number", 8, rows)
    assert number["mean"] == pytest.approx(FULL["n"].mean())
    assert number["std"] == pytest.approx(FULL["n"].std(ddof=0))
    assert sum(number["histogram"]["counts"]) == 8


@pytest.mark.every(3)  # each kind of emptiness with other orders
@KINDS
@ORDERS
@pytest.mark.parametrize("impute", ["median", "most_frequent"])
def test_a_fit_fills_an_empty_column_with_what_the_others_have(how: str, order: Any, impute: str) -> None:
    """The oracle is the same fit on the rows with the holes filled by hand."""
    found = run(Fit(model=GLM(alpha=1.0), label="died", impute=impute, encode="onehot"), how, order)
    rows = pd.concat([FULL, EMPTY[how].assign(n=np.nan, g=None)])
    fill = FULL["n"].median() if impute == "median" else 2.0
    whole = rows.assign(n=rows["n"].astype(float).fillna(fill), g=rows["g"].fillna("x"), died=rows["died"].astype(int))
    wanted = atoll.simulate(
        Fit(model=GLM(alpha=1.0), label="died", encode="onehot"), {"all": whole}, engine="inline", progress=False
    ).outcome
    assert found.features == wanted.features
    np.testing.assert_allclose(found["coef"], wanted["coef"], rtol=1e-6, atol=1e-9)


def test_a_column_that_is_empty_everywhere_is_said_to_be() -> None:
    data = {"a": FULL.assign(n=np.nan), "b": SOME.assign(n="")}
    found = atoll.simulate(Statistics(), data, engine="inline", progress=False).outcome
    assert (found["n"].count, found["n"].missing) == (0, 12)
    by = atoll.simulate(Statistics(by=["n"]), {"a": FULL, "b": data["b"]}, engine="inline", progress=False).outcome
    assert not [
        line for line in by.withheld if line.startswith("b: values of n")
    ]  # it is empty, and not a list of rows
    for job, said in (
        (Fit(model=GLM(), label="died", impute="median"), "column 'n' has no value at any party"),
        (Fit(model=GLM(), label="n", columns=["v"]), "the label 'n' has no value at any party"),
        (Fit(model=Ridge(), label="n", columns=["v"]), "'n' is missing in every row"),
    ):
        with pytest.raises(DataError, match=said):
            atoll.simulate(job, data, engine="inline", progress=False)


@ORDERS
@pytest.mark.parametrize("job", [Statistics(), Statistics(reducer=SecureAggregation())], ids=["by site", "by sums"])
def test_columns_of_two_kinds_are_still_refused(order: Any, job: Any) -> None:
    """A third party without a value does not hide it."""
    data = {"c": SOME.assign(n=None), "a": FULL, "b": SOME.assign(n=list("pqpq"))}
    with pytest.raises(
        DataError, match=r"n.*(category at b and a number at a|number at a and a category at b)|of [ab] are .*n \("
    ):
        atoll.simulate(job, {name: data[name] for name in ("c", *order)}, engine="inline", progress=False)
    with pytest.raises(DataError, match=r"the columns of . are .*n \((number|category)"):
        atoll.simulate(
            Fit(model=Columns()), {name: data[name] for name in ("c", *order)}, engine="inline", progress=False
        )


def test_a_fit_names_why_a_number_has_no_most_frequent_value() -> None:
    data = {"a": FULL.assign(v=np.arange(8.0)), "b": SOME.assign(v=np.arange(8.0, 12.0))}
    with pytest.raises(
        DataError,
        match=r"column 'v' has no most frequent number that may be told: its values nearly all differ.*median",
    ):
        atoll.simulate(Fit(model=GLM(), label="died", impute="most_frequent"), data, engine="inline", progress=False)


def test_with_a_minimum_count_few_rows_do_not_tell_whether_a_value_is_missing() -> None:
    from atoll.statistics.columns import TableColumn

    one = TableColumn("v", "number", np.array([np.nan]))
    other = TableColumn("v", "number", np.array([1.0]))
    assert one.told_kind(10) == other.told_kind(10) == "number?"
    assert (one.told_kind(), other.told_kind()) == ("number?", "number")
