"""The rounds of SAFA: clients of several versions, a cache with one model each, and replies that count a round later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core import tree as T
from atoll.core.tree import Tree

from ..checks import require_finite
from ..fates import require_feasible
from ..invitation import Inviter, own_reports, reply_bytes, reports_of
from ..partial import own_epochs
from ..rounds import ServerRounds, account, client_examples, folded, initial, outgoing, round_info, server_round
from ..selection import Seen
from .base import weighs_examples
from .model_cache import begun, replaced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.aggregate import Part
    from atoll.core.federation import Federation
    from atoll.core.flight import Arrivals, Flight
    from atoll.core.party import Parties
    from atoll.core.results import Combined

    from ..learner import Learner
    from ..training import Training
    from .safa import SAFA

__all__ = ["LagTolerantRounds"]


@dataclass(frozen=True)
class _Dispatch:
    """How a round begins, as masks over the population.

    Attributes:
        asked: invited.
        fresh: they are sent the model, being up to date or deprecated.
        deprecated: they have lagged too far.
        going: they go on with the model they have.
        busy: they still work on an earlier round's.
        wasted: local updates thrown away with the models of the deprecated.
        crashed: they do not answer.
        saved: whole epochs that those who crashed had done in this round.
        fraction: share of a local update that each had done.
    """

    asked: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    deprecated: NDArray[np.bool_]
    going: NDArray[np.bool_]
    busy: NDArray[np.bool_]
    wasted: float
    crashed: NDArray[np.bool_]
    saved: NDArray[np.int64]
    fraction: NDArray[np.float64]

    def learning(self, places: NDArray[np.int64], flight: Flight, epochs: int) -> _Dispatch:
        """The same, knowing what became of a request."""
        lost = ~np.isfinite(flight.arrives)
        crashed, saved, fraction = self.crashed.copy(), self.saved.copy(), self.fraction.copy()
        crashed[places], fraction[places] = lost, flight.fraction
        saved[places] = np.where(lost, np.floor(flight.fraction * epochs), 0).astype(np.int64)
        return replace(self, crashed=crashed, saved=saved, fraction=fraction)


class LagTolerantRounds(ServerRounds):
    """One server's rounds with ``SAFA``.

    Its state holds the server's, and by client: ``version`` (base of its model), ``progress`` (whole epochs it has done on it before a crash); ``bases``: version -> the message that brought it;
    ``cache``: see ``model_cache``; ``shares``: ``n_k / n``.
    """

    def __init__(self, pacing: SAFA, job: Training, learner: Learner, data: Any) -> None:
        super().__init__(job, learner, data)
        self.pacing = pacing
        self.phase = job.algorithm.phases[0]
        self.epochs = own_epochs(job.algorithm)

    def initial(self, fed: Federation) -> Tree:
        """Everyone has the initial model."""
        state, clients = initial(fed, self.job, self.learner), len(fed.parties)
        return {
            **state,
            "version": np.zeros(clients, dtype=np.int64),
            "progress": np.zeros(clients, dtype=np.int64),
            "bases": {},
            "cache": begun(state["server"]["params"], clients),
            "shares": None,
        }

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Distribute, wait, aggregate."""
        job = self.job
        if not job.algorithm.plan(state["server"]):
            return await server_round(fed, job, self.learner, self.data, state, number)
        if state["shares"] is None:
            examples = await client_examples(fed, self.data)
            by = examples if weighs_examples(self.pacing, job.algorithm, state["server"]["params"]) else examples > 0
            state = {**state, "shares": by / by.sum(), "weight": float(examples.sum())}
        state = {**state, "contacts": state["contacts"] + 1}
        inviter = Inviter(fed, job, self.learner, self.data, state)
        if number == 1:
            require_feasible(inviter)
        heard, spent = await inviter.surveyed()
        state = {**state, "selection": heard}
        invited = replace(inviter, state=state).invite()
        row: dict[str, Any] = {"selected": len(invited), "bytes_up": 0, "bytes_down": 0, **spent}
        start = fed.clock.now()
        state, sent, flights = await self._distribute(fed, state, invited, row)
        arrived, taken = await self._wait(fed, state, sent, flights, start)
        return await self._aggregate(fed, state, number, sent, (arrived, taken), row)

    # ------------------------------------------------------------------ lag-tolerant distribution

    def _dispatch(self, fed: Federation, state: Tree, invited: Parties) -> _Dispatch:
        everyone = fed.parties.positions
        asked, busy = np.isin(everyone, invited.positions), np.isin(everyone, fed.busy)
        lag = state["contacts"] - 1 - state["version"]
        deprecated = asked & self.pacing.deprecated(lag)
        fresh = deprecated | (asked & (lag == 0))
        wasted = float(state["progress"][deprecated].sum() / self.epochs + (busy & deprecated).sum())
        none = np.zeros(len(everyone))
        going, busy = asked & ~fresh & ~busy, busy & ~deprecated
        return _Dispatch(
            asked, fresh, deprecated, going, busy, wasted, none.astype(bool), none.astype(np.int64), none.copy()
        )

    async def _distribute(
        self, fed: Federation, state: Tree, invited: Parties, row: dict[str, Any]
    ) -> tuple[Tree, _Dispatch, list[Any]]:
        turn, everyone = state["contacts"], fed.parties
        sent = self._dispatch(fed, state, invited)
        fed.cancel(everyone.positions[sent.deprecated])  # whoever still works on a model too old gets the new one
        version = np.where(sent.fresh, turn - 1, state["version"])
        progress = np.where(sent.fresh, 0, state["progress"])
        state, message, _ = outgoing(fed, self.job, state, everyone[sent.fresh], self.phase)
        bases = {**state["bases"], str(turn - 1): message}
        state = {**state, "version": version, "progress": progress, "bases": bases}
        flights = []
        for base, done, who in _groups(sent, version, progress):
            whole = {} if done == 0 else {"epochs": self.epochs + done, "done": done}
            # Who goes on is told to, and keeps its model.
            note = None if base == turn - 1 else np.full(len(who), M.nbytes({"version": base, "phase": self.phase}))
            flight = await fed.send(
                everyone[who],
                self.learner.train,
                {**bases[str(base)], **whole},
                version=base,
                at=(turn, self.phase) if base == turn - 1 else (turn, self.phase, base, done),
                down=note,
                up=lambda: reply_bytes(self.job, state["server"]["params"], self.phase),
            )
            row["bytes_down"] += flight.down
            sent = sent.learning(who, flight, self.epochs)
            flights.append(flight)
        return state, sent, flights

    # ------------------------------------------------------------------ waiting

    async def _wait(
        self, fed: Federation, state: Tree, sent: _Dispatch, flights: list[Any], start: float
    ) -> tuple[Arrivals, NDArray[np.int64]]:
        """Until the selection rule is content: all arrivals of this round, and the places of those taken."""
        rule, known = self.job.selection, state["selection"]
        limit = None if self.pacing.deadline is None else start + self.pacing.deadline
        working = int((sent.fresh | sent.going | sent.busy).sum())
        count = min(rule.cohort_size(len(fed.parties)), working)
        found = await fed.arrivals(until=start)  # nobody yet, unless a late reply came while the server was at work
        taken, closing = rule.take(found.positions, count, known) if count else (np.zeros(0, np.int64), None)
        while closing is None and len(found) < working:
            more = await fed.arrivals(max(1, rule.missing(found.positions, count, known)), until=limit)
            if len(more) == 0:
                break
            found = found.then(more)
            taken, closing = rule.take(found.positions, count, known)
        if closing is not None:
            found = found.until(found.time[closing])  # a clock that runs on may have brought more
        elif len(found) < working and limit is None:
            lost = [f.lost[np.isfinite(f.lost)] for f in flights]
            await fed.clock.sleep_until(max((float(x.max()) for x in lost if len(x)), default=fed.clock.now()))
        if self.pacing.published:
            found = found.then(fed.foreseen())
            fed.cancel()
        return found, taken

    # ------------------------------------------------------------------ discriminative aggregation

    async def _aggregate(
        self,
        fed: Federation,
        state: Tree,
        number: int,
        sent: _Dispatch,
        came: tuple[Arrivals, NDArray[np.int64]],
        row: dict[str, Any],
    ) -> tuple[Tree, dict[str, Any]]:
        arrived, taken = came
        turn, params = state["contacts"], state["server"]["params"]
        combined = await fed.combine(arrived, uplink=self.job.up(self.phase))
        account(row, combined)
        parts = combined.value.get("update", [])
        places = self._places(fed, np.array([part.sender for part in parts], dtype=np.int64))
        picked = np.isin(places, self._places(fed, arrived.positions[taken]))
        models = _rebuilt(parts, state["version"][places], state["bases"], params)
        cache, shares = state["cache"], state["shares"]
        # (1) before: replies taken go in, and the model for deprecated clients without one
        cache = replaced(cache, places[picked], T.map(lambda leaf: leaf[picked], models), shares)
        stale = np.flatnonzero(sent.deprecated & ~np.isin(np.arange(len(shares)), places[picked]))
        cache = replaced(cache, stale, T.map(lambda leaf: np.asarray(leaf)[None], params), shares)
        # (2) the model is the cache's mean
        mean = T.map(lambda value, leaf: value.astype(np.asarray(leaf).dtype), cache["mean"], params)
        info = round_info(fed, state, (number, True), row["selected"], combined.n)
        state = self._folded(state, combined, T.sub(mean, params), info)
        # (3) after: the other replies go in, and count in the next round
        cache = replaced(cache, places[~picked], T.map(lambda leaf: leaf[~picked], models), shares)
        row.update(self._told(sent, came, places, picked, state))
        state = self._moved_on({**state, "cache": cache}, sent, places)
        state = {**state, "server": self.job.algorithm.advance(state["server"], info)}
        require_finite(state["server"]["params"], number)
        rule = self.job.selection
        asked = fed.parties[np.flatnonzero(sent.asked)]
        seen = replace(self._seen(combined, came, params, asked), round=turn, row={"round": number, **row})
        return {**state, "selection": rule.accept(seen, state["selection"])}, row

    def _folded(self, state: Tree, combined: Combined, update: Tree, info: Any) -> Tree:
        if combined.n == 0:  # nobody answered: the cache may have moved all the same
            moved = T.add(state["server"]["params"], update)
            return {**state, "server": {**state["server"], "params": moved}}
        kinds = {**combined.kinds, "update": "mean"}
        whole = replace(combined, value={**combined.value, "update": update}, kinds=kinds)
        return folded(self.job, state, whole, info, self.phase)

    def _moved_on(self, state: Tree, sent: _Dispatch, places: NDArray[np.int64]) -> Tree:
        """Who submitted has this round's version; who crashed keeps whole epochs, if it may go on from them."""
        turn = state["contacts"]
        version, progress = state["version"].copy(), state["progress"].copy()
        version[places], progress[places] = turn, 0
        if self.pacing.resume:
            progress += sent.saved
        needed = np.unique(version)
        bases = {str(v): state["bases"][str(v)] for v in needed.tolist() if str(v) in state["bases"]}
        return {**state, "version": version, "progress": progress, "bases": bases}

    def _told(
        self,
        sent: _Dispatch,
        came: tuple[Arrivals, NDArray[np.int64]],
        places: NDArray[np.int64],
        picked: NDArray[np.bool_],
        state: Tree,
    ) -> dict[str, Any]:
        """What the round's row says of its clients; see ``efficiency``."""
        lost = sent.fraction[sent.crashed] - (sent.saved[sent.crashed] / self.epochs if self.pacing.resume else 0.0)
        arrived, taken = came
        began = np.array([flight.sent for flight in arrived.flights])[arrived.flight_of[taken]] if len(taken) else 0.0
        took = arrived.time[taken] - began
        bases = state["version"][places]
        return {
            "picked": int(picked.sum()),
            "undrafted": int((~picked).sum()),
            "crashed": int(sent.crashed.sum()),
            "late": int((sent.fresh | sent.going | sent.busy).sum()) - len(places) - int(sent.crashed.sum()),
            "synchronised": int(sent.fresh.sum()),
            "deprecated": int(sent.deprecated.sum()),
            "version_variance": float(np.var(bases)) if len(bases) else 0.0,
            "wasted": float(sent.wasted + lost.sum()),
            "slowest_picked": float(took.max(initial=0.0)),
        }

    def _seen(self, combined: Combined, came: tuple[Arrivals, NDArray[np.int64]], params: Tree, asked: Parties) -> Seen:
        """What the selection rule learns: of the replies that were taken."""
        arrived, taken = came
        senders, reports = combined.senders, reports_of(combined)
        order = np.argsort(arrived.positions, kind="stable")
        at = order[np.searchsorted(arrived.positions[order], senders.positions)]
        chosen = np.flatnonzero(np.isin(at, taken))
        began = np.array([flight.sent for flight in arrived.flights])
        seconds = arrived.time[at] - began[arrived.flight_of[at]] if len(at) else np.zeros(0)
        told = {name: [values[i] for i in chosen.tolist()] for name, values in reports.items()}
        own = own_reports(self.job, self.learner, params, self.data)
        return Seen(0, asked, senders[chosen], seconds[chosen], told, {}, own)

    @staticmethod
    def _places(fed: Federation, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(fed.parties.positions, positions)


def _groups(
    sent: _Dispatch, version: NDArray[np.int64], progress: NDArray[np.int64]
) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Who is asked alike: ``(base version, whole epochs done before, places)``."""
    begins = np.flatnonzero(sent.fresh | sent.going)
    pairs = np.stack([version[begins], progress[begins]], axis=1)
    kinds, which = np.unique(pairs, axis=0, return_inverse=True)
    return [(int(v), int(p), begins[which.ravel() == i]) for i, (v, p) in enumerate(kinds)]


def _rebuilt(parts: list[Part], versions: NDArray[np.int64], bases: Tree, params: Tree) -> Tree:
    """The clients' models, ``(replies, ...)``: what each was sent plus its update."""
    if not parts:
        return T.map(lambda leaf: np.asarray(leaf)[None][:0], params)
    updates = T.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *[part.value for part in parts])
    kinds, which = np.unique(versions, return_inverse=True)
    known = [bases[str(v)]["broadcast"]["params"] for v in kinds.tolist()]
    return T.map(lambda update, *bases: update + np.stack(bases)[which], updates, *known)
