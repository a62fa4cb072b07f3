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
    _, *undefined, told = made.notices  # the first says which rows were measured
    assert (
        told
        == "clients/mean_score: the mean of the clients' own values, by their rows, and not the value of all rows together"
    )
    if reducer is None:  # a secure sum shows no client's value
        name = ROWS.names[1]
        assert undefined == [f"clients/mean_score is NaN or infinite at {name} in 1 of 1 rounds, which do not count"]
        assert row["undefined_metrics"] == {"clients/mean_score": name}


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


def test_a_value_that_no_client_has_is_said_not_to_be_there() -> None:
    def never(scores: Any, labels: Any) -> float:
        return math.inf

    made = run(never)
    assert "clients/never" not in made.metrics[-1]
    assert [told for told in made.notices if "never" in told] == [
        "test/never is NaN or infinite at the test rows in all its evaluations, so it has no value",
        "clients/never is NaN or infinite at every client in all its evaluations, so it has no value",
    ]


def late(first: int) -> Any:
    """A metric that is NaN in the first evaluations of the test rows."""
    calls: list[int] = []

    def area(scores: Any, labels: Any) -> float:
        calls.append(1)
        return math.nan if len(calls) <= first else len(calls) / 10

    return area


@pytest.mark.parametrize(
    ("parts", "rounds", "best"),
    [
        ({"stop": [atoll.Target("test/area", 0.35)]}, 4, None),
        ({"stop": [atoll.Patience("test/area", evaluations=1)]}, 5, None),
        ({"keep_best": "test/area"}, 5, 5),
    ],
)
def test_a_metric_that_is_nan_at_first_is_waited_for(parts: dict[str, Any], rounds: int, best: int | None) -> None:
    job = Training(model=MODEL, algorithm=FedAvg(lr=0.1), selection=Everyone(), rounds=5, **parts)
    made = atoll.simulate(job.replace(evaluation=Evaluation(metrics=[late(2)])), ROWS, engine="inline", progress=False)
    assert len(made.metrics) == rounds
    assert (made.best and made.best.round) == best
    assert "test/area is NaN or infinite at the test rows in 2 of" in made.notices[0]


def test_a_metric_that_is_never_measured_is_refused_as_before() -> None:
    job = Training(model=MODEL, algorithm=FedAvg(lr=0.1), selection=Everyone(), rounds=2, keep_best="test/areas")
    with pytest.raises(ConfigError, match="metric 'test/areas' is not measured"):
        atoll.simulate(job.replace(evaluation=Evaluation(metrics=[late(2)])), ROWS, engine="inline", progress=False)


LABELS_FIRST = [
    "y_true y_pred", "y p", "gt pred", "t y", "label logit", "references predictions", "observed simulated", "tgt out", "yTrue yScore", "labels x", "y y_hat",
    "Targets Outputs", "expected_output output", "prob_true prob_pred", "* y_true, y_pred", "* y_true, y_score, weight=None",
]  # fmt: skip
OUTPUTS_FIRST = [
    "scores labels",
    "preds target",
    "input target",
    "yhat y",
    "p y",
    "o t",
    "s l",
    "y t",
    "x label",
    "* y_pred, y_true",
]
UNKNOWN = ["a b", "x y", "y z", "labels targets", "*both", "one two, three=3"]


def give_first(signature: str, labels_first: bool) -> Any:
    """Return a function of these parameters that returns the first of its scores."""
    stars, plain = signature.startswith("* "), signature.removeprefix("* ").replace(" ", ", ", 1).replace(",,", ",")
    first, second = plain.replace(",", " ").split()[:2] if "both" not in plain else ("both[0]", "both[1]")
    made: Any = eval(f"lambda {'*, ' if stars else ''}{plain}: float(({second if labels_first else first})[0])")
    return made


@pytest.mark.parametrize("signature", [*LABELS_FIRST, *OUTPUTS_FIRST, *UNKNOWN])
def test_arguments_go_where_their_names_say_and_a_doubt_is_said(signature: str) -> None:
    scores, labels = np.array([[0.25], [0.5]]), np.array([0, 1])
    metric = FunctionMetric(give_first(signature, signature in LABELS_FIRST))
    assert metric.result(metric.of(scores, labels)) == {metric.name: 0.25}
    assert bool(metric.doubt) == (signature in UNKNOWN)


def test_a_result_says_which_argument_of_unknown_names_gets_what() -> None:
    def apart(a: Any, b: Any) -> float:
        return float(a.sum() - b.sum())

    assert [told for told in run(apart, mean_score).notices if "gets the model's scores" in told] == [
        "apart gets the model's scores as a and the labels as b: name the parameters scores and labels, or y_true and y_pred, to say which is which"
    ]


def test_one_output_has_the_shape_of_the_labels() -> None:
    """Of shape (n, 1) beside (n,), the difference would be that of every row with every other."""

    def squared(scores: Any, labels: Any) -> float:
        return float(((scores - labels) ** 2).mean())

    metric = FunctionMetric(squared)
    assert metric.result(metric.of(np.array([[1.0], [3.0]]), np.array([1.0, 3.0]))) == {"squared": 0.0}


def test_a_metric_with_a_built_in_name_is_refused() -> None:
    def accuracy(scores: Any, labels: Any) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"a function is named 'accuracy'.*rename it"):
        Evaluation(metrics=[accuracy])


def test_an_object_begins_anew_for_each_client() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, scores: Any, labels: Any) -> float:
            self.calls += 1
            return self.calls

    assert run(Counting()).metrics[-1]["clients/Counting/values"] == [1.0] * 4
