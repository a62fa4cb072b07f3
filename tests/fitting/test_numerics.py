"""Offsets, units and dependent columns: the right value, or a sentence that says what the rows do not determine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t
from sklearn import linear_model
from statsmodels.duration.hazard_regression import PHReg

from atoll.fitting import GLM, SVM, Cox, FittedModel, KaplanMeier, KMeans, Ridge
from atoll.fitting.numerics import solve, two_sided_t
from tests.support.flowers import SECURE, fit

ROWS = 120


def table(seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, ROWS))
    b = b + 0.5 * a
    eta = 0.9 * a - 0.6 * b
    return pd.DataFrame(
        {
            "a": a, "b": b, "cost": 2 + eta + draw.normal(size=ROWS), "ill": (draw.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int),
            "visits": draw.poisson(np.exp(0.4 * eta + 1)), "time": np.ceil(9 * draw.exponential(np.exp(-eta))), "event": draw.integers(0, 2, ROWS),
        }
    )  # fmt: skip


def fitted(model: Any, label: str, rows: pd.DataFrame, columns: Any = ("a", "b"), **how: Any) -> FittedModel:
    return fit(model, {"north": rows[:70], "south": rows[70:]}, columns=list(columns), label=label, **how)


def predictor(found: FittedModel, rows: pd.DataFrame) -> Any:
    """Linear predictors around their mean, in deviations."""
    x = rows[list(found.features)].to_numpy()
    eta = (x - x.mean(axis=0)) @ np.atleast_2d(found["coef"]).T
    if "intercept" in found.params:
        eta = eta + x.mean(axis=0) @ np.atleast_2d(found["coef"]).T + found["intercept"]
    return eta


MODELS: dict[str, tuple[Any, str]] = {
    "ridge": (Ridge(), "cost"), "binomial": (GLM(alpha=0.0), "ill"), "poisson": (GLM(family="poisson", alpha=0.0), "visits"), "cox": (Cox(), ""),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
@settings(max_examples=6, deadline=None)
@given(st.floats(-1e6, 1e6), st.integers(-6, 6), st.sampled_from("ab"))
def test_a_shift_and_a_unit_change_no_prediction(kind: str, shift: float, power: int, column: str) -> None:
    model, label = MODELS[kind]
    rows = table()
    moved = rows.assign(**{column: (rows[column] + shift) * 10.0**power})
    before, after = predictor(fitted(model, label, rows), rows), predictor(fitted(model, label, moved), moved)
    assert np.abs(before - after).max() <= 1e-6 * before.std()


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["ridge", "binomial", "poisson", "cox"]), st.floats(-6, 6), st.floats(-1e6, 1e6))
def test_a_common_unit_with_its_penalty_changes_no_prediction(kind: str, power: float, shift: float) -> None:
    scale = 10.0**power
    models = {
        "ridge": lambda alpha: Ridge(alpha=alpha), "binomial": lambda alpha: GLM(alpha=alpha),
        "poisson": lambda alpha: GLM(family="poisson", alpha=alpha), "cox": lambda alpha: Cox(alpha=alpha),
    }  # fmt: skip
    rows, label = table(), MODELS[kind][1]
    moved = rows.assign(a=(rows.a + shift) * scale, b=rows.b * scale)
    before = predictor(fitted(models[kind](2.0), label, rows), rows)
    after = predictor(fitted(models[kind](2.0 * scale**2), label, moved), moved)
    assert np.abs(before - after).max() <= 1e-6 * before.std()


def test_an_offset_keeps_the_slope_that_scikit_learn_finds() -> None:
    rows = table()
    exact = linear_model.LinearRegression().fit(rows[["a", "b"]], rows.cost)
    far = rows.assign(a=rows.a + 1e4, b=rows.b * 1e8)
    for how in ({}, {k: v for k, v in SECURE.items() if k == "reducer"}):
        found = fitted(Ridge(), "cost", far, **how)
        np.testing.assert_allclose(found["coef"] * [1, 1e8], exact.coef_, rtol=1e-9)
        assert found["r2"] == pytest.approx(exact.score(rows[["a", "b"]], rows.cost), rel=1e-12)
        assert (found["rank"], found.told["converged"]) == (2, True)


def test_r2_of_a_label_with_an_offset() -> None:
    rows = table()
    near, far = (fitted(Ridge(), "cost", rows.assign(cost=rows.cost + shift)) for shift in (0.0, 1e8))
    assert far["r2"] == pytest.approx(near["r2"], rel=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_a_constant_or_doubled_column_is_said(kind: str) -> None:
    model, label = MODELS[kind]
    rows = table().assign(twice=lambda t: 2 * t.a + 7, const=1234.567)
    plain = fitted(model, label, rows)
    constant = fitted(model, label, rows, ("a", "b", "const"))
    assert constant["rank"] == 2
    assert np.ravel(constant["coef"])[2] == 0
    assert "column 'const' is constant" in constant.told["notes"][0]
    np.testing.assert_allclose(np.ravel(constant["standard_error"])[:2], np.ravel(plain["standard_error"]), rtol=1e-6)
    doubled = fitted(model, label, rows, ("a", "b", "twice"))
    assert (doubled["rank"], np.isinf(doubled["condition"])) == (2, True)
    assert np.isnan(np.ravel(doubled["standard_error"])).tolist() == [True, False, True]
    assert "a, twice depend on each other" in doubled.told["notes"][0]
    np.testing.assert_allclose(predictor(doubled, rows), predictor(plain, rows), atol=1e-9)
    assert "notes" not in plain.told
    assert 1 < plain["condition"] < 10


@pytest.mark.parametrize("kind", MODELS)
def test_a_column_that_varies_by_a_rounding_is_constant(kind: str) -> None:
    model, label = MODELS[kind]
    rows = table().assign(const=np.where(np.arange(ROWS) % 3, 0.3, 0.1 * 3))  # a unit computed in two ways
    assert rows.const.nunique() == 2
    found = fitted(model, label, rows, ("a", "b", "const"))
    assert (found["rank"], np.ravel(found["coef"])[2]) == (2, 0.0)
    assert "column 'const' is constant" in found.told["notes"][0]


@pytest.mark.parametrize("quasi", [False, True])
def test_separated_classes_have_no_optimum(quasi: bool) -> None:
    rows = table()
    rows = rows.assign(ill=(rows.a > 0).astype(int))
    if quasi:  # a group without any ill row beside rows that overlap
        rows = rows.assign(a=(rows.b > 1).astype(float), ill=np.where(rows.b > 1, 1, np.arange(ROWS) % 2), b=rows.cost)
    found = fitted(GLM(alpha=0.0), "ill", rows)
    assert found["separated"]
    assert not found.told["converged"]
    assert np.isnan(found["standard_error"]).all()
    assert "separates the rows" in found.told["notes"][-1]
    assert not fitted(GLM(alpha=1e-3), "ill", rows)["separated"]


def test_a_hazard_that_only_grows_and_a_group_without_counts_are_separated() -> None:
    rows = table().assign(time=lambda t: t.a.rank(), event=1)
    assert fitted(Cox(), "", rows)["separated"]
    rows = table().assign(visits=lambda t: np.where(t.a > 1, 0, t.visits), a=lambda t: (t.a > 1).astype(float))
    assert fitted(GLM(family="poisson", alpha=0.0), "visits", rows)["separated"]


def hazards(first: int) -> pd.DataFrame:
    """Rows whose first five to leave, up to ``first`` others, are a group: the first Newton step is a predictor of more than e^50."""
    draw = np.random.default_rng(3)
    rows = pd.DataFrame(draw.normal(size=(200, 2)), columns=["a", "b"])
    rows = rows.assign(time=draw.exponential(np.exp(-rows.a)), event=1)
    place = rows.time.rank()
    return rows.assign(g=((place <= 5) & (place != first)).astype(int))


def test_a_hazard_whose_first_step_goes_too_far_is_that_of_statsmodels() -> None:
    rows = hazards(first=2)
    found = fitted(Cox(), "", rows, ("a", "b", "g"))
    library = PHReg(rows.time, rows[["a", "b", "g"]], status=rows.event, ties="efron").fit(
        start_params=[0.9, 0.0, 3.0], disp=0
    )
    assert found.told["converged"]
    np.testing.assert_allclose(found["coef"], library.params, rtol=1e-5)
    np.testing.assert_allclose(found["standard_error"], library.bse, rtol=1e-5)


def test_a_group_that_leaves_before_all_others_has_an_infinite_hazard() -> None:
    found = fitted(Cox(), "", hazards(first=0), ("a", "b", "g"))
    assert found["separated"]
    assert np.isnan(found["standard_error"]).all()
    assert "infinite" in found.told["notes"][-1]


def test_a_fit_that_runs_out_of_contacts_says_so() -> None:
    found = fitted(GLM(alpha=0.0), "ill", table(), rounds=4)
    assert not found.told["converged"]
    assert "did not converge in 4 contacts" in found.told["notes"][-1]


def test_a_rare_class_is_not_separated() -> None:
    draw = np.random.default_rng(3)
    rows = pd.DataFrame({"a": draw.normal(size=4000), "b": draw.normal(size=4000), "ill": 0})
    rows.loc[[5, 900, 2100, 3000], "ill"] = 1
    found = fitted(GLM(alpha=0.0), "ill", rows)
    assert not found["separated"]
    assert np.isfinite(found["standard_error"]).all()


@given(st.floats(0.01, 50), st.integers(1, 400))
def test_the_tails_of_student(value: float, freedom: int) -> None:
    assert two_sided_t(value, freedom) == pytest.approx(2 * t.sf(value, freedom), rel=1e-8)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_a_system_in_any_units_is_solved(width: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    root, units = draw.normal(size=(width + 3, width)), 10.0 ** draw.integers(-6, 7, width)
    exact = draw.normal(size=width)
    found = solve(root.T @ root * np.outer(units, units), (root.T @ root @ exact) * units)
    np.testing.assert_allclose(found * units, exact, atol=1e-7)


def test_clusters_far_from_zero_are_those_near_it() -> None:
    draw = np.random.default_rng(6)
    x = np.concatenate([draw.normal(size=(30, 2)), draw.normal(size=(30, 2)) + 6])
    near, far = (
        fit(
            KMeans(clusters=2, centres=(x[[0, 40]] + shift).tolist()),
            {
                "one": pd.DataFrame(x[:25] + shift, columns=["a", "b"]),
                "two": pd.DataFrame(x[25:] + shift, columns=["a", "b"]),
            },
            columns=["a", "b"],
        )
        for shift in (0.0, 1e8)
    )
    np.testing.assert_allclose(far["centres"] - 1e8, near["centres"], atol=1e-6)
    inertia = far.score(pd.DataFrame(x + 1e8, columns=["a", "b"]))
    assert inertia == pytest.approx(near.score(pd.DataFrame(x, columns=["a", "b"])), rel=1e-6)


def test_the_width_of_a_kernel_is_scikit_learns_with_any_offset() -> None:
    rows = table()
    for shift in (0.0, 1e8):
        moved = rows.assign(a=rows.a + shift, b=rows.b + shift)
        found = fitted(SVM(), "ill", moved)
        assert found["gamma"] == pytest.approx(1 / (2 * moved[["a", "b"]].to_numpy().var()), rel=1e-6)


@pytest.mark.parametrize("n", range(2, 101, 2))
def test_the_median_of_even_numbers_of_events_is_the_middle_one(n: int) -> None:
    rows = pd.DataFrame({"time": np.arange(1.0, n + 1), "event": 1})
    found = fit(KaplanMeier(), {"one": rows[::2], "two": rows[1::2]}, columns=[])
    assert found["median"].tolist() == [n / 2]  # S(t) = 1 - t / n


def test_a_median_that_is_not_reached_is_no_number() -> None:
    rows = pd.DataFrame({"time": np.arange(1.0, 9), "event": [1, 0, 0, 0, 0, 0, 0, 0]})
    assert np.isnan(fit(KaplanMeier(), {"one": rows[:4], "two": rows[4:]}, columns=[])["median"]).all()


def test_large_counts_are_reached_by_halved_steps() -> None:
    draw = np.random.default_rng(8)
    rows = table().assign(visits=lambda t: draw.poisson(np.exp(9 + 0.8 * t.a)))
    found = fitted(GLM(family="poisson", alpha=0.0), "visits", rows, ["a"])
    pooled = linear_model.PoissonRegressor(alpha=0.0, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    pooled.fit(rows[["a"]], rows.visits)
    assert found.told["converged"]
    np.testing.assert_allclose(found["coef"][0], pooled.coef_, rtol=1e-7)


def test_coefficients_are_those_of_textbook_least_squares() -> None:
    rows = table()
    x = np.column_stack([rows.a, rows.b, np.ones(ROWS)])
    inverse = np.linalg.inv(x.T @ x)
    best = inverse @ x.T @ rows.cost
    rest = rows.cost - x @ best
    errors = np.sqrt(np.diag(inverse) * (rest @ rest) / (ROWS - 3))
    told = fitted(Ridge(), "cost", rows).coefficients
    assert list(told) == ["a", "b", "(intercept)"]
    for one, estimate, error in zip(told.values(), best, errors, strict=True):
        reach = t.ppf(0.975, ROWS - 3) * error
        expected = (estimate, error, estimate - reach, estimate + reach, 2 * t.sf(abs(estimate / error), ROWS - 3))
        assert tuple(one.values()) == pytest.approx(expected, rel=1e-9)


def test_coefficients_of_hazards_and_classes() -> None:
    rows = table()
    hazard = fitted(Cox(), "", rows).coefficients["a"]
    assert hazard["ratio"] == pytest.approx(np.exp(hazard["estimate"]))
    assert hazard["ratio_low"] < hazard["ratio"] < hazard["ratio_high"]
    three = fitted(GLM(), "ill", rows.assign(ill=np.arange(ROWS) % 3)).coefficients
    assert [*three][:4] == ["a [0]", "b [0]", "(intercept) [0]", "a [1]"]
