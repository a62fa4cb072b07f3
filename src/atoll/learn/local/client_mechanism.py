"""Base class of privacy mechanisms at clients: everything that outlives a local update comes from privatised values."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError
from atoll.core.facets import facet

from ..algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo, Stateful
from ..wrapped import Wrapped

__all__ = ["ClientMechanism"]

_PROBES = 4
"""Draws of noise on which a base's next contact is tried."""


@dataclass(frozen=True, kw_only=True)
class ClientMechanism(Wrapped, Stateful):
    """An algorithm with replies and private state computed only from the privatised results of its local update.

    After the steps, the base's ``start`` makes a new local state. Only the entries that ``finish`` uses (``outgoing``) are carried over,
    privatised. So every upload (an update, a delta, a control variate) and every number from which a later round starts is a function of
    released values, and nothing else can leave.

    Attributes:
        base: the algorithm inside; it must run one update of its own kind in every phase.
        outgoing: entries of the local state that the base's ``finish`` uses; ``"params"`` for most, two for pFedMe.

    Raises:
        CompositionError: the base runs further passes or phases, which would bypass the mechanism, or takes roots of what noise can make negative.
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
            made = facet(self.base, Phased).passes(phase)
            if len(made) != 1 or type(made[0]) is not type(self.base):
                raise CompositionError(
                    f"{name} runs more than one update of its own kind in a contact",
                    where=type(self).__name__,
                    remedy="use a base with replies computed from the last model, such as FedAvg, FedProx or Scaffold(option=2)",
                )
        object.__setattr__(self, "outgoing", _outgoing(self.base))
        _require_any_sign(self.base, self.outgoing, type(self).__name__)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run one: this one."""
        del phase
        return (self,)

    def noise(self, rng: Rng, entry: Tree) -> Tree:
        """Return noise for one outgoing entry."""
        raise NotImplementedError

    def privatise(self, entry: Tree, noise: Tree) -> Tree:
        """Return what may leave of one outgoing entry."""
        raise NotImplementedError

    def draw(self, rng: Rng, params: Tree) -> Tree:
        """Draw noise for every outgoing entry, and the base's random numbers."""
        begun = self.base.start(
            self.base.broadcast(self.base.init(params), self.base.phases[0]),
            facet(self.base, Stateful).client_init(params),
        )
        drawn = {"noise": {name: self.noise(rng.child("noise", name), begun[name]) for name in self.outgoing}}
        inner = facet(self.base, Stateful).draw(rng.child("base"), params)
        return drawn if inner is None else {**drawn, "base": inner}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step, with its own draws."""
        return {**self.base.step(_inner(local), grad, broadcast), "drawn": local["drawn"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, from a new local state with the privatised entries."""
        noise = local["drawn"]["noise"]
        fresh = {**self.base.start(broadcast, client), "drawn": local["drawn"]}
        safe = {name: self.privatise(local[name], noise[name]) for name in self.outgoing}
        return self.base.finish({**_inner(fresh), **safe}, broadcast, client, work)


def _inner(local: Tree) -> Tree:
    """Return the local state as the base knows it."""
    others = {name: value for name, value in local.items() if name != "drawn"}
    drawn = local["drawn"]
    return {**others, "drawn": drawn["base"]} if "base" in drawn else others


def _require_any_sign(base: Algorithm, outgoing: tuple[str, ...], name: str) -> None:
    """Refuse a base whose next contact is not finite if what it sent or kept is negative: noise has any sign.

    A base that cannot take a step on three numbers without data, because it looks at curvature, is not tried.
    """
    for seed in range(_PROBES):
        with np.errstate(all="ignore"), contextlib.suppress(AttributeError, KeyError, TypeError):
            after = _next_contact(base, outgoing, np.random.default_rng(seed))
            if all(np.isfinite(leaf).all() for leaf in T.leaves(after)):
                continue
            raise CompositionError(
                f"{type(base).__name__} takes roots of what it remembers, and the noise of {name} can make that negative",
                where=name,
                remedy="use memory='round', or a base that keeps no squares of gradients, such as FedAvg, FedProx or Scaffold(option=2)",
            )


def _next_contact(base: Algorithm, outgoing: tuple[str, ...], numbers: np.random.Generator) -> Tree:
    """Return the local state after the first step of a second contact, if the first one released normal numbers."""
    params, phase = {"weight": np.array([1.0, -2.0, 3.0])}, base.phases[0]
    state, drawn = base.init(params), facet(base, Stateful).draw(Rng(0), params)
    broadcast, client = base.broadcast(state, phase), facet(base, Stateful).client_init(params)
    extra = {} if drawn is None else {"drawn": drawn}
    local = {**base.start(broadcast, client), **extra}
    local.update({name: T.map(lambda leaf: numbers.standard_normal(np.shape(leaf)), local[name]) for name in outgoing})
    reply, kept = base.finish(local, broadcast, client, LocalWork(4.0, 2.0))
    sums = {name: aggregate.value for name, aggregate in reply.items()}
    state = base.fold(state, sums, RoundInfo(round=1, selected=1, replied=1, population=1), phase)
    broadcast = base.broadcast(state, phase)
    oracle: Any = _HalfGradient()
    return base.step({**base.start(broadcast, kept), **extra}, oracle, broadcast)


class _HalfGradient:
    """A gradient oracle of half the parameters, and no more."""

    def __call__(self, params: Tree) -> Tree:
        return T.map(lambda leaf: 0.5 * leaf, params)

    def loss(self, params: Tree) -> Any:
        return sum(float((leaf * leaf).sum()) for leaf in T.leaves(params)) / 4


def _outgoing(base: Algorithm) -> tuple[str, ...]:
    """Return names of the local state on which the base's reply or new private state depends, found by changing them one at a time."""
    params = {"weight": np.array([1.0, -2.0, 3.0])}
    found: set[str] = set()
    for phase in base.phases:
        broadcast, client = base.broadcast(base.init(params), phase), facet(base, Stateful).client_init(params)
        drawn = facet(base, Stateful).draw(Rng(0), params)
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
