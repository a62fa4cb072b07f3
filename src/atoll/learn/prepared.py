"""A training prepared for one federated data set: its rounds, what it releases and means, and the checks of its data."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.algebra.form import safetensors_of
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Event, NonPrivate
from atoll.core.facets import facet
from atoll.core.job import Prepared
from atoll.core.persistence.files import as_json
from atoll.data import require_labels
from atoll.data.islands import Islands
from atoll.data.missing import labelled_rows
from atoll.privacy import LossTally
from atoll.privacy.events import neighbours_counted
from atoll.rounds.loop import Course, Repeated, WrappedCourse, run_rounds

from .algorithm import Helped, Labelled, Phased
from .cross_site import Across
from .explain import Explainable, exposures_of
from .learner import SupportsNotices, release_learner
from .metrics import FunctionMetric
from .round.evaluation import UNDEFINED, TrainingMeasures
from .round.gaps import measure_gaps
from .round.predicting import metadata_of, table_model_of
from .selection.uniform import Uniform
from .wrapped import shown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task
    from atoll.data.model_columns import ModelColumns, ModelEstimator, TableModel
    from atoll.rounds.by_device import ByDevice
    from atoll.rounds.history import History

    from .context import Context
    from .cross_site import CrossSite
    from .learner import Learner
    from .private.claim import Guarantee
    from .round.gaps import Gaps
    from .topology.base import Topology

__all__ = [
    "DEFAULT_SELECTION",
    "MEASURES",
    "news_of",
    "name_unlabelled",
    "hold_out",
    "notices_of_training",
    "Best",
    "PreparedTraining",
    "Trained",
    "counted_as",
    "entrusted_to_server",
    "labels_section_of",
    "most_released",
    "require_held_labels",
    "require_rows_of_helpers",
    "run_training",
]


def most_released(context: Context, topology: Topology, rows: int) -> Sequence[Event] | None:
    """Return the events of a client that takes part in every round, in all phases; ``None`` if its number of replies has no bound.

    Args:
        context: the training's context, with its learner.
        topology: its topology.
        rows: the client's number of examples.
    """
    own = topology.released(context.rounds)
    if own:
        entrusted = topology.against != "server"
        return (NonPrivate(what="replies that reach the server"),) if entrusted else [*own, *_list_measures(context)]
    if not context.protected:
        return (NonPrivate(what="updates of a training"),)
    if not all(FIXED_COHORT in offers for offers in (topology.offers, context.pacing.offers)):
        return None  # one client may reply several times in what counts as a round
    algorithm, contacts = context.algorithm, _contacts(context)
    if context.aggregation.event is not None:
        return (NonPrivate(what="updates that reach the server"),)
    once = context.events(rows, algorithm.phases, context.learner.init(Rng(0)))
    made: list[Event] = [replace(event, count=event.count * contacts) for event in once if contacts]
    trusted = _describe_trust(context)
    if trusted:
        made.append(NonPrivate(what="updates that only the others' trust protects", seen_by=trusted))
    return [*made, *_list_measures(context)]


def _list_measures(context: Context) -> list[Event]:
    return [NonPrivate(what="measures at clients")] if context.evaluation.measures_sites else []


def entrusted_to_server(context: Context, topology: Topology) -> Sequence[Event]:
    """Return the events of all rounds in which the server adds the noise; none if clients add it.

    Args:
        context: the training's context.
        topology: its topology.
    """
    if topology.against != "server":
        return topology.released(context.rounds)
    event, contacts = context.aggregation.event, _contacts(context)
    return () if event is None or not contacts else (replace(event, count=event.count * contacts),)


def _describe_trust(context: Context) -> str:
    """Who may see a client's update with less noise than its events say, because it is trusted not to look; empty if nobody is."""
    if context.claim is not None:
        return {"model": "clients", "clients": "server"}.get(context.claim.adversary, "")
    stages = [stage for phase in context.algorithm.phases for stage in context.uplink(phase).stages]
    return "server" if any(getattr(stage, "trusted", False) for stage in stages) and not context.reducer.secure else ""


def _contacts(context: Context) -> int:
    """Rounds in which clients are contacted, at most."""
    known = facet(context.algorithm, Phased).contacts(context.rounds)
    return context.rounds if known is None else known


# ---------------------------------------------------------------- the privacy that clients have spent


class Accounted(WrappedCourse):
    """A course with ``"epsilon"`` in its rows: the largest amount that a client has spent by the end of the round.

    It is counted as the mechanism or the budget says, or else at delta 1e-5. With an asynchronous pacing, it includes replies that are not used yet,
    because they have left their clients. A mechanism's accountant takes some 10 ms: then the rows with an evaluation have it.

    Args:
        course: the course of the rounds.
        context: the context of a training with private replies.
    """

    def __init__(self, course: Course, context: Context) -> None:
        super().__init__(course)
        self._context = context
        self._terms = _terms(context)
        self._tally: LossTally | None = None

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run the course's round, and add what the ledger says after it."""
        state, row = await self._course.round(fed, state, number)
        if not self._due(number):
            return state, row
        self._tally = self._tally or LossTally(fed.world.ledger, within=fed.running.slot)
        tally, claim = self._tally.update(), self._context.claim
        return state, {**row, "epsilon": tally.most(*self._terms) if claim is None else claim.spent(tally)}

    def _due(self, number: int) -> bool:
        context = self._context
        if context.claim is None:
            return True
        return context.evaluation.due(number, number == context.rounds)


def _terms(context: Context) -> tuple[float, str, str, str]:
    """Delta, accountant, adversary and neighbours, without a mechanism that has its own."""
    budget = context.budget
    if budget is not None:
        return budget.delta, budget.method, budget.adversary, budget.neighbours
    stages = [stage for phase in context.algorithm.phases for stage in context.uplink(phase).stages]
    trusted = any(getattr(stage, "trusted", False) for stage in stages)
    return 1e-5, "exact", "model" if trusted else "server", "add-remove"


_MANY = 1 << 20
"""A number of examples with which every mechanism has an event: only its unit is looked at."""


def counted_as(context: Context) -> dict[str, Any]:
    """Return what the epsilon of the rows means, of a training whose replies are private without a mechanism; empty if they are not.

    Args:
        context: the training's context.
    """
    if context.claim is not None or not context.protected:
        return {}
    delta, accountant, adversary, neighbours = _terms(context)
    phases = context.algorithm.phases
    events = context.events(_MANY, phases, context.learner.init(Rng(0)))
    units = {event.unit for event in events}
    unit = " and ".join(sorted(units))
    neighbours = neighbours_counted(events, adversary, neighbours)
    return {"unit": unit, "neighbours": neighbours, "adversary": adversary, "accountant": accountant, "delta": delta}


# ---------------------------------------------------------------- measurements of a training between rounds


MEASURES = {
    "accuracy": "test/accuracy",
    "loss": "test/loss",
    "rmse": "test/rmse",
    "worst_decile": "clients/accuracy/worst_decile",
}
"""Label -> column."""


def news_of(last: Mapping[str, float]) -> Iterator[str]:
    """Return accuracy or error, and loss, as a progress display says them."""
    if "test/accuracy" in last:
        yield f"accuracy {100 * last['test/accuracy']:.1f} %"
    elif "test/rmse" in last:
        yield f"RMSE {last['test/rmse']:.4g}"
    loss = last.get("test/loss", last.get("loss"))
    if loss is not None:
        yield f"loss {loss:.3f}"


# ---------------------------------------------------------------- a training prepared for one federated data set


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        params: the final parameters as a dict of arrays (the best ones with ``keep_best``); empty if they stay at the sites.
        history: one row per round.
        reason: why the training stopped.
        round: the round that the parameters come from.
        devices: requests, work and costs of every device.
        model: in a training's result: a model of your own kind with the parameters.
        last: the parameters of the last round.
        best: the best round, with ``keep_best``; ``None`` without it.
        cross_site: every model on every site's data, with ``Evaluation(cross_site=True)``.
        gaps: how the model does on rows and clients that it has not seen, with ``Evaluation(gaps=True)``.
        make_table: in a training's result: makes `table`.
    """

    params: Any = field(repr=False)
    history: History
    reason: str
    round: int
    devices: ByDevice = field(repr=False)
    model: Any = field(default=None, repr=False)
    last: Any = field(default=None, repr=False)
    best: Best | None = None
    cross_site: CrossSite | None = field(default=None, repr=False)
    gaps: Gaps | None = None
    make_table: Callable[[], TableModel | None] | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def table(self) -> TableModel | None:
        """The model as one that predicts rows of tables; ``None`` if its inputs are no numbers. It is made when it is first asked for: this reads a client's rows."""
        return None if self.make_table is None else self.make_table()

    def predict(self, rows: Any) -> NDArray[Any]:
        """Return the model's classes or numbers for the rows of a table, a file, a frame or a dict of columns, matched by name, or of an array.

        Raises:
            CompositionError: the model takes no rows of tables.
            DataError: the rows are not what it takes, see `atoll.data.model_columns.ModelColumns.select`.
        """
        return self._table().predict(rows)

    def predict_proba(self, rows: Any) -> NDArray[Any]:
        """Return the probabilities of the classes, ``(rows, classes)``; see `predict`.

        Raises:
            CompositionError: the model has none.
        """
        return self._table().predict_proba(rows)

    def to_sklearn(self) -> ModelEstimator:
        """Return a fitted scikit-learn estimator that predicts what the model predicts.

        Raises:
            CompositionError: the model takes no rows of tables.
        """
        return self._table().to_sklearn()

    def _table(self) -> TableModel:
        if self.table is None:
            raise CompositionError(
                "the model does not take rows of numbers, or stays at the sites",
                where="Trained",
                remedy="use result.model, a model of your own kind",
            )
        return self.table


@dataclass(frozen=True)
class Best:
    """The best round of a training, by one metric.

    Attributes:
        metric: the metric, ``Training.keep_best``.
        round: the round.
        value: the metric's value.
        params: the parameters after the round.
    """

    metric: str
    round: int
    value: float
    params: Any = field(repr=False)


class PreparedTraining(Prepared):
    """A training with its learner.

    Args:
        learner: the training's learner.
        tasks: tasks that the world must know by name.
        begin: gives the program. Called where the program runs, it refuses what only the server can check.
        most: a client's number of examples -> what the training releases of it at most; ``None`` if nobody can say.
        claim: what a mechanism of differential privacy promises; ``None`` without one.
        counted: what the epsilon of the rows means, if replies are private without a mechanism.
        entrusted: what is released of a client with noise that the server adds.
        against: from whom noise protects; those whom it trusts may see replies without it.
        labels: the report's section on labels, from the training's records; ``None`` if no label is missing.
        notices: what the result says of the training's settings, from its records.
        columns: tells what the model knows of the rows that it takes; ``None`` if they are no numbers.
    """

    def __init__(
        self,
        learner: Learner,
        tasks: Sequence[Task],
        begin: Callable[[], Callable[[Federation], Awaitable[Trained]]],
        most: Callable[[int], Sequence[Event] | None],
        *,
        claim: Guarantee | None = None,
        counted: Callable[[], Mapping[str, Any]] = dict,
        entrusted: Sequence[Event] = (),
        against: str = "server",
        labels: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None = None,
        notices: Callable[[Sequence[Mapping[str, Any]]], Iterable[str]] = lambda rows: (),
        columns: Callable[[], ModelColumns | None] = lambda: None,
    ) -> None:
        self._notices, self._columns = notices, columns
        self.learner, self.tasks, self._begin, self._most, self.claim = learner, tasks, begin, most, claim
        self.against = against
        self._counted, self._entrusted, self._labels = counted, entrusted, labels

    def most(self, rows: int) -> Sequence[Event] | None:
        """Return what the training releases of a client with so many examples at most."""
        return self._most(rows)

    def entrusted(self, rows: int) -> Sequence[Event]:
        """Return what the training releases of a client with noise that the server adds."""
        del rows
        return self._entrusted

    async def program(self, fed: Federation) -> Trained:
        """Return the program of the training."""
        return await self._begin()(fed)

    def check(self, population: Any) -> None:
        """Let the learner check a site's own rows, if it can."""
        check = getattr(self.learner, "check", None)
        if check is not None:
            check(population)

    @functools.cached_property
    def columns(self) -> ModelColumns | None:
        """What the model knows of the rows that it takes. A run that writes no model, and whose table nobody asks for, reads no rows for it."""
        return self._columns()

    def outcome(self, value: Trained) -> Trained:
        """Return the outcome with a model of the user's own kind, if the server has one."""
        if value.params == {}:
            return value
        return dataclasses.replace(
            value,
            model=self.learner.export(value.params),
            make_table=lambda: table_model_of(self.learner, value.params, self.columns, "the model"),
        )

    def reason(self, value: Trained, fed: Federation) -> str:
        """Return why the rounds ended."""
        del fed
        return value.reason

    def facts(self, outcome: Trained) -> Mapping[str, Any]:
        """Return the round that the model comes from, and what its privacy mechanism promises, or what its epsilon means."""
        promised = self._counted() if self.claim is None else {**self.claim.facts(), "how": f"{self.claim.how}."}
        best = {} if outcome.best is None else {"best": {"metric": outcome.best.metric, "value": outcome.best.value}}
        return {"model_round": outcome.round, **best, **({"privacy": dict(promised)} if promised else {})}

    def notices(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """Return which settings had no effect, which replies did not count, and whether the loss grew."""
        return [*super().notices(rows), *self._notices(rows)]

    def sections(self, outcome: Trained) -> Sequence[Mapping[str, Any]]:
        """Return who has which labels, if some are missing, the matrices of the cross-site evaluation, and generalisation gaps."""
        labels = [] if self._labels is None else [self._labels(list(outcome.history))]
        return [
            *labels,
            *(more for one in (outcome.cross_site, outcome.gaps) if one is not None for more in one.sections()),
        ]

    def files(self, outcome: Trained) -> Mapping[str, bytes]:
        """Return the parameters as files, the last ones too where those of the best round are the model, the cross-site evaluation, and generalisation gaps."""
        found: dict[str, bytes] = {}
        last = None if outcome.best is None else outcome.last
        for name, params in {"model": outcome.params, "last": last}.items():
            if outcome.params != {} and params is not None:
                told = metadata_of(self.learner, params, self.columns)
                found[f"{name}.safetensors"] = safetensors_of(params, told)
        if outcome.cross_site is not None:
            found["cross_site.json"] = as_json(outcome.cross_site.plain()).encode()
        if outcome.gaps is not None:
            found["gaps.json"] = as_json(outcome.gaps.plain()).encode()
        return found


DEFAULT_SELECTION = Uniform()
"""The selection rule of a training that names none: at most ten clients a round, of which the result says nothing if there are fewer."""
_DIVERGED = 10.0
"""A loss this many times as large as that of equal chances, or as the first one, is no result."""


def notices_of_training(
    context: Context,
    task: str,
    classes: int | None,
    rows: Sequence[Mapping[str, Any]],
    *,
    held_out: NDArray[np.bool_] | None = None,
    exact: bool = False,
) -> Iterator[str]:
    """Return what the result of a training says of its settings: more clients than there are, measures of training rows, another precision, a loss that has grown.

    Args:
        context: the training's context, with its learner.
        task: the data's task.
        classes: their number of classes.
        rows: the records.
        held_out: whether each client has rows to measure on that it does not train on, ``(clients,)``; ``None`` if nobody here knows.
        exact: whether buffers travel beside an uplink with stages.
    """
    most = max((len(group) for group in context.groups), default=0)  # clients of one server
    rule, pacing = context.selection, context.pacing
    asked = [
        (
            f"{type(rule).__name__} asks for {{}} clients a round",
            None if rule is DEFAULT_SELECTION else rule.most_asked,
            most,
        ),
        (
            f"{type(pacing).__name__} lets {{}} clients work at the same time",
            getattr(pacing, "concurrency", None),
            most,
        ),
        ("Evaluation asks for {} clients", context.evaluation.clients, len(context.clients)),
    ]
    for what, count, there in asked:
        if isinstance(count, int) and count > there:
            yield f"{what.format(count)}, and there are {there}: all of them take part"
    if held_out is not None and not held_out.all() and context.evaluation.clients:
        yield _tell_trained_rows(context, held_out)
    functions = [one.name for one in context.evaluation.metrics if isinstance(one, FunctionMetric)]
    yield from _tell_undefined(functions, rows)
    yield from filter(None, (one.doubt for one in context.evaluation.metrics if isinstance(one, FunctionMetric)))
    averaged = [
        name
        for name in functions
        if context.evaluation.clients and (not rows or any(f"clients/{name}" in row for row in rows))
    ]
    if averaged:
        yield (
            f"{', '.join(f'clients/{name}' for name in averaged)}: the mean of the clients' own values, by their rows, and not the value of all rows together"
        )
    if isinstance(context.learner, SupportsNotices):
        yield from context.learner.notices
    if exact:
        yield "Buffers are sent as they are: no stage of the uplink acts on them."
    yield from _warn_of_divergence(
        rows, math.log(classes) if task == "classification" and classes and classes > 1 else None
    )


_SHOWN = 5
"""Most clients that a notice names."""


def hold_out(data: Any) -> NDArray[np.bool_] | None:
    """Tell which clients have rows to measure on that they do not train on, ``(clients,)``; ``None`` if nobody here knows."""
    rows = getattr(data, "held_rows", None)  # what sites say
    if rows is not None:
        return np.asarray(rows) > 0
    return np.full(len(data), data.held_out is not None) if hasattr(data, "with_held_out") else None


def _tell_trained_rows(context: Context, held_out: NDArray[np.bool_]) -> str:
    """Say whose measures are of rows that it trains on: all clients', or those of some."""
    named = "clients/… and personal/…" if context.evaluation.personal else "clients/…"
    apart = "islands.with_held_out(0.2), or held_out: 0.2 below data: or in a site's file, keeps rows apart"
    if not held_out.any():
        return f"{named} are measured on the rows that clients train on: {apart}"
    trained = [str(context.clients.names[int(i)]) for i in np.flatnonzero(~held_out)]
    more = f" and {len(trained) - _SHOWN} more" if len(trained) > _SHOWN else ""
    return f"{named} are measured on the rows that they train on at {', '.join(trained[:_SHOWN])}{more}, and on held-out rows elsewhere: {apart}"


def _tell_undefined(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say which functions had no value, where, and in how many evaluations."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        for name, where in dict(row.get(UNDEFINED) or {}).items():
            if name.partition("/")[2] in names:
                found[name, where] = found.get((name, where), 0) + 1
    for (name, where), count in found.items():
        if any(name in row for row in rows):
            yield f"{name} is NaN or infinite at {where} in {count} of {len(rows)} rounds, which do not count"
        else:
            yield f"{name} is NaN or infinite at {where} in all its evaluations, so it has no value"


def _warn_of_divergence(rows: Sequence[Mapping[str, Any]], chance: float | None) -> Iterator[str]:
    for name in ("test/loss", "loss"):
        found = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
        if not found:
            continue
        last, usual = found[-1], f"{found[0]:.4g} after the first round"
        known = _DIVERGED * found[0] if len(found) > 1 and found[0] > 0 else math.inf
        if chance is not None and _DIVERGED * chance < known:
            known, usual = _DIVERGED * chance, f"{chance:.4g} of equal chances"
        if last > known or not math.isfinite(last):
            yield f"{name} ended at {last:.4g}, against {usual}: the training diverged; use a smaller learning rate, or scale the columns"
            return


class RunningTraining(Explainable, Repeated, Protocol):
    """A training, as far as its rounds and the checks of its data know it."""

    @property
    def loss(self) -> Any: ...


async def run_training(fed: Federation, job: RunningTraining, context: Context) -> Trained:
    """Run the rounds of a training, and measure across sites, and generalisation gaps, afterwards if the evaluation asks for it.

    Args:
        fed: the federation.
        job: the training, with its mechanism installed.
        context: its context, with the learner, which is released at the end.
    """
    measures = TrainingMeasures(context.evaluation, context.learner, context.test, context.reducer)
    certain = job.budget is None
    course = job.topology.course(context)
    course = Accounted(course, context) if context.protected else course
    try:
        ended = await run_rounds(fed, job, course, measures, certain=certain)
        crossed = await Across(context).run(fed, ended) if context.evaluation.cross_site else None
        gaps = await measure_gaps(fed, context, ended) if context.evaluation.gaps else None
    finally:
        release_learner(context.learner)
    kept = ended.best
    best = None if kept is None else Best(str(job.keep_best), kept["round"], kept["value"], kept["params"])
    found = ended.model, ended.history, ended.reason, ended.round, ended.devices
    return Trained(*found, last=ended.last, best=best, cross_site=crossed, gaps=gaps)


# ---------------------------------------------------------------- what a training needs of its data: helpers' rows and labels


def require_rows_of_helpers(job: RunningTraining, islands: Islands) -> None:
    """Refuse a simulation in which a party that the algorithm or the topology asks has no rows."""
    asking = dict.fromkeys(job.topology.helpers, type(job.topology).__name__)
    asking |= dict.fromkeys(facet(job.algorithm, Helped).helpers, shown_name(job.algorithm))
    missing = [name for name in asking if not len(islands.others.get(name, ()))]
    if missing:
        raise ConfigError(
            f"{asking[missing[0]]} asks the party {missing[0]!r}, which has no rows",
            where="islands.others",
            remedy=f"give it some: islands.with_others({{{missing[0]!r}: rows}})"
            + ("; atoll.data.unlabel(islands, keep=40, at='server') does it" if missing[0] == "labels" else ""),
        )


def labels_section_of(
    job: RunningTraining, data: Any
) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None:
    """Return what makes the report's section on labels, if some are missing and the server may look at the rows."""
    if getattr(data, "labelled", None) not in ("part", "none") or not hasattr(data, "subset"):
        return None
    from atoll.data import label_map
    from atoll.data.labels.shown import labels_section

    exposures = exposures_of(job, job.selection.cohort_size(len(data)))
    return lambda rows: labels_section(label_map(data), rows, exposures)  # the rows are read when somebody reports


def name_unlabelled(job: RunningTraining, data: Any) -> list[str]:
    """Say how many rows of a simulation have no label, which a loss of labels leaves out, and at which clients; and how many test rows."""
    if not isinstance(data, Islands) or not data.stored or facet(job.algorithm, Labelled).losses:
        return []
    told = []
    if data.labelled in ("part", "none"):
        there = {name: labelled_rows(data.shard(place)) for place, name in enumerate(data.names[:_NAMED])}
        lost = {name: int((~rows).sum()) for name, rows in there.items() if not rows.all()}
        few = len(data) <= _NAMED
        who = ", ".join(f"{count} of {len(there[name])} at {name}" for name, count in list(lost.items())[:5])
        told.append(f"rows without a label are not trained on: {who}{', …' if len(lost) > 5 or not few else ''}")
    if data.test is not None and not (known := labelled_rows(data.test)).all():
        told.append(f"{int((~known).sum())} of {len(known)} test rows have no label, and no measure counts them")
    return told


_NAMED = 1000
"""Clients whose rows without a label are counted."""


def require_held_labels(job: RunningTraining, data: Any) -> None:
    """Refuse to train on labels that nobody has, or, in a simulation, with a loss of a method's own and a class that has none. Losses of the user's may do without."""
    named = isinstance(job.loss, str) and ":" not in job.loss
    own = bool(facet(job.algorithm, Labelled).losses)
    holders = facet(job.algorithm, Labelled).label_holders if own or named else ()
    have = getattr(data, "labelled", None)
    if own and holders and isinstance(data, Islands) and data.stored and (have != "all" or "clients" not in holders):
        require_labels(
            data,
            shown_name(job.algorithm),
            every_class=facet(job.algorithm, Labelled).needs_every_class,
            at=holders,
        )
    if "clients" in holders and have == "none":
        shown = ", ".join(map(str, data.names[:5])) + (", ..." if len(data) > 5 else "")
        held = ", ".join(getattr(data, "others", {}))
        raise DataError(
            f"no client has a label: {shown}" + (f"; labels are at {held}" if held else ""),
            where="Training",
            remedy="label rows at one client at least, or train with a method that needs none there, see atoll.labels",
        )
