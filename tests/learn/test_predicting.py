"""A trained model predicts rows of tables: classes, probabilities or numbers, by what its scores are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import CompositionError, DataError
from atoll.data import Dataset, Islands
from atoll.learn.round.predicting import table_model_of
from atoll.runs import load_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2)).astype(np.float32)
SIDE = (X[:, 0] > 0).astype(np.int64)
TURNED = {"b": X[:, 1], "more": np.full(80, "x"), "a": X[:, 0]}


def train(model: Any, y: Any, *, task: str | None = None, labels: tuple[str, ...] = (), **settings: Any) -> Any:
    data = Dataset({"x": X, "y": y}, features=["a", "b"], task=task, labels=labels)
    islands = Islands.from_datasets({"north": data.take(slice(0, 40)), "south": data.take(slice(40, 80))})
    settings = {"algorithm": atoll.FedAvg(lr=0.1), "selection": atoll.Everyone(), "rounds": 2, **settings}
    folder = settings.pop("folder", None)
    job = atoll.Training(model=model, **settings)
    return atoll.simulate(job, islands, engine="inline", progress=False, folder=folder)


def softmax(z: Any) -> Any:
    weights = np.exp(z.astype(np.float64))
    return weights / weights.sum(axis=1, keepdims=True)


def test_classes_of_a_linear_model() -> None:
    result = train(atoll.models.linear(2, 2), SIDE, labels=("left", "right"))
    scores = X.astype(np.float64) @ result.params["weight"] + result.params["bias"]
    np.testing.assert_allclose(result.predict_proba(TURNED), softmax(scores), rtol=0, atol=1e-12)
    names = np.array(["left", "right"])[scores.argmax(axis=1)].tolist()
    assert result.predict(TURNED).tolist() == result.predict(X).tolist() == names
    assert result.to_sklearn().classes_.tolist() == ["left", "right"]


def test_numbers_of_a_regression() -> None:
    result = train(atoll.models.linear(2, 1), 2.0 * X[:, 0])
    theirs = X.astype(np.float64) @ result.params["weight"][:, 0] + result.params["bias"]
    np.testing.assert_allclose(result.predict(TURNED), theirs, rtol=0, atol=1e-12)
    with pytest.raises(CompositionError, match="no probabilities"):
        result.predict_proba(TURNED)


def test_a_hinge_has_signs_and_no_probabilities() -> None:
    result = train(atoll.models.linear(2, 1, "hinge"), 2 * SIDE - 1)
    theirs = X.astype(np.float64) @ result.params["weight"][:, 0] + result.params["bias"]
    assert result.predict(TURNED).tolist() == np.where(theirs > 0, 1, -1).tolist()
    assert not hasattr(result.to_sklearn(), "predict_proba")


def test_losses_of_networks() -> None:
    nn = pytest.importorskip("torch").nn
    torch = pytest.importorskip("torch")

    def outputs(result: Any) -> Any:
        return result.model(torch.from_numpy(X)).detach().numpy()

    two = train(lambda: nn.Linear(2, 2), SIDE, loss=nn.CrossEntropyLoss())
    np.testing.assert_allclose(two.predict_proba(TURNED), softmax(outputs(two)), rtol=0, atol=1e-6)
    logs = train(lambda: nn.Sequential(nn.Linear(2, 2), nn.LogSoftmax(1)), SIDE, loss="nll")
    np.testing.assert_allclose(logs.predict_proba(TURNED), np.exp(outputs(logs)), rtol=0, atol=1e-6)
    one = train(lambda: nn.Linear(2, 1), SIDE, task="binary", loss="bce")
    share = 1 / (1 + np.exp(-outputs(one)[:, 0].astype(np.float64)))
    np.testing.assert_allclose(one.predict_proba(TURNED)[:, 1], share, rtol=0, atol=1e-6)
    assert one.predict(TURNED).tolist() == (share > 0.5).astype(int).tolist()
    far = train(lambda: nn.Linear(2, 2), SIDE, loss="multiclass_hinge")
    assert far.predict(TURNED).tolist() == outputs(far).argmax(axis=1).tolist()
    with pytest.raises(CompositionError, match="no probabilities"):
        far.predict_proba(TURNED)


def _shares(kind: str) -> Any:
    nn = pytest.importorskip("torch").nn
    last = {
        "sigmoid": nn.Sigmoid(),
        "flat sigmoid": nn.Sequential(nn.Sigmoid(), nn.Flatten(0)),
        "softmax": nn.Softmax(1),
        "logits": nn.Identity(),
    }
    return lambda: nn.Sequential(nn.Linear(2, 2 if kind == "softmax" else 1), last[kind])


@pytest.mark.parametrize("kind", ["sigmoid", "flat sigmoid", "softmax", "logits"])
def test_outputs_under_a_loss_of_ones_own_are_what_the_last_layer_makes_of_them(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    F = torch.nn.functional
    losses = {
        "softmax": lambda output, target: F.nll_loss(output.log(), target, reduction="none"),
        "logits": lambda output, target: F.binary_cross_entropy_with_logits(output.flatten(), target.float()),
    }
    loss = losses.get(kind, lambda output, target: F.binary_cross_entropy(output.flatten(), target.float()))
    result = train(_shares(kind), (X[:, 0] > 0.5).astype(np.int64), loss=loss, rounds=8, folder=tmp_path / "run")
    outputs = result.model(torch.from_numpy(X)).detach().numpy().reshape(80, -1)
    second = outputs[:, -1]
    expected = second > (0.0 if kind == "logits" else 0.5)
    assert 10 < expected.sum() < 70
    saved = load_model(tmp_path / "run", model=f"{__name__}:make_{kind.replace(' ', '_')}")
    for model in (result, saved):
        assert model.predict(TURNED).tolist() == expected.astype(int).tolist()
        if kind == "logits":
            with pytest.raises(CompositionError, match="no probabilities"):
                model.predict_proba(TURNED)
        else:
            np.testing.assert_allclose(model.predict_proba(TURNED)[:, 1], second, rtol=0, atol=1e-6)


def make_sigmoid() -> Any:
    return _shares("sigmoid")()


def make_flat_sigmoid() -> Any:
    return _shares("flat sigmoid")()


def make_softmax() -> Any:
    return _shares("softmax")()


def make_logits() -> Any:
    return _shares("logits")()


def test_outputs_that_a_named_loss_misreads_are_refused_or_said() -> None:
    pytest.importorskip("torch")
    for loss in ("bce", "hinge"):
        with pytest.raises(
            DataError, match=rf"between 0 and 1, whatever its weights, and the loss '{loss}' takes log-odds"
        ):
            train(_shares("sigmoid"), SIDE if loss == "bce" else 2 * SIDE - 1, task="binary", loss=loss)
    twice = train(_shares("softmax"), SIDE)
    assert [n for n in twice.notices if "'cross_entropy' takes the softmax of them" in n]
    plain = train(_shares("softmax"), SIDE, loss="nll")
    assert [n for n in plain.notices if "no log-probabilities, which the loss 'nll' takes" in n]
    with pytest.raises(CompositionError, match="no probabilities"):
        plain.predict_proba(TURNED)
    assert not train(_shares("sigmoid"), X[:, 0] / 10, loss="mse").notices  # shares may be what is asked for


def test_no_rows_are_no_predictions() -> None:
    none = {name: column[:0] for name, column in TURNED.items()}
    assert train(atoll.models.linear(2, 2), SIDE).predict_proba(none).shape == (0, 2)
    assert train(atoll.models.linear(2, 1), 2.0 * X[:, 0]).predict(none).shape == (0,)
    nn = pytest.importorskip("torch").nn
    assert train(lambda: nn.Linear(2, 2), SIDE).predict(none).shape == (0,)
    assert train(lambda: nn.Linear(2, 1), 2.0 * X[:, 0]).predict(none).shape == (0,)


def test_an_estimator_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = linear_model.SGDClassifier(loss="log_loss", random_state=0)
    result = train(model, SIDE, algorithm=atoll.FedAvg())
    np.testing.assert_allclose(result.predict_proba(TURNED), result.model.predict_proba(X), rtol=0, atol=1e-9)
    assert result.predict(TURNED).tolist() == result.model.predict(X).tolist()


@pytest.mark.parametrize("models", [1, 2, 3])
def test_several_models_predict_no_table(models: int) -> None:
    result = train(atoll.models.linear(2, 2), SIDE)
    learner, columns = result.prepared.learner, result.table.columns
    stacked = {name: np.stack([value] * models) for name, value in result.params.items()}
    assert table_model_of(learner, result.params, columns, "one") is not None
    assert table_model_of(learner, stacked, columns, "several") is None


def test_a_model_without_scores_says_what_predicts() -> None:
    with pytest.raises(CompositionError, match="does not take rows"):
        train(atoll.models.IdleModel(), SIDE).predict(TURNED)
