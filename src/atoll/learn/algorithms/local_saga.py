"""Local SAGA: variance-reduced local steps from a table of gradients, one for each of a client's mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased, Stateful
from atoll.learn.card import Card

from .fedavg import FedAvg

__all__ = ["LocalSAGA"]


@dataclass(frozen=True, kw_only=True)
class LocalSAGA(FedAvg, Phased, Stateful):
    """Local steps ``v = g_j(y) - table_j + mean_i table_i``, then ``table_j <- g_j(y)``; the table stays with the client between rounds.

    A client's rows are cut, in stored order, into at most ``parts`` mini-batches of similar size, taken in turn. So a mini-batch has the same rows
    in every epoch and round, and its number in the epoch is its position in the table. (SAGA draws mini-batches at random. In turn, the order
    of the rows matters: shuffle rows sorted by label beforehand.) Before a mini-batch's first gradient, ``v = g_j(y)``.

    This removes the variance of mini-batches, not FedAvg's drift. It takes one gradient per step, but the table costs ``parts`` models of client state,
    and as many operations in every step, because one program runs for clients at different table positions. Up and down: one model.

    Attributes:
        parts: number of mini-batches per client; a client with fewer rows has one per row.
    """

    parts: int = 10
    batch_size: int | None = None
    cyclic: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Defazio, Bach, Lacoste-Julien. SAGA: A Fast Incremental Gradient Method With Support for Non-Strongly Convex Composite "
        "Objectives. NeurIPS 2014; in local steps, in turn."
    )
    card: ClassVar[Card] = Card(
        note="It reduces the variance of mini-batches, not FedAvg's drift. A client keeps `parts` models."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise ConfigError(f"parts={self.parts}", where="LocalSAGA", remedy="use at least 1 mini-batch")
        if self.batch_size is not None or self.steps is not None:
            raise ConfigError(
                f"batch_size={self.batch_size}, steps={self.steps}",
                where="LocalSAGA",
                remedy="set parts= and epochs=: every mini-batch has a place in the table, and whole epochs visit all",
            )

    def batch_of(self, n: Any) -> Any:
        """Return a client's rows divided by ``parts``, rounded up."""
        return -(-n // self.parts)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Count the client's mini-batches, and the local steps."""
        del phase
        return (_Count(owner=self), self)

    def client_init(self, params: Tree) -> Tree:
        """Start with an empty table."""
        kind = T.leaves(params)[0].dtype
        return {
            "table": T.map(lambda leaf: np.zeros((self.parts, *leaf.shape), leaf.dtype), params),
            "seen": np.zeros(self.parts, kind),
            "places": np.arange(self.parts, dtype=kind),
        }

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and the table, at its first position."""
        return {"params": broadcast["params"], **client, "at": 0.0}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g_j - table_j + mean table``, with ``g_j`` stored in the table."""
        del broadcast
        gradient, places = grad(local["params"]), local["places"]
        here = T.where(places == local["at"], places * 0 + 1, places * 0)
        seen = (local["seen"] * here).sum()
        old = T.map(lambda rows: (rows * _along(here, rows)).sum(0), local["table"])
        mean = T.scale(T.map(lambda rows: rows.sum(0), local["table"]), 1.0 / local["count"])
        change = T.sub(gradient, old)
        following = local["at"] + 1.0
        moved = {
            "table": T.map(lambda rows, d: rows + _along(here, rows) * d, local["table"], change),
            "seen": local["seen"] + here * (1.0 - seen),
            "at": following * (following < local["count"]),
        }
        return T.sub(gradient, T.scale(T.sub(old, mean), seen)), {**local, **moved}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update; the table stays."""
        kept = {name: local[name] for name in ("table", "seen", "places")}
        return super().finish(local, broadcast, client, work)[0], kept


def _along(weights: Any, rows: Any) -> Any:
    """Return weights ``(parts,)`` in the shape that multiplies ``(parts, ...)``."""
    return weights.reshape((-1,) + (1,) * (rows.ndim - 1))


@dataclass(frozen=True, kw_only=True)
class _Count(Algorithm, Stateful):
    """A pass that leaves the number of the client's mini-batches in its state; it takes no gradient."""

    batch_size: int | None = None
    steps: int | None = 1
    owner: LocalSAGA

    def client_init(self, params: Tree) -> Tree:
        """Start with the owner's client state."""
        return self.owner.client_init(params)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Do nothing."""
        del grad, broadcast
        return local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with ``ceil(n / ceil(n / parts))``, at least 1."""
        del local, broadcast
        size = self.owner.batch_of(work.examples)
        count = -(-work.examples // (size + (size < 1)))
        return {}, {**client, "count": 1.0 * (count + (count < 1))}
