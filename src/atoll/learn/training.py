"""Training: a federated learning job, composed of orthogonal parts, and the program that runs it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atoll.core import tree as T
from atoll.core.chain import Chain
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.kinds import Checked, require_parts
from atoll.core.reducer import Plain, Reducer
from atoll.core.stage import Stage
from atoll.privacy import Budget

from .aggregation import Aggregation, Renormalised
from .algorithm import Algorithm
from .algorithms import FedAvg
from .composition import check_memory, check_pacing, check_packed, check_private, check_replies, check_secure
from .declared import declared_bits
from .downlink import check_downlink
from .evaluation import Evaluation
from .learner import Learner, LearnerSettings, adapt
from .pacing import Pacing, Synchronous
from .personal import require_personal
from .scoring import scoring_task
from .selection import Selection, Uniform
from .stop import StopRule
from .topology.base import Star, Topology

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
_OPTIONAL: dict[str, tuple[Any, str]] = {
    "downlink": (Stage, "atoll.stages.QSGD(8)"),
    "budget": (Budget, "atoll.privacy.Budget(epsilon=3.0)"),
}
_LISTS: dict[str, tuple[Any, str]] = {
    "uplink": (Stage, "atoll.stages.Clip(1.0)"),
    "stop": (StopRule, 'atoll.Target("test/accuracy", 0.9)'),
    "callbacks": (Callable, "print"),
}


@dataclass(frozen=True, kw_only=True)
class Training(Checked):
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
        require_parts(self, _PARTS, _LISTS, _OPTIONAL)
        if self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds}", remedy="use at least 1 round")
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every={self.checkpoint_every}", remedy="use at least 1 round")
        check_downlink(self.down())
        check_memory(self)
        if self.reducer.secure:
            check_secure(self, type(self.reducer).__name__)

    def up(self, phase: str) -> Chain:
        """The stages on the way up in a phase: value stages given here, the algorithm's own, summand stages given here."""
        given = Chain(self.uplink)
        check_packed(self, given, self.algorithm.uplink(phase))
        return Chain((*given.value_stages, *self.algorithm.uplink(phase), *given.summand_stages), place=phase)

    def down(self) -> Stage | None:
        """The compressor on the way down."""
        return self.algorithm.downlink() if self.downlink is None else self.downlink

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
        self.selection.check(self.topology.groups_of(len(data)))
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
        check_pacing(self, made, data)
        self.topology.check(self, made, data)
        self.algorithm.fits(made)
        check_replies(self, made)
        check_private(self, made, data)
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

    def program(self, data: Any, learner: Learner | None = None) -> Callable[[Federation], Awaitable[Trained]]:
        """The program of this job on a federated data set."""
        ready = learner or self.learner(data)
        # Not where the learner is made: sites make it of an outline of the data, which has no rows.
        self.aggregation.check_rows(len(getattr(data, "test", None) or ()) > 0)

        async def program(fed: Federation) -> Trained:
            return await self.topology.run(fed, self, ready, data)

        return program
