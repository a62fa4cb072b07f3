"""The parts of a training in their slots, for `compose`, and checks of single parts with the data and the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.stage import Stage
from atoll.core.validation import require_parts
from atoll.learn.aggregation.base import Aggregation
from atoll.learn.pacing.base import Pacing
from atoll.learn.selection.base import Selection
from atoll.privacy import Budget
from atoll.rounds.loop import StopRule

from .algorithm import Algorithm, Compressing, Private
from .capabilities import EVERYONE, OWN_MODELS, Placed, lack_of
from .learner import SupportsReports, placed_model
from .local.reports import require_mechanism_outside
from .private.base import Mechanism, TrainingParts
from .replies import placed_replies
from .round.evaluation import Evaluation
from .round.state import DOWNLINK_NEEDS
from .topology.base import Topology
from .wrapped import dry_reply, innermost, overrides, shown_name

if TYPE_CHECKING:
    from .context import Context
    from .learner import Learner

__all__ = ["LATER", "Chosen", "algorithms_in", "check_prepared", "parts_of", "prepared_parts", "require_kinds_of_parts"]

LATER = ("cohort", "replies", "model")
"""Slots that are empty until a training has its data."""


class Chosen(TrainingParts, Protocol):
    """The parts of a training, with what it makes of them."""

    @property
    def evaluation(self) -> Evaluation:
        """What is measured."""
        ...

    @property
    def buffers(self) -> str:
        """How buffers of normalisation layers are treated."""
        ...

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that was installed."""
        ...

    @property
    def local_algorithm(self) -> Algorithm:
        """What clients run."""
        ...

    def down(self) -> Stage | None:
        """Return the compressor on the way down."""
        ...


def parts_of(job: Chosen) -> list[Placed]:
    """Return the parts of a training, each in its slot, before the data are known."""
    return list(_parts_of(job))


def _parts_of(job: Chosen) -> Iterator[Placed]:
    if job.mechanism is not None:  # first, since users choose it, and not the parts that it installs
        yield Placed.of("privacy", job.mechanism)
    name = shown_name(job.algorithm)
    yield Placed.of("algorithm", job.algorithm, name)
    own = [stage for phase in job.algorithm.phases for stage in facet(job.algorithm, Compressing).uplink(phase)]
    for stage in own:
        yield Placed.of("algorithm.uplink", stage, f"{type(stage).__name__} of {name}", "algorithm")
    for stage in job.uplink:
        yield Placed.of("uplink", stage)
    down = job.down()
    if down is not None:
        yield Placed("downlink", type(down).__name__, DOWNLINK_NEEDS, lack_of(()))
    for slot in ("aggregation", "selection", "pacing", "topology", "reducer", "evaluation"):
        yield Placed.of(slot, getattr(job, slot))
    for metric in job.evaluation.at_each:
        yield Placed.of("metrics", metric, setting="evaluation.metrics")
    if job.budget is not None:
        yield Placed.of("budget", job.budget)
    local = frozenset({OWN_MODELS}) if job.buffers == "local" else frozenset()
    yield Placed("buffers", f"buffers={job.buffers!r}", (), lack_of(local))


def prepared_parts(job: Chosen, learner: Learner, population: int) -> list[Placed]:
    """Return the parts of a training, with its model and the replies of the algorithm's clients, for ``population`` clients."""
    cohort, name = job.selection.cohort_size(population), type(job.selection).__name__
    everyone = frozenset({EVERYONE}) if cohort >= population else frozenset()
    invites = {EVERYONE: f"invites {cohort} of {population}"}
    return [
        *parts_of(job),
        Placed("cohort", name, (), lack_of(everyone, invites), "selection"),
        placed_replies(job.algorithm, job.local_algorithm, lambda: learner.init(Rng(0))),
        placed_model(learner),
    ]


def check_prepared(job: Chosen, context: Context) -> None:
    """Refuse parts that do not work with these clients, this cohort and this model.

    Raises:
        CompositionError: with the reason and the remedy.
    """
    job.pacing.check(context)
    job.topology.check(context)
    _check_told(job.selection, context.learner)
    require_mechanism_outside(job.algorithm)
    _check_folded(job.algorithm, context.learner)
    if context.protected:
        for n in np.unique([] if context.clients.sizes is None else context.clients.sizes):
            facet(job.algorithm, Private).events(int(n))


def _check_told(rule: Selection, learner: Learner) -> None:
    """Refuse reports that this model cannot make."""
    if rule.inquiry is not None:
        rule.inquiry.check(learner)
    if rule.reports and isinstance(learner, SupportsReports):
        learner.check_reports(rule.reports)


def _check_folded(algorithm: Algorithm, learner: Learner) -> None:
    """Refuse an algorithm whose clients do not send what its server folds: a pass of another algorithm, or an unfinished one."""
    inside = innermost(algorithm)
    if not overrides(inside, "finish") or overrides(inside, "fold"):
        return
    reply = dry_reply(inside, learner.init(Rng(0)))
    if "update" not in reply:
        raise CompositionError(
            f"clients of {type(inside).__name__} reply with {', '.join(reply) or 'nothing'}, and its server folds an update",
            where="Training.algorithm",
            remedy="use a complete algorithm; your own algorithm needs a `fold` if its `finish` gives no 'update'",
        )


_PARTS: dict[str, tuple[Any, str]] = {
    "algorithm": (Algorithm, "atoll.FedAvg(lr=0.1)"),
    "topology": (Topology, "atoll.topology.Star()"),
    "selection": (Selection, "atoll.Uniform(10)"),
    "aggregation": (Aggregation, "atoll.aggregation.Renormalised()"),
    "pacing": (Pacing, "atoll.Synchronous()"),
    "reducer": (Reducer, "atoll.reducers.SecureAggregation()"),
    "evaluation": (Evaluation, "atoll.Evaluation(every=5)"),
}
_OPTIONAL: dict[str, tuple[Any, str]] = {
    "downlink": (Stage, "atoll.stages.QSGD(8)"),
    "budget": (Budget, "atoll.privacy.Budget(epsilon=3.0)"),
    "privacy": (Mechanism, "atoll.mechanisms.CentralDP(epsilon=2.0, delta=1e-5, clip=1.0)"),
}
_LISTS: dict[str, tuple[Any, str]] = {
    "uplink": (Stage, "atoll.stages.Clip(1.0)"),
    "stop": (StopRule, 'atoll.Target("test/accuracy", 0.9)'),
    "callbacks": (Callable, "print"),
}


def require_kinds_of_parts(job: Chosen) -> None:
    """Refuse a training one of whose parts is of another kind than its slot.

    Raises:
        CompositionError: names the slot, and an example of what it takes.
    """
    require_parts(job, _PARTS, _LISTS, _OPTIONAL)


def algorithms_in(part: Any) -> Iterable[Algorithm]:
    """Return an algorithm and the algorithms inside it."""
    if isinstance(part, Algorithm):
        yield part
    if isinstance(part, list | tuple):
        for one in part:
            yield from algorithms_in(one)
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            yield from algorithms_in(getattr(part, field.name, None))
