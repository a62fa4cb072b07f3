"""Algorithms around another algorithm, and what an algorithm's reply would look like before any client is contacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import STEPS, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import Wrapper, changes, default_of, facet
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import Guarding, StageContext

from .algorithm import (
    Algorithm,
    Gradient,
    LocalWork,
    Movable,
    Phased,
    RoundInfo,
    Stateful,
    Stragglers,
    needs_of_hooks,
    offers_of_hooks,
)
from .capabilities import ONE_PHASE, PARTIAL_WORK

__all__ = [
    "Drawing",
    "Moving",
    "PerClientBroadcast",
    "Wrapped",
    "bits_of",
    "declare",
    "declared_bits",
    "dry_reply",
    "innermost",
    "overrides",
    "shown_name",
    "without_idle_wrappers",
]


@dataclass(frozen=True, kw_only=True)
class Wrapped(Wrapper, Algorithm, Phased):
    """Base class of wrappers: behaves as its base, with the base's phases, learning rate, epochs, batches and steps, and takes none of these itself.

    Attributes:
        base: the algorithm inside.
    """

    installed: ClassVar[bool] = False
    """Whether a training put it around the user's algorithm: errors then name the user's."""
    base: Algorithm = field(kw_only=False)
    lr: float = field(init=False, repr=False)
    epochs: int = field(init=False, repr=False)
    batch_size: int | None = field(init=False, repr=False)
    steps: int | None = field(init=False, repr=False)
    stragglers: Stragglers | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.base, Algorithm):
            raise ConfigError(
                f"base={self.base!r}",
                where=type(self).__name__,
                remedy="give it an algorithm, as in base=FedAvg(lr=0.1)",
            )
        for name in (
            "lr",
            "epochs",
            "batch_size",
            "steps",
            "stragglers",
            "phases",
            "citation",
            "card",
        ):
            object.__setattr__(self, name, getattr(self.base, name))

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the base's plan."""
        return self.base.plan(state)

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of rounds with contacts, unless the wrapper has its own plan."""
        return None if changes(type(self), Wrapped, "plan") else facet(self.base, Phased).contacts(rounds)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and those of the wrapper's own functions."""
        return (*self.base.needs, *needs_of_hooks(self, Wrapped))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and those of the wrapper's own functions and settings."""
        return (self.base.offers - {ONE_PHASE, PARTIAL_WORK}) | offers_of_hooks(self, Wrapped)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes; a pass of the base's own kind stays wrapped."""
        made = facet(self.base, Phased).passes(phase)
        last = len(made) - 1
        return tuple(
            replace(self, base=part) if self._keeps(part, at == last) else part for at, part in enumerate(made)
        )

    def _keeps(self, part: Algorithm, last: bool) -> bool:
        """Whether a pass of the base stays wrapped; ``last`` is the one whose reply is sent."""
        del last
        return type(part) is type(self.base)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state."""
        return self.base.init(params)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast."""
        return self.base.broadcast(state, phase)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state."""
        return self.base.start(broadcast, client)

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the base's direction."""
        return self.base.direction(local, grad, broadcast)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step."""
        return self.base.step(local, grad, broadcast)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply and client state."""
        return self.base.finish(local, broadcast, client, work)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does."""
        return self.base.fold(state, sums, info, phase)


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """Return whether an algorithm, or one inside it, has a body of its own for a function of the contract or a facet.

    ``overrides(algorithm, "draw")`` tells whether clients draw random numbers. A wrapper that restores the default does not override it.
    """
    while isinstance(algorithm, Wrapped) and not changes(type(algorithm), Wrapped, hook):
        algorithm = algorithm.base
    return changes(type(algorithm), Algorithm, hook)


def shown_name(algorithm: Algorithm) -> str:
    """Return the name of the algorithm that the user chose, for errors."""
    while isinstance(algorithm, Wrapped) and algorithm.installed:
        algorithm = algorithm.base
    return type(algorithm).__name__


def innermost(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm inside all wrappers."""
    while isinstance(algorithm, Wrapped):
        algorithm = algorithm.base
    return algorithm


def without_idle_wrappers(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm inside outer wrappers that have no needs of their own, such as those that a training adds."""
    while isinstance(algorithm, Wrapped) and not needs_of_hooks(algorithm, Wrapped):
        algorithm = algorithm.base
    return algorithm


@dataclass(frozen=True, kw_only=True)
class Drawing(Wrapped):
    """The base with its random numbers passed in the client's state, ``{"client": state, "drawn": numbers}``.

    So NumPy's random numbers reach an update that is traced or runs on another device.
    """

    def hand_state(self, params: Tree, client: Tree, key: int, noise: Rng | None = None) -> Tree:
        """Return a client's state with the numbers of this update, from ``noise`` if there is a secret source; one that has its numbers as it is.

        A block hands all its states before it decides whether to train them one by one.
        """
        if isinstance(client, Mapping) and client.keys() == {"client", "drawn"}:
            return client
        client = facet(self.base, Stateful).client_init(params) if client is None else client
        return {
            "client": client,
            "drawn": facet(self.base, Stateful).draw(noise or Rng(int(key)).child("draw"), params),
        }

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state and the numbers."""
        return {**self.base.start(broadcast, client["client"]), "drawn": client["drawn"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step, with the numbers."""
        return {**self.base.step(local, grad, broadcast), "drawn": local["drawn"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, and only the base's client state."""
        return self.base.finish(local, broadcast, client["client"], work)


def dry_reply(
    algorithm: Algorithm,
    params: Tree,
    phase: str | None = None,
    examples: float = 1.0,
    steps: float = 1.0,
    broadcast: Tree | None = None,
) -> dict[str, Aggregate]:
    """Return what a client would reply in a phase (by default the last) after no step, to check a composition before any client is contacted.

    Args:
        algorithm: what the client runs.
        params: the model.
        phase: the phase.
        examples: rows of the client.
        steps: steps that count.
        broadcast: what the client has got; by default what a server sends that has just begun.
    """
    phase = algorithm.phases[-1] if phase is None else phase
    broadcast = algorithm.broadcast(algorithm.init(params), phase) if broadcast is None else broadcast
    client = None
    reply: dict[str, Aggregate] = {}
    for part in facet(algorithm, Phased).passes(phase):
        client = facet(part, Stateful).client_init(params) if client is None else client
        drawn = facet(part, Stateful).draw(Rng(0), params)
        local = {**part.start(broadcast, client), **({} if drawn is None else {"drawn": drawn})}
        reply, client = part.finish(local, broadcast, client, LocalWork(examples, steps))
    return reply


# ---------------------------------------------------------------- wrappers


@dataclass(frozen=True, kw_only=True)
class Moving(Wrapped, Movable):
    """Base class of wrappers that move the model themselves.

    The server's state has the base's ``extrapolates`` unchanged, its other entries under ``"base"``, and the wrapper's own entries. So wrappers nest.

    A base whose fold adds changes to the model of its last fold (``cumulative``) gets that model back, as ``"unmoved"``, whatever its clients
    received. Otherwise what the wrapper added would stay in its sums forever.
    """

    cumulative: ClassVar[bool] = False  # handled here, whatever wraps this one

    def __post_init__(self) -> None:
        super().__post_init__()
        if STEPS not in self.base.offers:
            raise CompositionError(
                f"{type(self.base).__name__} computes its statistics exactly, with nothing to extrapolate or to step along",
                where=type(self).__name__,
                remedy="use it alone, or an algorithm that takes steps",
            )

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the entries of the base's state that the wrapper moves."""
        return ("params",)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state inside the wrapper's.

        Raises:
            CompositionError: what the base sends to clients does not depend on what the wrapper moves.
        """
        inner = self.base.init(params)
        self._require_heard(inner)
        own = {"unmoved": inner["params"]} if facet(self.base, Movable).cumulative else {}
        return self.around({}, inner) | own

    def inner(self, state: Tree) -> Tree:
        """Return the base's state."""
        return {
            **state["base"],
            **{name: state[name] for name in facet(self.base, Movable).extrapolates if name in state},
        }

    def around(self, state: Tree, inner: Tree) -> Tree:
        """Return the wrapper's state with another state of the base in it."""
        shown = {name: inner[name] for name in facet(self.base, Movable).extrapolates if name in inner}
        return {**state, **shown, "base": {name: value for name, value in inner.items() if name not in shown}}

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the base's plan."""
        return self.base.plan(self.inner(state))

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of contacts."""
        return facet(self.base, Phased).contacts(rounds)

    def wanted(self, state: Tree, phase: str) -> bool:
        """Ask the base."""
        return facet(self.base, Phased).wanted(self.inner(state), phase)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast."""
        return self.base.broadcast(self.inner(state), phase)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, from the model that its last fold left if the base needs it."""
        inner = self.inner(state)
        if not facet(self.base, Movable).cumulative:
            return self.around(state, self.base.fold(inner, sums, info, phase))
        after = self.base.fold({**inner, "params": state["unmoved"]}, sums, info, phase)
        return {**self.around(state, after), "unmoved": after["params"]}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return self.around(state, facet(self.base, Phased).advance(self.inner(state), info))

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return self.around(state, facet(self.base, Movable).moved(self.inner(state)))

    def _require_heard(self, inner: Tree) -> None:
        """Refuse a base whose broadcast does not show the move."""
        phases = self.base.plan(inner)
        moved = {**inner, **{name: T.map(_off, inner[name]) for name in self.moves if name in inner}}
        sent = [T.leaves(self.base.broadcast(state, phases[0])) for state in (inner, moved) if phases]
        if not phases or len(sent[0]) != len(sent[1]) or not all(map(np.array_equal, *sent)):
            return
        name, own = type(self.base).__name__, type(self).__name__
        within = f"put it inside, as {name}(base={own}(...))" if isinstance(self.base, Wrapped) else ""
        raise CompositionError(
            f"what {name} sends does not follow {', '.join(self.moves)}, so that its clients would never learn of a move",
            where=f"{own}.base",
            remedy=within or "use a setting of the method's own, such as its server_lr, or another algorithm",
        )


def _off(leaf: Any) -> Any:
    """Return a floating-point leaf with another value."""
    return leaf + 1 if np.asarray(leaf).dtype.kind == "f" else leaf


# ---------------------------------------------------------------- an algorithm in which each client gets its own broadcast


@dataclass(frozen=True, kw_only=True)
class PerClientBroadcast(Wrapped, Stateful):
    """The base with its broadcast passed in the client's state, ``{"client": state, "sent": broadcast}``, together with its random numbers.

    Clients with different models then fit in one block, which has a single broadcast. This is the local half only: no server folds it.
    """

    draw = default_of(Stateful, "draw")  # the base's random numbers are passed too

    @staticmethod
    def of(base: Algorithm) -> PerClientBroadcast:
        """Return the wrapper around an algorithm, with or without random draws."""
        return PerClientBroadcast(base=Drawing(base=base) if overrides(base, "draw") else base)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's passes, each wrapped."""
        inner = self.base.base if isinstance(self.base, Drawing) else self.base
        return tuple(PerClientBroadcast.of(part) for part in facet(inner, Phased).passes(phase))

    def hand_state(self, sent: Tree, client: Tree, key: int) -> Tree:
        """Return the state of a client that receives ``sent``, with its random key."""
        if isinstance(self.base, Drawing):
            return {"client": self.base.hand_state(sent["params"], client, key), "sent": sent}
        return {
            "client": facet(self.base, Stateful).client_init(sent["params"]) if client is None else client,
            "sent": sent,
        }

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the base's local state, from the client's own broadcast."""
        del broadcast
        return {"local": self.base.start(client["sent"], client["client"]), "sent": client["sent"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step, with the client's own broadcast."""
        del broadcast
        return {"local": self.base.step(local["local"], grad, local["sent"]), "sent": local["sent"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply, and only the client's own state."""
        del broadcast
        return self.base.finish(local["local"], client["sent"], client["client"], work)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Raise an error: every client has its own server."""
        raise CompositionError(
            "PerClientBroadcast has no server",
            where="PerClientBroadcast",
            remedy="fold each client's reply at its own server",
        )


# ---------------------------------------------------------------- declared bits


def declared_bits(algorithm: Algorithm, chain: Chain, params: Tree, phase: str) -> int | None:
    """Return the bits of one reply of a phase: for each entry of the algorithm's reply, what the last stage declares for the form that reaches it.

    Headers, padding and the weight, which the meter also measures, do not count. Neither do measures and reports in the reply.

    Args:
        algorithm: the algorithm; the form of its reply must not depend on the data.
        chain: the uplink stages.
        params: a model; only its form matters.
        phase: the phase.

    Returns:
        The bits; ``None`` if there are no stages, or the size depends on the values (a threshold keeps only large values).
    """
    if not chain:
        return None
    total = 0
    for name, aggregate in dry_reply(algorithm, params, phase).items():
        if not aggregate.encoded:
            continue
        bits = bits_of(chain, T.map(np.asarray, aggregate.value), name)
        if bits is None:
            return None
        total += bits
    return total


def bits_of(chain: Chain, value: Tree, name: str = "") -> int | None:
    """Return the bits of a value of this form after some stages; ``None`` if they depend on the values."""
    public = chain.public(Rng(0))
    for i, stage in enumerate(chain.stages[:-1]):
        if not facet(stage, Guarding).secret:  # a secret stage keeps the form
            value = stage.encode(value, StageContext.of(Rng(0).child(name), chain.find_parameters(public, i, name)))
    bits = chain.stages[-1].wire_bits(value)
    return None if bits is None or bits != chain.stages[-1].wire_bits(T.map(_largest, value)) else bits


def declare(row: dict[str, Any], bits: int | None, taken: int) -> None:
    """Write the declared bits of the taken messages into a round's row, next to its bytes; nothing if they are unknown.

    Args:
        row: the round's row; existing values are added to.
        bits: declared bits of a message.
        taken: number of messages.
    """
    if bits is not None:
        row["bits_declared"] = row.get("bits_declared", 0) + bits * taken


def _largest(leaf: Any) -> Any:
    """Return an array of the same form with every entry above any bound."""
    return np.full_like(leaf, np.inf) if np.issubdtype(leaf.dtype, np.floating) else leaf
