"""Rounds whose clients work on models of several versions: who is at work, and what arrives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import QuorumError
from atoll.core.requests.party import among

from ...algorithm import RoundInfo
from ...checks import require_finite
from ...counts import weighed
from ...selection import Seen
from ...selection.members import places_of
from ...server.declared import declare
from ...server.invitation import Inviter, reply_bytes
from ...server.phases import folded, outgoing
from ...server.rounds import ServerRounds, server_round
from ...server.state import initial
from .round_log import RoundLog
from .waiting import WaitingReplies, positions_of

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined
    from atoll.core.traffic.flight import Flight, Handle

    from ...context import Context
    from .asynchronous import Asynchronous

__all__ = ["InFlight"]

MOST_LOOKS = 100_000
"""How often a server that has nobody at work looks again for clients that are there."""
MOST_ASKS = 1_000
"""Requests of a round, one after the other, that may go by without a reply."""


class InFlight(ServerRounds):
    """Base of the courses of asynchronous pacings.

    Beside the server's, their state holds ``"version"``, the server's updates so far, and by client ``"until"``, the clock time from which it can be asked
    again (``inf`` while its reply is awaited or not yet used), and ``"base"``, the version that it was sent last.

    Args:
        pacing: the training's.
        context: the training's.
    """

    def __init__(self, pacing: Asynchronous, context: Context) -> None:
        super().__init__(context)
        self.look_again = pacing.look_again
        self.phase = context.algorithm.phases[0]
        self.held = WaitingReplies()
        self.last: Flight

    @property
    def ahead(self) -> bool:
        """Whether a flight runs in one block; not where clients' private states are looked at between rounds, or a protocol combines replies."""
        return not self.context.evaluation.personal and self.reducer is None

    @property
    def reducer(self) -> Reducer | None:
        """The protocol that combines replies; ``None`` for plain addition."""
        return None if self.context.reducer.plain else self.context.reducer

    def at_work(self, fed: Federation) -> int:
        """Clients that shall work at the same time."""
        return self.context.selection.cohort_size(len(fed.parties))

    def turns(self, rounds: int) -> int | None:
        """A turn is a request, and how many a round takes depends on who answers."""
        del rounds
        return None

    def initial(self, fed: Federation) -> Tree:
        """Nobody is at work."""
        clients = len(fed.parties)
        own = {"version": 0, "until": np.full(clients, -np.inf), "base": np.zeros(clients, dtype=np.int64)}
        return {**initial(fed, self.context), **own}

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """One round; where the algorithm's plan contacts nobody, the server's alone."""
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
        state = {**state, "server": context.algorithm.advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        row = log.row()
        declare(row, context.declared(state, self.phase), len(log.senders))
        row |= context.evaluation.told(*log.parties(fed))
        return self._learned(fed, state, log, {"round": number, **row}), row

    async def updates(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """The server's updates of one round."""
        raise NotImplementedError

    def _learned(self, fed: Federation, state: Tree, log: RoundLog, row: dict[str, Any]) -> Tree:
        asked, senders = log.parties(fed)
        seen = Seen(state["contacts"], asked, senders, np.array(log.seconds), {}, row)
        return {**state, "selection": self.context.selection.accept(seen, state["selection"])}

    # ------------------------------------------------------------------ asking

    def free(self, fed: Federation, state: Tree) -> Parties:
        """Clients that are there and not at work."""
        idle = np.flatnonzero(state["until"] <= fed.clock.now())
        return fed.available(fed.parties[idle])

    async def fill(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Ask so many more that ``at_work`` clients are."""
        state = self._without_lost(fed, state, log)
        working = int((state["until"] > fed.clock.now()).sum()) - len(self.held)
        return await self.ask(fed, state, log, self.free(fed, state), self.at_work(fed) - working)

    async def ask(
        self, fed: Federation, state: Tree, log: RoundLog, among: Parties, count: int, version: int | None = None
    ) -> Tree:
        """Send the current model to ``count`` of these clients, as the selection rule has it."""
        count = min(count, len(among))
        if count < 1:
            return state
        context = self.context
        state = {**state, "contacts": state["contacts"] + 1}
        candidates = Inviter(fed, self.context, state, among).candidates()
        invited = candidates.parties[context.selection.invite(candidates, count, state["selection"])]
        state, message, sizes = outgoing(fed, context, state, invited, self.phase)
        flight = await fed.send(
            invited,
            self.context.learner.train,
            message,
            version=state["version"] if version is None else version,
            at=(state["contacts"], self.phase),
            down=sizes,
            up=lambda: reply_bytes(context, state["server"]["params"], self.phase),
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
        """Hold at least one more arrival, or find that a crash has been noticed; when nobody is at work, ask again.

        Raises:
            QuorumError: nobody is at work, and nobody comes who could be asked.
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
            "nobody is at work, and nobody can be asked",
            where=f"contact {state['contacts']}",
            remedy="use devices that answer and are there more often, or invite more clients",
        )

    def _without_lost(self, fed: Federation, state: Tree, log: RoundLog) -> Tree:
        """Real parties whose reply is neither under way nor held were lost: from now on they can be asked again. A simulation foretells them."""
        if not fed.live:
            return state
        everyone = fed.parties.positions
        hoped = among(everyone, fed.busy) | among(everyone, self.held.positions)
        lost = np.isposinf(state["until"]) & ~hoped
        log.missed(int(lost.sum()))
        return {**state, "until": np.where(lost, fed.clock.now(), state["until"])}

    async def arrived(self, fed: Federation) -> None:
        """Hold what has arrived by now, without waiting."""
        self.held.add((await fed.arrivals(1, until=fed.clock.now())).handles())

    # ------------------------------------------------------------------ using

    def released(self, fed: Federation, state: Tree, handles: Sequence[Handle]) -> Tree:
        """These clients can be asked again."""
        until = state["until"].copy()
        until[places_of(fed.parties.positions, positions_of(handles))] = fed.clock.now()
        self.held.let_go(handles)
        return {**state, "until": until}

    async def dropped(self, fed: Federation, handles: Sequence[Handle], log: RoundLog) -> None:
        """Replies that are not used: if the work was not done in a block with others', it never is."""
        log.late += len(handles)
        log.wasted += len(handles)
        for handle in handles:
            if handle.flight.kept is None:
                handle.cancel()
            else:
                await fed.combine([handle], uplink=self.context.uplink(self.phase))

    def info(self, fed: Federation, state: Tree, replied: int) -> RoundInfo:
        """What the fold of a server update may know: its number counts updates."""
        version = state["version"] + 1
        stream = fed.rng.child("server", "update", version)
        return RoundInfo(version, replied, replied, len(fed.parties), state["weight"], stream)

    def applied(self, fed: Federation, state: Tree, combined: Combined) -> Tree:
        """The next version: replies folded into the server's state; the same where none can be used."""
        if combined.n == 0:
            return state
        state = folded(self.context, state, combined, self.info(fed, state, combined.n), self.phase)
        return {**state, "version": state["version"] + 1}


def _require_answers(log: RoundLog, state: Tree) -> None:
    if log.unanswered > MOST_ASKS:
        raise QuorumError(
            f"{log.unanswered} requests one after the other went by without a reply: everyone who was asked crashed",
            where=f"contact {state['contacts']}",
            remedy="use devices that crash less often, or give them less to do",
        )
