"""The context of a training: everything that its parts can depend on, the clients that the server knows among it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.capability import SINGLE_REPLIES
from atoll.core.facets import facet

from .algorithm import Private
from .learner import metrics_of
from .local.reports import promises_privacy
from .wrapped import declared_bits, dry_reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.capability import Capability
    from atoll.core.event import Event
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.stage import Stage
    from atoll.privacy import Budget
    from atoll.rounds.loop import Course

    from .aggregation.base import Aggregation
    from .algorithm import Algorithm
    from .learner import Learner
    from .private.claim import Guarantee
    from .round.evaluation import Evaluation
    from .selection.base import Selection

__all__ = ["Clients", "Context", "RoundTerms"]


class Clients:
    """What a server knows about its clients before training.

    Args:
        data: the federated data set: it has ``names`` and a length, and ``sizes`` and ``task`` if they are known.
        members: positions of this server's clients; ``None`` for all.
    """

    def __init__(self, data: Any, members: NDArray[np.int64] | None = None) -> None:
        self._data, self._members = data, members

    def __len__(self) -> int:
        return len(self._data) if self._members is None else len(self._members)

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """The name of each client."""
        names: Sequence[str] = self._data.names
        return names if self._members is None else [names[int(i)] for i in self._members]

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64] | None:
        """Examples of each client, ``(clients,)``; ``None`` if unknown."""
        sizes = getattr(self._data, "sizes", None)
        return sizes if sizes is None or self._members is None else np.asarray(sizes)[self._members]

    @property
    def task(self) -> str:
        """The task of the data, such as ``"classification"``; empty if unknown."""
        return str(getattr(self._data, "task", ""))

    def part(self, members: NDArray[np.int64]) -> Clients:
        """Return the clients at some positions."""
        return Clients(self._data, members if self._members is None else self._members[members])

    def weight(self, members: NDArray[np.int64]) -> float:
        """Return the number of examples of some clients, or the number of clients if sizes are unknown."""
        return float(len(members) if self.sizes is None else np.sum(np.asarray(self.sizes)[members]))


# ---------------------------------------------------------------- the context of a training


class RoundTerms(Protocol):
    """What the rounds of a server need to know of the pacing."""

    @property
    def offers(self) -> frozenset[Capability]:
        """What the pacing offers to the other parts."""
        ...

    @property
    def layered(self) -> bool:
        """Whether edge servers run the rounds under a cloud."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds that a round may take; ``None`` for no limit."""
        ...

    @property
    def on_failure(self) -> str:
        """What happens to a round with too few replies: ``"stop"`` or ``"skip"``."""
        ...

    def terms(self, cohort: int) -> dict[str, Any]:
        """Return arguments for ``Federation.sum`` in a round that wants ``cohort`` replies."""
        ...

    def invited(self, cohort: int) -> int:
        """Return how many clients to invite so that ``cohort`` answer."""
        ...

    def course(self, context: Context) -> Course:
        """Return the course: what happens in the rounds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the parts of a training (selection, pacing, topology, aggregation) can depend on.

    A training makes one. A topology of several servers gives each server its own context with ``dataclasses.replace``.

    Attributes:
        algorithm: what clients and server compute.
        local_algorithm: what clients run: the algorithm, with the replies that aggregation, pacing and topology require.
        selection: who is invited.
        aggregation: how the replies represent the whole population.
        pacing: when a round ends.
        uplink: gives the uplink stages of a phase; an algorithm may have phases that only some rounds run.
        downlink: the downlink compressor.
        reducer: how replies become one.
        evaluation: what is measured.
        groups: for each server of the topology, the positions of the clients that it may invite.
        budget: how much privacy each client may spend.
        claim: what a mechanism of differential privacy promises; ``None`` without one.
        rounds: the largest number of rounds.
        ends_early: a stop rule may end the training earlier.
        learner: the model.
        clients: what the server knows about the clients before training.
        test: the server's own test rows; ``None`` if it has none.
        public: public rows, on which the server runs a mock client to fit uplink stages; ``None`` if it has none.
    """

    algorithm: Algorithm
    local_algorithm: Algorithm
    selection: Selection
    aggregation: Aggregation
    pacing: RoundTerms
    uplink: Callable[[str], Chain]
    downlink: Stage | None
    reducer: Reducer
    evaluation: Evaluation
    groups: Sequence[NDArray[np.int64]]
    budget: Budget | None
    claim: Guarantee | None = None
    rounds: int
    ends_early: bool
    learner: Learner
    clients: Clients
    test: Any
    public: Any = None

    @property
    def cohort(self) -> int:
        """Replies wanted in a round of all clients."""
        return self.selection.cohort_size(len(self.clients))

    @property
    def learner_metrics(self) -> frozenset[str] | None:
        """Names of the metrics in a client's reply besides the algorithm's own; ``None`` if the learner's own code names them."""
        return metrics_of(self.learner)

    @property
    def singly(self) -> bool:
        """Whether the server sees single replies."""
        return SINGLE_REPLIES in self.reducer.offers

    @property
    def protected(self) -> bool:
        """Whether the algorithm or the uplink stages make replies private, or the server their sum."""
        return promises_privacy(self.algorithm, self.uplink, self.aggregation)

    def events(self, examples: int, phases: Sequence[str], params: Tree) -> list[Event]:
        """Return what a client releases in some phases: the algorithm's events, the stages' for every named value of its reply, and those of the sum.

        Args:
            examples: the client's number of examples.
            phases: the phases in which the client replies.
            params: a model; only its form matters.
        """
        found: list[Event] = []
        for phase in phases:
            found += facet(self.algorithm, Private).events(examples)
            chain = self.uplink(phase)
            if chain.events:
                values = len(chain.leaving(dry_reply(self.local_algorithm, params, phase)))
                found += [replace(event, count=event.count * values) for event in chain.events if values]
        if self.aggregation.event is not None and phases:  # it covers all phases of a round
            found.append(self.aggregation.event)
        return found

    def chain(self, state: Tree, phase: str, version: int | None = None) -> Chain:
        """Return the uplink of a phase with the round parameters that went out with a version of the model; see `atoll.learn.round.phases`.

        Args:
            state: a server's state.
            phase: the phase.
            version: the version of the model; ``None`` is the newest.
        """
        chain, rows = self.uplink(phase), state.get("fitted", {}).get(phase)
        if not rows or not chain.fits:
            return chain
        known = [row[1] for row in rows if version is None or row[0] <= version]
        return chain.knowing(known[-1] if known else None)

    def declared(self, state: Tree, phase: str, version: int | None = None) -> int | None:
        """Return the bits that the uplink stages declare for one reply of a phase (see `declared_bits`); ``None`` if they cannot tell.

        Running statistics go through the stages too, and only the learner knows their form, so a model that has some is measured separately.
        The count depends on the model's form only, so it is cached.

        Args:
            state: a server's state, ``{"server": {"params", ...}, "buffers", ...}``.
            phase: a phase of the round.
            version: the oldest model among the replies, if clients work on several.
        """
        if state["buffers"]:
            return None
        params = state["server"]["params"]
        uplink = self.chain(state, phase, version)
        if uplink.fits and not uplink.fitted:
            return None  # until the first fit, values go as numbers
        form = (phase, *((path, leaf.shape, leaf.dtype) for path, leaf in T.items(params)))
        if form not in self._declared:
            self._declared[form] = declared_bits(self.local_algorithm, uplink, params, phase)
        return self._declared[form]

    @functools.cached_property
    def _declared(self) -> dict[tuple[Any, ...], int | None]:
        return {}
