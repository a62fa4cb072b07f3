"""Algorithms around another algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability, Need
from atoll.core.errors import ConfigError
from atoll.core.facets import Wrapper, changes, facet

from .algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo, Stateful, needs_of_hooks, offers_of_hooks
from .capabilities import ONE_PHASE, PARTIAL_WORK
from .local.stragglers import Stragglers

__all__ = ["Drawing", "Wrapped", "dry_reply", "innermost", "overrides", "shown_name", "without_idle_wrappers"]


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

    def handed(self, params: Tree, client: Tree, key: int, noise: Rng | None = None) -> Tree:
        """Return a client's state with the numbers of this update, from ``noise`` if there is a secret source."""
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
    algorithm: Algorithm, params: Tree, phase: str | None = None, examples: float = 1.0, steps: float = 1.0
) -> dict[str, Aggregate]:
    """Return what a client would reply in a phase (by default the last) after no step, to check a composition before any client is contacted."""
    phase = algorithm.phases[-1] if phase is None else phase
    broadcast, client = algorithm.broadcast(algorithm.init(params), phase), None
    reply: dict[str, Aggregate] = {}
    for part in facet(algorithm, Phased).passes(phase):
        client = facet(part, Stateful).client_init(params) if client is None else client
        drawn = facet(part, Stateful).draw(Rng(0), params)
        local = {**part.start(broadcast, client), **({} if drawn is None else {"drawn": drawn})}
        reply, client = part.finish(local, broadcast, client, LocalWork(examples, steps))
    return reply
