"""``pooled`` is an independent library on all rows: it agrees with the federation in any offset and unit, and sees one that is wrong."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.discrete.discrete_model import Logit, MNLogit, Poisson
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.regression.linear_model import OLS

from atoll.data import DataTable
from atoll.study.pooled import fit_pooled
from atoll.study.sites import compare_fits, method_of

ROWS = 160


def table(seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    a, b, c = draw.normal(size=(3, ROWS))
    b = b + 0.5 * a
    eta = 0.9 * a - 0.6 * b + 0.2 * c
    return pd.DataFrame(
        {
            "a": a, "b": b, "c": c, "cost": 2 + eta + draw.normal(size=ROWS), "ill": (draw.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int),
            "kind": np.digitize(eta + draw.normal(size=ROWS), [-0.5, 0.6]), "visits": draw.poisson(np.exp(0.4 * eta + 1)),
            "time": np.ceil(9 * draw.exponential(np.exp(-eta))), "event": draw.integers(0, 2, ROWS), "arm": np.where(c > 0, "x", "y"),
        }
    )  # fmt: skip


def compared(method: str, label: str, rows: pd.DataFrame, columns: Any = ("a", "b", "c"), **settings: Any) -> Any:
    parts = {"north": rows[:70], "south": rows[70:]}
    tables = {name: DataTable({c: one[c].to_numpy() for c in one}) for name, one in parts.items()}
    job = {"label": label, "columns": [] if method == "km" else list(columns), **settings.pop("job", {})}
    return compare_fits(tables, None, method_of(method, settings), job, secure=False, seed=0)


LINEAR: dict[str, tuple[str, str, dict[str, Any]]] = {
    "least squares": ("ridge", "cost", {}), "ridge": ("ridge", "cost", {"alpha": 1.0}), "logit": ("glm", "ill", {"alpha": 0.0}), "default": ("glm", "ill", {}),
    "classes": ("glm", "kind", {"alpha": 0.0}), "penalised classes": ("glm", "kind", {}), "poisson": ("glm", "visits", {"family": "poisson", "alpha": 0.0}),
    "penalised counts": ("glm", "visits", {"family": "poisson"}), "efron": ("cox", "", {}), "breslow": ("cox", "", {"ties": "breslow", "alpha": 2.0}),
}  # fmt: skip
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "kmeans": ("kmeans", "", {"clusters": 3}), "early": ("kmeans", "", {"clusters": 3, "tolerance": 1e-2}), "gmm": ("gmm", "", {}), "diag": ("gmm", "", {"covariance": "diag"}),
    "pca": ("pca", "", {}), "svd": ("svd", "", {}), "whole svd": ("svd", "", {"components": 3}), "bayes": ("bayes", "kind", {}), "km": ("km", "", {"by": "arm"}),
}  # fmt: skip
PLACES = {
    "as it is": lambda t: t,
    "far": lambda t: t.assign(a=t.a + 1e6, b=t.b - 1e6),
    "units": lambda t: t.assign(a=t.a * 1e6, b=t.b * 1e-6),
    "both": lambda t: t.assign(a=(t.a + 1e6) * 1e-6, b=(t.b - 1e6) * 1e6, cost=t.cost + 1e6),
}


@pytest.mark.quick("*-both", "default-*")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", LINEAR)
def test_a_linear_model_is_that_of_statsmodels_in_any_offset_and_unit(kind: str, place: str) -> None:
    method, label, settings = LINEAR[kind]
    found, model = compared(method, label, PLACES[place](table()), **settings)
    assert found["pooled_by"].startswith("statsmodels ")
    assert found["difference"] <= 1e-8
    assert found["pooled"] == pytest.approx(found["federated"], abs=1e-6)
    told = found["pooled_coefficients"]
    assert list(told) == list(model.coefficients)
    for name, one in model.coefficients.items():
        if np.isfinite(told[name]["error"]):  # statsmodels has none of ridge regression
            assert told[name]["error"] == pytest.approx(one["error"], rel=1e-5)
        assert abs(told[name]["estimate"] - one["estimate"]) <= 1e-5 * one["error"]


def test_a_predictor_that_a_penalty_makes_smaller_than_rounding_is_the_same() -> None:
    rows = table().assign(a=lambda t: t.a * 1e-6, b=lambda t: t.b * 1e-6, c=lambda t: t.c * 1e-6)
    assert [compared("glm", label, rows)[0]["difference"] for label in ("ill", "kind")] == pytest.approx(
        [0, 0], abs=1e-6
    )


def test_a_measure_is_what_its_number_is() -> None:
    found, model = compared("glm", "visits", table(), family="poisson")
    assert found["measure"] == "neg_mean_absolute_error"
    assert found["federated"] == pytest.approx(-np.abs(model.predict(table()) - table().visits).mean())


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", OTHERS)
def test_other_methods_are_those_of_a_library(kind: str) -> None:
    method, label, settings = OTHERS[kind]
    found, _ = compared(method, label, table(), **settings)
    assert found["pooled_by"].split()[0] == ("statsmodels" if kind == "km" else "scikit-learn")
    assert found["difference"] <= 1e-9
    assert found["pooled"] == pytest.approx(found["federated"], rel=1e-9, abs=1e-9)


def test_a_machine_in_two_steps_is_compared_with_that_of_all_rows() -> None:
    found, _ = compared("svm", "ill", table())
    assert abs(found["federated"] - found["pooled"]) <= 0.03
    assert 0 < found["difference"] < 2


def test_what_comes_back_is_what_statsmodels_says_of_columns_as_they_are() -> None:
    rows = table()
    x = np.column_stack([rows.a, rows.b, rows.c, np.ones(ROWS)])
    least, logit, counts = OLS(rows.cost, x).fit(), Logit(rows.ill, x).fit(disp=0), Poisson(rows.visits, x).fit(disp=0)
    hazards = PHReg(rows.time, x[:, :3], status=rows.event, ties="efron").fit()
    expected = {"least squares": least, "logit": logit, "poisson": counts, "efron": hazards}
    for kind, direct in expected.items():
        method, label, settings = LINEAR[kind]
        told = compared(method, label, rows, **settings)[0]["pooled_coefficients"].values()
        np.testing.assert_allclose([one["estimate"] for one in told], np.asarray(direct.params), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose([one["error"] for one in told], np.asarray(direct.bse), rtol=1e-6)
    against = np.asarray(MNLogit(rows.kind, x).fit(disp=0).params).T  # of classes 1 and 2 against class 0
    told = [one["estimate"] for one in compared("glm", "kind", rows, alpha=0.0)[0]["pooled_coefficients"].values()]
    made = np.reshape(told, (3, 4))
    np.testing.assert_allclose(made[1:] - made[0], against, rtol=1e-6, atol=1e-8)


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", [*LINEAR, *OTHERS])
def test_a_federation_that_is_wrong_is_seen(kind: str) -> None:
    method, label, settings = (LINEAR | OTHERS)[kind]
    _, model = compared(method, label, table(), **settings)
    rows = DataTable({c: table()[c].to_numpy() for c in table()})
    (name,) = {"coef", "centres", "means", "components", "survival", "mean"} & set(model.params) - (
        {"mean"} if {"coef", "components"} & set(model.params) else set()
    )
    wrong = replace(model, params={**model.params, name: np.asarray(model[name]) * 0.9})
    assert fit_pooled(wrong, rows, rows, "", "").difference > 1e-3  # type: ignore[operator]


@pytest.mark.parametrize("impute", ["mean", "median", "most_frequent"])
def test_the_library_fills_and_scales_by_itself(impute: str) -> None:
    rows = table().round(1)
    rows = rows.assign(a=rows.a.where(np.arange(ROWS) % 9 > 0), arm=rows.arm.where(np.arange(ROWS) % 7 > 0))
    for scale in ("", "standard", "robust"):
        job = {"impute": impute, "scale": scale}
        found, model = compared("glm", "ill", rows, ("a", "b", "arm"), job=job)
        assert found["difference"] <= 1e-8
        holes = DataTable({c: rows[c].to_numpy() for c in rows})
        moved = replace(model, layout=replace(model.layout, fill={**model.layout.fill, "a": 3.0}))
        assert fit_pooled(moved, holes, holes, impute, scale).difference > 1e-2  # type: ignore[operator]


def test_dependent_columns_and_separated_rows_are_compared_by_what_is_determined() -> None:
    rows = table().assign(twice=lambda t: 2 * t.a + 7, const=5.0)
    found, _ = compared("glm", "ill", rows, ("a", "b", "twice", "const"), alpha=0.0)
    assert (found["rank"], found["difference"] <= 1e-8) == (2, True)
    assert len(found["pooled_coefficients"]) == 3  # one of the pair, another, and the intercept
    found, _ = compared("glm", "ill", table().assign(ill=lambda t: (t.a > 0).astype(int)), alpha=0.0)
    assert (found["params"]["separated"], found["difference"]) == (True, None)


@pytest.mark.parametrize(("method", "label", "library"), [("glm", "ill", "statsmodels"), ("kmeans", "", "sklearn")])
def test_without_the_library_pooled_is_null_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, method: str, label: str, library: str
) -> None:
    for name in [one for one in sys.modules if one == library or one.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    found, _ = compared(method, label, table())
    assert (found["pooled"], found["difference"]) == (None, None)
    assert 'pip install "atoll[compare]"' in found["pooled_note"]
