"""The contract of a learning algorithm: pure functions over trees.

A round has one or more *phases*; each phase is broadcast → local update → fold. All functions are pure, written with Python operators and
`atoll.core.algebra.tree`, so that the same text runs on NumPy and PyTorch, one client at a time or a thousand at once, eager or compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Protocol

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import FIXED_COHORT, STEPS, Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.core.requests.stage import Stage
from atoll.core.validation import Checked

from .capabilities import EVERYONE, ONE_MODEL, ONE_PHASE, ONE_SUM, TRAINING
from .card import Card
from .hooks import changes, needs_of_hooks, offers_of_hooks
from .local.stragglers import Stragglers

__all__ = ["Algorithm", "Gradient", "LocalWork", "RoundInfo"]


class Gradient(Protocol):
    """The mean loss over the current mini-batch, ``F(params)``, as an oracle that may be asked at any point, as often as wanted."""

    def __call__(self, params: Tree) -> Tree:
        """The gradient ``grad F(params)``."""
        ...

    def loss(self, params: Tree) -> Any:
        """``F(params)``, a scalar."""
        ...

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """The Hessian times a vector, ``(hess F(params)) vector``; a model that cannot raises a ``CompositionError``."""
        ...

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        """The Hessian times several vectors, which lie along a leading axis of every leaf."""
        ...


@dataclass(frozen=True)
class LocalWork:
    """What a client did in one local update.

    Attributes:
        examples: number of training examples ``n_k`` (may be an array element inside a vectorised update).
        steps: number of mini-batch steps taken.
    """

    examples: Any
    steps: Any


@dataclass(frozen=True)
class RoundInfo:
    """What a fold may know about its round.

    Attributes:
        round: 1-based number of the round.
        selected: clients asked.
        replied: clients whose replies are in the sums.
        population: clients in the federation.
        weight: examples of the whole population, when known.
        rng: the server's own random stream of this round.
        odds: position -> probability with which each draw was this client, of those who were invited, where the aggregation wants it.
    """

    round: int
    selected: int
    replied: int
    population: int
    weight: float | None = None
    rng: Rng = field(default_factory=lambda: Rng(0))
    odds: Mapping[int, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Algorithm(Checked):
    """Base of all algorithms: local SGD whose update is averaged by examples.

    Attributes:
        lr: learning rate of the local steps.
        epochs: local passes over the data.
        batch_size: mini-batch size; ``None`` is the full local data.
        steps: local steps; overrides ``epochs`` when given.
        stragglers: clients that do only a part of their local work.
    """

    lr: float = 0.1
    epochs: int = 1
    batch_size: int | None = 10
    steps: int | None = None
    stragglers: Stragglers | None = None
    phases: ClassVar[tuple[str, ...]] = ("train",)
    cyclic: ClassVar[bool] = False
    """Mini-batches are cut from the rows as they lie, the same ones in the same order in every epoch and round; else rows are shuffled."""
    partial: ClassVar[bool] = True
    """Clients may be asked for another number of epochs (or steps) than the algorithm's own; see `atoll.learn.local.partial`."""
    citation: ClassVar[str] = ""
    card: ClassVar[Card] = Card()
    extrapolates: ClassVar[tuple[str, ...]] = ("params",)
    """Names in the server's state that move with the model when a wrapper moves it without the clients (see ``Upcycled``)."""
    tied: ClassVar[tuple[str, ...]] = ()
    """Those of ``extrapolates`` that sum up what clients keep, and so may be moved only by the same share of every change."""
    cumulative: ClassVar[bool] = False
    """The fold adds changes to the model that the last fold left, wherever a wrapper has moved it since (see ``Moving``)."""
    pooled: ClassVar[str] = ""
    """What of everybody's a round rests on, such as ``"the mean of all gradients"``: topologies in which a round's sums are those of one node, or of an
    edge's clients, refuse it. Empty where what parts of the clients have found can be mixed afterwards."""

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"lr={self.lr}", where=type(self).__name__, remedy="use a positive, finite learning rate")
        if not _counts(self.epochs) or not (self.steps is None or _counts(self.steps)):
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}",
                where=type(self).__name__,
                remedy="use a whole number, at least 1",
            )
        if not (self.batch_size is None or _counts(self.batch_size)):
            raise ConfigError(
                f"batch_size={self.batch_size}",
                where=type(self).__name__,
                remedy="use a whole number, at least 1, or None for the full data",
            )
        if self.stragglers is not None and (self.steps or self.epochs) < 2:
            raise ConfigError(
                f"stragglers with epochs={self.epochs}, steps={self.steps}",
                where=type(self).__name__,
                remedy="a straggler does a part of the local work: use at least 2 epochs or steps",
            )

    def batch_of(self, n: Any) -> Any:
        """Rows of a mini-batch at a client with ``n`` examples (a number or an array of numbers)."""
        return n if self.batch_size is None else np.minimum(self.batch_size, n)

    # ---------------------------------------------------------------- what a round consists of

    def plan(self, state: Tree) -> tuple[str, ...]:
        """The phases of the coming round; none when the server goes on alone and no client is contacted."""
        del state
        return self.phases

    def contacts(self, rounds: int) -> int | None:
        """In how many of the first so many rounds clients are contacted; ``None`` where nobody can tell beforehand, as with a plan of one's own."""
        return rounds if type(self).plan is Algorithm.plan else None

    def wanted(self, state: Tree, phase: str) -> bool:
        """Whether a planned phase is still wanted, now that the folds before it are done; one that is not contacts nobody."""
        del state, phase
        return True

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """The local updates that a client runs in a phase, in one contact.

        Each pass gets what the one before left as the client's state, and only the last one replies and keeps state. So an anchor gradient
        is a pass before the steps that use it, and a phase that does not train returns another algorithm.
        """
        del phase
        return (self,)

    # ---------------------------------------------------------------- compression

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """The stages that the method itself puts on the way up in a phase; those of ``Training(uplink=...)`` go around them."""
        del phase
        return ()

    def downlink(self) -> Stage | None:
        """The compressor that the method itself puts on the way down; ``Training(downlink=...)`` takes its place."""
        return None

    # ---------------------------------------------------------------- what it goes with

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer, from what the class says and overrides; add rows of your own to ``super().needs``."""
        made = [Need(TRAINING, "trains the model at its clients")]
        if self.card.everyone:
            some = "an algorithm that does with some (atoll.learn.algorithms.Scaffold)"
            made += [Need(c, "needs every client in every round", some) for c in (EVERYONE, FIXED_COHORT)]
        if self.pooled:
            made.append(Need(ONE_SUM, f"rests on {self.pooled} in every round", "Scaffold() or FedADMM()"))
        if self.card.family == "second order":
            made.append(
                Need(ONE_MODEL, "pairs models and gradients of one round", "a first-order or consensus ADMM method")
            )
        return (*made, *needs_of_hooks(self, Algorithm))

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a training."""
        return offers_of_hooks(self, Algorithm) | {STEPS}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Why it does not offer a capability, where the capability's own words would say too little."""
        return {ONE_PHASE: f"has phases {', '.join(self.phases)}"}

    def overrides(self, hook: str) -> bool:
        """Whether it has a function of its own in place of the base's: with ``"draw"``, whether clients draw random numbers."""
        return changes(self, Algorithm, hook)

    # ---------------------------------------------------------------- privacy

    def admit(self, data: Any) -> None:
        """Refuse, at a client, data that break what its privacy rests on."""
        del data

    def events(self, examples: int) -> tuple[Event, ...]:
        """What a client with so many examples releases in one contact; none when nothing is promised.

        An algorithm that names some is run client by client: its events are in the ledger before its reply leaves, the numbers that it
        draws come from the island's secret, and nothing but what ``finish`` gives is sent.
        """
        del examples
        return ()

    # ---------------------------------------------------------------- the server and the clients

    def init(self, params: Tree) -> Tree:
        """The server's state at the start; must hold ``"params"``."""
        return {"params": params}

    def client_init(self, params: Tree) -> Tree:
        """A client's private state before its first round; ``None`` when there is none."""
        del params
        return None

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """What every client of the cohort receives; must hold ``"params"``. Scalars may ride along."""
        del phase
        return {"params": state["params"], "lr": self.lr}

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """A client's random numbers for one local update, as arrays; ``None`` for none.

        They are drawn before the update and lie in ``local["drawn"]`` throughout, so that every engine uses the same ones.
        """
        del rng, params
        return None

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The local state before the first step: a dict with at least ``"params"``."""
        del client
        return {"params": broadcast["params"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """The search direction, and the local state after it: the operators V and U of the acceleration frameworks.

        Here ``v = grad(w)``. What a method adds to the gradient (a proximal term, a control variate, momentum) goes here, so that it composes.
        """
        del broadcast
        return grad(local["params"]), local

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """One local step: ``w <- w - lr * v``, with ``v`` from ``direction``."""
        toward, local = self.direction(local, grad, broadcast)
        return {**local, "params": T.sub(local["params"], T.scale(toward, broadcast["lr"]))}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The reply (named aggregates) and the client's new private state."""
        update = T.sub(local["params"], broadcast["params"])
        return {"update": Mean(update, examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """The server's next state from the combined replies: ``w <- w + mean update``."""
        del info, phase
        return {**state, "params": T.add(state["params"], sums["update"])}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """The server's last move in a round, after all phases (or alone, when ``plan`` named none)."""
        del info
        return state

    def moved(self, state: Tree) -> Tree:
        """The server's state after a wrapper moved its ``extrapolates``: bring up to date what is computed from them."""
        return state

    def personal(self, params: Tree, client: Tree) -> Tree:
        """The model that a client itself uses: the global one, unless the algorithm keeps one for each client."""
        del client
        return params


def _counts(value: object) -> bool:
    """Whether it is a whole number of at least 1."""
    return isinstance(value, Integral) and int(value) >= 1
