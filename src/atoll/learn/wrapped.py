"""Algorithms around another algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll.core.aggregate import Aggregate
from atoll.core.tree import Tree

from .algorithm import Algorithm, Gradient, LocalWork, RoundInfo

__all__ = ["Wrapped", "dry_reply"]


@dataclass(frozen=True, kw_only=True)
class Wrapped(Algorithm):
    """Base of wrappers: does what its base does, with the base's phases, learning rate, epochs, batches and steps, and takes none itself.

    Attributes:
        base: the algorithm inside.
    """

    base: Algorithm
    lr: float = field(init=False, repr=False)
    epochs: int = field(init=False, repr=False)
    batch_size: int | None = field(init=False, repr=False)
    steps: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("lr", "epochs", "batch_size", "steps", "phases", "citation"):
            object.__setattr__(self, name, getattr(self.base, name))

    def init(self, params: Tree) -> Tree:
        """The base's."""
        return self.base.init(params)

    def client_init(self, params: Tree) -> Tree:
        """The base's."""
        return self.base.client_init(params)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """The base's."""
        return self.base.broadcast(state, phase)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The base's."""
        return self.base.start(broadcast, client)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """The base's."""
        return self.base.step(local, grad, broadcast)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The base's."""
        return self.base.finish(local, broadcast, client, work)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """The base's."""
        return self.base.fold(state, sums, info, phase)


def dry_reply(algorithm: Algorithm, params: Tree) -> dict[str, Aggregate]:
    """What a client would reply after no step at all, to check a composition before anyone is contacted."""
    client = algorithm.client_init(params)
    broadcast = algorithm.broadcast(algorithm.init(params), algorithm.phases[0])
    local = algorithm.start(broadcast, client)
    return algorithm.finish(local, broadcast, client, LocalWork(1.0, 1.0))[0]
