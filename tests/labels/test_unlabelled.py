"""What is measured without labels: closed forms, sums over parts, ranks, and a stop rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll.core.errors import ConfigError, DataError
from atoll.labels import evaluators as E


def test_entropy_information_and_agreement_in_closed_form() -> None:
    sure, nothing, collapsed = np.eye(4) * 50, np.zeros((4, 4)), np.tile([50.0, 0, 0, 0], (4, 1))
    assert E.mean_entropy(sure) == pytest.approx(0.0, abs=1e-12)
    assert E.mean_entropy(nothing) == pytest.approx(math.log(4))
    assert [E.information(s) for s in (sure, nothing, collapsed)] == pytest.approx([math.log(4), 0, 0], abs=1e-12)
    scores = np.random.default_rng(0).normal(size=(30, 5))
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert E.mean_entropy(scores) == pytest.approx(stats.entropy(p, axis=1).mean())
    assert E.information(scores) == pytest.approx(stats.entropy(p.mean(0)) - stats.entropy(p, axis=1).mean())
    assert E.agreement(sure, np.roll(sure, 1, axis=0)) == 0.0
    assert E.agreement(scores, scores * 3) == 1.0
    assert E.mean_entropy([[0.0], [50.0]]) == pytest.approx(math.log(2) / 2)  # one column: the classes [0, z]
    with pytest.raises(DataError, match="same rows and classes"):
        E.agreement(scores, scores[:3])


def test_the_metric_adds_up_over_parts_and_reads_no_label() -> None:
    scores, metric = np.random.default_rng(1).normal(size=(40, 3)), E.Confidence()
    parts = [metric.of(scores[a:b], np.full(b - a, -1)) for a, b in ((0, 7), (7, 40))]
    summed = metric.merge(metric.merge(metric.zero(), parts[0]), parts[1])
    wanted = {"entropy": E.mean_entropy(scores), "information": E.information(scores)}
    assert metric.result(summed) == pytest.approx(wanted)
    assert all(math.isnan(value) for value in metric.result(metric.zero()).values())


def test_ranks_are_those_of_scipy() -> None:
    draw = np.random.default_rng(2)
    for _ in range(20):
        a, b = draw.integers(0, 6, 9), draw.integers(0, 6, 9)
        assert E.rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert math.isnan(E.rank_correlation([1, 1], [1, 2]))


def test_candidates_are_ranked_the_best_first() -> None:
    sharp, dull = np.eye(3) * 5, np.eye(3)
    assert [name for name, _ in E.rank_without_labels({"dull": dull, "sharp": sharp}, by="entropy")] == [
        "sharp",
        "dull",
    ]
    pair = {"same": sharp, "other": sharp}
    found = E.rank_without_labels(pair, by="agreement", others={"same": dull, "other": np.roll(sharp, 1, 0)})
    assert found == [("same", 1.0), ("other", 0.0)]
    with pytest.raises(ConfigError, match=r"by='loss'.*information"):
        E.rank_without_labels(pair, by="loss")
    with pytest.raises(ConfigError, match="no other scores of same, other"):
        E.rank_without_labels(pair, by="agreement")
    with pytest.raises(ConfigError, match="no candidate"):
        E.rank_without_labels({})


def test_a_training_stops_without_labels() -> None:
    islands = atoll.data.iid(atoll.data.digits(), parties=3, seed=0)
    job: Any = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=atoll.FedAvg(lr=0.5),
        rounds=30,
        evaluation=atoll.learn.Evaluation(metrics=[E.Confidence()]),
        stop=[atoll.Patience("test/information", evaluations=2, margin=0.05)],
    )
    made = atoll.simulate(job, islands, progress=False)
    assert 3 <= len(made.metrics) < 30
    assert made.metrics[0]["test/information"] < made.metrics.last("test/information") < math.log(10)
