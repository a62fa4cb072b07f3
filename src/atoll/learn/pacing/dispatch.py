"""Clients of several versions: who receives the model, continues or still works, how far each is, and a cache with one model each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.aggregate import Part
    from atoll.core.federation.flight import Flight

    from .staleness import Staleness

__all__ = [
    "Dispatch",
    "begin_cache",
    "dispatch_models",
    "done_by",
    "nobody",
    "note_request",
    "rebuilt",
    "replace_entries",
    "resum_rows",
    "weigh_cache",
]


def nobody(clients: int) -> Tree:
    """Return columns without work: ``since`` and ``until`` (clock seconds of request, and of reply or crash), ``share`` (of a local update done by ``until``)."""
    return {name: np.zeros(clients) for name in ("since", "until", "share")}


def note_request(columns: Tree, places: NDArray[np.int64], flight: Flight, share: float) -> Tree:
    """Return the columns with a request.

    Args:
        columns: columns from `nobody`.
        places: positions of the request's parties.
        flight: the request.
        share: share of a local update that the request asks for.

    The progress of real parties is unknown: all of it counts as done from the start, also for lost parties.
    """
    lost = ~np.isfinite(flight.arrives)
    # A crash that no link ever notices counts from the start.
    noticed = np.where(np.isfinite(flight.lost), flight.lost, flight.sent)
    told = {
        "since": flight.sent,
        "until": np.where(lost, noticed, flight.arrives),
        "share": share * np.where(lost, flight.fraction, 1.0),
    }
    columns = {name: column.copy() for name, column in columns.items()}
    for name, values in told.items():
        columns[name][places] = values
    return columns


def done_by(columns: Tree, now: float) -> NDArray[np.float64]:
    """Return the share of a local update that each client has done by ``now``, ``(clients,)``, spread evenly from request to reply or crash."""
    took = columns["until"] - columns["since"]
    passed = np.clip((now - columns["since"]) / np.where(took > 0, took, 1.0), 0.0, 1.0)
    return np.asarray(columns["share"] * np.where(took > 0, passed, 1.0), dtype=np.float64)


# ---------------------------------------------------------------- the start of a round for clients of several versions


@dataclass(frozen=True)
class Dispatch:
    """The start of a round, and its outcome: columns over the population.

    Attributes:
        asked: the client is invited.
        fresh: it receives the model, because it is up to date, deprecated or without one.
        deprecated: it has lagged too far, and was invited or still worked.
        stopped: deprecated clients that still worked, whether or not they would have answered. If not invited, they now have nothing to do.
        going: it continues with the model it has.
        busy: it still works on an earlier round's request, whether or not it will answer.
        falls: clock seconds at which the crash of a client that will not answer is noticed; ``inf`` for all others.
        fraction: share of a local update that each of these will have done by then.
        saved: whole epochs that they will have done by then; after the round, epochs to credit.
        crashed: its crash was noticed by the end of the round.
        begun: number of local updates started; for a stopped update, the part done.
        cut: local updates discarded by stopping clients: the unfinished epochs.
    """

    asked: NDArray[np.bool_]
    fresh: NDArray[np.bool_]
    deprecated: NDArray[np.bool_]
    stopped: NDArray[np.bool_]
    going: NDArray[np.bool_]
    busy: NDArray[np.bool_]
    falls: NDArray[np.float64]
    fraction: NDArray[np.float64]
    saved: NDArray[np.int64]
    crashed: NDArray[np.bool_]
    begun: float = 0.0
    cut: float = 0.0

    @property
    def begin(self) -> NDArray[np.bool_]:
        """Clients that start to train."""
        return self.fresh | self.going

    @property
    def working(self) -> int:
        """Number of clients that may answer in this round."""
        return int((self.begin | self.busy).sum())

    def groups(
        self, version: NDArray[np.int64], progress: NDArray[np.int64]
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Return groups of clients with equal requests: ``(base version, whole epochs done before, places)``."""
        begins = np.flatnonzero(self.begin)
        base, done = version[begins], progress[begins]
        radix = int(done.max(initial=0)) + 1
        kinds, which = np.unique(base * radix + done, return_inverse=True)
        return [(*divmod(int(kind), radix), begins[which == i]) for i, kind in enumerate(kinds)]

    def learning(self, places: NDArray[np.int64], flight: Flight, work: int, epochs: int) -> Dispatch:
        """Return the same with the request's clients that will not answer. Between real parties this is unknown; see `note_missed`.

        Args:
            places: positions of the request's parties.
            flight: the request.
            work: epochs that the request asks for.
            epochs: epochs of a whole local update.
        """
        begun = self.begun + len(places) * work / epochs
        if not flight.foretold:
            return replace(self, begun=begun)
        lost = ~np.isfinite(flight.arrives)
        falls, fraction, saved = self.falls.copy(), self.fraction.copy(), self.saved.copy()
        # A crash that no link ever notices ends with the round.
        noticed = np.where(np.isfinite(flight.lost), flight.lost, flight.sent)
        falls[places] = np.where(lost, noticed, np.inf)
        fraction[places] = np.where(lost, flight.fraction * work / epochs, 0.0)
        saved[places] = np.where(lost, np.floor(flight.fraction * work), 0).astype(np.int64)
        return replace(self, falls=falls, fraction=fraction, saved=saved, begun=begun)

    def end_round(self, now: float) -> Dispatch:
        """Return the same at the end of the round: clients that crash later still work, and nothing of their work is saved yet."""
        crashed = np.isfinite(self.falls) & (self.falls <= now)
        return replace(self, crashed=crashed, saved=np.where(crashed, self.saved, 0))

    def note_missed(
        self, answered: NDArray[np.bool_], awaited: NDArray[np.bool_], share: NDArray[np.float64]
    ) -> Dispatch:
        """Return the same at the end of a round between real parties: a client that worked, has not answered and is no longer awaited is lost with all its work.

        Args:
            answered: clients with a reply.
            awaited: clients that may still reply.
            share: share of a local update requested from each client.
        """
        crashed = (self.begin | self.busy) & ~answered & ~awaited
        return replace(self, crashed=crashed, fraction=np.where(crashed, share, 0.0), saved=np.zeros_like(self.saved))

    def called_off(self, places: NDArray[np.int64], flight: Flight, now: float, work: int, epochs: int) -> Dispatch:
        """Return the same, with clients of a request that still work told to stop: they keep their whole epochs.

        Args:
            places: positions of the request's parties.
            flight: the request.
            now: clock seconds at which they stop.
            work: epochs that the request asks for.
            epochs: epochs of a whole local update.
        """
        falling = np.isfinite(self.falls[places]) & ~self.crashed[places]
        still = flight.open | falling
        took = np.where(falling, flight.lost, flight.arrives) - flight.sent
        share = np.where(falling, flight.fraction, 1.0) * (now - flight.sent) / np.where(still & (took > 0), took, 1.0)
        saved, falls = self.saved.copy(), self.falls.copy()
        done = np.where(still, share, 0.0) * work
        whole = np.floor(done)
        saved[places] += whole.astype(np.int64)
        falls[places] = np.where(falling, np.inf, falls[places])
        cut = self.cut + float((done - whole).sum()) / epochs
        begun = self.begun - float((work - done)[still].sum()) / epochs
        return replace(self, saved=saved, falls=falls, cut=cut, begun=begun)

    def count_lost(self, epochs: int, *, kept: bool) -> float:
        """Return the local updates discarded by crashes and stops.

        Args:
            epochs: epochs of a whole local update.
            kept: whether whole epochs are kept.
        """
        saved = self.saved[self.crashed] / epochs if kept else 0.0
        return float((self.fraction[self.crashed] - saved).sum()) + self.cut

    def row(self) -> dict[str, float]:
        """Return the entries of an ended round's row; see ``History``."""
        told = {"crashed": self.crashed, "synchronised": self.fresh, "deprecated": self.deprecated}
        return {**{name: int(column.sum()) for name, column in told.items()}, "begun": self.begun}

    def falling(self, before: Dispatch) -> Tree | None:
        """Return an ended round's clients that work towards a crash, as an argument of `dispatch_models`; ``None`` if there are none.

        Args:
            before: the dispatch before the round had ended.
        """
        left = np.isfinite(self.falls) & ~self.crashed
        if not left.any():
            return None
        none = {"falls": np.inf, "fraction": 0.0, "saved": 0}
        return {name: np.where(left, getattr(before, name), other) for name, other in none.items()}


def dispatch_models(
    asked: NDArray[np.bool_],
    busy: NDArray[np.bool_],
    lag: NDArray[np.int64],
    old: NDArray[np.bool_],
    holds: NDArray[np.bool_],
    falling: Tree | None = None,
) -> Dispatch:
    """Return the lag-tolerant distribution (Eq. 3.7): invited clients that are up to date or too old get the model; no client works on one that is too old.

    Eq. 3.7 covers rounds that invite all clients. If a rule invites some, a client that has submitted may miss the next model; it then has no base and gets this one.

    Args:
        asked: invited clients.
        busy: clients that still work and will answer.
        lag: lag of each client's model.
        old: clients with a lag beyond the tolerance.
        holds: clients that received a model and have not submitted since.
        falling: clients that still work and will not answer; see `Dispatch.falling`.
    """
    if falling is not None:
        busy = busy | np.isfinite(falling["falls"])
    fresh = asked & (old | (lag == 0) | ~(holds | busy))
    deprecated = old & (asked | busy)
    falls = np.full(len(asked), np.inf) if falling is None else np.where(deprecated, np.inf, falling["falls"])
    fraction, none = np.zeros(len(asked)), np.zeros(len(asked), dtype=bool)
    saved = fraction.astype(np.int64)
    if falling is not None:
        fraction, saved = (np.where(deprecated, 0, falling[name]) for name in ("fraction", "saved"))
    going, stopped, busy = asked & ~fresh & ~busy, deprecated & busy, busy & ~deprecated
    return Dispatch(asked, fresh, deprecated, stopped, going, busy, falls, fraction, saved, none)


# ---------------------------------------------------------------- a server's cache


def begin_cache(params: Tree, clients: int) -> Tree:
    """Start with the initial model as every client's entry: ``{"rows": leaves (clients, ...), "mean": float64 leaves, "entered": round of each entry}``."""
    rows = T.map(lambda leaf: np.repeat(np.asarray(leaf)[None], clients, axis=0), params)
    mean = T.map(lambda leaf: np.asarray(leaf, dtype=np.float64), params)
    return {"rows": rows, "mean": mean, "entered": np.zeros(clients, dtype=np.int64)}


def replace_entries(
    cache: Tree, places: NDArray[np.int64], models: Tree, shares: NDArray[np.float64], turn: int
) -> Tree:
    """Return the cache with new entries. The mean moves by the changes, so that the cost grows with the changes only.

    ``mean <- mean + sum_k share_k (model_k - entry_k)``. The rows change in place.

    Args:
        cache: the cache before.
        places: rows, each at most once.
        models: leaves ``(len(places), ...)``, or ``(1, ...)`` for one model in all rows.
        shares: share of every client in the mean, ``(clients,)``; they sum to 1.
        turn: the round.
    """
    if not len(places):
        return cache
    weights = shares[places]

    def move_mean(mean: Any, rows: Any, fresh: Any) -> Any:
        change = np.asarray(fresh, dtype=np.float64) - rows[places]
        rows[places] = fresh
        return mean + np.tensordot(weights, change, axes=1)

    entered = cache["entered"].copy()
    entered[places] = turn
    return {**cache, "mean": T.map(move_mean, cache["mean"], cache["rows"], models), "entered": entered}


def resum_rows(cache: Tree, shares: NDArray[np.float64]) -> Tree:
    """Return the mean of all rows, computed from scratch: ``mean`` must equal it up to rounding."""
    return T.map(lambda rows: np.tensordot(shares, rows.astype(np.float64), axes=1), cache["rows"])


def aged(cache: Tree, shares: NDArray[np.float64], weights: NDArray[np.float64]) -> Tree:
    """Return the mean of all rows with shares times weights, normalised to sum to 1; float64 leaves."""
    mixed = shares * weights
    return resum_rows(cache, mixed / mixed.sum())


def weigh_cache(cache: Tree, shares: NDArray[np.float64], turn: int, staleness: Staleness | None) -> Tree:
    """Return the mean of the cache, with entries weighted by age if ``staleness`` is set."""
    if staleness is None:
        return cache["mean"]
    kinds, which = np.unique(turn - cache["entered"], return_inverse=True)
    return aged(cache, shares, np.array([staleness.weight(int(age)) for age in kinds])[which])


def rebuilt(parts: list[Part], versions: NDArray[np.int64], bases: Tree, params: Tree) -> Tree:
    """Return the clients' models, ``(replies, ...)``: the base that each received plus its update."""
    if not parts:
        return T.map(lambda leaf: np.asarray(leaf)[None][:0], params)
    updates = T.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *[part.value for part in parts])
    kinds, which = np.unique(versions, return_inverse=True)
    known = [bases[str(v)]["broadcast"]["params"] for v in kinds.tolist()]
    return T.map(lambda update, *bases: update + np.stack(bases)[which], updates, *known)
