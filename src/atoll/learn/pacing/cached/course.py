"""The rounds of SAFA: clients with models of several versions, a cache with one model each, and replies that count a round later."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.party import among

from ...algorithm import Phased
from ...checks import require_finite
from ...counts import client_examples
from ...local.partial import own_epochs
from ...selection.members import places_of
from ...server.declared import declare
from ...server.device_outcomes import require_in_time
from ...server.expected import reply_form
from ...server.invitation import Inviter, reply_bytes
from ...server.observed import own_reports
from ...server.phases import account, folded, outgoing, received_model, round_info
from ...server.rounds import ServerRounds, server_round
from ...server.state import initial
from ..base import weighs_examples
from ..versions.at_work import done_by, nobody, noted
from ..versions.dispatch import Dispatch, dispatched
from .arrivals import SafaArrivals, gathered
from .model_cache import begun, rebuilt, replaced, weighed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.federation.flight import Flight
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ...context import Context
    from ..safa import SAFA

__all__ = ["LagTolerantRounds"]


class LagTolerantRounds(ServerRounds):
    """One server's rounds with ``SAFA``.

    The state has the server's entries and, by client: ``version`` (base of its model), ``holds`` (it received that and has not submitted since), ``progress``
    (whole epochs done on it without a reply), ``tried`` and ``failed`` (rounds), ``made`` (clock seconds at which its model was made). It also has ``newest``:
    the same for the newest model; ``bases``: version -> the message that sent it; ``cache``: see ``model_cache``; ``shares``: ``n_k / n``; ``falling``: clients
    that work towards a crash still to come, which only the devices know; ``doing``: progress of each client (see ``at_work``), only for the row.
    """

    def __init__(self, pacing: SAFA, context: Context) -> None:
        super().__init__(context)
        self.pacing = pacing
        self.phase = context.algorithm.phases[0]
        self.epochs = own_epochs(context.algorithm)

    def initial(self, fed: Federation) -> Tree:
        """Start with the initial model at every client and in the cache.

        Raises:
            ConfigError: the pacing needs to know clients' progress, or which will answer, and real parties do not report that.
        """
        unknown = [name for name in ("published", "bounded") if getattr(self.pacing, name)]
        if unknown and fed.live:
            raise ConfigError(
                f"{unknown[0]}=True between real parties: their progress is unknown",
                where="SAFA",
                remedy="leave it out, or simulate",
            )
        state, clients = initial(fed, self.context), len(fed.parties)
        return {
            **state,
            "version": np.zeros(clients, dtype=np.int64),
            "holds": np.zeros(clients, dtype=bool),
            "progress": np.zeros(clients, dtype=np.int64),
            "tried": np.zeros(clients, dtype=np.int64),
            "failed": np.zeros(clients, dtype=np.int64),
            "made": np.full(clients, fed.clock.now()),
            "newest": fed.clock.now(),
            "bases": {},
            "cache": begun(state["server"]["params"], clients),
            "shares": None,
            "falling": None,
            "doing": nobody(clients),
        }

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Distribute, wait, aggregate."""
        context = self.context
        if not context.algorithm.plan(state["server"]):
            return await server_round(fed, self.context, state, number)
        if state["shares"] is None:
            examples = await client_examples(fed, self.context.clients)
            by = (
                examples if weighs_examples(self.pacing, context.algorithm, state["server"]["params"]) else examples > 0
            )
            state = {**state, "shares": by / by.sum(), "weight": float(examples.sum())}
        state = {**state, "contacts": state["contacts"] + 1}
        inviter = Inviter(fed, self.context, state)
        if number == 1:
            require_in_time(inviter)
        heard, spent = await inviter.surveyed()
        state = {**state, "selection": heard}
        invited = replace(inviter, state=state).invite()
        row: dict[str, Any] = {"selected": len(invited), "bytes_up": 0, "bytes_down": 0, **spent}
        start = fed.clock.now()
        state, sent, flights = await self._distribute(fed, state, invited, row)
        came = await gathered(fed, context.selection, state["selection"], sent, self.pacing, start)
        over = self._over(fed, sent, came, state["doing"]["share"])
        if self.pacing.bounded:
            over = self._called_off(fed, over, flights)
        state = {**state, "falling": over.falling(sent)}
        return await self._aggregate(fed, state, number, over, came, row)

    # ------------------------------------------------------------------ lag-tolerant distribution

    def _dispatch(self, fed: Federation, state: Tree, invited: Parties) -> Dispatch:
        everyone = fed.parties.positions
        lag = state["contacts"] - 1 - state["version"]
        old = self.pacing.deprecated(lag, state["failed"], state["tried"], fed.clock.now() - state["made"])
        asked, busy = among(everyone, invited.positions), among(everyone, fed.busy)
        return dispatched(asked, busy, lag, old, state["holds"], state.get("falling"))

    async def _distribute(
        self, fed: Federation, state: Tree, invited: Parties, row: dict[str, Any]
    ) -> tuple[Tree, Dispatch, list[tuple[Flight, int]]]:
        turn, everyone = state["contacts"], fed.parties
        sent = self._dispatch(fed, state, invited)
        doing, before = state["doing"], state["progress"][sent.deprecated].sum() / self.epochs
        row["wasted"] = float(before + done_by(doing, fed.clock.now())[sent.stopped].sum())
        # No client works on a model that is too old: invited clients get the new one.
        fed.cancel(everyone.positions[sent.deprecated])
        version = np.where(sent.fresh, turn - 1, state["version"])
        progress = np.where(sent.fresh | sent.deprecated, 0, state["progress"])
        state, message, _ = outgoing(fed, self.context, state, everyone[sent.fresh], self.phase)
        bases = {**state["bases"], str(turn - 1): message}
        made = np.where(sent.fresh, state["newest"], state["made"])
        holds = (state["holds"] & ~sent.deprecated) | sent.fresh
        state = {**state, "version": version, "holds": holds, "progress": progress, "made": made, "bases": bases}
        flights: list[tuple[Flight, int]] = []
        up = functools.cache(lambda: reply_bytes(self.context, state, self.phase))
        form = functools.cache(lambda: reply_form(self.context, state, self.phase))
        for base, done, who in sent.groups(version, progress):
            # A stopped client does the rest; after a crash, a client does all of its work again from where it was.
            work = self.epochs - done if self.pacing.bounded else self.epochs
            whole = {} if done == 0 else {"epochs": done + work, "done": done}
            # Clients that continue are told so and keep their models.
            note = None if base == turn - 1 else np.full(len(who), M.nbytes({"version": base, "phase": self.phase}))
            flight = await fed.send(
                everyone[who],
                self.context.learner.train,
                {**bases[str(base)], **whole},
                version=base,
                at=(turn, self.phase) if base == turn - 1 else (turn, self.phase, base, done),
                down=note,
                up=up,
                expects=form,
            )
            row["bytes_down"] += flight.down
            sent = sent.learning(who, flight, work, self.epochs)
            doing = noted(doing, who, flight, work / self.epochs)
            flights.append((flight, work))
        return {**state, "doing": doing}, sent, flights

    def _over(self, fed: Federation, sent: Dispatch, came: SafaArrivals, share: NDArray[np.float64]) -> Dispatch:
        """End the round: note the crashes noticed by now."""
        if not fed.live:
            return sent.ended(np.inf if self.pacing.published else fed.clock.now())
        everyone = fed.parties.positions
        return sent.missed(among(everyone, came.arrived.positions), among(everyone, fed.busy), share)

    def _called_off(self, fed: Federation, sent: Dispatch, flights: list[tuple[Flight, int]]) -> Dispatch:
        """Tell clients that still work that the round is full: they keep what they have. All of them started in this round."""
        for flight, work in flights:
            places = places_of(fed.parties.positions, flight.parties.positions)
            sent = sent.called_off(places, flight, fed.clock.now(), work, self.epochs)
        fed.cancel()
        return sent

    # ------------------------------------------------------------------ discriminative aggregation

    async def _aggregate(
        self, fed: Federation, state: Tree, number: int, sent: Dispatch, came: SafaArrivals, row: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any]]:
        context, turn, params, before = self.context, state["contacts"], state["server"]["params"], state
        combined = await fed.combine(came.arrived, uplink=context.uplink(self.phase))
        account(row, combined)
        declare(row, context.declared(state, self.phase), combined.n)
        parts = combined.value.get("update", [])
        senders = np.array([part.sender for part in parts], dtype=np.int64)
        places, picked = places_of(fed.parties.positions, senders), came.picked(senders)
        models = rebuilt(parts, state["version"][places], state["bases"], params)
        cache, shares = state["cache"], state["shares"]
        # (1) before: taken replies enter the cache, and the model for deprecated clients without one
        cache = replaced(cache, places[picked], T.map(lambda leaf: leaf[picked], models), shares, turn)
        stale = np.flatnonzero(sent.deprecated & ~among(np.arange(len(shares)), places[picked]))
        cache = replaced(cache, stale, T.map(lambda leaf: np.asarray(leaf)[None], params), shares, turn)
        # (2) the model is the cache's mean
        mean = weighed(cache, shares, turn, self.pacing.staleness)
        mean = T.map(lambda value, leaf: value.astype(np.asarray(leaf).dtype), mean, params)
        info = round_info(fed, state, (number, True), row["selected"], combined.n)
        fed.announce("before_aggregation", number=number, phase=self.phase, params=params)
        state = self._folded(state, combined, T.sub(mean, params), info)
        fed.announce("after_aggregation", number=number, phase=self.phase, params=state["server"]["params"])
        # (3) after: the other replies enter, and count in the next round
        cache = replaced(cache, places[~picked], T.map(lambda leaf: leaf[~picked], models), shares, turn)
        row.update(sent.row(), **came.row(picked, state["version"][places]))
        row["silent"] += row["crashed"]  # clients that work on are not
        row["late"] = sent.working - len(places) - row["crashed"]
        row["wasted"] += sent.lost(self.epochs, kept=self.pacing.resume)
        state = self._moved_on({**state, "cache": cache, "newest": fed.clock.now()}, sent, places)
        state = {**state, "server": facet(context.algorithm, Phased).advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        asked = fed.parties[np.flatnonzero(sent.asked)]
        known = received_model(before["bases"][str(turn - 1)])
        # Version v is the model of round v + 1.
        based = before["version"][places_of(fed.parties.positions, combined.senders.positions)] + 1
        seen = came.seen(combined, own_reports(context, known), based)
        row.update(context.evaluation.told(asked, seen.replied))
        pending = np.array(sorted(int(v) + 1 for v in state["bases"]), dtype=np.int64)
        seen = replace(seen, asked=asked, round=turn, row={"round": number, **row}, pending=pending)
        return {**state, "selection": context.selection.accept(seen, state["selection"])}, row

    def _folded(self, state: Tree, combined: Combined, update: Tree, info: Any) -> Tree:
        if combined.n == 0:  # no reply, but the cache may still have changed
            moved = T.add(state["server"]["params"], update)
            return {**state, "server": {**state["server"], "params": moved}}
        kinds = {**combined.kinds, "update": "mean"}
        whole = replace(combined, value={**combined.value, "update": update}, kinds=kinds)
        return folded(self.context, state, whole, info, self.phase)

    def _moved_on(self, state: Tree, sent: Dispatch, places: NDArray[np.int64]) -> Tree:
        """Update clients: those that submitted have this round's version; crashed ones keep whole epochs if they can resume."""
        turn = state["contacts"]
        version, progress = state["version"].copy(), state["progress"].copy()
        made, holds = state["made"].copy(), state["holds"].copy()
        version[places], progress[places], made[places], holds[places] = turn, 0, state["newest"], False
        if self.pacing.resume:
            progress += sent.saved
            if self.pacing.bounded:
                progress = np.minimum(progress, self.epochs - 1)  # at least one epoch is left
        state = {**state, "tried": state["tried"] + sent.begin, "failed": state["failed"] + sent.crashed}
        bases = {str(v): state["bases"][str(v)] for v in np.unique(version[holds]).tolist()}
        return {**state, "version": version, "holds": holds, "progress": progress, "made": made, "bases": bases}
