"""Base of privacy mechanisms at clients: whatever outlives a local update is made from what was privatised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError

from ..algorithm import Algorithm, Gradient, LocalWork
from ..wrapped import Wrapped

__all__ = ["Mechanism"]


@dataclass(frozen=True, kw_only=True)
class Mechanism(Wrapped):
    """An algorithm whose replies and private state follow from the privatised ends of its local update alone.

    After the steps, the local state is made anew by the base's ``start``; only what ``finish`` makes use of (``outgoing``) is carried over,
    privatised. So every upload (an update, a delta, a control variate) and every number that a later round begins with is a function of
    released values: nothing can leave beside them.

    Attributes:
        base: the algorithm inside; in every phase it runs one update of its own kind.
        outgoing: names of the local state that the base's ``finish`` makes use of; ``"params"`` for most, two for pFedMe.

    Raises:
        CompositionError: the base runs further passes or phases, whose results would go around the mechanism.
    """

    outgoing: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "citation", f"{self.base.citation} {type(self).citation}".strip())
        name = type(self.base).__name__
        if PROTECTION in self.base.offers:
            raise CompositionError(
                f"{name} is a mechanism already, or has one inside", where=type(self).__name__, remedy="use one"
            )
        for phase in self.base.phases:
            made = self.base.passes(phase)
            if len(made) != 1 or type(made[0]) is not type(self.base):
                raise CompositionError(
                    f"{name} runs more than one update of its own kind in a contact",
                    where=type(self).__name__,
                    remedy="use a base whose clients send what their last model gives, such as FedAvg, FedProx or Scaffold(option=2)",
                )
        object.__setattr__(self, "outgoing", _outgoing(self.base))

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """One: this one."""
        del phase
        return (self,)

    def noise(self, rng: Rng, entry: Tree) -> Tree:
        """Noise for one outgoing entry."""
        raise NotImplementedError

    def privatise(self, entry: Tree, noise: Tree) -> Tree:
        """What may leave of one outgoing entry."""
        raise NotImplementedError

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """Noise for every outgoing entry, and what the base draws."""
        begun = self.base.start(
            self.base.broadcast(self.base.init(params), self.base.phases[0]), self.base.client_init(params)
        )
        drawn = {"noise": {name: self.noise(rng.child("noise", name), begun[name]) for name in self.outgoing}}
        inner = self.base.draw(rng.child("base"), params)
        return drawn if inner is None else {**drawn, "base": inner}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """The base's, with its own draws."""
        return {**self.base.step(_inner(local), grad, broadcast), "drawn": local["drawn"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The base's, of a local state that is fresh but for what was privatised."""
        noise = local["drawn"]["noise"]
        fresh = {**self.base.start(broadcast, client), "drawn": local["drawn"]}
        safe = {name: self.privatise(local[name], noise[name]) for name in self.outgoing}
        return self.base.finish({**_inner(fresh), **safe}, broadcast, client, work)


def _inner(local: Tree) -> Tree:
    """The local state as the base knows it."""
    others = {name: value for name, value in local.items() if name != "drawn"}
    drawn = local["drawn"]
    return {**others, "drawn": drawn["base"]} if "base" in drawn else others


def _outgoing(base: Algorithm) -> tuple[str, ...]:
    """Names of the local state on which the base's reply or new private state depends, found by changing them one by one."""
    params = {"weight": np.array([1.0, -2.0, 3.0])}
    found: set[str] = set()
    for phase in base.phases:
        broadcast, client = base.broadcast(base.init(params), phase), base.client_init(params)
        drawn = base.draw(Rng(0), params)
        local = {**base.start(broadcast, client), **({} if drawn is None else {"drawn": drawn})}

        def ends(changed: Tree, broadcast: Tree = broadcast, client: Tree = client) -> list[Any]:
            reply, kept = base.finish(changed, broadcast, client, LocalWork(4.0, 2.0))
            return [np.asarray(v) for a in reply.values() for v in T.leaves(a.value)] + [
                np.asarray(v) for v in T.leaves(kept)
            ]

        before = ends(local)
        for name, entry in local.items():
            if name == "drawn":
                continue
            after = ends({**local, name: T.map(lambda leaf: leaf + 0.5, entry)})
            if len(after) != len(before) or any(not np.array_equal(a, b) for a, b in zip(after, before, strict=True)):
                found.add(name)
    if not found:
        raise CompositionError(
            f"what {type(base).__name__} sends does not depend on its local update",
            where="privacy mechanism",
            remedy="nothing needs protection here: use it as it is",
        )
    return tuple(sorted(found))
