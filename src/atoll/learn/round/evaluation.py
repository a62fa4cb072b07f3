"""What a training measures, when, and the headline numbers of its records; scores at sites, of the shared and of personal models, are sums that add up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Parts, Sum
from atoll.core.algebra.metric import Histogram, Summary
from atoll.core.algebra.tree import Tree
from atoll.core.capability import CENTRAL_SERVER, REPLIES_ONLY, SINGLE_REPLIES, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.task import Task
from atoll.core.validation import Checked
from atoll.data.missing import known_rows
from atoll.rounds.history import record_participants

from ..algorithm import Algorithm, Stateful
from ..capabilities import OWN_MODELS, PERSONAL_MEASURES, PLAIN_MEAN, SELF_FOLDING
from ..learner import SupportsHeld, SupportsPersonal, SupportsScores
from ..metrics import FunctionMetric, HumanTime, ScoreMetric, pack_metric, unpack_metric
from ..metrics.function import require_function

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ..learner import Learner

__all__ = [
    "EVERYWHERE",
    "Evaluation",
    "SPREAD",
    "TrainingMeasures",
    "UNDEFINED",
    "as_parts",
    "distribution",
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


_BUILT_IN = ("loss", "accuracy", "mse", "mae", "rmse")
"""What every evaluation may measure; see `atoll.learn.round.evaluation.scores`."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Checked):
    """What to measure, and how often.

    Attributes:
        every: rounds between evaluations; the last round is always evaluated, unless a callback stops the training.
        server: evaluate the global model on the server's own test set.
        clients: also evaluate it at this many clients (all with ``-1``, none with 0), for the distribution over clients.
        clients_every: rounds between evaluations at clients; by default as often as ``every``.
        personal: also evaluate each of these clients' own models (``Algorithm.personal``), under names that start with ``"personal/"``; a
            client that has not trained uses the global one.
        metrics: metrics in addition to the loss and the task's defaults, such as ``Confusion(10)``; see ``atoll.learn.metrics``. A function of scores and labels is one
            too: at clients, the mean of their values.
        cross_site: after the last round, also evaluate the global models and each site's own model on every site's data, as ``result.cross_site``;
            see `CrossSite`. A site's own model goes to all other sites, sealed.
        gaps: after the last round, also compare the model on rows that clients train on, rows that they hold out, and clients that never train, as
            ``result.gaps``; see `Gaps`. Rows then list the participants.
        min_count: smallest number of rows behind what a site tells in ``cross_site``; smaller sites tell nothing. ``None`` is the
            largest that the sites' policies require, 1 if none does.
        participants: whether every round's row lists the invited clients and those with taken replies, by position (``selected_clients``,
            ``replied_clients``); ``History.participation`` counts them.
        human_time: how long every round would take on real devices and links, as ``human_seconds``; not recorded if ``None``.
    """

    every: int = 1
    server: bool = True
    clients: int = 0
    clients_every: int | None = None
    personal: bool = False
    metrics: Sequence[ScoreMetric] = ()
    human_time: HumanTime | None = None
    participants: bool = False
    cross_site: bool = False
    min_count: int | None = None
    gaps: bool = False

    def __post_init__(self) -> None:
        if self.every < 1 or (self.clients_every is not None and self.clients_every < 1):
            raise ConfigError(f"every={self.every}, clients_every={self.clients_every}", remedy="use at least 1 round")
        if self.clients < -1:
            raise ConfigError(f"clients={self.clients}", remedy="use a number of clients, 0 for none, -1 for all")
        least = 1 if self.min_count is None else self.min_count
        if least < 1 or (least > 1 and not self.cross_site):
            raise ConfigError(
                f"min_count={self.min_count} with cross_site={self.cross_site}",
                where="Evaluation",
                remedy="use a whole number of at least 1, and cross_site=True",
            )
        if self.personal and self.clients == 0:
            raise ConfigError(
                "personal=True with clients=0",
                where="Evaluation",
                remedy="personal models are at the clients: use clients=-1 for all, or a number of them",
            )
        if not isinstance(self.metrics, Sequence) or isinstance(self.metrics, str):
            raise ConfigError(
                f"metrics={self.metrics!r}", where="Evaluation", remedy="use a list such as [Confusion(10)]"
            )
        for one in self.metrics:
            if not isinstance(one, ScoreMetric):
                require_function(one)
        made = [one if isinstance(one, ScoreMetric) else FunctionMetric(one) for one in self.metrics]
        object.__setattr__(self, "metrics", made if isinstance(self.metrics, list) else tuple(made))
        names = [one.name for one in made if isinstance(one, FunctionMetric)]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"two functions are named {max(names, key=names.count)!r}",
                where="metrics",
                remedy="give them different names, which their values have",
            )
        others = {name for one in made if not isinstance(one, FunctionMetric) for name in one.result(one.zero())}
        taken = next((name for name in names if name in _BUILT_IN or name in others), None)
        if taken is not None:
            raise ConfigError(
                f"a function is named {taken!r}, as a metric that is measured anyway",
                where="metrics",
                remedy=f"rename it, such as own_{taken}, or leave it out",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer."""
        whose = (OWN_MODELS, PERSONAL_MEASURES, CENTRAL_SERVER) if self.personal else ()
        alone = (SELF_FOLDING, PLAIN_MEAN, SINGLE_REPLIES) if self.cross_site else ()
        served = Need(CENTRAL_SERVER, "tells clients that train from those that never do", "gaps=False")
        return (
            *((served,) if self.gaps else ()),
            *(Need(capability, "measures clients' personal models", "personal=False") for capability in whose),
            *(Need(capability, "lets each site train a model of its own", "cross_site=False") for capability in alone),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """What the evaluation offers to the other parts of a training."""
        return frozenset() if self.measures_sites else frozenset({REPLIES_ONLY})

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the evaluation does not offer."""
        return {REPLIES_ONLY: "needs measures of clients, which would leave the clients without noise"}

    @property
    def measures_sites(self) -> bool:
        """Whether clients tell measures of their rows."""
        return self.clients != 0 or self.cross_site or self.gaps

    @property
    def at_each(self) -> Sequence[ScoreMetric]:
        """The metrics that clients measure."""
        return self.metrics if self.clients else ()

    def list_participants(self, asked: Parties, replied: Parties) -> dict[str, list[int]]:
        """Return the participants of a round, if ``participants`` or ``gaps`` is set."""
        return record_participants(asked, replied) if self.participants or self.gaps else {}

    def time_round(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return how long a round would take on real devices, if ``human_time`` is set."""
        return {} if self.human_time is None else {"human_seconds": self.human_time.of(row)}

    def due(self, number: int, last: bool) -> bool:
        """Return whether the server evaluates after this round."""
        return last or number % self.every == 0

    def clients_due(self, number: int, last: bool) -> bool:
        """Return whether clients evaluate after this round."""
        return self.clients != 0 and (last or number % (self.clients_every or self.every) == 0)

    def at_server(self, learner: Learner, params: Tree, test: Any) -> dict[str, float]:
        """Return the scores on the server's test set; none of a model whose buffers are at the clients."""
        if not self.server or test is None or (isinstance(learner, SupportsHeld) and learner.withheld):
            return {}
        found = scores(learner.evaluate(params, test))
        if self.metrics:
            summaries = [summarise(self.metrics, learner, params, test)]
            found.update(merged_results(self.metrics, summaries))
            undefined = {f"test/{name}": "the test rows" for name in undefined_names(self.metrics, summaries)}
        else:
            undefined = {}
        return {**{f"test/{name}": value for name, value in found.items()}, **_undefined(undefined)}

    async def at_clients(
        self, fed: Federation, learner: Learner, params: Tree, number: int, reducer: Reducer | None = None
    ) -> dict[str, Any]:
        """Return the scores at clients: over all their rows together, and the distribution over clients.

        A secure reducer reveals only sums. The distribution is then that of shares such as accuracy, up to a bin's width.
        """
        parties = fed.parties
        if 0 < self.clients < len(parties):
            drawn = fed.rng.child("evaluation", number).generator().choice(len(parties), self.clients, replace=False)
            parties = parties[np.sort(drawn)]
        packed = [pack_metric(metric) for metric in self.metrics]
        asked = {"personal": True} if self.personal else {}
        if reducer is not None and reducer.secure:
            message = {"params": params, "metrics": packed, "sums": True, **asked}
            combined = await fed.sum(
                parties, scoring_task(learner), message, reducer=reducer, at=("score", number), quorum=0
            )
            return self._of_both(combined, self._of_sums)
        message = {"params": params, **asked}
        combined = await fed.sum(parties, learner.measure, message, at=("measure", number), quorum=0)
        if "measure" not in combined.value:
            return {}
        result = _of_measures(combined["measure"], "clients")
        if self.personal:
            result.update(_of_measures(combined["personal"], "personal"))
        if self.metrics:
            message = {"params": params, "metrics": packed, "sums": False, **asked}
            combined = await fed.sum(parties, scoring_task(learner), message, at=("score", number), quorum=0)
            result.update(self._of_both(combined, self._of_parts))
        return result

    def _of_both(self, combined: Combined, made: Callable[[Combined, str, str], dict[str, Any]]) -> dict[str, Any]:
        """Return the rows of the global model and, if requested, of the clients' own models."""
        shared, own = made(combined, "", "clients"), made(combined, "personal_", "personal") if self.personal else {}
        undefined = {**shared.pop(UNDEFINED, {}), **own.pop(UNDEFINED, {})}
        return {**shared, **own, **_undefined(undefined)}

    def _of_parts(self, combined: Combined, begin: str, group: str) -> dict[str, Any]:
        parts = combined.value.get(f"{begin}metrics", [])
        each = [merged_results(self.metrics, [part.value]) for part in parts]
        pooled = merged_results(self.metrics, [part.value for part in parts])
        spread = distribution(each, [p.weight for p in parts], group)
        undefined = dict.fromkeys(undefined_names(self.metrics, [part.value for part in parts]), EVERYWHERE)
        for one in self.metrics:
            if isinstance(one, FunctionMetric) and one.name not in undefined:
                names = zip(combined.senders.names, parts, each, strict=True)
                lacking = [name for name, part, found in names if part.weight > 0 and one.name not in found]
                undefined |= {one.name: ", ".join(lacking)} if lacking else {}
        told = {f"{group}/{name}": where for name, where in undefined.items()}
        return {**spread, **{f"{group}/{name}": value for name, value in pooled.items()}, **_undefined(told)}

    def _of_sums(self, combined: Combined, begin: str, group: str) -> dict[str, Any]:
        if f"{begin}measure" not in combined.value:
            return {}
        metrics = merged_results(self.metrics, [combined[f"{begin}metrics"]])
        pooled = {**scores(combined[f"{begin}measure"]), **metrics}
        result: dict[str, Any] = {f"{group}/{name}": value for name, value in pooled.items()}
        undefined = undefined_names(self.metrics, [combined[f"{begin}metrics"]])
        result |= _undefined({f"{group}/{name}": EVERYWHERE for name in undefined})
        for name, counts in combined[f"{begin}spread"].items():
            summary = {"counts": counts}
            if not np.sum(counts) > 0:
                continue
            result[f"{group}/{name}/worst_decile"] = SPREAD.tail_mean(summary, 0.1)
            result[f"{group}/{name}/best_decile"] = SPREAD.tail_mean(summary, 0.1, highest=True)
            result[f"{group}/{name}/median"] = SPREAD.quantile(summary, 0.5)
            result[f"{group}/{name}/histogram"] = [float(c) for c in counts]
        return result


@dataclass(frozen=True)
class TrainingMeasures:
    """Measurements of a training's evaluation between rounds: on the server's rows, and at clients through the training's reducer."""

    evaluation: Evaluation
    learner: Learner
    test: Any
    reducer: Reducer

    def time_round(self, row: dict[str, Any]) -> dict[str, float]:
        """Return how long the round would take on real devices."""
        return self.evaluation.time_round(row)

    def due(self, number: int, last: bool) -> bool:
        """Return whether the server or clients evaluate after this round."""
        return self.evaluation.due(number, last) or self.evaluation.clients_due(number, last)

    async def take(self, watch: Federation, model: Tree, number: int, last: bool) -> tuple[dict[str, Any], bool]:
        """Measure scores on the server's rows, then at clients."""
        evaluation, found = self.evaluation, dict[str, Any]()
        at_server, at_clients = evaluation.due(number, last), evaluation.clients_due(number, last)
        if at_server:
            found |= evaluation.at_server(self.learner, model, self.test)
        if at_clients:
            there = await evaluation.at_clients(watch, self.learner, model, number, self.reducer)
            undefined = {**found.get(UNDEFINED, {}), **there.get(UNDEFINED, {})}
            found |= {**there, **({UNDEFINED: undefined} if undefined else {})}
        return found, at_server and at_clients >= (evaluation.clients != 0)


UNDEFINED = "undefined_metrics"
"""The entry of a row with the metrics that had no value: name -> where."""
EVERYWHERE = "every client"


def _undefined(found: Mapping[str, str]) -> dict[str, Any]:
    return {UNDEFINED: dict(found)} if found else {}


def _of_measures(parts: Sequence[Any], group: str) -> dict[str, Any]:
    """Return the distribution of single replies to ``measure``."""
    return distribution([scores(part.value) for part in parts], [float(part.value["n"]) for part in parts], group)


def distribution(per_client: list[dict[str, float]], weights: list[float], group: str = "clients") -> dict[str, Any]:
    """Return mean by examples, and the spread over clients: standard deviation, median, worst and best decile means.

    Args:
        per_client: name -> value at each client.
        weights: examples of each client.
        group: the prefix of the names in the result.
    """
    result: dict[str, Any] = {}
    for name in sorted({key for row in per_client for key in row}):
        pairs = [(row[name], w) for row, w in zip(per_client, weights, strict=True) if name in row and w > 0]
        if not pairs:
            continue
        values = np.array([v for v, _ in pairs])
        result[f"{group}/{name}"] = float(np.average(values, weights=[w for _, w in pairs]))
        tenth = max(1, round(len(values) / 10))
        ordered = np.sort(values)
        low, high = float(ordered[:tenth].mean()), float(ordered[-tenth:].mean())
        lower_better = any(word in name for word in ("loss", "error", "mse", "mae"))
        result[f"{group}/{name}/worst_decile"] = high if lower_better else low
        result[f"{group}/{name}/best_decile"] = low if lower_better else high
        result[f"{group}/{name}/median"] = float(np.median(values))
        result[f"{group}/{name}/std"] = float(values.std())
        result[f"{group}/{name}/values"] = [round(float(v), 6) for v in values]
    return result


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
