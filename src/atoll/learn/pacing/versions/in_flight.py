"""Rounds in which clients work on models of several versions: working clients and arrivals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import QuorumError
from atoll.core.facets import facet
from atoll.core.requests.party import among

from ...algorithm import Phased, RoundInfo
from ...checks import require_finite
from ...counts import weighed
from ...selection import Seen
from ...selection.members import places_of
from ...server.declared import declare
from ...server.expected import reply_form
from ...server.fitting import fitted_to_mock, fitted_to_sum
from ...server.invitation import Inviter, reply_bytes
from ...server.phases import folded, outgoing
from ...server.rounds import ServerRounds, server_round
from ...server.state import initial
from .round_log import RoundLog
from .waiting import WaitingReplies, positions_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight, Handle
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ...context import Context
    from .asynchronous import Asynchronous

__all__ = ["InFlight"]

MOST_LOOKS = 100_000
"""How often a server without working clients looks again for available ones."""
MOST_ASKS = 1_000
"""How many requests of a round in a row may stay without a reply."""


class InFlight(ServerRounds):
    """Base class of the courses of asynchronous pacings.

    In addition to the server's entries, the state has ``"version"``, the server's updates so far, and by client ``"until"``, the clock time from which it
    can be invited again (``inf`` while its reply is awaited or not yet used), and ``"base"``, the version that it received last.

    Args:
        pacing: the training's pacing.
        context: the training's context.
    """

    def __init__(self, pacing: Asynchronous, context: Context) -> None:
        super().__init__(context)
        self.look_again = pacing.look_again
        self.phase = context.algorithm.phases[0]
        self.held = WaitingReplies()
        self.last: Flight

    @property
    def ahead(self) -> bool:
        """Whether a request runs ahead in one block; not if evaluation reads clients' private states between rounds, or a protocol combines replies."""
        return not self.context.evaluation.personal and self.reducer is None

    @property
    def reducer(self) -> Reducer | None:
        """The protocol that combines replies; ``None`` for plain addition."""
        return None if self.context.reducer.plain else self.context.reducer

    def at_work(self, fed: Federation) -> int:
        """Return how many clients should work at the same time."""
        return self.context.selection.cohort_size(len(fed.parties))

    def turns(self, rounds: int) -> int | None:
        """Return ``None``: a turn is a request, and their number per round depends on the answers."""
        del rounds
        return None

    def initial(self, fed: Federation) -> Tree:
        """Start with no client working."""
        clients = len(fed.parties)
        own = {"version": 0, "until": np.full(clients, -np.inf), "base": np.zeros(clients, dtype=np.int64)}
        return {**initial(fed, self.context), **own}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round; if the algorithm's plan contacts no client, only the server's part."""
        context = self.context
        state = await weighed(fed, context, state)
        if not context.algorithm.plan(state["server"]):
            state, row = await server_round(fed, self.context, state, number)
            return {**state, "version": state["version"] + 1}, row
        log = RoundLog()
        state = await self.updates(fed, state, log)
        info = replace(
            self.info(fed, state, len(log.senders)), round=number, rng=fed.rng.child("server", "round", number)
        )
        state = {**state, "server": facet(context.algorithm, Phased).advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        row = log.row()
        declare(row, context.declared(state, self.phase, min(log.bases, default=None)), len(log.senders))
        row |= context.evaluation.told(*log.parties(fed))
        return self._learned(fed, state, log, {"round": number, **row}), row

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Run the server's updates of one round."""
        raise NotImplementedError

    def _learned(self, fed: Federation, state: Tree, log: RoundLog, row: dict[str, Any]) -> Tree:
        asked, senders = log.parties(fed)
        seen = Seen(state["contacts"], asked, senders, np.array(log.seconds), {}, row)
        return {**state, "selection": self.context.selection.accept(seen, state["selection"])}

    # ------------------------------------------------------------------ asking

    def free(self, fed: Federation, state: Tree) -> Parties:
        """Return clients that are available and not working."""
        idle = np.flatnonzero(state["until"] <= fed.clock.now())
        return fed.available(fed.parties[idle])

    async def fill(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Invite clients until ``at_work`` clients work."""
        state = self._without_lost(fed, state, log)
        working = int((state["until"] > fed.clock.now()).sum()) - len(self.held)
        return await self.ask(fed, state, log, self.free(fed, state), self.at_work(fed) - working)

    async def ask(
        self, fed: Federation, state: Tree, log: RoundLog, among: Parties, count: int, version: int | None = None
    ) -> Tree:
        """Send the current model to ``count`` of these clients, chosen by the selection rule."""
        count = min(count, len(among))
        if count < 1:
            return state
        context = self.context
        state = {**state, "contacts": state["contacts"] + 1}
        candidates = Inviter(fed, self.context, state, among).candidates()
        invited = candidates.parties[context.selection.invite(candidates, count, state["selection"])]
        state, message, sizes = outgoing(fed, context, state, invited, self.phase)
        state = await fitted_to_mock(fed, context, state, self.phase, message, state["version"])
        flight = await fed.send(
            invited,
            self.context.learner.train,
            message,
            version=state["version"] if version is None else version,
            at=(state["contacts"], self.phase),
            down=sizes,
            up=lambda: reply_bytes(context, state, self.phase),
            expects=lambda: reply_form(context, state, self.phase, message.get("reports")),
            ahead=self.ahead,
        )
        log.sent(flight)
        self.last = flight
        where = places_of(fed.parties.positions, invited.positions)
        until, base = state["until"].copy(), state["base"].copy()
        until[where] = np.where(np.isfinite(flight.arrives), np.inf, flight.lost) if flight.foretold else np.inf
        base[where] = flight.version
        return {**state, "until": until, "base": base}

    # ------------------------------------------------------------------ waiting

    async def await_more(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Wait for one more arrival or a noticed crash; if no client works, invite again.

        Raises:
            QuorumError: no client works, and none becomes available.
        """
        for _ in range(MOST_LOOKS):
            now = fed.clock.now()
            ahead = state["until"][np.isfinite(state["until"]) & (state["until"] > now)]
            noticed = float(ahead.min()) if len(ahead) else math.inf
            if fed.under_way:
                came = (await fed.arrivals(1, until=noticed if math.isfinite(noticed) else None)).handles()
                self.held.add(came)
                log.unanswered = 0 if len(came) else log.unanswered
                return self._without_lost(fed, state, log)
            _require_answers(log, state)
            before = state["contacts"]
            state = await self.fill(fed, state, log)
            if state["contacts"] > before:
                continue
            if math.isfinite(noticed):
                await fed.clock.sleep_until(noticed)
                return state
            if len(fed.available(fed.parties)):
                break
            await fed.clock.sleep_until(now + self.look_again)
        raise QuorumError(
            "no client works, and no client can be invited",
            where=f"contact {state['contacts']}",
            remedy="use devices that answer and are available more often, or invite more clients",
        )

    def _without_lost(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Free real parties with a reply neither under way nor held: they were lost and can be invited again. A simulation knows them beforehand."""
        if not fed.live:
            return state
        everyone = fed.parties.positions
        hoped = among(everyone, fed.busy) | among(everyone, self.held.positions)
        lost = np.isposinf(state["until"]) & ~hoped
        log.missed(int(lost.sum()))
        return {**state, "until": np.where(lost, fed.clock.now(), state["until"])}

    async def arrived(self, fed: Federation) -> None:
        """Hold all arrivals so far, without waiting."""
        self.held.add((await fed.arrivals(1, until=fed.clock.now())).handles())

    # ------------------------------------------------------------------ using

    def released(self, fed: Federation, state: Tree, handles: Sequence[Handle]) -> Tree:
        """Make these clients available for invitations again."""
        until = state["until"].copy()
        until[places_of(fed.parties.positions, positions_of(handles))] = fed.clock.now()
        self.held.let_go(handles)
        return {**state, "until": until}

    def chain(self, state: Tree, flight: Flight) -> Chain:
        """Return the uplink of the replies to a request, with the parameters that went out with it."""
        return self.context.chain(state, self.phase, flight.version)

    def fitted(self, fed: Federation, state: Tree, combined: Combined) -> Tree:
        """Return the state with the uplink's parameters fitted to a sum; those that a working client has are kept."""
        at_work = [flight.version for flight in fed.traffic.flights if flight.open.any()]
        oldest = min([*at_work, *(handle.flight.version for handle in self.held), state["version"]])
        return fitted_to_sum(fed, self.context, state, self.phase, combined, state["version"], oldest)

    async def dropped(self, fed: Federation, state: Tree, handles: Sequence[Handle], log: RoundLog) -> None:
        """Drop replies that are not used; their work is then never done, unless it ran in a block with others."""
        log.late += len(handles)
        log.wasted += len(handles)
        for handle in handles:
            if handle.flight.kept is None:
                handle.cancel()
            else:
                await fed.combine([handle], uplink=self.chain(state, handle.flight))

    def info(self, fed: Federation, state: Tree, replied: int) -> RoundInfo:
        """Return what the fold of a server update can use; ``round`` counts updates."""
        version = state["version"] + 1
        stream = fed.rng.child("server", "update", version)
        return RoundInfo(version, replied, replied, len(fed.parties), state["weight"], stream)

    def applied(self, fed: Federation, state: Tree, combined: Combined) -> Tree:
        """Return the next version: replies folded into the server's state; unchanged if none can be used."""
        if combined.n == 0:
            return state
        step = {"number": state["version"] + 1, "phase": self.phase}
        fed.announce("before_aggregation", **step, params=state["server"]["params"])
        state = folded(self.context, state, combined, self.info(fed, state, combined.n), self.phase)
        fed.announce("after_aggregation", **step, params=state["server"]["params"])
        return {**state, "version": state["version"] + 1}


def _require_answers(log: RoundLog, state: Tree) -> None:
    if log.unanswered > MOST_ASKS:
        raise QuorumError(
            f"{log.unanswered} requests in a row had no reply: every invited client crashed",
            where=f"contact {state['contacts']}",
            remedy="use devices that crash less often, or give them less work",
        )
