"""What of a reply leaves a client: reports on a model (losses, gradients, profiles and sketches), and releases under privacy.

A train message may contain ``"reports": {name: options}``; the reply then has ``"report/<name>": Parts(value, examples=n, role="report")``. The task
``learner.report`` takes ``{"params", "reports"}`` and replies only with reports (a survey). ``learner.report_of(params, data, reports)``
makes the same reports from any data, such as the server's own.

=============  ==================================================================  =====================================
name           in training                                                         in a survey
=============  ==================================================================  =====================================
``"loss"``     mean training loss of that contact, the one in ``"loss"``    mean loss of the received model; ``{"rows": b}``: on ``b`` rows,
                                                                                   drawn anew without replacement
``"sketch"``   ``{"size": b}``: `sketch` of the update of the model                none: there is no update
``"profile"``  `Profile` of the received model, taken before training              the same; ``{"layer": name | "auto"}``
=============  ==================================================================  =====================================

Every value has the number ``n`` of rows behind it as its weight: all of the client's, unless fewer were requested. A client without rows, or with a model that has no loss yet, reports
zeros with weight 0. Reports are single values made from raw data: never with privacy, never through a reducer that reveals only sums.

In declared work, a profile is one pass over the data. So is every report of a survey, in proportion to its rows; a training loss costs nothing.

A release under privacy is in the ledger first, and then gets noise from the island's secret. A mechanism clips and adds noise to named values. So it must know every
one of them: the algorithm's own (updates, control variates, further models), the model's buffers that training changes, and measurements. What is not here must
not be in a reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Parts, Sum
from atoll.core.algebra.rng import Rng, mix_keys, shuffles
from atoll.core.algebra.tree import Tree
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError, ConfigError, DataError, nearest
from atoll.core.facets import changes, facet
from atoll.core.requests.task import Task, Workload

from ..algorithm import STEP_HOOKS, Private
from ..wrapped import Wrapped, dry_reply, overrides
from .examples import SecretStream

if TYPE_CHECKING:
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.island import Island

    from ..aggregation.base import Aggregation
    from ..algorithm import Algorithm

__all__ = [
    "BUFFERS",
    "COUNTERS",
    "Reporting",
    "TRAINED",
    "arrays_leaving",
    "as_metrics",
    "as_reports",
    "begin_release",
    "buffer_replies",
    "counters_in",
    "is_private",
    "key_of",
    "promises_privacy",
    "refuse_reports",
    "report_of",
    "require_mechanism_outside",
    "rows_for",
    "sketch",
    "sketches",
    "training_passes",
    "update_of",
]


OPTIONS: Mapping[str, tuple[str, ...]] = {"loss": ("rows",), "profile": ("layer",), "sketch": ("size",)}
"""All reports, with the names of their options."""
CAN = {
    "loss": "a model with a loss",
    "profile": "a PyTorch module",
    "sketch": "atoll.models.linear or a PyTorch module",
}
"""Models that can make each report."""
TRAINED = ("loss", "sketch")
"""Reports that come from training and take no pass over the data."""


def check_options(name: str, options: Any) -> None:
    """Refuse options that a report does not have, and counts below 1.

    Raises:
        ConfigError: names the first wrong option.
    """
    if not isinstance(options, Mapping | None) or not set(options or {}) <= set(OPTIONS[name]):
        known = ", ".join(OPTIONS[name])
        raise ConfigError(f"options {options!r} of report {name!r}", where="reports", remedy=f"options are: {known}")
    given = {"size": None, **(options or {})} if name == "sketch" else options or {}
    for option, value in given.items():
        if option != "layer" and (not isinstance(value, Integral) or value < 1):
            raise ConfigError(
                f"{option}={value!r} of report {name!r}", where="reports", remedy="use a whole number of at least 1"
            )


def rows_for(options: Mapping[str, Any], data: Any, key: int) -> Any:
    """Return a client's rows for a survey report: all, or as many as its options say, drawn from the client's key.

    Raises:
        DataError: the report needs some rows of data that cannot be split.
    """
    rows, n = options.get("rows"), len(data)
    if rows is None or rows >= n:
        return data
    whole = data.dataset() if hasattr(data, "dataset") else data
    if not hasattr(whole, "take"):
        raise DataError(
            f"cannot draw rows from a {type(data).__name__}",
            where="a survey's data",
            remedy="ask for all rows, or use Dataset",
        )
    return whole.take(shuffles(np.array([key], dtype=np.uint64), 1, n)[0, 0, :rows])


# ---------------------------------------------------------------- sketches of updates


def sketch(update: Tree, size: int, key: int = 0) -> NDArray[np.float64]:
    """Return the count sketch of an update, ``s_b = sum_{i: h(i) = b} g(i) x_i`` with hashed buckets ``h`` and signs ``g``, ``(size,)``.

    Linear in the update. Over keys ``E <s, t> = <x, y>``, with variance at most ``2 |x|^2 |y|^2 / size`` (Charikar, Chen and Farach-Colton 2002; Weinberger
    et al. 2009). Sketches with the same key and size are comparable, whichever client made them and when.

    Args:
        update: arrays by name.
        size: number of buckets.
        key: key of the hash.
    """
    found: NDArray[np.float64] = sketches(T.map(lambda leaf: np.asarray(leaf)[None], update), size, key)[0]
    return found


def sketches(updates: Tree, size: int, key: int = 0) -> NDArray[np.float64]:
    """Return sketches of a block of updates with a leading axis of clients in each array: ``(clients, size)``; see `sketch`."""
    leaves = [np.asarray(leaf, dtype=np.float64) for leaf in T.leaves(updates)]
    rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    bits = mix_keys(key, np.arange(rows.shape[1], dtype=np.uint64))
    bucket = ((bits >> np.uint64(1)) % np.uint64(size)).astype(np.int64)
    signed = rows * np.where(bits & np.uint64(1), 1.0, -1.0)
    return np.stack([np.bincount(bucket, row, size) for row in signed]) if len(signed) else np.zeros((0, size))


def update_of(reply: dict[str, Aggregate], algorithm: object) -> Tree:
    """Return the update of the model in a reply.

    Raises:
        CompositionError: there is no such update.
    """
    if "update" not in reply:
        raise CompositionError(
            f"replies of {type(algorithm).__name__} contain no update of the model",
            where='report "sketch"',
            remedy="use an algorithm such as FedAvg or Scaffold",
        )
    update: Tree = reply["update"].value
    return update


# ---------------------------------------------------------------- reports


def key_of(report: str) -> str:
    """Return the name of a report in a reply, which differs from that of a metric."""
    return f"report/{report}"


def report_of(key: str) -> str:
    """Return the inverse of ``key_of``."""
    return key.removeprefix("report/")


def as_metrics(told: Mapping[str, float], examples: float) -> dict[str, Aggregate]:
    """Return a client's own metrics as a reply: means over its examples.

    A metric that is NaN or infinite, such as the AUC of one class, has no weight, so that the update beside it counts and the mean is over the other
    clients. The reply keeps its form, which masks need; ``account`` says in the round's row over how many examples the mean is.
    """
    return {
        name: Mean(np.float64(value), examples=examples, role="metric")
        if math.isfinite(value)
        else Mean(np.float64(0.0), examples=0.0, role="metric")
        for name, value in told.items()
    }


def as_reports(told: Mapping[str, tuple[Tree, float]]) -> dict[str, Aggregate]:
    """Return values and weights by name as a reply."""
    return {key_of(name): Parts(value, examples=float(n), role="report") for name, (value, n) in told.items()}


def training_passes(message: Tree) -> int:
    """Return the passes over the data for the reports in a train message, in addition to the training."""
    asked = message.get("reports") if isinstance(message, Mapping) else None
    return int("profile" in (asked or {}))


class Reporting:
    """Base class of learners that report.

    Attributes:
        algorithm: the local update; a private one forbids reports.
        reports: names of the reports that this learner supports.
    """

    algorithm: Algorithm
    reports: tuple[str, ...] = ("loss",)

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set."""
        raise NotImplementedError

    def survey(self, name: str) -> Task:
        """Return the task ``report`` under a name."""
        return Task(name, self._report, load=self._report_load)

    def check_reports(self, reports: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
        """Return reports by name with their options, after checking that they are possible.

        Raises:
            ConfigError: a name or an option is unknown.
            CompositionError: this model does not support the report, or the algorithm is private.
        """
        if reports is not None and not isinstance(reports, Mapping):
            raise ConfigError(f"reports={reports!r}", remedy='use a dict such as {"loss": None}')
        given = dict(reports or {})
        refuse_reports(self.algorithm, given)
        for name, options in given.items():
            if name not in OPTIONS:
                raise ConfigError(
                    f"no report is called {name!r}.{nearest(str(name), OPTIONS)}",
                    where="reports",
                    remedy=f"use one of {', '.join(OPTIONS)}",
                )
            if name not in self.reports:
                raise CompositionError(
                    f"{type(self).__name__} cannot report {name!r}", where="reports", remedy=f"use {CAN[name]}"
                )
            check_options(name, options)
            self._check_report(name, dict(options or {}))
        return {name: dict(options or {}) for name, options in given.items()}

    def report_of(self, params: Tree, data: Any, reports: Mapping[str, Any]) -> dict[str, Tree]:
        """Return reports of a model on some data, by name: as a client would in a survey of all rows.

        Args:
            params: parameters, and running statistics if they travel.
            data: columns ``x`` and ``y``.
            reports: name -> options.

        Raises:
            ConfigError: a name or an option is unknown.
            CompositionError: this model does not support the report, or the algorithm is private.
            DataError: there is no data.
        """
        asked = self.check_reports(reports)
        if data is None:
            raise DataError(
                f"there are no data to report {', '.join(map(repr, asked))} on",
                where="the server's own data",
                remedy="give the federated data set a test set",
            )
        return {name: self._make_report(name, options, params, data)[0] for name, options in asked.items()}

    def _check_report(self, name: str, options: dict[str, Any]) -> None:
        """Refuse options that this model does not support."""

    def _list_requested(self, message: Tree) -> dict[str, dict[str, Any]]:
        """Return the reports that a message requests."""
        return self.check_reports(message.get("reports"))

    def _asked_for_survey(self, message: Tree) -> dict[str, dict[str, Any]]:
        """Return the reports of a survey, at least one."""
        asked = self._list_requested(message)
        if not asked:
            raise ConfigError(
                "no reports", where="the survey's message", remedy='ask for a report such as {"loss": None}'
            )
        if "sketch" in asked:
            raise ConfigError(
                "a sketch needs an update, but a survey does not train",
                where="the survey's message",
                remedy="use sketches from replies, or ask for a profile",
            )
        return asked

    def _make_report(self, name: str, options: dict[str, Any], params: Tree, data: Any) -> tuple[Tree, float]:
        """Return a report of a survey and its weight."""
        del options
        return self._loss_of(self.evaluate(params, data), len(data), name)

    def _loss_of(self, sums: Mapping[str, float], n: float, name: str = "loss") -> tuple[Tree, float]:
        """Return the mean loss in some sums, and its weight."""
        found = sums.get("loss_sum", sums.get("loss"))
        if not n or not sums["n"]:
            return np.float64(0.0), 0.0
        if found is None:
            raise CompositionError(
                f"{type(self).__name__} measures no loss to report as {name!r}",
                where="reports",
                remedy='let `evaluate` return a "loss"',
            )
        # A loss that is not defined is no reason to lose the update beside it: it counts like that of a client without rows.
        return (np.float64(found / sums["n"]), float(n)) if math.isfinite(found) else (np.float64(0.0), 0.0)

    def _with_reports(
        self, reply: dict[str, Aggregate], asked: Mapping[str, dict[str, Any]], n: int
    ) -> dict[str, Aggregate]:
        """Return a training's reply with the requested reports."""
        return {**reply, **as_reports(self._report_training(reply, asked, n))}

    def _report_training(
        self, reply: dict[str, Aggregate], asked: Mapping[str, dict[str, Any]], n: int
    ) -> dict[str, Any]:
        """Return the reports from training: the loss of its metric, the sketch of its update."""
        told: dict[str, Any] = {}
        if "loss" in asked:
            value = reply["loss"].value
            told["loss"] = (
                (value, float(n)) if np.isfinite(value).all() else (np.zeros_like(value), 0.0)
            )  # as `_loss_of`
        if "sketch" in asked:
            update = update_of(reply, self.algorithm)
            told["sketch"] = (
                sketch(update, asked["sketch"]["size"]) if n else np.zeros(asked["sketch"]["size"]),
                float(n),
            )
        return told

    def _report(self, island: Island, message: Tree) -> dict[str, Aggregate]:
        asked, params, key = self._asked_for_survey(message), message["params"], island.rng.key
        rows = {name: rows_for(options, island.data, key) for name, options in asked.items()}
        return as_reports(
            {name: self._make_report(name, options, params, rows[name]) for name, options in asked.items()}
        )

    def _report_load(self, sizes: NDArray[np.int64], args: Any, message: Tree) -> Workload:
        del args
        asked = (message.get("reports") or {}).values()
        rows = [np.minimum(sizes, int((options or {}).get("rows") or 0) or sizes) for options in asked]
        width, none = np.maximum(self.algorithm.batch_of(sizes), 1), np.zeros(len(sizes))
        epochs = sum(rows, none) / np.maximum(sizes, 1)
        batches = sum((-(-seen // width) for seen in rows), none)
        return Workload(sizes.astype(np.float64), batches, np.where(sizes > 0, epochs, float(len(rows))))


def is_private(algorithm: Algorithm) -> bool:
    """Return whether an algorithm promises privacy: whether it, or an algorithm inside it, has events."""
    return overrides(algorithm, "events")


def begin_release(algorithm: Algorithm, island: Island) -> Rng | None:
    """Prepare a local update: admit the data, record the release, and return the secret stream; ``None`` without privacy.

    Raises:
        DataError: the client's data break an assumption of the privacy guarantee.
    """
    if not is_private(algorithm):
        return None
    data = island.data
    facet(algorithm, Private).admit(data)
    for event in facet(algorithm, Private).events(len(data)):
        island.spend(event)
    return SecretStream(island.secret)


def refuse_reports(algorithm: Algorithm, reports: Mapping[str, Any]) -> None:
    """Refuse reports with a mechanism: they come from the raw data.

    Raises:
        CompositionError: the algorithm is private and there are reports.
    """
    if reports and is_private(algorithm):
        raise CompositionError(
            f"reports ({', '.join(map(repr, reports))}) would leave the clients without noise",
            where=type(algorithm).__name__,
            remedy="use a selection rule without reports, or the same algorithm without privacy",
        )


def require_mechanism_outside(algorithm: Algorithm) -> None:
    """Refuse a wrapper around a privacy mechanism with its own replies or steps.

    Raises:
        CompositionError: names the wrapper.
    """
    outer = algorithm
    while isinstance(outer, Wrapped) and not changes(type(outer), Wrapped, "events"):
        if PROTECTION in outer.base.offers and changes(type(outer), Wrapped, *STEP_HOOKS, "start", "finish"):
            raise CompositionError(
                f"{type(outer).__name__} changes what clients do around a privacy mechanism",
                where="Training.algorithm",
                remedy=f"put the mechanism outside: OutputPerturbation(base={type(outer).__name__}(...))",
            )
        outer = outer.base


# ---------------------------------------------------------------- what leaves a client in a training


BUFFERS = "buffers"
"""The name under which a model's buffers travel in a broadcast, and their averages in a reply."""
COUNTERS = "counters"
"""The name under which a reply tells how far each of the model's counters has moved."""


def counters_in(buffers: Tree) -> tuple[str, ...]:
    """Return the names of the buffers that count: whole numbers and flags, which no average may change."""
    return tuple(name for name, value in buffers.items() if np.asarray(value).dtype.kind in "iub")


def buffer_replies(before: Tree, after: Tree, examples: float, *, singly: bool = True) -> dict[str, Aggregate]:
    """Return what a client replies of the buffers that training changed: statistics as a mean, and how far each counter has moved.

    Args:
        before: the buffers that it received.
        after: the same ones after training.
        examples: its number of examples, the weight of the statistics.
        singly: whether the server sees single replies, and so the largest move; else the moves are added up, also under masks.
    """
    counters = counters_in(after)
    statistics = {name: value for name, value in after.items() if name not in counters}
    reply: dict[str, Aggregate] = {}
    if statistics:
        reply[BUFFERS] = Mean(statistics, examples=examples, role="buffer")
    if counters:
        moved = {n: np.asarray(after[n]).astype(np.int64) - np.asarray(before[n]).astype(np.int64) for n in counters}
        reply[COUNTERS] = Parts(moved, examples=examples, role="counter") if singly else Sum(moved, role="counter")
    return reply


def arrays_leaving(
    algorithm: Algorithm,
    params: Tree,
    buffers: Tree = None,
    phase: str | None = None,
    examples: float = 1.0,
    *,
    steps: float = 1.0,
    uplink: Chain | None = None,
    singly: bool = True,
) -> dict[str, Aggregate]:
    """Return every array that a client sends in a phase, by name, as it would be of a contact without a step: the algorithm's values and counts, and the model's buffers.

    Metrics of the learner and reports are beside it (`metrics_of`); no noise protects them, so that a protected training sends none.

    Args:
        algorithm: what clients run.
        params: a model; only its form matters.
        buffers: those that travel, as ``Learner.buffers`` says.
        phase: of a round; the last one if it is ``None``.
        examples: of the made-up client.
        steps: that it has made.
        uplink: stages of the phase: measurements stay at the client if they guard the reply.
        singly: whether the server sees single replies; see `buffer_replies`.
    """
    reply = dry_reply(algorithm, params, phase, examples, steps)
    if buffers:
        reply |= buffer_replies(buffers, buffers, examples, singly=singly)
    return reply if uplink is None else dict(uplink.leaving(reply))


def promises_privacy(algorithm: Algorithm, uplink: Callable[[str], Chain], aggregation: Aggregation) -> bool:
    """Return whether the algorithm or the uplink stages make replies private, or the server their sum: then nothing may leave that they do not protect."""
    staged = any(uplink(phase).events for phase in algorithm.phases)
    return is_private(algorithm) or staged or aggregation.event is not None
