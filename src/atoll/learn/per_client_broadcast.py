"""An algorithm in which each client gets its own broadcast: nodes without a server, seen as one cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.facets import default_of, facet

from .algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo, Stateful
from .wrapped import Drawing, Wrapped, overrides

__all__ = ["PerClientBroadcast"]


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

    def handed(self, sent: Tree, client: Tree, key: int) -> Tree:
        """Return the state of a client that receives ``sent``, with its random key."""
        if isinstance(self.base, Drawing):
            return {"client": self.base.handed(sent["params"], client, key), "sent": sent}
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
