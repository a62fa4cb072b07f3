"""A shift of any column and a unit of all columns change no prediction of clusters, mixtures, components, naive Bayes and machines. Linear models: `test_numerics`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.fitting import GLM, PCA, SVM, FittedModel, GaussianMixture, KMeans, NaiveBayes, TruncatedSVD
from atoll.fitting.rows import PartyRows
from tests.support.flowers import fit

ROWS, COLUMNS = 90, ["a", "b", "c"]


def table() -> pd.DataFrame:
    draw = np.random.default_rng(4)
    x = draw.normal(size=(ROWS, 3)) * [1.0, 2.0, 0.7] + np.repeat(
        [[0.0, 0, 0], [4, 1, -2], [-3, 5, 2]], ROWS // 3, axis=0
    )
    rows = pd.DataFrame(x, columns=COLUMNS).assign(
        kind=np.repeat([0, 1, 2], ROWS // 3), ill=lambda t: (t.a > draw.normal(size=ROWS)).astype(int),
        grade=lambda t: np.digitize(t.b / 4 + draw.normal(size=ROWS), [0.0, 0.8]),
    )  # fmt: skip
    return rows.sample(frac=1.0, random_state=0, ignore_index=True)  # fmt: skip


ROWS_AT = table()
FIRST = ROWS_AT[COLUMNS].to_numpy()[:3]
MODELS: dict[str, tuple[Any, str]] = {
    "given": (KMeans(clusters=3, centres=FIRST.tolist()), ""), "proposals": (KMeans(clusters=3, tolerance=1e-4), ""), "moments": (KMeans(clusters=3, start_from="moments"), ""),
    "minibatch": (KMeans(clusters=3, scheme="minibatch", batch=20, iterations=5), ""), "one shot": (KMeans(clusters=3, scheme="one-shot"), ""),
    "mixture": (GaussianMixture(components=3), ""), "diagonal": (GaussianMixture(components=2, covariance="diag", start_from="moments"), ""),
    "components": (PCA(components=2), ""), "directions": (PCA(components=2, solver="subspace", oversample=1, powers=30), ""), "bayes": (NaiveBayes(), "kind"),
    "linear machine": (SVM(kernel="linear"), "ill"), "machine": (SVM(gamma=0.1), "ill"), "classes": (GLM(alpha=0.0), "grade"), "softmax": (GLM(alpha=2.0), "grade"),
}  # fmt: skip


def fitted(model: Any, label: str, rows: pd.DataFrame) -> FittedModel:
    return fit(model, {"north": rows[:40], "south": rows[40:]}, columns=COLUMNS, label=label)


def moved(model: Any, shift: Any, scale: float) -> Any:
    """The model whose settings in units of the columns are those of the moved columns."""
    more = {}
    for name in ("centres", "means"):
        if len(getattr(model, name, ())):
            more[name] = ((np.asarray(getattr(model, name)) + shift) * scale).tolist()
    if isinstance(model, GaussianMixture):
        more["ridge"] = model.ridge * scale**2
    if isinstance(model, GLM):
        more["alpha"] = model.alpha * scale**2
    if isinstance(model, SVM):
        more |= {"gamma": model.gamma / scale**2} if model.gamma else {"C": model.C / scale**2}
    return replace(model, **more)


def scores(found: FittedModel, rows: pd.DataFrame, scale: float) -> Any:
    """What the predictions follow from, in a unit of its own."""
    x = rows[COLUMNS].to_numpy()
    if isinstance(found.method, PCA):
        return found.predict(rows) / scale
    if isinstance(found.method, SVM):
        return found.estimator().decision_function(x)
    if isinstance(found.method, KMeans):
        return ((x[:, None] - found["centres"]) ** 2).sum(axis=2) / scale**2
    if isinstance(found.method, GLM):  # scikit-learn's estimator has one number a class
        x = x - x.mean(axis=0)
        return x @ found["coef"].T
    if isinstance(found.method, GaussianMixture):  # scikit-learn's own densities of "diag" lose digits far from 0
        logs = found.method._joint(found.params, PartyRows(x, np.zeros(ROWS)))
        return np.maximum(logs - np.logaddexp.reduce(logs, axis=1)[:, None], -20)
    return np.log(np.maximum(found.estimator().predict_proba(x), 1e-9))


def assert_equal_predictions(kind: str, shift: Any, scale: float) -> None:
    model, label = MODELS[kind]
    rows = ROWS_AT.assign(**{name: (ROWS_AT[name] + d) * scale for name, d in zip(COLUMNS, shift, strict=True)})
    before, after = fitted(model, label, ROWS_AT), fitted(moved(model, np.asarray(shift), scale), label, rows)
    one, other = scores(before, ROWS_AT, 1.0), scores(after, rows, scale)
    # Of machines, where libsvm itself ends within 1e-3 of an optimum.
    least = 1e-3 if isinstance(model, SVM) else 1e-6
    assert np.abs(one - other).max() <= least * one.std()
    if not isinstance(model, PCA):
        assert before.predict(ROWS_AT).tolist() == after.predict(rows).tolist()


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", MODELS)
def test_a_million_deviations_change_no_prediction(kind: str) -> None:
    assert_equal_predictions(kind, (1e6, -2e6, 0.0), 1.0)


@pytest.mark.quick("*-1000000.0")
@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("kind", MODELS)
def test_a_common_unit_changes_no_prediction(kind: str, scale: float) -> None:
    assert_equal_predictions(kind, (0.0, 0.0, 0.0), scale)


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)), st.tuples(*[st.floats(-1e6, 1e6)] * 3), st.integers(-6, 6).map(lambda k: 10.0**k)
)
def test_shifts_and_units_change_no_prediction(kind: str, shift: Any, scale: float) -> None:
    assert_equal_predictions(kind, shift, scale)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_values_as_they_are_changes_no_component(scale: float) -> None:
    rows = ROWS_AT.assign(**{name: ROWS_AT[name] * scale for name in COLUMNS})
    for solver in ("covariance", "subspace"):
        near, far = (fitted(TruncatedSVD(solver=solver, powers=30), "", one) for one in (ROWS_AT, rows))
        np.testing.assert_allclose(far["components"], near["components"], atol=1e-9)
        np.testing.assert_allclose(far["singular_values"], near["singular_values"] * scale, rtol=1e-9)


def test_components_of_values_far_from_zero_are_those_of_numpy() -> None:
    rows = ROWS_AT.assign(a=ROWS_AT.a + 1e6, b=ROWS_AT.b - 1e6)
    _, sizes, axes = np.linalg.svd(rows[COLUMNS].to_numpy(), full_matrices=False)
    found = fitted(TruncatedSVD(components=3), "", rows)
    np.testing.assert_allclose(np.abs(found["components"]), np.abs(axes), atol=1e-8)
    np.testing.assert_allclose(found["singular_values"], sizes, rtol=1e-8)


def test_a_kernel_as_wide_as_the_offsets_is_said() -> None:
    far = ROWS_AT.assign(a=ROWS_AT.a + 1e6)
    found = fitted(SVM(), "ill", far)
    assert found["gamma"] == pytest.approx(1 / (3 * far[COLUMNS].to_numpy().var()))  # scikit-learn's "scale"
    assert "between the columns' means" in found.told["notes"][0]
    assert "notes" not in fitted(SVM(), "ill", ROWS_AT).told
    assert "notes" not in fitted(SVM(gamma=0.1), "ill", far).told
    scaled = fit(SVM(), {"north": far[:40], "south": far[40:]}, columns=COLUMNS, label="ill", scale="standard")
    assert "notes" not in scaled.told
