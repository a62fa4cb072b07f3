"""Metrics of scores: monoid laws, and the value that scikit-learn gives on the pooled data."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics import (
    R2,
    AbsoluteError,
    Accuracy,
    Calibration,
    Confusion,
    HingeLoss,
    LogLoss,
    RelativeAccuracy,
    SignAccuracy,
    SquaredError,
    TopKAccuracy,
    pack_metric,
    unpack_metric,
)

sk = pytest.importorskip("sklearn.metrics")
CLASSES = 4
OF_CLASSES = [Accuracy(), TopKAccuracy(2), Confusion(CLASSES), LogLoss(), Calibration(10)]
OF_NUMBERS = [SquaredError(), AbsoluteError(), R2(), R2(center=3.0), RelativeAccuracy()]
OF_SIGNS = [HingeLoss(), SignAccuracy()]
seeds = st.integers(0, 2**32 - 1)


def sample(metric, seed, n):
    rng = np.random.default_rng(seed)
    if metric in OF_CLASSES:
        return rng.normal(size=(n, CLASSES)) * 2, rng.integers(0, CLASSES, n)
    if metric in OF_SIGNS:
        return rng.normal(size=n), rng.choice([-1, 1], n)
    y = rng.uniform(0.5, 9.0, n)
    return y + rng.normal(size=n), y


def close(a, b):
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("metric", OF_CLASSES + OF_NUMBERS + OF_SIGNS, ids=repr)
@given(seed=seeds, sizes=st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_monoid_laws(metric, seed, sizes):
    scores, targets = sample(metric, seed, sum(sizes))
    cuts = np.cumsum(sizes)[:-1]
    x, y, z = (metric.of(s, t) for s, t in zip(np.split(scores, cuts), np.split(targets, cuts), strict=True))
    close(metric.merge(x, y), metric.merge(y, x))
    close(metric.merge(metric.merge(x, y), z), metric.merge(x, metric.merge(y, z)))
    close(metric.merge(metric.zero(), x), x)
    close(metric.merge(metric.merge(x, y), z), metric.of(scores, targets))


def over_clients(metric, scores, targets, parts=5):
    split = zip(np.array_split(scores, parts), np.array_split(targets, parts), strict=True)
    return metric.result(functools.reduce(metric.merge, [metric.of(s, t) for s, t in split], metric.zero()))


@given(seed=seeds, n=st.integers(6, 60))
def test_classification_equals_scikit_learn_on_the_pooled_rows(seed, n):
    scores, y = sample(Accuracy(), seed, n)
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    guess, labels = scores.argmax(axis=1), np.arange(CLASSES)
    assert over_clients(Accuracy(), scores, y)["accuracy"] == pytest.approx(sk.accuracy_score(y, guess))
    for k in (1, 2, 3):
        expected = sk.top_k_accuracy_score(y, scores, k=k, labels=labels)
        assert over_clients(TopKAccuracy(k), scores, y)[f"top_{k}_accuracy"] == pytest.approx(expected)
    log_loss = sk.log_loss(y, probabilities, labels=labels)
    assert over_clients(LogLoss(), scores, y)["log_loss"] == pytest.approx(log_loss, rel=1e-7)
    found = over_clients(Confusion(CLASSES), scores, y)
    for average in ("macro", "weighted"):
        p, r, f, _ = sk.precision_recall_fscore_support(y, guess, average=average, zero_division=0)
        for name, value in (("precision", p), ("recall", r), ("f1", f)):
            assert found[f"{name}_{average}"] == pytest.approx(value), name
    matrix = Confusion(CLASSES).matrix(Confusion(CLASSES).of(scores, y))
    np.testing.assert_array_equal(matrix, sk.confusion_matrix(y, guess, labels=labels))


@given(seed=seeds, n=st.integers(6, 60), outputs=st.integers(1, 3))
def test_regression_equals_scikit_learn_on_the_pooled_rows(seed, n, outputs):
    rng = np.random.default_rng(seed)
    y = rng.uniform(0.5, 9.0, (n, outputs))
    z = y + rng.normal(size=(n, outputs))
    squared = over_clients(SquaredError(), z, y)
    assert squared["mse"] == pytest.approx(sk.mean_squared_error(y, z))
    assert squared["rmse"] == pytest.approx(math.sqrt(sk.mean_squared_error(y, z)))
    assert over_clients(AbsoluteError(), z, y)["mae"] == pytest.approx(sk.mean_absolute_error(y, z))
    assert over_clients(R2(), z, y)["r2"] == pytest.approx(sk.r2_score(y, z), abs=1e-9)


@given(seed=seeds, n=st.integers(6, 60))
def test_hinge_equals_scikit_learn_on_the_pooled_rows(seed, n):
    z, y = sample(HingeLoss(), seed, n)
    y[:2] = [-1, 1]
    assert over_clients(HingeLoss(), z, y)["hinge_loss"] == pytest.approx(sk.hinge_loss(y, z))
    assert over_clients(SignAccuracy(), z, y)["sign_accuracy"] == pytest.approx(sk.accuracy_score(y, np.sign(z)))


def test_a_center_keeps_the_digits_of_r2():
    rng = np.random.default_rng(0)
    y = 1e8 + rng.normal(size=500)
    z = y + 0.1 * rng.normal(size=500)
    assert over_clients(R2(center=1e8), z, y)["r2"] == pytest.approx(sk.r2_score(y, z), abs=1e-6)


def test_relative_accuracy_by_hand():
    """y = 2, z = 4: |2 - 4| / 4 = 0.5; y = 5, z = 5: 0; y = 10, z = -5: 15 / 10 = 1.5. 1 - 2/3."""
    found = RelativeAccuracy().result(RelativeAccuracy().of([4.0, 5.0, -5.0], [2.0, 5.0, 10.0]))
    assert found["relative_accuracy"] == pytest.approx(1 - 2.0 / 3)


def test_a_score_of_zero_is_on_the_wrong_side():
    assert SignAccuracy().result(SignAccuracy().of([0.0, 2.0, -1.0], [1, 1, 1]))["sign_accuracy"] == pytest.approx(
        1 / 3
    )


def test_calibration_by_hand():
    """Four rows at confidence 0.8 of which 3 are right: |0.75 - 0.8| = 0.05; one at 0.6 that is wrong: 0.6. (4*0.05 + 0.6)/5."""

    def logit(p):
        return [math.log(p / (1 - p)), 0.0]

    scores = np.array([logit(0.8)] * 4 + [logit(0.6)])
    found = Calibration(10).result(Calibration(10).of(scores, [0, 0, 0, 1, 1]))
    assert found["calibration_error"] == pytest.approx((4 * 0.05 + 0.6) / 5)


def test_a_confidence_on_an_edge_lies_in_the_bin_below_it():
    """Guo et al. 2017, section 2: bin m is ((m - 1) / M, m / M]. Of two classes, equal scores are a confidence of exactly 1/2, the end of the first of two bins."""
    edge, above = [0.0, 0.0], [math.log(3.0), 0.0]
    summary = Calibration(2).of(np.array([edge, edge, above]), [0, 1, 0])
    assert summary["n"].tolist() == [2.0, 1.0]
    assert summary["confidence"] == pytest.approx([1.0, 0.75])
    assert Calibration(2).result(summary)["calibration_error"] == pytest.approx((0.0 + 0.25) / 3)


def test_of_equal_scores_the_first_ranks_first():
    scores = np.zeros((3, 3))
    assert TopKAccuracy(1).result(TopKAccuracy(1).of(scores, [0, 1, 2]))["top_1_accuracy"] == pytest.approx(1 / 3)
    assert TopKAccuracy(2).result(TopKAccuracy(2).of(scores, [0, 1, 2]))["top_2_accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("labels", [[0, 1, 1], [-1, 1, 1]], ids=str)
def test_one_score_a_row_is_a_logistic_model(labels):
    z = np.array([-1.0, 2.0, -0.5])
    expected = np.mean([math.log1p(math.exp(-1.0)), math.log1p(math.exp(-2.0)), math.log1p(math.exp(0.5))])
    assert LogLoss().result(LogLoss().of(z, labels))["log_loss"] == pytest.approx(expected)
    assert Accuracy().result(Accuracy().of(z[:, None], labels))["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("metric", OF_CLASSES + OF_NUMBERS + OF_SIGNS, ids=repr)
def test_no_rows_have_no_value_and_no_warning(metric):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(math.isnan(v) for v in metric.result(metric.zero()).values())
    scores, targets = sample(metric, 0, 0)
    close(metric.of(scores, targets), metric.zero())


def test_constant_targets_leave_r2_undefined():
    assert math.isnan(R2().result(R2().of([1.0, 2.0], [3.0, 3.0]))["r2"])


@pytest.mark.parametrize("metric", OF_CLASSES + OF_NUMBERS, ids=repr)
def test_a_metric_travels_by_name(metric):
    assert unpack_metric(pack_metric(metric)) == metric


def test_only_metrics_are_made_of_what_travels():
    with pytest.raises(ConfigError, match="no scoremetric named 'subprocess:Popen'"):
        unpack_metric({"metric": "subprocess:Popen", "settings": {}})


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: Accuracy().of(np.zeros((2, 3)), [0, 3]), DataError, "labels «0» to «3»"),
        (lambda: Accuracy().of(np.zeros((2, 3)), [0, -1]), DataError, "labels «-1» to «0»"),
        (lambda: Accuracy().of(np.zeros((2, 3)), [0]), DataError, r"scores of shape \(2, 3\) for targets of shape \(1,\)"),
        (lambda: SquaredError().of(np.zeros((2, 3)), np.zeros(2)), DataError, r"targets of shape \(2,\)"),
        (lambda: RelativeAccuracy().of([1.0, 1.0], [0.0, 1.0]), DataError, "1 targets are not above 0"),
        (lambda: HingeLoss().of([1.0], [0]), DataError, "a target of «0»"),
        (lambda: Confusion(2).of(np.zeros((1, 3)), [2]), ConfigError, "classes=2 and the scores have 3"),
        (lambda: Confusion(1), ConfigError, "classes=1"),
        (lambda: TopKAccuracy(0), ConfigError, "k=0"),
        (lambda: Calibration(0), ConfigError, "bins=0"),
    ],
)  # fmt: skip
def test_bad_input(call, kind, text):
    with pytest.raises(kind, match=text):
        call()
