"""The contract of a learning algorithm, pure functions over trees, and its facets.

A round has one or more *phases*; each phase is broadcast → local update → fold. All functions are pure. Write them with Python operators and
`atoll.core.algebra.tree`, so that the same code runs on NumPy and PyTorch, for one client or a thousand at once, eager or compiled.

An `Algorithm` is what the server and the clients compute. What others need to know of some algorithms is a facet that these inherit beside it: what they do
with labels (`Labelled`), whom else they ask (`Helped`), more of a round (`Phased`), stages (`Compressing`), privacy (`Private`), what clients keep
(`Stateful`), and what may be moved (`Movable`). Every algorithm carries `MiniBatched` and `Composable`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng, hash64, mix64
from atoll.core.algebra.tree import Tree
from atoll.core.capability import (
    CENTRAL_SERVER,
    FIXED_COHORT,
    NO_BUFFERS,
    NUMBERS,
    PROTECTION,
    RELEASED_ONLY,
    REPLIES_ONLY,
    STEPS,
    Capability,
    Need,
)
from atoll.core.errors import ConfigError
from atoll.core.event import Event
from atoll.core.facets import Facet, changes, facet, keep_old_form
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Stage
from atoll.core.validation import Checked

from .capabilities import (
    EVERYONE,
    LOCAL_STEPS,
    ONE_MODEL,
    ONE_PHASE,
    ONE_SUM,
    OWN_LOSSES,
    OWN_MODELS,
    PARTIAL_WORK,
    RELEASES,
    TRAINING,
)
from .card import Card
from .local.examples import Clipping, ExampleSteps
from .local.own_loss import any_takes_target

__all__ = [
    "Algorithm",
    "Composable",
    "Compressing",
    "Gradient",
    "Helped",
    "Labelled",
    "LocalWork",
    "LossGradients",
    "MiniBatched",
    "Movable",
    "Phased",
    "Private",
    "RoundInfo",
    "STEP_HOOKS",
    "Stateful",
    "Stragglers",
    "needs_of_hooks",
    "offers_of_hooks",
]


_PLACE = np.uint64(hash64("straggler"))


@dataclass(frozen=True)
class Stragglers:
    """Makes each client of a cohort a straggler with a given probability. A straggler does ``1 .. E-1`` of its ``E`` epochs, all equally likely.

    The draw follows the client's key in the request, so that compared algorithms have the same stragglers. Li et al. 2020,
    "Federated Optimization in Heterogeneous Networks", section 5.2.

    Attributes:
        probability: probability of being a straggler, in [0, 1].
    """

    probability: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ConfigError(f"probability={self.probability}", where="Stragglers", remedy="use a number from 0 to 1")

    def done(self, full: int, key: int) -> int:
        """Return epochs (or steps) that a client does of ``full``."""
        return int(self.done_many(full, np.array([key], dtype=np.uint64))[0])

    def done_many(self, full: int, keys: np.ndarray) -> np.ndarray:
        """Return the same for many clients, ``(clients,)``."""
        draw = mix64(np.asarray(keys, dtype=np.uint64) ^ _PLACE)
        late = _uniform(draw) < self.probability
        part = 1 + np.floor(_uniform(mix64(draw)) * (full - 1)).astype(np.int64)
        return np.where(late & (full > 1), part, full)


def _uniform(bits: np.ndarray) -> np.ndarray:
    """Return numbers in [0, 1) with 53 random bits."""
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53)


# ---------------------------------------------------------------- the contract of a learning algorithm


class Gradient(Protocol):
    """The mean loss ``F(params)`` over the current mini-batch, as an oracle that you can call at any point, any number of times."""

    def __call__(self, params: Tree) -> Tree:
        """Return the gradient ``grad F(params)``."""
        ...

    def loss(self, params: Tree) -> Any:
        """Return ``F(params)``, a scalar."""
        ...

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """Return the Hessian times a vector, ``(hess F(params)) vector``; raise a ``CompositionError`` if the model cannot compute it."""
        ...

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        """Return the Hessian times several vectors, stacked along a leading axis of every leaf."""
        ...

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        """Return ``share sum_i clip(grad f_i(params))`` over the examples of the mini-batch: each moves it by at most ``share`` times the bound."""
        ...

    def normal(self, params: Tree) -> Tree:
        """Return fresh normal noise of the client's secret, shaped like the parameters; see ``Algorithm.example_steps``."""
        ...


class LossGradients(Gradient, Protocol):
    """The oracle of an algorithm with losses of its own (`Algorithm.losses`)."""

    def on(self, loss: Any = None, **given: Tree) -> LossGradients:
        """Return the oracle of another loss of ``Algorithm.losses`` over the same mini-batch (``None``: of this one).

        Args:
            loss: the loss.
            given: further entries of ``broadcast``, as losses see it: parameters of a teacher, a queue of features.
        """
        ...

    def read(self, loss: Any, params: Tree) -> Any:
        """Return what one of ``Algorithm.losses`` returns for the mini-batch, without a gradient: any tree of tensors, such as features or counts."""
        ...


@dataclass(frozen=True)
class LocalWork:
    """The work of a client in one local update.

    Attributes:
        examples: number of training examples ``n_k`` (may be an array element inside a vectorised update).
        steps: number of mini-batch steps taken.
    """

    examples: Any
    steps: Any


@dataclass(frozen=True)
class RoundInfo:
    """What a fold can use about its round.

    Attributes:
        round: 1-based number of the round.
        selected: number of clients invited.
        replied: number of clients whose replies are in the sums.
        population: number of clients in the federation.
        weight: examples of the whole population, when known.
        rng: the server's own random stream of this round.
        odds: for invited clients, position -> the probability that a draw picks this client; only if the aggregation asks for it.
        secret: the server's own secret stream for this sum; only if the aggregation adds noise.
    """

    round: int
    selected: int
    replied: int
    population: int
    weight: float | None = None
    rng: Rng = field(default_factory=lambda: Rng(0))
    odds: Mapping[int, float] | None = None
    secret: Secret | None = None


STEP_HOOKS = ("step", "direction", "passes", "draw")
"""Functions that define a local step. An algorithm that overrides none of them works with any model."""
_GUARDS = (RELEASED_ONLY, RELEASES, NO_BUFFERS, REPLIES_ONLY)


class MiniBatched(Facet):
    """How a client goes through its rows. Every algorithm carries it."""

    batch_size: int | None
    cyclic: ClassVar[bool] = False
    """Cut mini-batches from the rows in stored order, the same ones in every epoch and round. Otherwise rows are shuffled."""
    partial: ClassVar[bool] = True
    """The server may ask a client for a different number of epochs (or steps) than the algorithm's own; see `atoll.learn.local.update`."""

    def batch_of(self, n: Any) -> Any:
        """Return the rows of a mini-batch at a client with ``n`` examples (a number or an array of numbers)."""
        return n if self.batch_size is None else np.minimum(self.batch_size, n)

    @property
    def example_steps(self) -> ExampleSteps | None:
        """What local steps draw from a client's secret: mini-batches and noise. ``None`` for mini-batches that follow the client's key, without noise."""
        return None


class Labelled(Facet):
    """What a method does with labels, of an algorithm with losses of its own or a say in who needs labels."""

    @property
    def losses(self) -> tuple[Any, ...]:
        """Losses that the method brings with it, each an `atoll.learn.local.own_loss.OwnLoss`; empty for ``Training.loss``.

        Local steps descend the first; ``grad.on(loss)`` gives the oracles of the others, and ``grad.read(loss, params)`` what they return.
        """
        return ()

    @property
    def label_holders(self) -> tuple[str, ...]:
        """Whose labels it learns from: ``"clients"``, or names of ``helpers``; empty if it needs no label.

        By default the clients, if it trains on ``Training.loss`` and asks no helper, or if one of ``losses`` asks for the target.
        """
        losses = facet(self, Labelled).losses
        if not losses:
            return () if facet(self, Helped).helpers else ("clients",)
        return ("clients",) if any_takes_target(losses) else ()

    @property
    def needs_every_class(self) -> bool:
        """Whether each class must have a label at one of ``label_holders``."""
        return True

    @property
    def labelled_share(self) -> float:
        """The share of labelled rows that a mini-batch holds at least, between 0 and 1, if the client has as many; for losses that ask for ``labelled``.

        See `atoll.learn.local.update.topped_up`. Mini-batches of ``example_steps``, and ``cyclic`` ones, stay as they are.
        """
        return 0.0


class Helped(Facet):
    """Parties that an algorithm asks in addition to the clients, and what leaves parties with their consent alone."""

    consents: ClassVar[tuple[str, ...]] = ()
    """What leaves parties with their consent alone, as names that a site's policy must list: ``"row-features"``."""

    @property
    def helpers(self) -> Mapping[str, str]:
        """Parties that the algorithm needs in addition to the clients, name -> role: parties with rows that do phases of their own; see ``asks``."""
        return {}

    def asks(self, phase: str) -> tuple[str, ...]:
        """Return the names of the ``helpers`` that do a phase in place of the round's clients, on rows of their own; empty for the clients."""
        del phase
        return ()


class Phased(Facet):
    """What a round is made of, of an algorithm with more than one pass, or moves of the server beside the folds."""

    def contacts(self, rounds: int) -> int | None:
        """Return in how many of the first ``rounds`` rounds clients are contacted; ``None`` if unknown beforehand, as with a custom ``plan``."""
        return None if changes(type(self), Algorithm, "plan") else rounds

    def wanted(self, state: Tree, phase: str) -> bool:
        """Return whether a planned phase is still needed after the folds before it. If not, the server contacts no client for it."""
        del state, phase
        return True

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Return the local updates that a client runs in a phase, in one contact.

        Each pass starts from the client state that the pass before left. Only the last pass replies and keeps state. For example, an anchor
        gradient is a pass before the steps that use it. A phase that does not train returns another algorithm.
        """
        del phase
        return (cast("Algorithm", self),)

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Return the server's state at the end of a round, after all phases (or as the only step, if ``plan`` names no phase)."""
        del info
        return state

    def outliers(self, state: Tree) -> Mapping[int, str]:
        """Return clients whose messages the last fold found far outside, by position, and why: the round's row names them in ``outlying_clients``."""
        del state
        return {}


class Compressing(Facet):
    """Stages that a method itself brings with it."""

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Return the uplink stages of the method itself in a phase; the stages of ``Training(uplink=...)`` go around them."""
        del phase
        return ()

    def downlink(self) -> Stage | None:
        """Return the downlink compressor of the method itself; ``Training(downlink=...)`` replaces it."""
        return None


class Private(Facet):
    """What an algorithm promises of its clients' privacy."""

    alone: ClassVar[bool] = False
    """Clients send only what ``finish`` returns: no training loss beside it. Noise that the server adds protects only what it is added to."""

    def admit(self, data: Any) -> None:
        """Refuse, at a client, data that break an assumption of the privacy guarantee."""
        del data

    def events(self, examples: int) -> tuple[Event, ...]:
        """Return what a client with ``examples`` examples releases in one contact; empty if the algorithm promises no privacy.

        An algorithm with events runs client by client. Its events are in the ledger before its reply leaves, its random numbers come
        from the island's secret, and the client sends only what ``finish`` returns.
        """
        del examples
        return ()


class Stateful(Facet):
    """What clients keep from one round to the next, and what they draw."""

    def client_init(self, params: Tree) -> Tree:
        """Return a client's private state before its first round; ``None`` for none."""
        del params
        return None

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """Draw a client's random numbers for one local update, as arrays; ``None`` for none.

        Atoll draws them before the update and keeps them in ``local["drawn"]``, so that every engine uses the same numbers.
        """
        del rng, params
        return None

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the model that a client uses itself: the global one, unless the algorithm keeps one for each client."""
        del client
        return params


class Movable(Facet):
    """What a wrapper may do with the server's state (see ``Moving``)."""

    extrapolates: ClassVar[tuple[str, ...]] = ("params",)
    """Entries of the server's state that move with the model when a wrapper moves it without the clients (see ``Upcycled``)."""
    tied: ClassVar[tuple[str, ...]] = ()
    """Entries of ``extrapolates`` that sum up what clients keep. A wrapper may move them only by the same share of every change."""
    cumulative: ClassVar[bool] = False
    """The fold adds changes to the model as the last fold left it, even if a wrapper has moved it since (see ``Moving``)."""

    def moved(self, state: Tree) -> Tree:
        """Return the server's state after a wrapper moved its ``extrapolates``: update what is computed from them."""
        return state


class Composable(Facet):
    """What an algorithm needs of the other parts of a training, and offers to them. Every algorithm carries it."""

    phases: ClassVar[tuple[str, ...]]
    card: ClassVar[Card]
    pooled: ClassVar[str] = ""
    """What a round needs from all clients, such as ``"the mean of all gradients"``. Topologies whose sums cover only one node, or the clients of one
    edge, refuse the algorithm. Empty if results of parts of the clients can be mixed afterwards."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer, from the class's settings and overrides; add your own rows to ``super().needs``."""
        made = [Need(TRAINING, "trains the model at its clients")]
        if self.card.everyone:
            some = "an algorithm that works with some clients (atoll.algorithms.Scaffold)"
            made += [Need(c, "needs every client in every round", some) for c in (EVERYONE, FIXED_COHORT)]
        if facet(self, Labelled).losses:
            made.append(Need(OWN_LOSSES, "trains on a loss of its own", "FedAvg()"))
        helpers = facet(self, Helped).helpers
        if helpers:
            made.append(Need(CENTRAL_SERVER, f"asks {', '.join(helpers)} in every round"))
        if self.pooled:
            made.append(Need(ONE_SUM, f"rests on {self.pooled} in every round", "Scaffold() or FedADMM()"))
        if self.card.family == "second order":
            made.append(
                Need(ONE_MODEL, "pairs models and gradients of one round", "a first-order or consensus ADMM method")
            )
        return (*made, *needs_of_hooks(self, Algorithm))

    @property
    def offers(self) -> frozenset[Capability]:
        """What the algorithm offers to the other parts of a training."""
        return offers_of_hooks(self, Algorithm) | {STEPS}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the algorithm does not offer, where the capability's own text says too little."""
        return {ONE_PHASE: f"has phases {', '.join(self.phases)}"}


@dataclass(frozen=True, kw_only=True)
class Algorithm(Checked, MiniBatched, Composable):
    """Base class of all algorithms: local SGD, with updates averaged by examples.

    Attributes:
        lr: learning rate of the local steps.
        epochs: local passes over the data.
        batch_size: mini-batch size; ``None`` is the full local data.
        steps: local steps; overrides ``epochs`` when given.
        stragglers: clients that do only part of their local work.
    """

    lr: float = 0.1
    epochs: int = 1
    batch_size: int | None = 10
    steps: int | None = None
    stragglers: Stragglers | None = None
    phases: ClassVar[tuple[str, ...]] = ("train",)
    citation: ClassVar[str] = ""
    card: ClassVar[Card] = Card()

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
                remedy="a straggler does part of the local work: use at least 2 epochs or steps",
            )

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the phases of the coming round; empty if the server works alone and contacts no client."""
        del state
        return self.phases

    def init(self, params: Tree) -> Tree:
        """Return the server's initial state; it must contain ``"params"``."""
        return {"params": params}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Return what every client of the cohort receives; it must contain ``"params"`` and may contain scalars."""
        del phase
        return {"params": state["params"], "lr": self.lr}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Return the local state before the first step: a dict with at least ``"params"``."""
        del client
        return {"params": broadcast["params"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the search direction, and the local state after it: the operators V and U of the acceleration frameworks.

        Here ``v = grad(w)``. Add to the gradient here (a proximal term, a control variate, momentum), so that the method composes.
        """
        del broadcast
        return grad(local["params"]), local

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one local step: ``w <- w - lr * v``, with ``v`` from ``direction``."""
        toward, local = self.direction(local, grad, broadcast)
        return {**local, "params": T.sub(local["params"], T.scale(toward, broadcast["lr"]))}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the reply (named aggregates) and the client's new private state."""
        update = T.sub(local["params"], broadcast["params"])
        return {"update": Mean(update, examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Return the server's next state from the combined replies: ``w <- w + mean update``."""
        del info, phase
        return {**state, "params": T.add(state["params"], sums["update"])}


keep_old_form(Algorithm, Labelled, Helped, Phased, Compressing, Private, Stateful, Movable)


def needs_of_hooks(algorithm: Any, base: type) -> tuple[Need, ...]:
    """Return the needs that follow from the functions that an algorithm overrides."""
    made: list[Need] = []
    if changes(type(algorithm), base, *STEP_HOOKS):
        made.append(Need(LOCAL_STEPS, "changes the local step", "FedAvg"))
    if changes(type(algorithm), base, "uplink"):
        own = (stage for phase in algorithm.phases for stage in facet(algorithm, Compressing).uplink(phase))
        inner = next((type(stage).__name__ for stage in own if stage.on == "value"), "")
        instead = "an algorithm without stages of its own, such as FedAvg()"
        made += [Need(NUMBERS, f"has {inner} act on its replies", instead)] if inner else []
    if changes(type(algorithm), base, "events"):
        why, instead = (
            "promises privacy for its replies and for nothing else",
            "the same algorithm without privacy",
        )
        made += [Need(capability, why, instead) for capability in _GUARDS]
    return tuple(made)


def offers_of_hooks(algorithm: Any, base: type) -> frozenset[Capability]:
    """Return the capabilities that follow from an algorithm's settings and from the functions that it overrides."""
    told = {
        ONE_PHASE: len(algorithm.phases) == 1,
        PARTIAL_WORK: algorithm.partial,
        OWN_MODELS: changes(type(algorithm), base, "personal"),
        PROTECTION: changes(type(algorithm), base, "events"),
    }
    return frozenset(capability for capability, there in told.items() if there)


def _counts(value: object) -> bool:
    """Return whether the value is a whole number of at least 1."""
    return isinstance(value, Integral) and int(value) >= 1
