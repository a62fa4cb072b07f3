"""How a round of clients of several versions begins: who is sent the model, who goes on, who still works."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.traffic.flight import Flight

__all__ = ["Dispatch", "dispatched"]


@dataclass(frozen=True)
class Dispatch:
    """The beginning of a round, and what it came to: columns over the population.

    Attributes:
        asked: invited.
        fresh: they are sent the model, being up to date, deprecated or without one.
        deprecated: they have lagged too far, and were invited or still worked.
        stopped: those of them who still worked on what they had, whether or not they would have answered. Uninvited, they have nothing to do now.
        going: they go on with the model they have.
        busy: they still work on an earlier round's, whether or not they will answer.
        falls: when the crash of each who will not answer is noticed, seconds on the clock; ``inf`` for everyone else.
        fraction: share of a local update that each of them will have done by then.
        saved: whole epochs that they will have done by then; once the round is over, those to be credited.
        crashed: whose crash was noticed by the end of the round.
        begun: local updates that were begun; of one that is called off, what had been done.
        cut: local updates thrown away by calling off: the epochs that were not whole.
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
        """Who begins to train."""
        return self.fresh | self.going

    @property
    def working(self) -> int:
        """Clients that may answer in this round."""
        return int((self.begin | self.busy).sum())

    def groups(
        self, version: NDArray[np.int64], progress: NDArray[np.int64]
    ) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Who is asked alike: ``(base version, whole epochs done before, places)``."""
        begins = np.flatnonzero(self.begin)
        base, done = version[begins], progress[begins]
        radix = int(done.max(initial=0)) + 1
        kinds, which = np.unique(base * radix + done, return_inverse=True)
        return [(*divmod(int(kind), radix), begins[which == i]) for i, kind in enumerate(kinds)]

    def learning(self, places: NDArray[np.int64], flight: Flight, work: int, epochs: int) -> Dispatch:
        """The same, knowing who of a request will not answer. Between real parties nobody knows; see `missed`.

        Args:
            places: of its parties.
            flight: the request.
            work: epochs that it asks for.
            epochs: of a whole local update.
        """
        begun = self.begun + len(places) * work / epochs
        if not flight.foretold:
            return replace(self, begun=begun)
        lost = ~np.isfinite(flight.arrives)
        falls, fraction, saved = self.falls.copy(), self.fraction.copy(), self.saved.copy()
        # A crash that no link ever notices is silence, which the round ends with.
        noticed = np.where(np.isfinite(flight.lost), flight.lost, flight.sent)
        falls[places] = np.where(lost, noticed, np.inf)
        fraction[places] = np.where(lost, flight.fraction * work / epochs, 0.0)
        saved[places] = np.where(lost, np.floor(flight.fraction * work), 0).astype(np.int64)
        return replace(self, falls=falls, fraction=fraction, saved=saved, begun=begun)

    def ended(self, now: float) -> Dispatch:
        """The same at the end of the round: whoever crashes later still works, and nothing of it is saved yet."""
        crashed = np.isfinite(self.falls) & (self.falls <= now)
        return replace(self, crashed=crashed, saved=np.where(crashed, self.saved, 0))

    def missed(self, answered: NDArray[np.bool_], awaited: NDArray[np.bool_], share: NDArray[np.float64]) -> Dispatch:
        """The same at the end of a round between real parties: whoever worked, has not answered and is not waited for any more was lost, with all of its work.

        Args:
            answered: whose reply is here.
            awaited: whose reply may still come.
            share: of a local update that each was asked for.
        """
        crashed = (self.begin | self.busy) & ~answered & ~awaited
        return replace(self, crashed=crashed, fraction=np.where(crashed, share, 0.0), saved=np.zeros_like(self.saved))

    def called_off(self, places: NDArray[np.int64], flight: Flight, now: float, work: int, epochs: int) -> Dispatch:
        """The same, with those of an ended round's request who still work told to stop: they keep the whole epochs that they have done.

        Args:
            places: of its parties.
            flight: the request.
            now: when they hear of it.
            work: epochs that it asks for.
            epochs: of a whole local update.
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

    def lost(self, epochs: int, *, kept: bool) -> float:
        """Local updates that were thrown away in crashes and by calling off.

        Args:
            epochs: of a whole local update.
            kept: whether whole epochs are not.
        """
        saved = self.saved[self.crashed] / epochs if kept else 0.0
        return float((self.fraction[self.crashed] - saved).sum()) + self.cut

    def row(self) -> dict[str, float]:
        """What an ended round's row says of it; see ``History``."""
        told = {"crashed": self.crashed, "synchronised": self.fresh, "deprecated": self.deprecated}
        return {**{name: int(column.sum()) for name, column in told.items()}, "begun": self.begun}

    def falling(self, before: Dispatch) -> Tree | None:
        """Of an ended round, those who work on towards a crash: arguments of `dispatched`; ``None`` where there are none.

        Args:
            before: the round before it had ended.
        """
        left = np.isfinite(self.falls) & ~self.crashed
        if not left.any():
            return None
        none = {"falls": np.inf, "fraction": 0.0, "saved": 0}
        return {name: np.where(left, getattr(before, name), other) for name, other in none.items()}


def dispatched(
    asked: NDArray[np.bool_],
    busy: NDArray[np.bool_],
    lag: NDArray[np.int64],
    old: NDArray[np.bool_],
    holds: NDArray[np.bool_],
    falling: Tree | None = None,
) -> Dispatch:
    """Lag-tolerant distribution (Eq. 3.7): who is up to date or too old gets the model, unless it was not invited; nobody works on what is too old.

    Eq. 3.7 is about rounds that invite everyone. Where a rule invites some, one that has submitted may miss the next model: it has none to go on with, and gets this one.

    Args:
        asked: who is invited.
        busy: who still works and will answer.
        lag: of each client's model.
        old: whose lag is beyond the tolerance.
        holds: who was sent a model and has not submitted since.
        falling: who still works and will not; see `Dispatch.falling`.
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
