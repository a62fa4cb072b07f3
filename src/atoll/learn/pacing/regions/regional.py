"""Rounds of regions under a cloud that end at a common quota: the rounds of HybridFL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.facets import facet
from atoll.core.time.deadline import Quota
from atoll.rounds.loop import Course

from ...algorithm import Phased
from ...checks import require_finite
from ...counts import population_examples
from ...server.device_outcomes import require_in_time
from ...server.invitation import Inviter
from ...server.phases import round_info
from ...server.state import global_model, initial
from ...topology.hierarchical import summed
from .edge_log import Seats, fresh, learned
from .edge_visit import EdgeVisit

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ...context import Context
    from ..hybridfl import HybridFL

__all__ = ["RegionalRounds"]

_NUMBER = M.nbytes(0)
"""Bytes of a count from an edge, or of the cloud's signal with the round number."""


class RegionalRounds(Course):
    """The rounds of `HybridFL`. State: the cloud's, as for any server, and ``edges``: log, model and client holdings of each edge.

    Args:
        pace: the pacing.
        context: the training's context.
    """

    def __init__(self, pace: HybridFL, context: Context) -> None:
        self.pace, self.context = pace, context
        n, count = len(context.clients), context.selection.count  # type: ignore[attr-defined]  # Uniform, says HybridFL.check
        self.groups = context.groups
        self.quota = context.selection.cohort_size(n)
        share = float(count) if isinstance(count, float) and count > 0 else self.quota / n
        self.seats = Seats(pace.estimator(), share, np.array([len(group) for group in self.groups]))

    def initial(self, fed: Federation) -> Tree:
        """Start with the global model in every region, and empty logs.

        Raises:
            ConfigError: edges learn from late completions, but real parties stop when the quota is full.
        """
        self._require_foresight(fed)
        state = initial(fed, self.context)
        edge = {"log": fresh(self.seats.estimator), "model": global_model(state), "down": {}, "examples": None}
        return {**state, "edges": [edge] * len(self.groups)}

    def _require_foresight(self, fed: Federation) -> None:
        slack = self.pace.slack
        if fed.live and slack.counts_late:
            raise ConfigError(
                f"{type(slack).__name__} between real parties: it counts clients that finish after the quota is full, but those are told to stop",
                where="HybridFL.slack",
                remedy="use slack=UncensoredOnly(), or ChanceConstrained(base=UncensoredOnly()); or simulate",
            )

    def turns(self, rounds: int) -> int | None:
        """Return the number of rounds with clients: a turn is such a round."""
        return facet(self.context.algorithm, Phased).contacts(rounds)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round of the cloud."""
        state = await self._weighed(fed, state)
        algorithm = self.context.algorithm
        phases = [p for p in algorithm.plan(state["server"]) if facet(algorithm, Phased).wanted(state["server"], p)]
        row: dict[str, Any] = {"selected": 0, "replied": 0}
        if phases:
            state = {**state, "contacts": state["contacts"] + 1}
            if number == 1:
                require_in_time(Inviter(fed, self.context, state))
            state, row = await self._contact(fed, state, number, phases[0])
        if "failed" not in row:
            info = round_info(fed, state, (number, bool(phases)), row["selected"], row["replied"])
            state = {**state, "server": facet(algorithm, Phased).advance(state["server"], info)}
            require_finite(state["server"]["params"], number)
        return state, row

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the cloud's model."""
        del watch, number
        return global_model(state), {}

    async def _weighed(self, fed: Federation, state: Tree) -> Tree:
        """Return the state with the examples of every region; if unknown, edges ask their clients once."""
        if state["weight"] is not None:
            return state
        found = await asyncio.gather(*(self._examples(fed, r) for r in range(len(self.groups))))
        edges = [{**edge, "examples": n} for edge, n in zip(state["edges"], found, strict=True)]
        return {**state, "edges": edges, "weight": float(sum(found))}

    async def _examples(self, fed: Federation, r: int) -> float:
        """Return the examples of a region."""
        members = self.groups[r]
        known = self.context.clients.part(members)
        if known.sizes is not None:
            return float(np.sum(known.sizes))

        async def program(scope: Federation, message: Tree) -> float:
            del message
            return await population_examples(scope, known)

        return float(await fed.nest(f"edge-{r}", program, fed.parties[members]))

    async def _contact(self, fed: Federation, state: Tree, number: int, phase: str) -> tuple[Tree, dict[str, Any]]:
        """Run steps 1 to 4: distribute, wait for the quota, compute regional models, then the global one."""
        context, begin = self.context, fed.clock.now()
        logs = [learned(self.seats.estimator, edge["log"], begin) for edge in state["edges"]]
        invited, quota = self.seats.invited(logs, self.pace.joint), Quota(self.quota)
        visits = [
            EdgeVisit(
                self.context,
                self.pace,
                self.seats,
                r,
                {**edge, "log": log},
                (state["contacts"], phase),
                int(n),
                quota.share(most),
            )
            for r, (edge, log, n, most) in enumerate(
                zip(state["edges"], logs, invited, self.seats.most(self.pace.most), strict=True)
            )
        ]
        sent = {"broadcast": context.algorithm.broadcast(state["server"], phase), "buffers": state["buffers"]}
        await asyncio.gather(*(fed.nest(v.name, v.program, fed.parties[self.groups[v.r]], sent) for v in visits))
        self._signals(fed, visits)
        row = self._row(visits, self.seats.thetas(logs))
        row["cloud_seconds"] = fed.clock.now() - begin - row["client_seconds"]
        state = {**state, "edges": [visit.edge for visit in visits]}
        return self._folded(fed, state, visits, row, (number, phase))

    def _folded(
        self, fed: Federation, state: Tree, visits: list[EdgeVisit], row: dict[str, Any], at: tuple[int, str]
    ) -> tuple[Tree, dict[str, Any]]:
        """Return the cloud's aggregation, (4.22): regional models weighted by the data of this round's submissions."""
        total = sum(visit.edc for visit in visits)
        number, phase = at
        if not total > 0:
            what = f"none of {row['selected']} clients submitted a model"
            if self.pace.on_failure == "stop":
                remedy = "lengthen the deadline, or let such rounds be skipped (on_failure='skip')"
                raise QuorumError(what, where=f"round {number}", remedy=remedy)
            return state, {**row, "failed": what}
        now = global_model(state)
        there = [visit for visit in visits if visit.edc > 0]
        away = _total([T.scale(T.sub(v.edge["model"], now), v.edc / total) for v in there])
        step = {name: away[name] for name in state["server"]["params"]}
        buffers = {name: T.add(value, away[name]) for name, value in state["buffers"].items()}
        info = round_info(fed, state, (number, True), row["selected"], row["replied"])
        server = self.context.algorithm.fold(state["server"], {"update": step}, info, phase)
        require_finite(server["params"], number)
        return {**state, "server": server, "buffers": buffers}, row

    def _signals(self, fed: Federation, visits: list[EdgeVisit]) -> None:
        """Meter the messages between cloud and edges other than models: a count for each submission, then the signal."""
        roster = fed.world.roster
        for visit in visits:
            place = np.array([roster.position(visit.name)], dtype=np.int64)
            fed.meter.control(fed.hub, "up", place, _NUMBER, visit.share.taken)
            fed.meter.control(fed.hub, "down", place, _NUMBER)
            if self.pace.joint:  # the edge's counts, and how many clients it shall invite
                fed.meter.control(fed.hub, "up", place, M.nbytes(visit.edge["log"]["state"]))
                fed.meter.control(fed.hub, "down", place, _NUMBER)

    def _row(self, visits: list[EdgeVisit], thetas: Any) -> dict[str, Any]:
        """Return the round's row, region by region."""
        row = summed([visit.row for visit in visits])
        late = self.seats.estimator.counts_late
        for v, theta, wanted in zip(visits, thetas.tolist(), self.seats.wanted.tolist(), strict=True):
            heard = late or v.share.moment is None
            columns = {
                "theta": theta,
                "fraction": v.selected / len(self.groups[v.r]),
                "quality": v.share.taken / wanted,
                "selected": v.selected,
                "submitted": v.share.taken,
                "completed": v.share.completed if heard else None,
                "edc": v.edc,
            }
            row.update({f"{v.name}/{name}": value for name, value in columns.items()})
        return {**row, "client_seconds": max(visit.seconds for visit in visits), "edc": sum(v.edc for v in visits)}


def _total(trees: list[Tree]) -> Tree:
    made = trees[0]
    for tree in trees[1:]:
        made = T.add(made, tree)
    return made
