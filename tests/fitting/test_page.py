"""What people read of a fit: the numbers that R prints, as tables, frames and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import OneHotEncoder

import atoll
from atoll.fitting import GLM, PCA, Cox, Fit, KaplanMeier, KMeans, Ridge
from atoll.fitting.page import sections_of
from tests.support.flowers import fit, frame

AML = pd.DataFrame(
    {
        "time": [9, 13, 13, 18, 23, 28, 31, 34, 45, 48, 161, 5, 5, 8, 8, 12, 16, 23, 27, 30, 33, 43, 45],
        "event": [1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1],
        "x": ["Maintained"] * 11 + ["Nonmaintained"] * 12,
    }
)
"""Acute myelogenous leukaemia: `aml` of R's package survival (Miller 1997)."""
SITES = {"north": AML[::2], "south": AML[1::2]}


def test_curves_are_those_that_r_prints() -> None:
    # GOLD: R, summary(survfit(Surv(time, status) ~ x, data = aml)), as its page prints it
    r = {
        "Maintained": [
            [9, 11, 1, 0.909, 0.0867, 0.7541, 1.000], [13, 10, 1, 0.818, 0.1163, 0.6192, 1.000], [18, 8, 1, 0.716, 0.1397, 0.4884, 1.000],
            [23, 7, 1, 0.614, 0.1526, 0.3769, 0.999], [31, 5, 1, 0.491, 0.1642, 0.2549, 0.946], [34, 4, 1, 0.368, 0.1627, 0.1549, 0.875],
            [48, 2, 1, 0.184, 0.1535, 0.0359, 0.944],
        ],
        "Nonmaintained": [
            [5, 12, 2, 0.8333, 0.1076, 0.6470, 1.000], [8, 10, 2, 0.6667, 0.1361, 0.4468, 0.995], [12, 8, 1, 0.5833, 0.1423, 0.3616, 0.941],
            [23, 6, 1, 0.4861, 0.1481, 0.2675, 0.883], [27, 5, 1, 0.3889, 0.1470, 0.1854, 0.816], [30, 4, 1, 0.2917, 0.1387, 0.1148, 0.741],
            [33, 3, 1, 0.1944, 0.1219, 0.0569, 0.664], [43, 2, 1, 0.0972, 0.0919, 0.0153, 0.620], [45, 1, 1, 0.0, 0.0, np.nan, np.nan],
        ],
    }  # fmt: skip
    found = fit(KaplanMeier(by="x"), SITES, columns=[])
    table = found.curves.to_pandas()
    for group, expected in r.items():
        rows = table[(table.group == group) & (table.events > 0)].drop(columns="group")
        assert list(rows.columns) == ["time", "at_risk", "events", "survival", "error", "low", "high"]
        np.testing.assert_allclose(rows.to_numpy(float), expected, atol=6e-4)
    assert (round(found["logrank"], 1), round(found["p_value"], 2)) == (3.4, 0.07)  # R, survdiff
    (section,) = sections_of(found)
    assert [row[3] for row in section["tables"][0]["rows"]] == ["31", "23"]  # R: medians
    assert "chi squared 3.39" in section["text"]


def test_hazard_ratios_are_those_that_r_prints() -> None:
    # GOLD: R, coxph(Surv(time, status) ~ x, data = aml): coef, exp(coef), se(coef), p
    found = fit(Cox(), SITES, columns=["x"], encode="dummy")
    (one,) = found.coefficients.values()
    assert list(found.coefficients) == ["x=Nonmaintained"]
    assert [round(one[name], 4) for name in ("estimate", "ratio", "error", "p")] == [0.9155, 2.4981, 0.5119, 0.0737]
    table = found.coefficients.to_pandas()
    assert table.loc["x=Nonmaintained", "ratio_low"] == one["ratio_low"]


def test_dummies_compare_each_value_with_the_first(tmp_path: Path) -> None:
    table = frame().assign(size=lambda t: pd.cut(t.a, [0, 5.4, 6.2, 9], labels=["s", "m", "l"]).astype(str))
    parts = {"north": table[:70], "south": table[70:]}
    columns: dict[str, Any] = {"columns": ["b", "size"], "label": "d"}
    whole, dummies = (fit(Ridge(), parts, encode=encode, **columns) for encode in ("onehot", "dummy"))
    assert dummies.features == ("b", "size=m", "size=s")  # compared with l
    np.testing.assert_allclose(dummies.predict(table), whole.predict(table), atol=1e-10)
    assert "encode='dummy'" in whole.told["notes"][0]
    assert "notes" not in dummies.told
    means = table.groupby("size").d.mean()
    alone = fit(Ridge(), parts, columns=["size"], label="d", encode="dummy")
    np.testing.assert_allclose(alone["coef"], means[["m", "s"]] - means["l"], atol=1e-10)
    pipeline = dummies.estimator()
    np.testing.assert_allclose(pipeline.predict(table), dummies.predict(table), rtol=1e-12)
    coded = OneHotEncoder(drop="first", sparse_output=False).fit_transform(table[["size"]])
    np.testing.assert_array_equal(pipeline[:-1].transform(table)[:, 1:], coded)
    dummies.save(tmp_path / "fit.json")
    restored = type(dummies).load(tmp_path / "fit.json")
    np.testing.assert_array_equal(restored.predict(table), dummies.predict(table))


@pytest.mark.parametrize(
    ("model", "settings", "title", "kind"),
    [
        (Ridge(), {"columns": ["a", "b"], "label": "d"}, "Coefficients", "intervals"),
        (GLM(alpha=1.0), {"label": "y"}, "Coefficients", "intervals"),
        (KMeans(clusters=2), {}, "Clusters", ""),
        (PCA(), {}, "Components", "bars"),
    ],
)
def test_a_report_leads_with_what_was_found(
    tmp_path: Path, model: Any, settings: dict[str, Any], title: str, kind: str
) -> None:
    job = Fit(model=model, **{"columns": list("abcd"), **settings})
    result = atoll.simulate(job, {"north": frame()[:70], "south": frame()[70:]}, engine="inline", progress=False)
    (section,) = result.prepared.sections(result.outcome)
    assert section["title"] == title
    assert [one["kind"] for one in section.get("figures", ())] == ([kind] if kind else [])
    page = result.report(tmp_path / "page.html").read_text()
    assert page.index(f"<h2>{title}</h2>") < page.index("<h2>Versions</h2>")
    for table in section["tables"]:
        assert all(len(row) == len(table["head"]) for row in table["rows"])


def test_other_methods_have_neither_coefficients_nor_curves() -> None:
    found = fit(KMeans(clusters=2))
    assert (found.coefficients, found.curves) == ({}, {})
    assert "coefficients" not in found.plain()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_logistic_fit_is_by_default_the_one_of_r_and_statsmodels(seed: int) -> None:
    """Maximum likelihood, each value of a category against the first: nothing to set for coefficients, errors and p-values that people expect."""
    genmod = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"age": rng.integers(20, 90, 300) * 1.0, "sex": rng.choice(["F", "M"], 300), "smoker": rng.choice(["current", "ex", "never"], 300)}
    )  # fmt: skip
    table["ill"] = (rng.random(300) < 1 / (1 + np.exp(2 - 0.04 * table.age - (table.smoker == "current")))).astype(int)
    parts: Any = {"north": table[:140], "south": table[140:]}
    found = fit(GLM(), parts, columns=["age", "sex", "smoker"], label="ill")
    coded = pd.get_dummies(table[["age", "sex", "smoker"]], drop_first=True).astype(float)
    expected = genmod.GLM(table.ill, genmod.add_constant(coded), family=genmod.families.Binomial()).fit(tol=1e-12)
    told = found.coefficients.to_pandas()
    assert list(told.index) == ["age", "sex=M", "smoker=ex", "smoker=never", "(intercept)"]
    order = ["age", "sex_M", "smoker_ex", "smoker_never", "const"]
    for name, values in {"estimate": expected.params, "error": expected.bse, "p": expected.pvalues}.items():
        np.testing.assert_allclose(told[name], values[order], rtol=1e-6)
    assert "notes" not in found.told
    penalised = fit(GLM(alpha=1.0), parts, columns=["age", "sex"], label="ill")
    assert penalised.features == ("age", "sex=F", "sex=M")
