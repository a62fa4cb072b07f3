"""Before a round: who is there, what they report, and who is invited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.chain import Chain
from atoll.core.clock import Free
from atoll.core.errors import QuorumError
from atoll.core.rng import Rng
from atoll.core.tree import Tree

from .release import is_private
from .selection import Candidates, Seen, Selection
from .selection.inquiry import Inquired, Inquiry
from .selection.members import places_of
from .server_state import beside, global_model
from .shown import own_reports, seen_of
from .wrapped import dry_reply

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation import Federation
    from atoll.core.party import Parties

    from .learner import Learner
    from .training import Training

__all__ = ["Inviter", "reply_bytes"]


def reply_bytes(job: Training, params: Tree, phase: str) -> int:
    """Bytes of a client's reply in a phase, from a dry run without a step: what a model of devices knows beforehand. Reports come on top."""
    chain: Chain = job.up(phase)
    public = chain.public(Rng(0))
    reply = dry_reply(job.local_algorithm, params, phase)
    memory = chain.fresh(reply)
    wires = {}
    for name, aggregate in reply.items():
        sent = chain.send(aggregate, public, Rng(0).child(name), memory.get(name, {}))
        wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": 1.0}
    if not is_private(job.algorithm):
        wires["metric/loss"] = {"kind": "mean", "value": np.float64(0.0), "weight": 1.0}
    return M.nbytes(wires)


@dataclass(frozen=True)
class Inviter:
    """Invites, for one round.

    Attributes:
        fed: the federation.
        job: the training.
        learner: its learner.
        data: what the server may know of the clients' data.
        state: of the server: ``"contacts"``, ``"selection"``, ``"server"``, ``"buffers"``.
        among: whom it may invite; by default everyone.
    """

    fed: Federation
    job: Training
    learner: Learner
    data: Any
    state: Tree
    among: Parties | None = None

    @property
    def size(self) -> int:
        """Replies wanted."""
        return self.job.selection.cohort_size(len(self.fed.parties))

    def candidates(self) -> Candidates:
        """Who can be asked now.

        Raises:
            QuorumError: nobody.
        """
        fed, turn = self.fed, self.state["contacts"]
        there = fed.available(fed.parties if self.among is None else self.among)
        if len(there) == 0:
            raise QuorumError(
                f"none of {len(fed.parties)} parties is available at {fed.clock.now():g} s",
                where=f"contact {turn}",
                remedy="use devices that are there more often, or a pacing that waits for them",
            )
        where = None if there is fed.parties else places_of(fed.parties.positions, there.positions)

        def sizes() -> Any:
            known = getattr(self.data, "sizes", None)
            return known if known is None or where is None else np.asarray(known)[where]

        return Candidates(there, turn, fed.rng.child("selection", turn), sizes, lambda: self.seconds(there))

    def seconds(self, there: Parties) -> NDArray[np.float64] | None:
        """How long each of these is expected to take if nothing goes wrong; ``None`` where nobody knows."""
        if type(self.fed.world.cost) is Free:
            return None
        server, phase = self.state["server"], self.job.algorithm.phases[-1]
        message: dict[str, Any] = {
            "broadcast": {**self.job.algorithm.broadcast(server, phase), **beside(self.state)},
            "phase": phase,
        }
        if self.job.selection.reports:
            message["reports"] = dict(self.job.selection.reports)
        return self.fed.forecast(there, self.learner.train, message, up=lambda: self.up(phase))

    def up(self, phase: str) -> int:
        """Expected bytes of a reply."""
        return reply_bytes(self.job, self.state["server"]["params"], phase)

    def invite(self) -> Parties:
        """The cohort, without a survey."""
        candidates = self.candidates()
        count = self.job.pacing.invited(self.size)
        chosen: Parties = candidates.parties[self.job.selection.invite(candidates, count, self.state["selection"])]
        return chosen

    def odds(self, invited: Parties) -> dict[int, float] | None:
        """Position -> probability of a draw, of those invited, where the aggregation wants it."""
        if not self.job.aggregation.weighs_odds:
            return None
        candidates = self.candidates()
        found = self.job.selection.odds(candidates, self.state["selection"])
        named = dict(zip(candidates.parties.positions.tolist(), found.tolist(), strict=True))
        return {k: named[k] for k in invited.positions.tolist()}

    async def surveyed(self) -> tuple[Tree, dict[str, Any]]:
        """The rule's memory after its survey, and what that cost; the same memory where it asks nobody."""
        rule, known = self.job.selection, self.state["selection"]
        if type(rule).survey is Selection.survey:
            return known, {}
        candidates = self.candidates()
        wanted = rule.survey(candidates, self.job.pacing.invited(self.size), known)
        if wanted is None or len(wanted) == 0:
            return known, {}
        model = global_model(self.state)
        if (inquiry := rule.inquiry) is not None:
            seen, known, spent = await self.inquired(
                inquiry, candidates.parties[np.sort(wanted)], model, known, held=False
            )
            return rule.heard(seen, known), spent
        message = {"params": model, "reports": dict(rule.reports)}
        asked = candidates.parties[np.sort(wanted)]
        at = (self.state["contacts"], "survey")
        told = self._report_bytes(model)
        combined = await self.fed.sum(
            asked, self.learner.report, message, at=at, quorum=0, deadline=self.job.pacing.deadline, up=told
        )
        seen = seen_of(self.state["contacts"], combined, own_reports(self.job, self.learner, model, self.data))
        spent = {"bytes_up": combined.bytes_up, "bytes_down": combined.bytes_down}
        return rule.heard(seen, known), spent

    async def inquired(
        self, inquiry: Inquiry, parties: Parties, model: Tree, known: Tree, *, held: bool
    ) -> tuple[Seen, Tree, dict[str, Any]]:
        """What the rule's inquiry showed of some clients, its memory, and what that cost.

        Args:
            inquiry: the rule's.
            parties: each once.
            model: what they are asked about.
            known: the rule's memory.
            held: whether they have the model already.
        """
        fed = self.fed
        before = fed.bytes()
        asked = Inquired(parties, model, held, self.state["contacts"], self.job.pacing.deadline)
        seen, known = await inquiry.hold(fed, self.learner, self.data, asked, known)
        after = fed.bytes()
        return seen, known, {name: after[name] - before[name] for name in ("bytes_up", "bytes_down")}

    def _report_bytes(self, model: Tree) -> int | None:
        """Bytes of a survey's reply, as the server's own rows tell them; ``None`` where it has none."""
        rows = getattr(self.data, "test", None)
        if rows is None or len(rows) == 0 or type(self.fed.world.cost) is Free:
            return None
        told = self.learner.report_of(model, rows.take(slice(0, 1)), self.job.selection.reports)
        return M.nbytes({f"report/{name}": {"kind": "parts", "value": v, "weight": 1.0} for name, v in told.items()})
