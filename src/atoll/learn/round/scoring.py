"""Scores of a model at sites: of the shared and of personal models, as sums that add up."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.metric import Histogram, Summary
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.task import Task
from atoll.data.missing import known_rows

from ..algorithm import Algorithm, Stateful
from ..metrics import ScoreMetric, unpack_metric
from ..offered import SupportsHeld, SupportsPersonal, SupportsScores

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

    from ..learner import Learner

__all__ = [
    "SPREAD",
    "as_parts",
    "held_model",
    "held_sums",
    "measure_client",
    "merged_results",
    "own_model",
    "rows_measured",
    "scores",
    "scoring_task",
    "summarise",
    "undefined_names",
]


def as_parts(sums: Mapping[str, float]) -> dict[str, Parts]:
    """Return a party's evaluation as a reply: its sums, as one part."""
    value = {name: np.float64(v) for name, v in sums.items()}
    return {"measure": Parts(value, examples=float(sums["n"]), role="metric")}


def scores(sums: Mapping[str, Any]) -> dict[str, float]:
    """Return means from sums: ``loss_sum / n`` becomes ``loss``, ``correct / n`` accuracy, ``squared_error / n`` mse, ..."""
    n = float(sums["n"])
    if n == 0:
        return {}
    names = {"loss_sum": "loss", "correct": "accuracy", "squared_error": "mse", "absolute_error": "mae"}
    found = {names.get(name, name): float(value) / n for name, value in sums.items() if name != "n"}
    if "mse" in found:
        found["rmse"] = float(np.sqrt(found["mse"]))
    return found


# ---------------------------------------------------------------- personal models


class Personal(SupportsPersonal, Protocol):
    """A learner that knows its clients' own models and can evaluate any model."""

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set."""
        ...


def own_model(algorithm: Algorithm, params: Tree, client: Tree) -> Tree:
    """Return ``algorithm.personal``, with running statistics, which travel with the parameters, from the global model."""
    return {**params, **facet(algorithm, Stateful).personal(params, client)}


def rows_measured(data: Any) -> Any:
    """The rows on which a client measures: those that it holds out, if it does (`Islands.with_held_out`), else those that it trains on."""
    held_out = getattr(data, "held_out", None)
    return data if held_out is None else held_out


def measure_client(learner: Personal, island: Island, message: Tree) -> dict[str, Aggregate]:
    """Return a client's reply to ``measure``: the global model on the rows that it measures on and, if the message says ``"personal"``, its own model too."""
    rows = rows_measured(island.data)
    reply: dict[str, Aggregate] = {**as_parts(held_sums(learner, message["params"], island.state, island.data))}
    if message.get("personal"):
        sums = learner.evaluate(learner.personal(message["params"], island.state), rows)
        value = {name: np.float64(v) for name, v in sums.items()}
        reply["personal"] = Parts(value, examples=float(sums["n"]), role="metric")
    return reply


class _Evaluating(Protocol):
    def evaluate(self, params: Tree, data: Any) -> dict[str, float]: ...


def held_model(learner: Any, params: Tree, state: Tree) -> tuple[Tree, bool]:
    """Return a model as a client has it, with the buffers that it keeps, and whether training has made these; see `SupportsHeld`."""
    return learner.held(params, state) if isinstance(learner, SupportsHeld) else (params, True)


def held_sums(learner: _Evaluating, params: Tree, state: Tree, data: Any) -> dict[str, float]:
    """Return sums of a model over the rows on which a client measures, with the buffers that the client keeps; zeros for a client that has none yet."""
    given, known = held_model(learner, params, state)
    sums = learner.evaluate(given, rows_measured(data))
    return sums if known else dict.fromkeys(sums, 0.0)


# ---------------------------------------------------------------- scores at clients


SPREAD = Histogram(0.0, 1.0, 50)
"""Counts clients' shares (such as accuracy) in bins if only sums may be revealed."""


def summarise(metrics: Sequence[ScoreMetric], learner: Learner, params: Tree, data: Any) -> list[Summary]:
    """Return each metric's summary of one data set.

    Raises:
        ConfigError: the learner has no scores.
    """
    if not len(data):
        return [metric.zero() for metric in metrics]
    if not isinstance(learner, SupportsScores):
        raise ConfigError(
            f"{type(learner).__name__} has no `scores(params, x)`",
            where="Evaluation.metrics",
            remedy="give it one, or leave metrics=()",
        )
    data = known_rows(data, "Evaluation.metrics")
    if not len(data):
        return [metric.zero() for metric in metrics]
    scores = learner.scores(params, data.x)
    return [metric.of(scores, np.asarray(data.y)) for metric in metrics]


def undefined_names(metrics: Sequence[ScoreMetric], summaries: Iterable[Sequence[Summary]]) -> list[str]:
    """Return the names of values that are not defined over all of several summaries of each metric."""
    rows = list(summaries)
    known = merged_results(metrics, rows)
    return [name for metric in metrics for name in metric.result(metric.zero()) if name not in known] if rows else []


def merged_results(metrics: Sequence[ScoreMetric], summaries: Iterable[Sequence[Summary]]) -> dict[str, float]:
    """Name -> value over several summaries of each metric; undefined values are left out."""
    rows = list(summaries)
    found: dict[str, float] = {}
    for i, metric in enumerate(metrics):
        merged = functools.reduce(metric.merge, [row[i] for row in rows], metric.zero())
        found.update({name: float(value) for name, value in metric.result(merged).items() if np.isfinite(value)})
    return found


def shares(values: dict[str, float]) -> dict[str, float]:
    """Return the values that are shares of 1."""
    return {name: v for name, v in values.items() if "accuracy" in name and 0.0 <= v <= 1.0}


def scoring_task(learner: Learner) -> Task:
    """Return the task by which a client measures a model on its own data.

    The message contains ``params``, the packed ``metrics``, ``sums``: false replies with the client's own summaries, true with values that add
    up (a secure reducer sees only these): sums, and a 1 in the bin of each of the client's shares; and ``personal``: true also measures the
    client's own model, under names that start with ``"personal_"``.
    """

    def of(params: Tree, data: Any, message: Tree, *, known: bool = True) -> dict[str, Aggregate]:
        metrics = [unpack_metric(packed) for packed in message["metrics"]]
        summaries = summarise(metrics, learner, params, data) if known else [metric.zero() for metric in metrics]
        if not message["sums"]:
            weight = float(len(data)) if known else 0.0
            return {"metrics": Parts(_arrays(summaries), examples=weight, role="metric")}
        own = learner.evaluate(params, data)
        own = own if known else dict.fromkeys(own, 0.0)
        return {
            "measure": Sum({name: np.float64(value) for name, value in own.items()}, role="metric"),
            "metrics": Sum(_arrays(summaries), role="metric"),
            "spread": Sum(_spread(own, metrics, summaries), role="metric"),
        }

    def run(island: Island, message: Tree) -> dict[str, Aggregate]:
        rows = rows_measured(island.data)
        given, known = held_model(learner, message["params"], island.state)
        reply = of(given, rows, message, known=known)
        if not message.get("personal"):
            return reply
        own = of(cast("Personal", learner).personal(message["params"], island.state), rows, message)
        return {**reply, **{f"personal_{name}": aggregate for name, aggregate in own.items()}}

    return Task("atoll.learn.scoring:score", run)


def _arrays(summaries: Sequence[Summary]) -> Tree:
    return [{name: np.asarray(value, dtype=np.float64) for name, value in summary.items()} for summary in summaries]


def _spread(own: dict[str, float], metrics: Sequence[ScoreMetric], summaries: Sequence[Summary]) -> Tree:
    """Return a 1 in the bin of every share that may be revealed; empty for a client without rows."""
    found = shares({**scores(own), **merged_results(metrics, [summaries])})
    names = {"accuracy", *shares({name: 0.0 for metric in metrics for name in metric.result(metric.zero())})}
    return {name: (SPREAD.of([found[name]]) if name in found else SPREAD.zero())["counts"] for name in sorted(names)}
