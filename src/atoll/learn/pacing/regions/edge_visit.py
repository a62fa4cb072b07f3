"""An edge server's round of regions: invite, wait for the cloud's signal, compute the region's model, and note the counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, QuorumError
from atoll.core.time.deadline import Share

from ...server.declared import declare
from ...server.device_outcomes import outcome_columns
from ...server.downlink import compressed_broadcast, held_by
from ...server.expected import reply_form
from ...server.invitation import reply_bytes
from ...server.phases import account
from ...server.state import broadcast_extras
from .edge_log import noted

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ...context import Context
    from ..hybridfl import HybridFL
    from .edge_log import Seats

__all__ = ["EdgeVisit"]

_BIT = M.nbytes(None)
"""Bytes of a message without content: stop, and done."""


@dataclass
class EdgeVisit:
    """One edge in one round.

    Attributes:
        context: the training's context.
        pace: the pacing.
        seats: numbers of clients that regions invite.
        r: the region's number.
        edge: the edge's state before, and later after the round.
        at: the contact and phase.
        wanted: number of clients to invite.
        share: the edge's part of the quota.
        selected: number of clients invited.
        edc: examples behind the submissions, ``EDC_r``.
        seconds: time from the invitations to the signal.
    """

    context: Context
    pace: HybridFL
    seats: Seats
    r: int
    edge: Tree
    at: tuple[int, str]
    wanted: int
    share: Share
    selected: int = 0
    edc: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.name = f"edge-{self.r}"
        self.row: dict[str, Any] = {"selected": 0, "replied": 0, "bytes_up": 0, "bytes_down": 0}

    async def program(self, scope: Federation, sent: Tree) -> Tree:
        """Receive the model to train, and return the region's model and the number of examples behind it."""
        invited = self._invited(scope)
        self.selected = self.row["selected"] = len(invited)
        begin = scope.clock.now()
        combined: Combined | None = None
        try:
            if self.selected:
                combined = await self._ask(scope, invited, sent)
                self._require_counted()
        except QuorumError:  # the reducer opens no sum of so few
            combined = None
        finally:
            await self.share.give_up()
        self.seconds = scope.clock.now() - begin
        if combined is not None:
            self._combine(scope, combined, sent)
        replied = invited[:0] if combined is None else combined.senders
        self.row.update(self.context.evaluation.told(invited, replied))
        self._tell(scope, invited, combined)
        self._note(begin, combined)
        return {"model": self.edge["model"], "edc": self.edc}

    def _invited(self, scope: Federation) -> Parties:
        """Return ``wanted`` random available clients: an invitation needs no identity."""
        there = scope.available(scope.parties)
        count = min(self.wanted, len(there))
        draw = scope.rng.child("selection", self.at[0]).generator()
        chosen: Parties = there[draw.choice(len(there), count, replace=False)] if count else there[:0]
        return chosen

    async def _ask(self, scope: Federation, invited: Parties, sent: Tree) -> Combined:
        context, phase = self.context, self.at[1]
        rest = broadcast_extras(sent, context.learner, self.at[0])
        known = self.edge["down"]
        broadcast, down, sizes = compressed_broadcast(
            scope, context.downlink, known, sent["broadcast"], rest, invited, self.at
        )
        self.edge = {**self.edge, "down": down}
        known = {"server": {"params": sent["broadcast"]["params"]}, "buffers": sent["buffers"]}
        return await scope.sum(
            invited,
            self.context.learner.train,
            {"broadcast": {**broadcast, **rest}, "phase": phase},
            uplink=context.uplink(phase),
            reducer=context.reducer,
            deadline=self.pace.deadline,
            quorum=0,
            accept=self.share,
            at=self.at,
            down=sizes,
            up=lambda: reply_bytes(context, known, phase),
            expects=lambda: reply_form(context, known, phase),
        )

    def _require_counted(self) -> None:
        """Refuse a reducer with a protocol that does not end at the quota: its replies would not be counted."""
        if not self.share.over:
            name = type(self.context.reducer).__name__
            raise CompositionError(
                f"{name} waits for its own replies, not for the quota of all regions",
                where="Training.reducer",
                remedy="pass `accept=terms.accept` to the superstep in which clients train, or use a reducer that does",
            )

    def _combine(self, scope: Federation, combined: Combined, sent: Tree) -> None:
        """Apply (4.19) in the form without client identities: the region's last model replaces all clients not in the sums."""
        account(self.row, combined)
        state = {"server": sent["broadcast"], "buffers": sent["buffers"]}
        declare(self.row, self.context.declared(state, self.at[1]), combined.n)
        self.row.update(outcome_columns(scope, combined))
        self.edge = {**self.edge, "down": held_by(self.edge["down"], combined.senders.positions)}
        self.edc = float(combined.weight.get("update", 0.0))
        if self.edc > 0:
            before = self.edge["model"]
            mean = {**T.add(sent["broadcast"]["params"], combined["update"]), **combined.value.get("buffers", {})}
            moved = T.add(before, T.scale(T.sub(mean, before), self.edc / self.edge["examples"]))
            self.edge = {**self.edge, "model": moved}

    def _tell(self, scope: Federation, invited: Parties, combined: Combined | None) -> None:
        """Meter messages other than models: the stop signal to clients that have not submitted, and the notes of those that finish anyway."""
        rest = invited if combined is None else invited.without(combined.senders)
        scope.meter.control(scope.hub, "down", rest.positions, _BIT)
        if self.seats.estimator.counts_late:
            scope.meter.control(scope.hub, "up", self.share.late, _BIT)

    def _note(self, begin: float, combined: Combined | None) -> None:
        """Write the round's counts into the log, to learn from when they are complete."""
        pace, share, late = self.pace, self.share, self.seats.estimator.counts_late
        hit = share.moment is not None or share.taken < share.completed  # the region's own limit also closes the round
        counts = {
            "selected": self.selected,
            "submitted": share.taken,
            "quota_hit": hit,
            "completed": share.completed if late or not hit else None,
            "wanted": float(self.seats.wanted[self.r]),
        }
        waits = hit and late and not pace.hindsight
        ready = begin + (pace.deadline or _longest(combined)) if waits else begin
        self.edge = {**self.edge, "log": noted(self.edge["log"], counts, ready)}


def _longest(combined: Combined | None) -> float:
    """Return the seconds until it is known for every invited client whether it finishes, without a deadline."""
    if combined is None or combined.outcomes is None:
        return 0.0
    known = combined.outcomes.seconds
    return float(known[np.isfinite(known)].max(initial=0.0))
