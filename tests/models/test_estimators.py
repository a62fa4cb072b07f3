"""scikit-learn estimators as learners."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import atoll
from atoll.aggregation import KeepLocal
from atoll.algorithms import FedAvg, FedSGD, SufficientStatistics
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.data import Dataset, Islands
from atoll.learn import Evaluation, Training
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.metrics import Accuracy, HingeLoss, LogLoss
from atoll.selection import Everyone, Uniform
from tests.support.learn_toys import islands

pytest.importorskip("sklearn")
from sklearn import linear_model as lm
from sklearn import naive_bayes as nb
from sklearn.cluster import KMeans
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

CLASSIFIERS = [
    lm.SGDClassifier(),
    lm.SGDClassifier(loss="log_loss"),
    lm.Perceptron(),
    lm.LogisticRegression(max_iter=20),
    lm.LogisticRegression(max_iter=5, warm_start=True),
    lm.RidgeClassifier(),
    LinearSVC(),
    MLPClassifier(hidden_layer_sizes=(8,), batch_size=8, learning_rate_init=0.05),
]
REGRESSORS = [
    lm.LinearRegression(),
    lm.Ridge(),
    lm.SGDRegressor(eta0=0.05),
    MLPRegressor(hidden_layer_sizes=(8,), batch_size=8, learning_rate_init=0.01),
]


def name(model):
    return str(model)


def blobs(sizes=(60, 60, 60), classes=3, *, only=None):
    """Well separated classes; ``only`` gives each client its classes."""
    rng = np.random.default_rng(0)
    centers = 4.0 * np.eye(classes, 5)
    parts = []
    for k, n in enumerate([*sizes, 90]):
        mine = only[k] if only and k < len(sizes) else range(classes)
        y = np.array([list(mine)[i % len(mine)] for i in range(n)])
        parts.append(
            Dataset({"x": centers[y] + rng.normal(size=(n, 5)), "y": y}, task="classification", classes=classes)
        )
    return Islands.from_datasets(parts[:-1], test=parts[-1])


def line(sizes=(40, 50, 60), targets=1):
    rng = np.random.default_rng(1)
    w = rng.normal(size=(4, targets))
    parts = []
    for n in [*sizes, 80]:
        x = rng.normal(size=(n, 4))
        y = x @ w + 0.1 * rng.normal(size=(n, targets)) + 2.0
        parts.append(Dataset({"x": x, "y": y[:, 0] if targets == 1 else y}, task="regression"))
    return Islands.from_datasets(parts[:-1], test=parts[-1])


def train(model, data, rounds=6, **parts):
    parts = {"algorithm": FedAvg(epochs=2), "selection": Everyone(), "rounds": rounds, **parts}
    return atoll.simulate(Training(model=model, **parts), data, engine="inline", seed=3)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=name)
def test_classifiers_learn_and_export_themselves(model):
    before = copy.deepcopy(model.__dict__)
    data = blobs()
    result = train(model, data)
    assert model.__dict__ == before, "the estimator was changed"
    assert type(result.model) is type(model)
    test = data.test
    score = result.model.score(test.x, test.y)
    assert score > 0.9
    assert result.metrics.last("test/accuracy") == pytest.approx(score)
    assert set(result.model.predict(test.x)) <= {0, 1, 2}
    assert result.metrics.last("loss") >= 0.0


@pytest.mark.parametrize("model", REGRESSORS, ids=name)
def test_regressors_learn_and_export_themselves(model):
    data = line()
    result = train(model, data, rounds=15)
    assert result.model.score(data.test.x, data.test.y) > 0.9
    error = result.model.predict(data.test.x) - data.test.y
    assert result.metrics.last("test/mse") == pytest.approx((error**2).mean())
    assert result.metrics.last("test/mae") == pytest.approx(np.abs(error).mean())


@pytest.mark.parametrize("model", [*CLASSIFIERS, nb.GaussianNB()], ids=name)
def test_same_seed_same_result(model):
    algorithm = SufficientStatistics() if isinstance(model, nb.GaussianNB) else FedAvg(epochs=2)
    runs = [train(model, blobs(), rounds=2, selection=Uniform(2), algorithm=algorithm).params for _ in range(2)]
    for key in runs[0]:
        np.testing.assert_array_equal(runs[0][key], runs[1][key])


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_other_engines_give_the_same(engine):
    job = Training(model=lm.SGDClassifier(), algorithm=FedAvg(epochs=2), selection=Uniform(2), rounds=3)
    inline, other = (atoll.simulate(job, blobs(), engine=e) for e in ("inline", engine))
    np.testing.assert_allclose(other.params["coef"], inline.params["coef"], rtol=1e-12)


def test_one_client_is_the_estimator_itself():
    """Two rounds of one pass each equal two calls of partial_fit with the same random states."""
    data = blobs(sizes=(40,))
    result = train(lm.SGDClassifier(loss="log_loss"), data, rounds=1, algorithm=FedAvg(epochs=1))
    direct = lm.SGDClassifier(loss="log_loss")
    learner = adapt(direct, LearnerSettings(algorithm=FedAvg()), data)
    rng = _key_of(data, 1)
    direct.set_params(random_state=rng.child("epoch", 0).key % (1 << 31))
    direct.partial_fit(data.shard(0).x, data.shard(0).y, classes=np.arange(3))
    np.testing.assert_allclose(result.model.coef_, direct.coef_, rtol=1e-12)
    assert learner.classes.tolist() == [0, 1, 2]


def _key_of(data, number):
    """The stream of client 0 in a round of a training under seed 3."""
    from atoll.core.algebra.rng import Rng

    name = "atoll.learn.estimators.base:SGDClassifier:train"
    request = Rng.of(3).child("main", name, f"@{number}/train")
    return request.child(data.names[0])


def test_averaged_least_squares_is_the_weighted_mean_of_the_clients_fits():
    data = line()
    fits = [lm.LinearRegression().fit(s.x, s.y) for s in data]
    expected = np.average([f.coef_ for f in fits], axis=0, weights=data.sizes)
    result = train(lm.LinearRegression(), data, rounds=1)
    np.testing.assert_allclose(result.model.coef_, expected, rtol=1e-10)
    np.testing.assert_allclose(result.model.intercept_, np.average([f.intercept_ for f in fits], weights=data.sizes))
    several = train(lm.Ridge(), line(targets=2), rounds=1)
    assert several.model.coef_.shape == (2, 4)
    assert several.model.predict(np.zeros((3, 4))).shape == (3, 2)


ALONE = "ignore:.*cannot be fitted to one class:RuntimeWarning"


@pytest.mark.every(2)  # every second classifier
@pytest.mark.parametrize("model", CLASSIFIERS, ids=name)
@pytest.mark.filterwarnings(ALONE)
def test_clients_that_lack_classes(model):
    """Three clients, of which one has all classes, one has two and one has a single one."""
    data = blobs(only=[[0, 1, 2], [0, 2], [1]])
    result = train(model, data, rounds=8)
    assert result.model.score(data.test.x, data.test.y) > 0.8


def test_clients_of_one_class_that_cannot_be_fitted_are_told_of():
    job = Training(model=lm.LogisticRegression(), selection=Everyone(), rounds=1)
    with pytest.warns(RuntimeWarning, match="LogisticRegression cannot be fitted to one class: .* do not count"):
        atoll.simulate(job, blobs(sizes=(40, 40), only=[[0, 1, 2], [1]]), engine="inline")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "mse"}, "loss='mse' has no effect on SGDClassifier, which has its own loss"),
        (
            {"algorithm": FedAvg(lr=0.5)},
            "lr=0.5 has no effect on SGDClassifier, which trains with its own learning rate",
        ),
        ({"algorithm": FedAvg(batch_size=3)}, "batch_size=3 has no effect on SGDClassifier"),
        ({"algorithm": FedAvg(steps=3)}, r"steps=3 has no effect.*leave steps out"),
    ],
)
def test_settings_that_cannot_act_are_refused(settings, message):
    with pytest.raises(CompositionError, match=message):
        atoll.simulate(Training(model=lm.SGDClassifier(), rounds=1, selection=Everyone(), **settings), blobs())


@pytest.mark.filterwarnings(ALONE)
def test_rows_of_absent_classes_stay():
    data = blobs(sizes=(40, 40), only=[[0, 2], [1]], classes=4)
    for model, factor in ((lm.LogisticRegression(), 0.5), (LinearSVC(random_state=0), 1.0)):
        result = train(model, data, rounds=1)
        fitted = model.__class__(**model.get_params()).fit(data.shard(0).x, data.shard(0).y)
        coef = result.params["coef"]
        if isinstance(model, lm.LogisticRegression):
            np.testing.assert_allclose(coef[2], factor * fitted.coef_[0], rtol=1e-6)
        np.testing.assert_allclose(coef[0], -coef[2])
        np.testing.assert_array_equal(coef[[1, 3]], 0.0)


def test_warm_start_goes_on_where_the_server_is():
    """Few iterations a round with warm starts reach what many reach; without, every round begins anew."""
    data = blobs()
    warm = train(lm.LogisticRegression(max_iter=2, warm_start=True), data, rounds=12).metrics.last("test/loss")
    cold = train(lm.LogisticRegression(max_iter=2), data, rounds=12).metrics.last("test/loss")
    assert warm < 0.8 * cold


@pytest.mark.parametrize(
    "model",
    [lm.SGDClassifier(loss="hinge"), lm.SGDClassifier(loss="log_loss"), lm.LogisticRegression(), LinearSVC()],
    ids=name,
)
def test_two_classes_with_signs(model):
    rng = np.random.default_rng(0)
    y = rng.choice([-1, 1], 120)
    x = y[:, None] * np.array([1.0, -0.5]) + 0.3 * rng.normal(size=(120, 2))
    whole = Dataset({"x": x, "y": y}, task="binary")
    data = atoll.data.iid(whole.take(slice(0, 90)), parties=3, seed=0).with_test(whole.take(slice(90, 120)))
    metrics = (Accuracy(), HingeLoss(), LogLoss())
    result = train(model, data, evaluation=Evaluation(metrics=metrics))
    row = result.metrics[-1]
    assert row["test/accuracy"] == pytest.approx(result.model.score(data.test.x, data.test.y))
    assert row["test/accuracy"] > 0.9
    loss = "log_loss" if hasattr(result.model, "predict_proba") else "hinge_loss"
    assert row["test/loss"] == pytest.approx(row[f"test/{loss}"])


def test_the_loss_is_scikit_learns():
    from sklearn.metrics import log_loss

    data = blobs()
    result = train(lm.LogisticRegression(max_iter=50), data, rounds=1)
    expected = log_loss(data.test.y, result.model.predict_proba(data.test.x))
    assert result.metrics.last("test/loss") == pytest.approx(expected)


@pytest.mark.parametrize(
    "model",
    [nb.GaussianNB(), nb.MultinomialNB(), nb.BernoulliNB(), nb.ComplementNB(), nb.GaussianNB(priors=[0.2, 0.3, 0.5])],
    ids=name,
)
def test_naive_bayes_is_that_of_the_pooled_rows(model):
    rng = np.random.default_rng(0)
    parts = []
    for n in (30, 50, 7, 40):
        y = rng.integers(0, 3, n)
        x = rng.poisson(1.0 + y[:, None] * np.array([1.0, 0.2, 2.0, 0.0])).astype(float)
        parts.append(Dataset({"x": x, "y": y}, classes=3))
    data = Islands.from_datasets(parts[:-1], test=parts[-1])
    pooled, test = data.pooled(), data.test
    whole = type(model)(**model.get_params()).fit(pooled.x, pooled.y)
    result = train(model, data, rounds=1, algorithm=SufficientStatistics())
    np.testing.assert_allclose(result.model.predict_proba(test.x), whole.predict_proba(test.x), rtol=1e-8, atol=1e-12)
    assert result.metrics.last("test/accuracy") == pytest.approx(whole.score(test.x, test.y))


def test_a_class_that_nobody_has_is_never_guessed():
    data = blobs(only=[[0, 1], [1], [0]], classes=3)
    for model in (nb.GaussianNB(), nb.BernoulliNB()):
        result = train(model, data, rounds=1, algorithm=SufficientStatistics())
        assert 2 not in result.model.predict(data.test.x)


def test_a_factory_and_other_operators():
    data = blobs()
    made = train(lambda: lm.SGDClassifier(), data, aggregation=KeepLocal())
    assert made.model.score(data.test.x, data.test.y) > 0.9


def test_the_learning_rate_goes_on_from_round_to_round():
    """With eta = eta0 / t the second round's steps are smaller; a client keeps its own count."""
    model = lm.SGDClassifier(learning_rate="invscaling", eta0=1.0, power_t=1.0)
    data = blobs(sizes=(30,))
    first, second, third = (train(model, data, rounds=k).params["coef"] for k in (1, 2, 3))
    assert np.linalg.norm(third - second) < np.linalg.norm(second - first) < np.linalg.norm(first)


@pytest.mark.parametrize(
    ("model", "data", "kind", "text"),
    [
        (lm.LinearRegression(), blobs, DataError, "a regressor for a classification task"),
        (lm.LogisticRegression(), line, DataError, "a classifier for a regression task"),
        (DecisionTreeClassifier(), blobs, ConfigError, "DecisionTreeClassifier has no coefficients to average"),
        (lm.SGDClassifier(average=True), blobs, ConfigError, "average and early_stopping keep other weights"),
        (lm.SGDClassifier(class_weight="balanced"), blobs, ConfigError, "SGDClassifier cannot be used here"),
        (MLPClassifier(solver="lbfgs"), blobs, ConfigError, "solver='lbfgs'"),
        (nb.GaussianNB(), blobs, CompositionError, "FedAvg trains the model at its clients, and GaussianNB is not trained, but estimated from sums"),
        (KMeans(2), blobs, DataError, "a regressor for a classification task"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
def test_estimators_that_cannot_be_trained(model, data, kind, text):
    with pytest.raises(kind, match=text):
        train(model, data())


def test_algorithms_that_cannot_train_an_estimator():
    with pytest.raises(
        CompositionError, match="FedSGD changes the local step, and SGDClassifier runs its own training"
    ):
        train(lm.SGDClassifier(), blobs(), algorithm=FedSGD())
    with pytest.raises(
        CompositionError,
        match="SufficientStatistics sends sums of statistics, and SGDClassifier is trained by gradients and has no such statistics",
    ):
        train(lm.SGDClassifier(), blobs(), algorithm=SufficientStatistics())
    with pytest.raises(
        CompositionError,
        match="SufficientStatistics sends sums of statistics, and LinearLearner is trained by gradients and has no such statistics",
    ):
        train(atoll.models.linear(4, 3), islands([5, 5]), algorithm=SufficientStatistics())


def test_classes_must_be_known():
    class Bare:
        def __len__(self):
            return 1

        def shard(self, i):
            return blobs().shard(0)

    with pytest.raises(ConfigError, match="the classes of the data are unknown beforehand"):
        adapt(lm.SGDClassifier(), LearnerSettings(algorithm=FedAvg()), Bare())
