"""Evaluation: at the server, over clients' rows together, and the distribution over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import Plain
from atoll.learn import Evaluation, Training
from atoll.learn.metrics import Accuracy, Confusion, LogLoss, ScoreMetric, TopKAccuracy
from atoll.learn.round.evaluation import distribution, scores
from tests.support.learn_toys import islands

SIZES = [4, 7, 12, 20, 3]
METRICS = (Accuracy(), Confusion(3), LogLoss(), TopKAccuracy(2))


@dataclass(frozen=True)
class Sealed(Plain):
    """A reducer that reveals sums only."""

    secure: ClassVar[bool] = True


def job(**parts):
    return Training(
        **{
            "model": atoll.models.linear(4, 3),
            "algorithm": FedAvg(lr=0.1),
            "selection": atoll.Everyone(),
            "rounds": 2,
            **parts,
        }
    )


def run(data=None, **parts):
    return atoll.simulate(job(**parts), data or islands(SIZES), engine="inline")


def test_the_server_measures_on_its_own_test_set():
    data = islands(SIZES)
    result = run(data, evaluation=Evaluation(metrics=METRICS))
    row, z = result.metrics[-1], result.model(data.test.x)
    assert row["test/accuracy"] == pytest.approx((z.argmax(1) == data.test.y).mean())
    assert row["test/log_loss"] == pytest.approx(row["test/loss"])  # the model has no weight decay
    for name in ("f1_macro", "recall_weighted", "top_2_accuracy"):
        assert 0.0 <= row[f"test/{name}"] <= 1.0
    assert row["test/recall_weighted"] == pytest.approx(row["test/accuracy"])


def test_clients_add_up_to_their_pooled_rows():
    """F1 over clients is that of all rows together, not a mean of the clients' F1."""
    data = islands(SIZES)
    result = run(data, evaluation=Evaluation(clients=-1, metrics=METRICS))
    row, pooled = result.metrics[-1], data.pooled()
    z = result.model(pooled.x)
    for metric in METRICS:
        for name, value in metric.result(metric.of(z, pooled.y)).items():
            assert row[f"clients/{name}"] == pytest.approx(value), name
    one_by_one = [float((result.model(s.x).argmax(1) == s.y).mean()) for s in data]
    assert row["clients/accuracy/values"] == pytest.approx(one_by_one, abs=1e-6)
    assert row["clients/accuracy/worst_decile"] == pytest.approx(min(one_by_one))
    assert row["clients/log_loss/worst_decile"] == pytest.approx(max(row["clients/log_loss/values"]), abs=1e-6)


def test_some_clients_are_drawn_anew_each_time():
    rows = run(evaluation=Evaluation(clients=2), rounds=6).metrics
    assert {len(row["clients/accuracy/values"]) for row in rows} == {2}
    assert len({tuple(row["clients/accuracy/values"]) for row in rows}) > 1


def test_how_often():
    rows = run(evaluation=Evaluation(every=2, clients=-1, clients_every=3), rounds=5).metrics
    assert [row["round"] for row in rows if "test/accuracy" in row] == [2, 4, 5]
    assert [row["round"] for row in rows if "clients/accuracy" in row] == [3, 5]
    assert not any("test/accuracy" in row for row in run(evaluation=Evaluation(server=False)).metrics)


def test_a_secure_reducer_gets_sums_and_a_histogram():
    open_, sealed = (
        run(evaluation=Evaluation(clients=-1, metrics=METRICS), reducer=r).metrics[-1] for r in (Plain(), Sealed())
    )
    for name in ("accuracy", "loss", "f1_macro", "log_loss", "top_2_accuracy"):
        assert sealed[f"clients/{name}"] == pytest.approx(open_[f"clients/{name}"]), name
    assert "clients/accuracy/values" not in sealed
    for name in ("worst_decile", "best_decile"):
        assert abs(sealed[f"clients/accuracy/{name}"] - open_[f"clients/accuracy/{name}"]) <= 1 / 50
    assert sum(sealed["clients/accuracy/histogram"]) == len(SIZES)


@dataclass(frozen=True)
class Worst(ScoreMetric):
    """The largest score: not additive."""

    additive: ClassVar[bool] = False

    def zero(self):
        return {"max": -1e9}

    def merge(self, a, b):
        return {"max": max(float(a["max"]), float(b["max"]))}

    def of(self, scores, targets):
        return {"max": float(np.max(scores))}

    def result(self, summary):
        return {"largest": float(summary["max"])}


def test_metrics_that_do_not_add_up_are_refused_under_a_secure_reducer():
    assert "clients/largest" in run(evaluation=Evaluation(clients=-1, metrics=(Worst(),))).metrics[-1]
    with pytest.raises(CompositionError, match="Worst is not additive, and Sealed reveals sums only"):
        job(evaluation=Evaluation(clients=-1, metrics=(Worst(),)), reducer=Sealed())
    job(evaluation=Evaluation(clients=0, metrics=(Worst(),)), reducer=Sealed())


def test_a_client_without_rows_is_no_client_of_the_distribution():
    data = islands([6, 1])
    train, test = data.holdout(0.5)
    assert test.sizes.tolist() == [3, 0]
    result = run(test, evaluation=Evaluation(clients=-1, metrics=METRICS))
    assert len(result.metrics[-1]["clients/accuracy/values"]) == 1
    del train


def test_scores_are_means_of_sums():
    found = scores(
        {"n": 4.0, "loss_sum": 2.0, "correct": 3.0, "squared_error": 16.0, "absolute_error": 4.0, "own": 1.0}
    )
    assert found == {"loss": 0.5, "accuracy": 0.75, "mse": 4.0, "rmse": 2.0, "mae": 1.0, "own": 0.25}
    assert scores({"n": 0.0, "loss_sum": 0.0}) == {}


def test_deciles_by_hand():
    """20 clients of accuracy 0.00, 0.05, ..., 0.95: the worst tenth is two clients, mean 0.025; for losses worst is high."""
    values = [{"accuracy": k / 20, "loss": k / 20} for k in range(20)]
    found = distribution(values, [1.0] * 20)
    assert found["clients/accuracy"] == pytest.approx(0.475)
    assert found["clients/accuracy/worst_decile"] == pytest.approx(0.025)
    assert found["clients/accuracy/best_decile"] == pytest.approx(0.925)
    assert found["clients/loss/worst_decile"] == pytest.approx(0.925)
    assert found["clients/accuracy/median"] == pytest.approx(0.475)
    assert found["clients/accuracy/std"] == pytest.approx(np.std(np.arange(20) / 20))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 0}, "every=0"),
        ({"clients_every": 0}, "clients_every=0"),
        ({"clients": -2}, "clients=-2"),
        ({"metrics": ["f1"]}, "'f1' is not a metric of scores"),
    ],
)
def test_bad_settings(settings, text):
    with pytest.raises(ConfigError, match=text):
        Evaluation(**settings)


def test_a_learner_without_scores_is_named():
    class Mute:
        def evaluate(self, params, data):
            return {"n": 1.0, "loss_sum": 0.0}

    with pytest.raises(ConfigError, match=r"Mute has no `scores\(params, x\)`"):
        Evaluation(metrics=(Accuracy(),)).at_server(Mute(), {}, islands([3]).test)
