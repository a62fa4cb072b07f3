"""A training prepared for one federated data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from atoll.core.algebra.form import safetensors_of
from atoll.core.errors import ConfigError, DataError
from atoll.core.facets import facet
from atoll.core.job import Prepared
from atoll.core.persistence.files import as_json
from atoll.data import require_labels
from atoll.data.islands import Islands
from atoll.rounds.loop import run_rounds
from atoll.rounds.stop import Repeated

from .algorithm import Helped, Labelled
from .cross_site.asking import Across
from .offered import let_go
from .server.accounted import Accounted
from .server.exposed import Explainable, exposures_of
from .server.measures import TrainingMeasures
from .wrapped import shown_name

if TYPE_CHECKING:
    from atoll.core.event import Event
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task
    from atoll.rounds.by_device import ByDevice
    from atoll.rounds.history import History

    from .context import Context
    from .cross_site.matrix import CrossSite
    from .learner import Learner
    from .private.claim import Guarantee

__all__ = ["Best", "PreparedTraining", "Trained"]


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
    ) -> None:
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

    def outcome(self, value: Trained) -> Trained:
        """Return the outcome with a model of the user's own kind, if the server has one."""
        return value if value.params == {} else dataclasses.replace(value, model=self.learner.export(value.params))

    def reason(self, value: Trained, fed: Federation) -> str:
        """Return why the rounds ended."""
        del fed
        return value.reason

    def facts(self, outcome: Trained) -> Mapping[str, Any]:
        """Return the round that the model comes from, and what its privacy mechanism promises, or what its epsilon means."""
        promised = self._counted() if self.claim is None else {**self.claim.facts(), "how": f"{self.claim.how}."}
        best = {} if outcome.best is None else {"best": {"metric": outcome.best.metric, "value": outcome.best.value}}
        return {"model_round": outcome.round, **best, **({"privacy": dict(promised)} if promised else {})}

    def sections(self, outcome: Trained) -> Sequence[Mapping[str, Any]]:
        """Return who has which labels, if some are missing, and the matrices of the cross-site evaluation."""
        labels = [] if self._labels is None else [self._labels(list(outcome.history))]
        return [*labels, *([] if outcome.cross_site is None else outcome.cross_site.sections())]

    def files(self, outcome: Trained) -> Mapping[str, bytes]:
        """Return the parameters as files, the last ones too where those of the best round are the model, and the cross-site evaluation."""
        found = {} if outcome.params == {} else {"model.safetensors": safetensors_of(outcome.params)}
        if found and outcome.best is not None and outcome.last is not None:
            found["last.safetensors"] = safetensors_of(outcome.last)
        if outcome.cross_site is not None:
            found["cross_site.json"] = as_json(outcome.cross_site.plain()).encode()
        return found


class RunningTraining(Explainable, Repeated, Protocol):
    """A training, as far as its rounds and the checks of its data know it."""

    @property
    def loss(self) -> Any: ...


async def run_training(fed: Federation, job: RunningTraining, context: Context) -> Trained:
    """Run the rounds of a training, and measure across sites afterwards if the evaluation asks for it.

    Args:
        fed: the federation.
        job: the training, with its mechanism installed.
        context: its context, with the learner, which is released at the end.
    """
    measures, certain = TrainingMeasures(context), job.budget is None
    course = job.topology.course(context)
    course = Accounted(course, context) if context.protected else course
    try:
        ended = await run_rounds(fed, job, course, measures, certain=certain)
        crossed = await Across(context).run(fed, ended) if job.evaluation.cross_site else None
    finally:
        let_go(context.learner)
    kept = ended.best
    best = None if kept is None else Best(str(job.keep_best), kept["round"], kept["value"], kept["params"])
    found = ended.model, ended.history, ended.reason, ended.round, ended.devices
    return Trained(*found, last=ended.last, best=best, cross_site=crossed)


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
    from atoll.data import label_map  # reading rows: only where a report asks for it
    from atoll.data.labels.shown import labels_section

    exposures = exposures_of(job, job.selection.cohort_size(len(data)))
    return lambda rows: labels_section(label_map(data), rows, exposures)  # the rows are read when somebody reports


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
