"""A pass before those of a method, in the same contact: it reads something of the client's rows and hands it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, Labelled, LocalWork, LossGradients, Stateful

__all__ = ["PrePass", "split_pre_pass"]

_OWN, _FOUND = "client", "found in a look"  # keys of states that saved folders hold


@dataclass(frozen=True, kw_only=True)
class PrePass(Algorithm, Labelled, Stateful):
    """One step that trains nothing, on all of the client's rows by default: it reads the first loss into ``read``. `read_found` names what the next pass gets.

    The next pass receives the private state as it was with what was found, which `split_pre_pass` takes apart; `Method` does so by itself. Nothing of the pre-pass is
    sent, unless a subclass sends it in ``finish``.

    Attributes:
        method: whose losses are read, and whose private state stays.
    """

    method: Algorithm
    batch_size: int | None = None
    steps: int | None = 1

    @property
    def losses(self) -> tuple[Any, ...]:
        """Those of the method."""
        return facet(self.method, Labelled).losses

    def client_init(self, params: Tree) -> Tree:
        """Start with the method's private state."""
        return facet(self.method, Stateful).client_init(params)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Read what the first loss returns."""
        del broadcast
        return {**local, "read": cast("LossGradients", grad).read(self.losses[0], local["params"])}

    def read_found(self, local: Tree) -> dict[str, Tree]:
        """Return what the next pass gets beside the private state."""
        raise NotImplementedError

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Hand on what was found."""
        del broadcast, work
        return {"none": Sum(np.float64(0.0), role="side")}, {_OWN: client, _FOUND: self.read_found(local)}


def split_pre_pass(client: Tree) -> tuple[Tree, dict[str, Tree]]:
    """Return a private state, and what a pre-pass found; nothing without one."""
    if isinstance(client, dict) and set(client) == {_OWN, _FOUND}:
        return client[_OWN], client[_FOUND]
    return client, {}
