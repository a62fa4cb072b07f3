"""Each method is scikit-learn's on all rows in one place, in plain sums and where the server sees sums alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn import cluster, decomposition, linear_model, mixture, naive_bayes, svm

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError
from atoll.fitting import GLM, PCA, SVM, Fit, GaussianMixture, KMeans, NaiveBayes, Ridge, TruncatedSVD
from tests.support.flowers import COLUMNS, SECURE, X, Y, fit, frame, parties

BOTH = pytest.mark.parametrize("how", [{}, SECURE], ids=["plain", "secure"])
SPREAD = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_")


@pytest.mark.quick("0.0-plain", "2.0-secure")
@BOTH
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_ridge(how: dict[str, Any], alpha: float) -> None:
    found = fit(Ridge(alpha=alpha), columns=COLUMNS[:3], label="d", **how)
    pooled = (linear_model.Ridge(alpha=alpha) if alpha else linear_model.LinearRegression()).fit(X[:, :3], X[:, 3])
    np.testing.assert_allclose(found["coef"], pooled.coef_, rtol=1e-10)
    made = found.estimator()
    assert type(made) is type(pooled)
    np.testing.assert_allclose(made.predict(X[:, :3]), pooled.predict(X[:, :3]), rtol=1e-10)
    assert found["r2"] == pytest.approx(
        pooled.score(X[:, :3], X[:, 3]) if not alpha else found.score(frame()), rel=1e-10
    )


@pytest.mark.quick("plain")
@BOTH
def test_principal_components(how: dict[str, Any]) -> None:
    found, pooled = fit(PCA(components=2), **how), decomposition.PCA(2).fit(X)
    made = found.estimator()
    for name in (*SPREAD, "mean_", "noise_variance_"):
        np.testing.assert_allclose(getattr(made, name), getattr(pooled, name), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.predict(X), pooled.transform(X), atol=1e-10)
    assert found.score(frame()) == pytest.approx(pooled.explained_variance_ratio_.sum())


@pytest.mark.quick("plain")
@BOTH
def test_truncated_svd(how: dict[str, Any]) -> None:
    found, pooled = fit(TruncatedSVD(components=2), **how), decomposition.TruncatedSVD(2, algorithm="arpack").fit(X)
    made = found.estimator()
    for name in SPREAD:
        np.testing.assert_allclose(getattr(made, name), getattr(pooled, name), rtol=1e-9, atol=1e-12)


def test_wide_tables_take_directions_in_place_of_a_covariance() -> None:
    draw = np.random.default_rng(4)
    x = draw.normal(size=(90, 12)) @ np.diag(2.0 ** -np.arange(12)) + 5
    table = pd.DataFrame(x, columns=[f"c{i}" for i in range(12)])
    data = {"one": table[:30], "two": table[30:]}
    for kind in (PCA, TruncatedSVD):
        found = fit(kind(components=3, solver="subspace", oversample=3), data, columns=())
        exact = fit(kind(components=3), data, columns=())
        np.testing.assert_allclose(found["components"], exact["components"], atol=1e-8)
        np.testing.assert_allclose(found["explained_variance"], exact["explained_variance"], rtol=1e-8)
        assert found.told["contacts"] == 11


@pytest.mark.quick("gaussian-GaussianNB-secure", "multinomial-MultinomialNB-plain")
@BOTH
@pytest.mark.parametrize(
    ("features", "kind"), [("gaussian", naive_bayes.GaussianNB), ("multinomial", naive_bayes.MultinomialNB)]
)
def test_naive_bayes(how: dict[str, Any], features: str, kind: Any) -> None:
    found, pooled = fit(NaiveBayes(features=features), label="y", **how), kind().fit(X, Y)
    made = found.estimator()
    assert type(made) is kind
    np.testing.assert_allclose(made.predict_proba(X), pooled.predict_proba(X), atol=1e-11)
    assert found.predict(X).tolist() == pooled.predict(X).tolist()


def test_naive_bayes_of_categories() -> None:
    table = pd.DataFrame(np.array(["s", "m", "l"])[np.digitize(X[:, [0, 2]], [5.0, 5.6])], columns=["p", "q"]).assign(
        y=Y
    )
    found = fit(
        NaiveBayes(features="categorical", alpha=0.5), parties(table), columns=["p", "q"], label="y", encode="ordinal"
    )
    codes = np.stack([table[name].map({"l": 0, "m": 1, "s": 2}) for name in ("p", "q")], axis=1)
    pooled = naive_bayes.CategoricalNB(alpha=0.5, min_categories=3).fit(codes, Y)
    inner = found.estimator().named_steps["model"]
    np.testing.assert_allclose(inner.predict_proba(codes), pooled.predict_proba(codes), rtol=1e-12)
    assert found.estimator().predict(table[["p", "q"]]).tolist() == pooled.predict(codes).tolist()


def test_naive_bayes_of_categories_weighs_classes_by_their_rows() -> None:
    few = np.flatnonzero((Y != 2) | (np.arange(150) % 5 == 0))
    table = pd.DataFrame({"p": np.array(["s", "m", "l"])[np.digitize(X[few, 0], [5.0, 5.6])], "y": Y[few]})
    data = {"one": table[:40], "two": table[40:]}
    found = fit(NaiveBayes(features="categorical"), data, columns=["p"], label="y", encode="ordinal")
    codes = table[["p"]].replace({"l": "0", "m": "1", "s": "2"}).astype(int).to_numpy()
    pooled = naive_bayes.CategoricalNB(min_categories=3).fit(codes, table.y)
    inner = found.estimator().named_steps["model"]
    np.testing.assert_allclose(inner.predict_proba(codes), pooled.predict_proba(codes), rtol=1e-12)


def test_the_step_of_one_shot_clusters_averages_proposals() -> None:
    from atoll.fitting.methods.kmeans import spread_out

    told = [
        {"centres": np.array([[0.0], [10.0]]), "sizes": np.ones(2)},
        {"centres": np.array([[2.0]]), "sizes": np.array([9.0])},
    ]
    assert spread_out(told, 2, "KMeans").tolist() == [
        [1.0],
        [10.0],
    ]  # Dennis, Li and Smith 2021, algorithm 2: no weights


def test_the_seeds_of_one_shot_clusters_are_far_from_all_seeds() -> None:
    from atoll.fitting.methods.kmeans import spread_out

    told = [
        {"centres": np.array([[0.0], [10.0]]), "sizes": np.ones(2)},
        {"centres": np.array([[5.0], [12.0]]), "sizes": np.ones(2)},
    ]
    # 5 is 5 from the nearest seed, and 12 only 2, though 12 from the other one; 12 then joins 10.
    assert spread_out(told, 3, "KMeans").tolist() == [[0.0], [11.0], [5.0]]


@BOTH
def test_logistic_regression_of_three_classes(how: dict[str, Any]) -> None:
    found = fit(GLM(alpha=0.5), label="y", **how)
    pooled = linear_model.LogisticRegression(C=2.0, solver="newton-cg", tol=1e-10, max_iter=1000).fit(X, Y)
    np.testing.assert_allclose(found["coef"], pooled.coef_, atol=1e-6)
    np.testing.assert_allclose(found.estimator().predict_proba(X), pooled.predict_proba(X), atol=1e-6)
    assert found.predict(X).tolist() == pooled.predict(X).tolist()
    assert found.told["contacts"] < 12


def test_logistic_regression_of_two_classes_and_words() -> None:
    table = frame().assign(y=np.where(Y == 1, "sick", "well"))
    found = fit(GLM(alpha=1.0), parties(table), label="y")
    pooled = linear_model.LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-10).fit(X, table.y)
    np.testing.assert_allclose(found["coef"], pooled.coef_, rtol=1e-7)
    assert found.predict(X).tolist() == pooled.predict(X).tolist()
    assert found.score(table) == pooled.score(X, table.y)


def test_poisson_regression() -> None:
    counts = np.random.default_rng(2).poisson(np.exp(0.3 * X[:, 0] - 0.2 * X[:, 1]))
    found = fit(GLM(family="poisson", alpha=0.0), parties(frame().assign(n=counts)), columns=COLUMNS[:2], label="n")
    pooled = linear_model.PoissonRegressor(alpha=0.0, tol=1e-10, max_iter=1000, solver="newton-cholesky").fit(
        X[:, :2], counts
    )
    np.testing.assert_allclose(found["coef"][0], pooled.coef_, rtol=1e-7)
    np.testing.assert_allclose(found.estimator().predict(X[:, :2]), pooled.predict(X[:, :2]), rtol=1e-7)
    with pytest.raises(DataError, match="a negative number is no count"):
        fit(GLM(family="poisson"), parties(frame().assign(n=-counts)), columns=COLUMNS[:2], label="n")


@BOTH
def test_lloyds_iterations(how: dict[str, Any]) -> None:
    found = fit(KMeans(clusters=3, centres=X[:3].tolist()), **how)
    pooled = cluster.KMeans(3, init=X[:3], n_init=1, tol=0).fit(X)
    np.testing.assert_allclose(found["centres"], pooled.cluster_centers_, rtol=1e-12)
    assert found.predict(X).tolist() == found.estimator().predict(X).tolist() == pooled.predict(X).tolist()
    assert found.score(frame()) == pytest.approx(pooled.inertia_)


def test_lloyds_iterations_end_early_where_centres_hardly_move() -> None:
    tight, loose = (fit(KMeans(clusters=3, centres=X[:3].tolist(), tolerance=t)) for t in (0.0, 0.05))
    assert loose.told["contacts"] < tight.told["contacts"]
    assert loose.score(frame()) < tight.score(frame()) * 1.1


@pytest.mark.parametrize(
    ("model", "gap"),
    [
        (KMeans(clusters=3), 1e-3),
        (KMeans(clusters=3, scheme="one-shot"), 0.05),
        (KMeans(clusters=3, scheme="minibatch", batch=20, iterations=15), 0.02),
        (KMeans(clusters=3, start_from="moments"), 1.0),
    ],
    ids=["proposals", "one-shot", "minibatch", "moments"],
)
def test_clusters_without_given_centres(model: KMeans, gap: float) -> None:
    best = cluster.KMeans(3, n_init=10, random_state=0).fit(X).inertia_
    assert best * (1 - 1e-9) <= fit(model).score(frame()) <= best * (1 + gap)


@pytest.mark.quick("full-plain", "diag-plain")
@BOTH
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_mixtures(how: dict[str, Any], covariance: str) -> None:
    model = GaussianMixture(components=3, means=X[:3].tolist(), tolerance=1e-2, covariance=covariance)
    found = fit(model, **how)
    first = 1 / (X.var(axis=0) + 1e-6)
    precisions = np.stack([np.diag(first) if covariance == "full" else first] * 3)
    pooled = mixture.GaussianMixture(
        3,
        covariance_type=covariance,
        weights_init=np.ones(3) / 3,
        means_init=X[:3],
        precisions_init=precisions,
        tol=1e-2,
        max_iter=500,
    ).fit(X)
    assert found.told["contacts"] == pooled.n_iter_ + 2
    for name in ("weights", "means", "covariances"):
        np.testing.assert_allclose(found[name], getattr(pooled, f"{name}_"), rtol=1e-8, atol=1e-12)
    made = found.estimator()
    np.testing.assert_allclose(made.predict_proba(X), pooled.predict_proba(X), atol=1e-9)
    assert found.score(frame()) == pytest.approx(pooled.score(X))
    assert found.predict(X).tolist() == pooled.predict(X).tolist()


def test_mixtures_begin_where_parties_propose() -> None:
    found = fit(GaussianMixture(components=3))
    best = mixture.GaussianMixture(3, n_init=5, random_state=0).fit(X).score(X)
    assert found.score(frame()) == pytest.approx(best, abs=0.02)


def test_a_machine_in_two_steps_is_near_that_of_all_rows() -> None:
    found = fit(SVM(), label="y")
    pooled = svm.SVC().fit(X, Y)
    assert found["gamma"] == pytest.approx(1 / (4 * X.var()))
    assert len(found["vectors"]) < 150
    assert abs(found.score(frame()) - pooled.score(X, Y)) <= 0.02
    assert found.estimator().predict(X).tolist() == found.predict(X).tolist()
    alone = {"one": frame()[Y == 0], "two": frame()[Y > 0]}
    assert fit(SVM(), alone, label="y").score(frame()) > 0.95  # a party with one class tells all its rows


@pytest.mark.parametrize(
    ("model", "settings", "error", "match"),
    [
        (KMeans(clusters=3), SECURE, ConfigError, "each party's own clusters are no sum"),
        (GaussianMixture(), SECURE, ConfigError, "each party's own clusters are no sum"),
        (SVM(), {"label": "y", **SECURE}, ConfigError, "support vectors are single rows"),
        (SVM(), {"label": "y", "min_count": 5}, ConfigError, "support vectors are single rows"),
        (KMeans(clusters=2, centres=[[1.0], [2.0]]), {}, ConfigError, r"centres of \[1\] numbers for 4 features"),
        (PCA(components=7), {}, ConfigError, "components=7 of 4 features"),
        (KMeans(clusters=151), {}, DataError, "the parties propose 150 centres for 151 clusters"),
        (NaiveBayes(features="categorical"), {"label": "y"}, AtollError, "features='categorical' takes places of categories"),
        (GLM(), {"label": "y", "categories": {"y": ["1"]}}, DataError, r"the label has one class, 1 .*at least two classes"),
        (GaussianMixture(components=3, means=[[1.0] * 4] * 3, ridge=0.0), {"columns": ["a", "a", "b", "c"]}, DataError, "a covariance has no inverse"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(model: Any, settings: dict[str, Any], error: type[AtollError], match: str) -> None:
    with pytest.raises(error, match=match):
        fit(model, **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        (KMeans, {"clusters": 0}, "clusters=0"),
        (KMeans, {"scheme": "elkan"}, "scheme='elkan'"),
        (KMeans, {"clusters": 3, "centres": [[1.0]]}, "1 centres for clusters=3"),
        (GaussianMixture, {"covariance": "tied"}, "covariance='tied'"),
        (GaussianMixture, {"components": 3, "means": [[1.0]]}, "1 means for components=3"),
        (PCA, {"solver": "arpack"}, "solver='arpack'"),
        (NaiveBayes, {"features": "poisson"}, "features='poisson'"),
        (Ridge, {"alpha": -1.0}, "alpha=-1.0"),
        (GLM, {"family": "gamma"}, "family='gamma'"),
        (SVM, {"C": 0.0}, "C=0.0"),
        (SVM, {"kernel": "cosine"}, "kernel='cosine'"),
    ],
)
def test_settings_out_of_range_are_named(kind: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(**settings)


@pytest.mark.parametrize(
    ("model", "encode"),
    [
        (GLM(), "onehot"),
        (NaiveBayes(), "onehot"),
        (NaiveBayes(features="multinomial"), "onehot"),
        (NaiveBayes(features="categorical"), "ordinal"),
    ],
)
def test_agreed_classes_need_no_order(model: Any, encode: str) -> None:
    # scikit-learn sorts classes; in the agreed order ("yes", "no") predictions were those of the other class.
    rng = np.random.default_rng(0)
    label = np.array(["no", "yes"])[rng.integers(2, size=200)]
    ward = np.where((label == "yes") ^ (rng.random(200) < 0.1), "east", "west")
    tables = {"p": {"y": label[:90], "ward": ward[:90]}, "q": {"y": label[90:], "ward": ward[90:]}}
    found = {}
    for classes in (["no", "yes"], ["yes", "no"]):
        job = Fit(
            model=model, label="y", columns=["ward"], encode=encode, categories={"y": classes, "ward": ["east", "west"]}
        )
        made = atoll.simulate(job, tables, engine="inline", progress=False).outcome
        found[classes[0]] = made.predict({"ward": ward}).tolist()
        assert np.mean(made.predict({"ward": ward}) == label) > 0.8
        coded = (ward == "west").astype(float)[:, None]
        rows = coded.astype(int) if encode == "ordinal" else np.concatenate([1 - coded, coded], axis=1)
        assert made.method.estimator(made.params, made.layout.classes).predict(rows).tolist() == found[classes[0]]
    assert found["no"] == found["yes"]
