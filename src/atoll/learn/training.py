"""Training: a federated learning job, composed of orthogonal parts, and the program that runs it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import tree as T
from atoll.core.chain import Chain
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.reducer import Plain, Reducer
from atoll.core.stage import Stage
from atoll.privacy import Budget

from .aggregation import Aggregation, Renormalised
from .algorithm import Algorithm
from .algorithms import FedAvg
from .checks import require_kinds, require_parts
from .declared import declared_bits
from .downlink import check_downlink
from .evaluation import Evaluation
from .learner import Learner, LearnerSettings, adapt
from .pacing import Pacing, Synchronous
from .personal import require_personal
from .release import is_private, require_private_reply
from .scoring import scoring_task
from .selection import Selection, Uniform
from .stop import StopRule
from .topology.base import Star, Topology
from .wrapped import innermost

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.task import Task
    from atoll.core.tree import Tree

    from .by_device import ByDevice
    from .history import History

__all__ = ["Callback", "Training", "Trained"]

Callback = Callable[[dict[str, Any]], None]
"""Called with every round's record; raise ``StopTraining`` to stop."""


@dataclass(frozen=True)
class Trained:
    """What the program of a training returns.

    Attributes:
        params: the final parameters (the best ones with ``keep_best``).
        history: a row a round.
        reason: why it stopped.
        round: the round the parameters come from.
        devices: what every device was asked, did and spent.
    """

    params: Any
    history: History
    reason: str
    round: int
    devices: ByDevice


_PARTS: dict[str, tuple[Any, str]] = {
    "algorithm": (Algorithm, "atoll.FedAvg(lr=0.1)"),
    "topology": (Topology, "atoll.learn.topology.Star()"),
    "selection": (Selection, "atoll.Uniform(10)"),
    "aggregation": (Aggregation, "atoll.learn.aggregation.Renormalised()"),
    "pacing": (Pacing, "atoll.Synchronous()"),
    "reducer": (Reducer, "atoll.core.reducer.Plain()"),
    "evaluation": (Evaluation, "atoll.Evaluation(every=5)"),
}
_LISTS: dict[str, tuple[Any, str]] = {
    "uplink": (Stage, "atoll.stages.Clip(1.0)"),
    "stop": (StopRule, 'atoll.Target("test/accuracy", 0.9)'),
    "callbacks": (Callable, "print"),
}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A federated training job.

    Attributes:
        model: a ``torch.nn.Module``, a scikit-learn estimator, any object with ``learner(settings, data)``, or a callable that makes one.
        algorithm: what clients and server compute.
        topology: who talks to whom; see ``atoll.learn.topology``.
        selection: who is invited.
        aggregation: how the replies stand for the whole population.
        pacing: when a round ends.
        uplink: stages on the way up; value stages first. Those of the algorithm itself act behind the value stages given here.
        downlink: a compressor on the way down, in place of the algorithm's own (see ``atoll.learn.downlink``).
        reducer: how replies become one.
        rounds: most rounds.
        stop: further stop rules.
        evaluation: what is measured.
        keep_best: name of a metric: the result is the model of its best round.
        loss: a name, a callable, or ``"auto"``.
        device: cpu, cuda, mps or auto.
        compile: auto, always or never.
        buffers: of normalisation layers: averaged or local.
        checkpoint_every: rounds between checkpoints when a run folder is given.
        callbacks: called with every round's record.
        budget: how much privacy each client may spend. A training whose rounds exceed it is refused before any client is contacted, where that
            is known beforehand (see ``Budget.on_excess``); otherwise the round that would exceed it is not held, and training ends before it.
    """

    model: Any
    algorithm: Algorithm = field(default_factory=FedAvg)
    topology: Topology = field(default_factory=Star)
    selection: Selection = field(default_factory=Uniform)
    aggregation: Aggregation = field(default_factory=Renormalised)
    pacing: Pacing = field(default_factory=Synchronous)
    uplink: Sequence[Stage] = ()
    downlink: Stage | None = None
    reducer: Reducer = field(default_factory=Plain)
    rounds: int = 50
    stop: Sequence[StopRule] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    keep_best: str | None = None
    loss: Any = "auto"
    device: str = "cpu"
    compile: str = "auto"
    buffers: str = "averaged"
    checkpoint_every: int = 1
    callbacks: Sequence[Callback] = ()
    budget: Budget | None = None

    def __post_init__(self) -> None:
        require_kinds(self)
        require_parts(self, _PARTS, _LISTS)
        if self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds}", remedy="use at least 1 round")
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every={self.checkpoint_every}", remedy="use at least 1 round")
        check_downlink(self.down())
        self._check_memory()
        if self.reducer.secure:
            self._check_secure(type(self.reducer).__name__)

    def up(self, phase: str) -> Chain:
        """The stages on the way up in a phase: value stages given here, the algorithm's own, summand stages given here."""
        given = Chain(self.uplink)
        self._check_packed(given, self.algorithm.uplink(phase))
        return Chain((*given.value_stages, *self.algorithm.uplink(phase), *given.summand_stages), place=phase)

    def down(self) -> Stage | None:
        """The compressor on the way down."""
        return self.algorithm.downlink() if self.downlink is None else self.downlink

    def _check_packed(self, given: Chain, own: Sequence[Stage]) -> None:
        """Refuse to compress what the algorithm compresses."""
        packed = next((stage for stage in given.value_stages if stage.packs), None)
        inner = next((stage for stage in own if stage.on == "value"), None)
        if packed is not None and inner is not None:
            raise CompositionError(
                f"{type(self.algorithm).__name__} has {type(inner).__name__} act on its replies, and {type(packed).__name__} sends a binary form before that",
                where="Training.uplink",
                remedy=f"leave {type(packed).__name__} out, or use an algorithm that sends what it has, such as FedAvg()",
            )

    def _check_memory(self) -> None:
        if self.aggregation.weighs_odds and not self.selection.tells_odds:
            raise CompositionError(
                f"{type(self.aggregation).__name__} weighs by the probability of every draw, and {type(self.selection).__name__} does not tell it, or draws without replacement",
                where="Training.selection",
                remedy="use SizeProportional() or FedProf(replace=True), or another aggregation",
            )
        if innermost(self.algorithm).card.family == "statistics" and any(stage.remembers for stage in self.uplink):
            raise CompositionError(
                f"{type(self.algorithm).__name__} replaces its statistics in every round, and a stage that remembers adds last round's leftovers",
                where="Training.uplink",
                remedy="use a stage without memory, or none: statistics are exact",
            )
        for stage in (s for phase in self.algorithm.phases for s in self.up(phase).stages):
            if stage.remembers and self.selection.repeats:
                raise CompositionError(
                    f"{type(self.selection).__name__} may draw a client twice, and {type(stage).__name__} remembers one reply of each",
                    where="Training.selection",
                    remedy="draw without replacement",
                )

    def _check_secure(self, reducer: str) -> None:
        for phase in self.algorithm.phases:
            self.up(phase).require_summable(reducer)
        self.evaluation.require_sums(reducer)
        if not self.aggregation.summable:
            raise CompositionError(
                f"{type(self.aggregation).__name__} sees single replies, and {reducer} reveals sums only",
                where="Training.aggregation",
                remedy="use Renormalised, Rescaled or KeepGlobal, or a plain reducer",
            )
        if self.pacing.single:
            raise CompositionError(
                f"{type(self.pacing).__name__} rebuilds single models, and {reducer} reveals sums only",
                where="Training.pacing",
                remedy="use Synchronous() or FedBuff(), or a plain reducer",
            )
        if self.selection.listens:
            raise CompositionError(
                f"{type(self.selection).__name__} looks at what single clients report, and {reducer} reveals sums only",
                where="Training.selection",
                remedy="use Uniform(), or a plain reducer",
            )
        if self.selection.repeats:
            raise CompositionError(
                f"{type(self.selection).__name__} may draw a client twice, and {reducer} takes one reply of each",
                where="Training.selection",
                remedy="draw without replacement",
            )

    def replace(self, **changes: Any) -> Training:
        """The same job with other parts."""
        return dataclasses.replace(self, **changes)

    def declared(self, params: Tree, phase: str) -> int | None:
        """Bits that the stages on the way up declare of one reply of a phase, see `declared_bits`; remembered, as the model's form alone decides."""
        form = (phase, *((path, leaf.shape, leaf.dtype) for path, leaf in T.items(params)))
        if form not in self._declared:
            self._declared[form] = declared_bits(self.local_algorithm, self.up(phase), params, phase)
        return self._declared[form]

    @functools.cached_property
    def _declared(self) -> dict[tuple[Any, ...], int | None]:
        return {}

    @property
    def local_algorithm(self) -> Algorithm:
        """What clients run: the algorithm, with the replies that aggregation, pacing and topology want."""
        return self.topology.algorithm(self.pacing.algorithm(self.aggregation.algorithm(self.algorithm)))

    def learner(self, data: Any) -> Learner:
        """The model, ready for this data set.

        Raises:
            DataError: the model does not fit the data.
            CompositionError: the algorithm needs every client and fewer are invited, or keeps no personal models to measure.
        """
        self.selection.check(len(data), self.topology.groups_of(len(data)))
        cohort = self.selection.cohort_size(len(data))
        if self.topology.needs_everyone(self.algorithm) and cohort < len(data):
            raise CompositionError(
                f"{type(self.algorithm).__name__} needs every client in every round, and {cohort} of {len(data)} are invited",
                where="Training.selection",
                remedy="use selection=Everyone(), or an algorithm that does with some (atoll.learn.algorithms.Scaffold)",
            )
        settings = LearnerSettings(
            algorithm=self.local_algorithm,
            loss=self.loss,
            device=self.device,
            compile=self.compile,
            buffers=self.buffers,
            volume=self.rounds * cohort,
        )
        made = adapt(self.model, settings, data)
        if self.evaluation.personal:
            require_personal(self.algorithm, made, self.buffers == "local")
        self._check_pacing(made, data)
        self.topology.check(self, made, data)
        self.algorithm.fits(made)
        self._check_private(made, data)
        return made

    def named_tasks(self, learner: Learner, data: Any) -> tuple[Task, ...]:
        """What a world must know by name to run this job."""
        own = [learner.report] if hasattr(learner, "report") else []
        asking = () if self.selection.inquiry is None else self.selection.inquiry.tasks(learner)
        more = (*asking, *self.topology.tasks(self, learner, data))
        return (learner.train, learner.measure, scoring_task(learner), *own, *more)

    def others(self, n: int) -> dict[str, str]:
        """Parties that it needs beside ``n`` clients, name -> role: servers of the topology, and whom the selection rule talks to."""
        asked = {} if self.selection.inquiry is None else self.selection.inquiry.others
        return {**self.topology.servers(n), **asked}

    def _check_pacing(self, learner: Learner, data: Any) -> None:
        """Refuse a pace that the topology does not keep, and reports that nobody can make."""
        if not self.topology.keeps(self.pacing):
            layered = self.pacing.layered
            whose, other = ("edges under a cloud", "Hierarchical()") if layered else ("a server", "Star()")
            raise CompositionError(
                f"{type(self.topology).__name__} has rounds of its own, and {type(self.pacing).__name__} paces those of {whose}",
                where="Training.pacing",
                remedy=f"use Synchronous(), or topology={other}",
            )
        self.pacing.check(self, learner, data)
        if self.selection.inquiry is not None:
            self.selection.inquiry.check(self, learner)
        if self.selection.reports:
            check = getattr(learner, "check_reports", None)
            if check is None:
                raise CompositionError(
                    f"{type(self.selection).__name__} wants clients to report {', '.join(self.selection.reports)}, and this model cannot",
                    where="Training.selection",
                    remedy="use a model that reports (atoll.models, PyTorch), or Uniform()",
                )
            check(self.selection.reports)

    def _check_private(self, learner: Learner, data: Any) -> None:
        """Refuse what would leak beside a mechanism, and clients too small for its promise."""
        if not is_private(self.algorithm):
            if self.budget is not None:
                raise CompositionError(
                    f"a privacy budget, and {type(self.algorithm).__name__} protects nothing",
                    where="Training.budget",
                    remedy="use for example OutputPerturbation around it, or no budget",
                )
            return
        if not self.topology.private:
            raise CompositionError(
                f"{type(self.topology).__name__} does not say that a privacy mechanism is sound on it, and clients may send more there than {type(self.algorithm).__name__} releases",
                where="Training.topology",
                remedy="use Star(), or set `private = True` on a topology whose messages all follow from released replies",
            )
        require_private_reply(self.algorithm, learner)
        if self.selection.listens:
            told = ", ".join(self.selection.reports) or "profiles, in part encrypted"
            raise CompositionError(
                f"{type(self.selection).__name__} wants reports ({told}), which would leave clients without noise",
                where="Training.selection",
                remedy="use Uniform(), or train the same algorithm without privacy",
            )
        if self.evaluation.clients:
            raise CompositionError(
                "measures of clients would leave them without noise",
                where="Training.evaluation",
                remedy="evaluate at the server, or measure the same algorithm without privacy",
            )
        for n in np.unique(getattr(data, "sizes", [])):
            self.algorithm.events(int(n))

    def program(self, data: Any, learner: Learner | None = None) -> Callable[[Federation], Awaitable[Trained]]:
        """The program of this job on a federated data set."""
        ready = learner or self.learner(data)

        async def program(fed: Federation) -> Trained:
            return await self.topology.run(fed, self, ready, data)

        return program
