"""Edges in lockstep: every round of the clients is a round of the history, and the cloud averages after every ``every`` rounds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.tree import Tree

from ..selection import Candidates, Selection
from ..server.invitation import Inviter
from ..server.rounds import server_round
from ..server.state import global_model
from .hierarchical import EdgeRounds, Hierarchical, summed
from .shared import mean_states

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["Lockstep"]


@dataclass(frozen=True)
class _Drawn(Selection):
    """Selection of clients drawn before.

    Attributes:
        positions: positions of these clients in the roster.
    """

    positions: tuple[int, ...]

    def cohort_size(self, population: int) -> int:
        """Return the number of drawn clients."""
        del population
        return len(self.positions)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return those that are available."""
        del count, state
        return np.flatnonzero(np.isin(candidates.parties.positions, self.positions))


class Lockstep(EdgeRounds):
    """Rounds of the clients under edges that wait for each other.

    Args:
        topology: the topology, with ``every`` and ``together``.
        context: the training's context.
    """

    def __init__(self, topology: Hierarchical, context: Context) -> None:
        super().__init__(topology, context)
        self.together = topology.together

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round at every edge; the cloud sends its model before the first of ``every`` rounds and computes it after the last."""
        edges, row = state["edges"], dict[str, Any]()
        sent = {name: edges[0][name] for name in ("server", "buffers")}
        if (number - 1) % self.every == 0:
            row["cloud_bytes_down"] = await self._carry(fed, [sent] * len(edges), "down")
        contexts = self._contexts(fed, edges[0])
        made = await asyncio.gather(*(self._cycle(fed, e, edge, contexts[e]) for e, edge in enumerate(edges)))
        edges = [edge for edge, _ in made]
        row.update(summed([found for _, found in made]))
        if number % self.every == 0:
            told = [{name: edge[name] for name in sent} for edge in edges]
            row["cloud_bytes_up"] = await self._carry(fed, told, "up")
            mean = mean_states(told, self.weights)
            edges = [{**edge, **mean} for edge in edges]
        return {"edges": edges}, row

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the mean of the edges' models by examples, which is the cloud's model if it was just computed."""
        del watch, number
        models = [global_model(edge) for edge in state["edges"]]
        return mean_states(models, self.weights), {}

    def _contexts(self, fed: Federation, edge: Tree) -> list[Context | None]:
        """Return each edge's context; ``None`` if no client of its region was drawn."""
        if not self.together:
            return list(self.contexts)
        inviter = Inviter(fed, self.context, {**edge, "contacts": edge["contacts"] + 1})
        drawn = inviter.invite().positions
        chosen = [tuple(int(p) for p in drawn[np.isin(drawn, members)]) for members in self._positions(fed)]
        pairs = zip(self.contexts, chosen, strict=True)
        return [replace(known, selection=_Drawn(who)) if who else None for known, who in pairs]

    def _positions(self, fed: Federation) -> list[NDArray[np.int64]]:
        return [fed.parties.positions[members] for members in self.groups]

    async def _cycle(
        self, fed: Federation, e: int, state: Tree, context: Context | None
    ) -> tuple[Tree, dict[str, Any]]:
        """Run a round of one edge, which is a hub with its own scope for the whole training."""
        number = state["rounds"] + 1
        state = {**state, "rounds": number}
        if context is None and self.context.algorithm.plan(state["server"]):
            return {**state, "contacts": state["contacts"] + 1}, {"selected": 0, "replied": 0}
        scope = fed.scope(f"edge-{e}")
        scope.settle_at(fed.parties[self.groups[e]], f"edge-{e}", scope.slot)
        return await server_round(scope, context or self.contexts[e], state, number)

    async def _carry(self, fed: Federation, messages: list[Tree], way: str) -> int:
        """Send each edge a message, or receive one from it, concurrently; return all bytes."""
        clock, transfer, roster = fed.clock, fed.world.cost.transfer, fed.world.roster
        sizes, slowest = [M.nbytes(message) for message in messages], 0.0
        for e, size in enumerate(sizes):
            name = f"edge-{e}"
            place = np.array([roster.position(name)], dtype=np.int64)
            if way == "down":
                fed.meter.down(fed.hub, place, size)
            else:
                fed.meter.up(fed.hub, place, np.array([size], dtype=np.int64))
            ends = (fed.hub, name) if way == "down" else (name, fed.hub)
            slowest = max(slowest, transfer(*ends, size))
        await clock.sleep_until(clock.now() + slowest)
        return sum(sizes)
