"""Metrics of a learner's scores, computed at the data and added up."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.metric import Histogram, Summary
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.task import Task
from atoll.data.missing import known_rows

from ..metrics import ScoreMetric, unpack_metric
from ..offered import SupportsScores

if TYPE_CHECKING:
    from atoll.core.requests.island import Island

    from ..learner import Learner
    from .personal import Personal

__all__ = ["SPREAD", "merged_results", "scoring_task", "shares", "summarise"]

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

    def of(params: Tree, data: Any, message: Tree) -> dict[str, Aggregate]:
        metrics = [unpack_metric(packed) for packed in message["metrics"]]
        summaries = summarise(metrics, learner, params, data)
        if not message["sums"]:
            return {"metrics": Parts(_arrays(summaries), examples=float(len(data)), role="metric")}
        own = learner.evaluate(params, data)
        return {
            "measure": Sum({name: np.float64(value) for name, value in own.items()}, role="metric"),
            "metrics": Sum(_arrays(summaries), role="metric"),
            "spread": Sum(_spread(own, metrics, summaries), role="metric"),
        }

    def run(island: Island, message: Tree) -> dict[str, Aggregate]:
        reply = of(message["params"], island.data, message)
        if not message.get("personal"):
            return reply
        own = of(cast("Personal", learner).personal(message["params"], island.state), island.data, message)
        return {**reply, **{f"personal_{name}": aggregate for name, aggregate in own.items()}}

    return Task("atoll.learn.scoring:score", run)


def _arrays(summaries: Sequence[Summary]) -> Tree:
    return [{name: np.asarray(value, dtype=np.float64) for name, value in summary.items()} for summary in summaries]


def _spread(own: dict[str, float], metrics: Sequence[ScoreMetric], summaries: Sequence[Summary]) -> Tree:
    """Return a 1 in the bin of every share that may be revealed; empty for a client without rows."""
    from .row_sums import scores

    found = shares({**scores(own), **merged_results(metrics, [summaries])})
    names = {"accuracy", *shares({name: 0.0 for metric in metrics for name in metric.result(metric.zero())})}
    return {name: (SPREAD.of([found[name]]) if name in found else SPREAD.zero())["counts"] for name in sorted(names)}
