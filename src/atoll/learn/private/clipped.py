"""Clipping inside a client's update, where every engine compiles it with the rest: no reply has to be looked at alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet

from ..algorithm import Algorithm, LocalWork, Phased, Private
from ..wrapped import Wrapped

__all__ = ["Clipped", "clipped", "replies_as"]


@dataclass(frozen=True, kw_only=True)
class Clipped(Wrapped, Private):
    """The base, whose clients scale every value that they send down to norm ``bound``, and send nothing beside: ``v min(1, bound / ||v||)``.

    Attributes:
        base: the algorithm inside.
        bound: largest L2 norm of a value.
    """

    installed: ClassVar[bool] = True
    alone: ClassVar[bool] = True
    bound: float = 1.0

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the base does, with clipped values."""
        reply, state = self.base.finish(local, broadcast, client, work)
        return {name: clipped(a, self.bound) if a.staged else a for name, a in reply.items()}, state


def clipped(aggregate: Aggregate, bound: Any, unit: Any = 1.0) -> Aggregate:
    """Return the aggregate with its value scaled down to norm ``bound``, then divided by ``unit``, in the leaves' own dtypes."""
    length = T.norm(aggregate.value)
    longer = (length > bound) * 1.0
    factor = bound / (bound + (length - bound) * longer) / unit  # bound / max(length, bound), without a division by 0

    def scaled(leaf: Any) -> Any:
        made = leaf * factor
        return made.astype(leaf.dtype) if isinstance(leaf, np.ndarray | np.generic) else made

    return aggregate.with_value(T.map(scaled, aggregate.value))


def replies_as(algorithm: Algorithm) -> bool:
    """Return whether what clients send in every phase comes from this algorithm's own ``finish``, and not from a pass of another kind."""
    return all(type(facet(algorithm, Phased).passes(phase)[-1]) is type(algorithm) for phase in algorithm.phases)
