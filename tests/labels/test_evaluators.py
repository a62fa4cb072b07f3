"""Evaluators against scikit-learn, closed forms and each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.labels import evaluators as E
from atoll.labels.evaluators.gains import t_quantile


def blobs(rows: int, classes: int = 3, dims: int = 5, seed: int = 0, spread: float = 1.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    centres = np.random.default_rng(99).normal(size=(classes, dims)) * 2
    return centres[y] + spread * rng.normal(size=(rows, dims)), y


@settings(deadline=None, max_examples=15)
@given(k=st.integers(1, 30), seed=st.integers(0, 20))
def test_neighbours_vote_as_in_scikit_learn(k: int, seed: int) -> None:
    from sklearn.neighbors import KNeighborsClassifier

    x, y = blobs(60, seed=seed)
    q, _ = blobs(25, seed=seed + 100)
    oracle = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda d: np.exp((d.min(axis=1, keepdims=True) - d) / 0.1)
    ).fit(x, y)
    votes = E.nearest_classes(x, y, q, classes=int(y.max()) + 1, k=k)
    np.testing.assert_allclose(votes, oracle.predict_proba(q), atol=1e-9)
    assert E.neighbour_accuracy(x, y, q, oracle.predict(q), k=k) == 1.0


def test_a_row_has_no_vote_on_itself() -> None:
    x = np.array([[1.0, 0], [0.99, 0.1], [0, 1], [0.1, 0.99]])
    votes = E.nearest_classes(x, [0, 1, 0, 1], x, classes=2, k=1, alone=True)
    assert votes.argmax(axis=1).tolist() == [1, 0, 1, 0]
    metric = E.NeighbourAccuracy(k=1)
    assert metric.result(metric.of(x, [0, 1, 0, 1])) == {"knn_accuracy": 0.0}
    assert metric.result(metric.of(x, [7, 7, 9, 9])) == {"knn_accuracy": 1.0}
    assert metric.result(metric.merge(metric.of(x, [7, 7, 9, 9]), metric.of(x[:1], [7]))) == {"knn_accuracy": 1.0}
    with pytest.raises(DataError, match="1 rows with 1 labels"):
        E.nearest_classes(x[:1], [0], x[:1], classes=1, alone=True)
    with pytest.raises(ConfigError, match="k=0"):
        E.NeighbourAccuracy(k=0)


@pytest.mark.parametrize(("classes", "l2"), [(2, 1.0), (4, 0.3)])
def test_a_probe_is_scikit_learns_logistic_regression(classes: int, l2: float) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = blobs(120, classes, seed=1, spread=2.0)
    q, _ = blobs(50, classes, seed=2, spread=2.0)
    probe = E.fit_probe(x, y, l2=l2)
    solver = LogisticRegression(C=1 / l2, tol=1e-9, max_iter=5000)
    if classes == 2:  # one weight vector in scikit-learn: half of the penalty of two opposite ones
        solver = LogisticRegression(C=2 / l2, tol=1e-9, max_iter=5000)
    oracle = make_pipeline(StandardScaler(), solver).fit(x, y)
    z = probe.scores(q)
    found = np.exp(z - z.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found / found.sum(axis=1, keepdims=True), oracle.predict_proba(q), atol=2e-4)
    assert probe.accuracy(q, oracle.predict(q)) == 1.0


def test_a_probe_does_not_depend_on_the_features_scale_and_refuses_what_is_not_finite() -> None:
    x, y = blobs(60)
    wide = x * np.array([1e3, 1, 1e-3, 5, 2]) + 7
    np.testing.assert_allclose(E.fit_probe(x, y).scores(x), E.fit_probe(wide, y).scores(wide), atol=1e-4)
    constant = np.hstack([x, np.ones((60, 1))])
    np.testing.assert_allclose(E.fit_probe(constant, y).scores(constant), E.fit_probe(x, y).scores(x), atol=1e-4)
    with pytest.raises(DataError, match="not finite"):
        E.fit_probe([[np.nan], [1.0]], [0, 1])
    metric = E.ProbeAccuracy()
    assert metric.result(metric.of(*blobs(200, spread=0.1)))["probe_accuracy"] == 1.0


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(0, 50), st.floats(0.05, 1.0))
def test_coverage_falls_with_tau_and_purity_counts_the_sure_ones(classes: int, seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    z, y = 3 * rng.normal(size=(40, classes)), rng.integers(0, classes, 40)
    tau = 1 / classes + (1 - 1 / classes) * share
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    kept = p.max(axis=1) >= tau
    assert E.coverage(z, tau) == kept.mean()
    found = E.purity(z, y, tau)
    assert math.isnan(found) if not kept.any() else found == (p.argmax(axis=1) == y)[kept].mean()
    assert E.coverage(z, min(1.0, tau + 0.05)) <= E.coverage(z, tau)
    metric = E.PseudoLabels(tau)
    whole = metric.result(metric.of(z, y))
    parts = metric.result(metric.merge(metric.of(z[:13], y[:13]), metric.of(z[13:], y[13:])))
    np.testing.assert_allclose([whole["coverage"], whole["purity"]], [parts["coverage"], parts["purity"]])


def test_a_threshold_that_every_row_passes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tau=0\.1 for 10 classes"):
        E.coverage(np.zeros((2, 10)), 0.1)
    with pytest.raises(ConfigError, match=r"tau=1\.5"):
        E.PseudoLabels(1.5)


def test_gaps_between_groups() -> None:
    """Equation 104 by hand: of two rows each, group a is predicted 0 and 1, group b 1 and 1."""
    z, s, y = np.eye(2)[[0, 1, 1, 1]], ["a", "a", "b", "b"], [0, 1, 0, 1]
    assert E.fairness_gap(z, s) == pytest.approx(math.sqrt(0.5))
    assert E.fairness_gap(z, s, measure="accuracy", labels=y) == pytest.approx(0.5)
    assert E.fairness_gap(z, s, measure="recall", labels=y) == pytest.approx(1.0)
    assert E.fairness_gap(z, s, measure="recall", labels=[0, 1, 1, 1]) == pytest.approx(0.0)  # b has no class 0
    assert E.fairness_gap(np.eye(2)[[0, 1, 0, 1]], s) == 0.0
    three = E.fairness_gap(np.eye(2)[[0, 1, 1]], ["a", "b", "c"])
    assert three == pytest.approx(math.sqrt(2))
    with pytest.raises(ConfigError, match="measure='accuracy' without labels"):
        E.fairness_gap(z, s, measure="accuracy")
    with pytest.raises(DataError, match="4 groups of which 1 differ"):
        E.fairness_gap(z, ["a"] * 4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30])
def test_the_quantiles_are_students(freedom: int) -> None:
    from scipy.stats import t

    for share in (0.5, 0.6, 0.9, 0.975, 0.999, 0.2):
        assert t_quantile(share, freedom) == pytest.approx(t.ppf(share, freedom), rel=1e-9, abs=1e-12)


def test_intervals_are_paired() -> None:
    from scipy.stats import ttest_rel

    ours, theirs = [0.95, 0.93, 0.97], [0.85, 0.86, 0.90]
    found = E.paired_gain(ours, theirs)
    wanted = ttest_rel(ours, theirs).confidence_interval(0.95)
    np.testing.assert_allclose(found.interval, wanted)
    assert found.gain == pytest.approx(0.07)
    assert found.helped
    assert not E.paired_gain(ours, [0.99, 0.86, 0.90]).helped
    one = E.paired_gain([0.9], [0.1])
    assert (one.interval, one.helped) == (None, False)
    equal = E.paired_gain([0.8, 0.9, 0.7], [0.7, 0.8, 0.6])  # differences of 0.1 up to rounding: no spread, no interval
    assert (equal.interval, equal.helped) == (None, False)
    with pytest.raises(DataError, match="one finite score a seed"):
        E.paired_gain([0.9, np.nan], [0.1, 0.2])


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(600, 3))
    hits = [low <= 0 <= high for low, high in (E.paired_gain(row, [0, 0, 0]).interval for row in noise)]  # type: ignore[misc]
    assert np.mean(hits) == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / 600))


def test_fine_tuning_uses_the_share_of_each_class_and_leaves_the_encoder() -> None:
    import torch
    from torch import nn

    x, y = blobs(200, classes=4, spread=0.4)
    q, t = blobs(100, classes=4, seed=5, spread=0.4)
    encoder = nn.utils.skip_init(nn.Linear, 5, 8)
    with torch.no_grad():
        encoder.weight.copy_(torch.from_numpy(np.random.default_rng(3).normal(size=(8, 5))))
        encoder.bias.zero_()
    before = encoder.weight.detach().clone()
    found = E.fine_tune(encoder, x, y, q, t, share=0.1, steps=60, lr=0.1)
    assert found.labels == 20
    assert found.accuracy > 0.95
    assert torch.equal(encoder.weight, before)
    assert E.fine_tune(encoder, x, y, q, t, share=0.1, steps=60, lr=0.1).accuracy == found.accuracy
    rows = E.labelled_share(y, 0.01, seed=0)
    assert sorted(y[rows].tolist()) == [0, 1, 2, 3]  # one of each, though 1 % is two
    with pytest.raises(ConfigError, match="share=0"):
        E.labelled_share(y, 0, seed=0)


def test_targets() -> None:
    from sklearn.metrics import f1_score

    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    assert E.accuracy(z, y) == (z.argmax(axis=1) == y).mean()
    assert E.macro_f1(z, y) == pytest.approx(f1_score(y, z.argmax(axis=1), average="macro"))


def test_a_training_reports_them_round_by_round() -> None:
    islands = atoll.data.unlabel(atoll.data.iid(atoll.data.digits(), parties=4, seed=0), keep=200, seed=0)
    metrics = [E.PseudoLabels(0.9), E.NeighbourAccuracy(5), E.ProbeAccuracy()]
    job = atoll.Training(
        model=atoll.models.linear(64, 10), selection=atoll.Everyone(), rounds=2, algorithm=atoll.FedAvg(lr=0.5),
        evaluation=atoll.Evaluation(metrics=metrics),
    )  # fmt: skip
    rows = atoll.simulate(job, islands, engine="inline").metrics
    for name in ("coverage", "purity", "knn_accuracy", "probe_accuracy"):
        values = rows.column(f"test/{name}")
        assert len(values) == 2
        assert all(0 <= value <= 1 for value in values)


def test_balanced_logits_answer_the_class_of_the_least_error_averaged_over_classes() -> None:
    """By Bayes: logits of p(y | x) less the log of p(y) order the classes as p(x | y) does."""
    rng = np.random.default_rng(0)
    likelihood, shares = rng.random((50, 4)), np.array([0.7, 0.2, 0.1, 0.0])
    posterior = likelihood[:, :3] * shares[:3]
    logits = np.concatenate([np.log(posterior / posterior.sum(1, keepdims=True)), np.full((50, 1), 9.0)], axis=1)
    found = E.balanced(logits, 200 * shares)
    assert np.array_equal(found.argmax(1), likelihood[:, :3].argmax(1))
    assert np.isneginf(found[:, 3]).all()  # no label ever said so
