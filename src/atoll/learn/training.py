"""Training: a federated learning job made of orthogonal parts, and the program that runs it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from atoll.core.capability import SINGLE_REPLIES
from atoll.core.errors import ConfigError, nearest
from atoll.core.facets import facet
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.job import Job, name_of
from atoll.core.requests.chain import Chain
from atoll.core.requests.policy import ROW_FEATURES
from atoll.core.requests.stage import Stage
from atoll.core.rooms import Named, Own, part_names
from atoll.core.validation import Checked
from atoll.data.islands import Islands
from atoll.data.model_columns import ModelColumns
from atoll.learn.aggregation.base import Aggregation, Renormalised
from atoll.learn.algorithms.fedavg import FedAvg
from atoll.learn.pacing.base import Pacing
from atoll.learn.pacing.synchronous import Synchronous
from atoll.learn.selection.base import Selection
from atoll.privacy import Budget
from atoll.rounds.loop import StopRule

from .algorithm import Algorithm, Compressing, Helped
from .capabilities import RELEASES, require_composed
from .composition import LATER, algorithms_in, check_prepared, parts_of, prepared_parts, require_kinds_of_parts
from .context import Clients, Context
from .cross_site import Across
from .explain import explain_training
from .learner import Learner, LearnerSettings, SupportsReports, adapt, capabilities_of
from .local.own_loss import LOSS_NAMES
from .local.reports import promises_privacy
from .prepared import (
    DEFAULT_SELECTION,
    MEASURES,
    PreparedTraining,
    Trained,
    counted_as,
    entrusted_to_server,
    hold_out,
    labels_section_of,
    most_released,
    name_unlabelled,
    news_of,
    notices_of_training,
    require_held_labels,
    require_rows_of_helpers,
    run_training,
)
from .private.base import Mechanism
from .private.claim import Guarantee
from .replies import values_of
from .round.evaluation import Evaluation, scoring_task
from .round.gaps import gaps_task, require_held_out
from .round.state import check_downlink
from .topology.base import Star, Topology

if TYPE_CHECKING:
    from atoll.core.exposure import Explanation
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.task import Task


__all__ = ["Callback", "Training"]

Callback = Callable[[dict[str, Any]], None]
"""Called with every round's record; raise ``StopRun`` to stop."""


@dataclass(frozen=True, kw_only=True)
class Training(Checked, Job):
    """A federated training job.

    Attributes:
        model: a ``torch.nn.Module``, a scikit-learn estimator, any object with ``learner(settings, data)``, or a callable that makes one.
        algorithm: what clients and the server compute.
        topology: which parties exchange messages; see ``atoll.learn.topology``.
        selection: which clients a round invites.
        aggregation: how the replies represent the whole population.
        pacing: when a round ends.
        uplink: stages on the way up, value stages first. The algorithm's own stages act after the value stages given here.
        downlink: a compressor on the way down, instead of the algorithm's own (see ``atoll.learn.round.state``).
        reducer: how replies become one.
        rounds: the largest number of rounds.
        stop: further stop rules.
        evaluation: what is measured.
        keep_best: name of a metric; the result is the model of the best round by this metric.
        loss: a name, a callable, or ``"auto"``.
        device: cpu, cuda, mps or auto.
        compile: auto, always or never.
        buffers: how to treat buffers of normalisation layers: averaged or local.
        checkpoint_every: rounds between checkpoints when a run folder is given.
        callbacks: called with every round's record.
        budget: how much privacy each client may spend. Atoll refuses a training whose rounds exceed it before any client is contacted, if
            that is known beforehand (see ``Budget.on_excess``). Otherwise training ends before the round that would exceed it.
        privacy: a mechanism of differential privacy; see ``atoll.learn.private``. It replaces parts of the training (`installed`), and its
            epsilon is a budget.
    """

    kind: ClassVar[str] = "training"
    one_form: ClassVar[bool] = True
    method: ClassVar[str] = "algorithm"
    changeable: ClassVar[tuple[str, ...]] = ("rounds", "stop")

    model: Annotated[Any, Named("model")]
    algorithm: Algorithm = field(default_factory=FedAvg)
    topology: Topology = field(default_factory=Star)
    selection: Selection = field(default_factory=lambda: DEFAULT_SELECTION)
    aggregation: Aggregation = field(default_factory=Renormalised)
    pacing: Pacing = field(default_factory=Synchronous)
    uplink: Sequence[Stage] = ()
    downlink: Stage | None = None
    reducer: Reducer = field(default_factory=Plain)
    rounds: int = 50
    stop: Sequence[StopRule] = ()
    evaluation: Evaluation = field(default_factory=Evaluation)
    keep_best: str | None = None
    loss: Annotated[Any, Own("loss")] = "auto"
    device: str = "cpu"
    compile: Literal["auto", "always", "never"] = "auto"
    buffers: Literal["averaged", "local"] = "averaged"
    checkpoint_every: int = 1
    callbacks: Sequence[Callback] = ()
    budget: Budget | None = None
    privacy: Mechanism | None = None

    def __post_init__(self) -> None:
        require_kinds_of_parts(self)
        if self.rounds < 1:
            raise ConfigError(f"rounds={self.rounds}", remedy="use at least 1 round")
        if self.checkpoint_every < 1:
            raise ConfigError(f"checkpoint_every={self.checkpoint_every}", remedy="use at least 1 round")
        if isinstance(self.loss, type):
            raise ConfigError(
                f"loss={self.loss.__module__ + ':' + self.loss.__qualname__!r} is a class, but a loss is called with outputs and targets",
                remedy=f"give a function (outputs, targets) -> loss, such as one that calls {self.loss.__name__}()",
            )
        check_downlink(self.down())
        if self.privacy is not None:
            self.installed()  # refuses parts that do not go together with it
            return
        require_composed(parts_of(self), LATER)
        for phase in self.algorithm.phases:
            self.up(phase)  # refuses stages in an impossible order

    def up(self, phase: str) -> Chain:
        """Return the uplink stages of a phase: value stages given here, the algorithm's own, summand stages given here."""
        given = Chain(self.uplink)
        return Chain(
            (*given.value_stages, *facet(self.algorithm, Compressing).uplink(phase), *given.summand_stages), place=phase
        )

    def down(self) -> Stage | None:
        """Return the downlink compressor."""
        return facet(self.algorithm, Compressing).downlink() if self.downlink is None else self.downlink

    def replace(self, **changes: Any) -> Training:
        """Return the same job with other parts."""
        return dataclasses.replace(self, **changes)

    @property
    def claim(self) -> Guarantee | None:
        """What an installed mechanism promises; ``None`` without one, or before it is installed."""
        return None

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that was installed; ``None`` without one, or before."""
        return None

    def installed(self, data: Any = None, learner: Learner | None = None) -> Training:
        """Return the training with the parts that its mechanism installs, and with the claim; the training itself without ``privacy``.

        Args:
            data: the federated data set, from which the chance of taking part and the noise follow; ``None`` only tries whether the parts go together.
            learner: the model, which tells how many values a client sends.

        Raises:
            CompositionError: the claim would not hold with these parts.
        """
        if self.privacy is None:
            return self
        sizes = None if data is None else getattr(data, "sizes", None)
        alike = () if sizes is None else tuple(int(n) for n in sorted(set(sizes)))
        values, entries = (1, 0) if learner is None else values_of(self.installed(data), learner)
        alone = learner is None or RELEASES in capabilities_of(learner)
        parts, claim = self.privacy.install(
            self, 0 if data is None else len(data), values, alike, alone=alone, entries=entries
        )
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Training)}
        return _Installed(**{**own, **parts, "privacy": None}, promised=claim, by=self.privacy)

    @property
    def local_algorithm(self) -> Algorithm:
        """What clients run: the algorithm, with the replies that aggregation, pacing and topology require."""
        return self.topology.algorithm(self.pacing.algorithm(self.aggregation.algorithm(self.algorithm)))

    def learner(self, data: Any) -> Learner:
        """Return the model, ready for this data set.

        Raises:
            DataError: the model does not fit the data.
            CompositionError: the parts do not go together with this model and these clients.
        """
        if self.privacy is not None:
            made = self.installed(data).learner(data)
            self.installed(data, made).check(made, data)
            return made
        self.selection.check(self.topology.groups_of(len(data)))
        settings = LearnerSettings(
            algorithm=self.local_algorithm,
            loss=self.loss,
            device=self.device,
            compile=self.compile,
            buffers=self.buffers,
            volume=self.rounds * self.pacing.updates(self.selection, len(data)),
            protected=promises_privacy(self.algorithm, self.up, self.aggregation),
            singly=SINGLE_REPLIES in self.reducer.offers,
        )
        made = adapt(self.model, settings, data)
        self.check(made, data)
        return made

    def check(self, learner: Learner, data: Any) -> None:
        """Refuse parts that do not go together with a model and a data set.

        Raises:
            CompositionError: with the reason and the remedy.
        """
        require_composed(prepared_parts(self, learner, len(data)))
        check_prepared(self, self.context(learner, data))

    def context(self, learner: Learner, data: Any) -> Context:
        """Return the context of the parts, with this learner on this data set."""
        if self.privacy is not None:
            return self.installed(data, learner).context(learner, data)
        return Context(
            algorithm=self.algorithm,
            local_algorithm=self.local_algorithm,
            selection=self.selection,
            aggregation=self.aggregation,
            pacing=self.pacing,
            uplink=functools.cache(self.up),
            downlink=self.down(),
            reducer=self.reducer,
            evaluation=self.evaluation,
            groups=self.topology.groups_of(len(data)),
            budget=self.budget,
            claim=self.claim,
            rounds=self.rounds,
            ends_early=bool(self.stop),
            learner=learner,
            clients=Clients(data),
            test=getattr(data, "test", None),
            public=getattr(data, "public", None),
        )

    def named_tasks(self, learner: Learner, data: Any) -> tuple[Task, ...]:
        """Return the tasks that a world must know by name to run this job."""
        own = [learner.report] if isinstance(learner, SupportsReports) else []
        asking = () if self.selection.inquiry is None else self.selection.inquiry.tasks(learner)
        context = self.context(learner, data)
        across = Across(context).tasks if self.evaluation.cross_site else ()
        apart = (gaps_task(learner),) if self.evaluation.gaps else ()
        more = (*asking, *self.topology.tasks(context), *across, *apart)
        return (learner.train, learner.measure, scoring_task(learner), *own, *more)

    def names(self) -> tuple[str, ...]:
        """Return the names of the job's kind, the algorithm and the algorithms inside it, and of what leaves with a site's consent alone."""
        parts = list(algorithms_in(self.algorithm))
        leaves = dict.fromkeys(name for part in parts for name in facet(part, Helped).consents)
        return (*super().names(), *(name_of(type(part)) for part in parts), *leaves)

    @classmethod
    def known_names(cls) -> tuple[str, ...]:
        """The kind, all algorithms and mechanisms, and what leaves with a site's consent alone."""
        return (*super().known_names(), *part_names("algorithm"), *part_names("mechanism"), ROW_FEATURES)

    def others(self, n: int) -> dict[str, str]:
        """Return the parties that the job needs in addition to ``n`` clients, name -> role: servers of the topology, and `helpers`."""
        return {**self.topology.servers(n), **self.helpers()}

    def helpers(self) -> dict[str, str]:
        """Parties that the reducer, the selection rule, the topology and the algorithm ask. The servers of a topology are edges, whose number depends on the clients."""
        asked = {} if self.selection.inquiry is None else self.selection.inquiry.others
        return {**self.reducer.others, **asked, **self.topology.helpers, **facet(self.algorithm, Helped).helpers}

    def program(self, data: Any, learner: Learner | None = None) -> Callable[[Federation], Awaitable[Trained]]:
        """Return the program of this job on a federated data set."""
        ready = learner or self.learner(data)
        if self.privacy is not None:
            return self.installed(data, ready).program(data, ready)
        # Not where the learner is made: sites make it from an outline of the data, which has no rows.
        self.aggregation.check_rows(len(getattr(data, "test", None) or ()) > 0)

        async def program(fed: Federation) -> Trained:
            return await run_training(fed, self, self.context(ready, data))

        return program

    @property
    def most_rounds(self) -> int:
        """The largest number of rounds."""
        return self.rounds

    def prepare(self, data: Any) -> PreparedTraining:
        """Return the training prepared for a federated data set, with its learner.

        Raises:
            DataError: the model does not fit the data.
            CompositionError: the parts do not go together.
        """
        if len(data) == 0:
            raise ConfigError("the federation has no clients", where="islands", remedy="partition the data first")
        if isinstance(data, Islands):
            require_rows_of_helpers(self, data)
        # At the server and at sites: an outline has made-up rows of the form that all sites agree on.
        seen = data.outline() if hasattr(data, "outline") else data
        require_held_labels(self, data)
        if self.evaluation.gaps:
            require_held_out(hold_out(data))
        learner = self.learner(seen)
        job = self.installed(seen, learner)
        context = job.context(learner, seen)
        return PreparedTraining(
            learner,
            job.named_tasks(learner, seen),
            lambda: job.program(data, learner),
            lambda rows: most_released(context, job.topology, rows),
            claim=job.claim,
            counted=lambda: counted_as(context),
            entrusted=entrusted_to_server(context, job.topology),
            against=job.topology.against if job.claim is None else job.claim.adversary,
            labels=labels_section_of(job, data),
            notices=lambda rows: [
                *notices_of_training(
                    context,
                    getattr(seen, "task", ""),
                    getattr(seen, "classes", None),
                    rows,
                    held_out=hold_out(data),
                    exact=bool(learner.buffers()) and any(map(job.up, job.algorithm.phases)),
                ),
                *name_unlabelled(self, data),
            ],
            columns=functools.partial(
                ModelColumns.of,
                seen,
                private=job.claim is not None or promises_privacy(job.algorithm, job.up, job.aggregation),
            ),
        )

    def explain(self, data: Any = None, clients: int = 0) -> Explanation:
        """Return who sees what of this training, under which assumption, and what a client sends and receives in a round.

        Raises:
            AtollError: the parts do not go together, or the reducer cannot add up so many clients.
        """
        return explain_training(self, data, clients)

    @classmethod
    def require_settings(cls, said: Mapping[str, Any]) -> None:
        """Refuse an unknown loss; a model that is its own learner may have losses that only it knows."""
        loss = said.get("loss", "auto")
        if loss in ("auto", *LOSS_NAMES) or ":" in loss or hasattr(said.get("model"), "learner"):
            return
        remedy = f"use auto, {', '.join(LOSS_NAMES)}, or your own (outputs, targets) -> loss as module:name"
        raise ConfigError(f"loss={loss!r} is not a known loss.{nearest(loss, LOSS_NAMES)}", remedy=remedy)

    @classmethod
    def measures(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return accuracy, loss and error on the server's rows, and the accuracy of the worst tenth of the clients."""
        del rows
        return dict(MEASURES)

    @classmethod
    def news(cls, last: Mapping[str, float]) -> Iterable[str]:
        """Return accuracy or error, and loss."""
        return news_of(last)


@dataclass(frozen=True, kw_only=True)
class _Installed(Training):
    """A training whose mechanism is installed: what runs."""

    promised: Guarantee
    by: Mechanism

    @property
    def claim(self) -> Guarantee | None:
        return self.promised

    @property
    def mechanism(self) -> Mechanism | None:
        return self.by
