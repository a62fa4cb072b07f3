"""An algorithm whose clients got a broadcast each: what nodes without a server are, seen as one cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError

from .algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from .wrapped import Drawing, Wrapped

__all__ = ["PerClientBroadcast"]


@dataclass(frozen=True, kw_only=True)
class PerClientBroadcast(Wrapped):
    """The base with its broadcast handed over in the client's state, ``{"client": state, "sent": broadcast}``, beside the numbers it draws.

    So that clients whose models differ fit in one block, which has a single broadcast. It is the local half only: nobody folds it.
    """

    draw = Algorithm.draw  # what the base draws is handed over too

    @staticmethod
    def of(base: Algorithm) -> PerClientBroadcast:
        """The wrapper around an algorithm, whether it draws or not."""
        return PerClientBroadcast(base=Drawing(base=base) if base.overrides("draw") else base)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """The base's, each wrapped."""
        inner = self.base.base if isinstance(self.base, Drawing) else self.base
        return tuple(PerClientBroadcast.of(part) for part in inner.passes(phase))

    def handed(self, sent: Tree, client: Tree, key: int) -> Tree:
        """The state of a client that was sent this, with its random key."""
        if isinstance(self.base, Drawing):
            return {"client": self.base.handed(sent["params"], client, key), "sent": sent}
        return {"client": self.base.client_init(sent["params"]) if client is None else client, "sent": sent}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The base's, from the client's own broadcast."""
        del broadcast
        return {"local": self.base.start(client["sent"], client["client"]), "sent": client["sent"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """The base's, with the client's own broadcast."""
        del broadcast
        return {"local": self.base.step(local["local"], grad, local["sent"]), "sent": local["sent"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The base's; what it leaves is the client's own state only."""
        del broadcast
        return self.base.finish(local["local"], client["sent"], client["client"], work)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Refused: every client has a server of its own."""
        raise CompositionError(
            "Given has no server", where="PerClientBroadcast", remedy="fold each client's reply at its own server"
        )
