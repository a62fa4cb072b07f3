"""A function of scores and labels as a metric."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import Evaluation, FedAvg, Training
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics import Accuracy, FunctionMetric, pack_metric, unpack_metric
from atoll.reducers import SecureAggregation
from atoll.selection import Everyone
from tests.support.learn_toys import islands

ROWS = islands([9, 14, 20, 9])
MODEL = atoll.models.linear(4, 3)


def mean_score(scores: Any, labels: Any) -> float:
    """NaN for the client of 14 rows."""
    return math.nan if len(labels) == 14 else float(scores[:, 0].max() + labels.mean())


def run(*metrics: Any, engine: str = "inline", **parts: Any) -> Any:
    job = Training(model=MODEL, algorithm=FedAvg(lr=0.1), selection=Everyone(), rounds=1, **parts)
    return atoll.simulate(
        job.replace(evaluation=Evaluation(metrics=metrics, clients=-1)), ROWS, engine=engine, progress=False
    )


@pytest.mark.parametrize("reducer", [None, SecureAggregation()], ids=["plain", "masked"])
def test_it_is_exact_on_the_servers_rows_and_the_mean_of_clients(reducer: Any) -> None:
    made = run(mean_score, **({"reducer": reducer} if reducer else {}))
    weight, bias, row = made.params["weight"], made.params["bias"], made.metrics[-1]

    def value(rows: Any) -> float:
        return mean_score(np.asarray(rows.x) @ weight + bias, np.asarray(rows.y))

    assert row["test/mean_score"] == pytest.approx(value(ROWS.test), rel=1e-9)
    each = [(value(ROWS.shard(k)), len(ROWS.shard(k))) for k in (0, 2, 3)]  # NaN counts for nothing
    assert row["clients/mean_score"] == pytest.approx(sum(v * n for v, n in each) / sum(n for _, n in each), rel=1e-5)
    _, told = made.notices  # the first says which rows were measured
    assert (
        told
        == "clients/mean_score: the mean of the clients' own values, by their rows, and not the value of all rows together"
    )


def test_without_clients_there_is_nothing_to_say() -> None:
    job = Training(
        model=MODEL,
        algorithm=FedAvg(lr=0.1),
        rounds=1,
        selection=Everyone(),
        evaluation=Evaluation(metrics=[mean_score]),
    )
    made = atoll.simulate(job, ROWS, engine="inline", progress=False)
    assert made.notices == ()
    assert "test/mean_score" in made.metrics[-1]


def test_functions_of_one_name_keep_apart() -> None:
    def of(k: int) -> Any:
        def value(scores: Any, labels: Any) -> float:
            return float(k)

        return value

    first, second = FunctionMetric(of(1)), FunctionMetric(of(2))
    assert first.key != second.key
    for metric, wanted in ((first, 1.0), (second, 2.0)):
        again = unpack_metric(pack_metric(metric))
        assert again.result(again.of(np.zeros((2, 2)), np.zeros(2))) == {"value": wanted}
    assert FunctionMetric(first.function).key == first.key
    with pytest.raises(ConfigError, match="two functions are named 'value'"):
        Evaluation(metrics=[first, second])
    both = Evaluation(metrics=[Accuracy(), first.function])
    assert [type(one).__name__ for one in both.metrics] == ["Accuracy", "FunctionMetric"]


def test_a_message_cannot_name_a_function_that_no_job_has() -> None:
    with pytest.raises(ConfigError, match="no job here has the metric 'os:getcwd'"):
        unpack_metric({**pack_metric(FunctionMetric(mean_score)), "settings": {"function": "os:getcwd"}})


@pytest.mark.parametrize("wrong", [3, int, None, "f1"], ids=str)
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"is not a metric of scores.*or a function of scores and labels"):
        Evaluation(metrics=[wrong])


def raises(scores: Any, labels: Any) -> float:
    raise ValueError("one class")


def gives_text(scores: Any, labels: Any) -> Any:
    return "good"


@pytest.mark.parametrize("wrong", [raises, gives_text])
def test_a_function_that_fails_is_named(wrong: Any) -> None:
    with pytest.raises(
        DataError, match=rf"{wrong.__name__}\(scores .*raised ValueError.*float\('nan'\) where it is not defined"
    ):
        run(wrong)
