"""A training prepared for one federated data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core.algebra.form import safetensors_of
from atoll.core.job import Prepared
from atoll.core.persistence.files import as_json

if TYPE_CHECKING:
    from atoll.core.event import Event
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task
    from atoll.rounds.by_device import ByDevice
    from atoll.rounds.history import History

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
