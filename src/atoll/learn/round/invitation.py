"""Whom a round invites, what it asks of them and expects of their devices, what became of each request, and what the selection rule sees afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.algebra.aggregate import Aggregate, Parts
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.requests.chain import Chain
from atoll.core.requests.party import among
from atoll.core.requests.request import ReplyForm
from atoll.core.requests.results import is_instant
from atoll.learn.selection.base import Candidates, Seen, Selection

from ..local.reports import buffer_replies, key_of, report_of
from ..selection.base import Inquired, Inquiry, places_among, places_of
from ..wrapped import dry_reply, innermost
from .state import broadcast_extras, global_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ..context import Context

__all__ = [
    "Inviter",
    "examples_of",
    "outcome_columns",
    "own_reports",
    "reply_bytes",
    "reply_form",
    "reports_of",
    "require_in_time",
    "seen_of",
]


def own_reports(context: Context, model: Tree) -> Callable[[str], Tree]:
    """Return what the server reports about its own data under a model."""

    def own(name: str) -> Tree:
        rows = context.test
        if rows is None:
            raise ConfigError(
                f"{type(context.selection).__name__} compares clients with the server's own data, but there is none",
                where="Training.selection",
                remedy="give the federated data set a `test` set",
            )
        return context.learner.report_of(model, rows, {name: context.selection.reports[name]})[name]

    return own


def reports_of(combined: Combined) -> dict[str, list[Tree]]:
    """Return the reports in replies: name -> one value per sender, in cohort order."""
    return {report_of(key): [part.value for part in parts] for key, parts in combined.of("report").items()}


def examples_of(combined: Combined) -> NDArray[np.float64]:
    """Return the rows behind each sender's reports, in cohort order; empty without reports."""
    parts: Any = next(iter(combined.of("report").values()), [])
    return np.array([part.weight for part in parts], dtype=np.float64)


def seen_of(number: int, combined: Combined, own: Callable[[str], Tree]) -> Seen:
    """Return what a request showed.

    Args:
        number: the round.
        combined: the replies.
        own: the server's report on its own data.
    """
    asked = combined.senders if combined.asked is None else combined.asked
    if combined.outcomes is None:
        seconds = np.zeros(len(combined.senders))
    else:
        seconds = combined.outcomes.seconds[places_among(asked.positions, combined.senders.positions)]
    return Seen(number, asked, combined.senders, seconds, reports_of(combined), {}, own, examples_of(combined))


# ---------------------------------------------------------------- the invitation


def reply_bytes(context: Context, state: Tree, phase: str, broadcast: Tree | None = None) -> int:
    """Return bytes of a client's reply in a phase, from a dry run without a step, so that a device model knows them beforehand. Reports are extra; for ``broadcast`` see `reply_form`."""
    chain: Chain = context.chain(state, phase)
    public = chain.public(Rng(0))
    reply = dry_reply(context.local_algorithm, state["server"]["params"], phase, broadcast=broadcast)
    wires = {}
    for name, aggregate in chain.leaving(reply).items():
        sent = chain.rehearse_send(name, aggregate, public, Rng(0))
        wires[name] = {"kind": aggregate.kind, "value": sent.wire, "weight": 1.0}
    if not context.protected:
        wires["loss"] = {"kind": "mean", "value": np.float64(0.0), "weight": 1.0}
    return M.nbytes(wires)


@dataclass(frozen=True)
class Inviter:
    """Invites clients for one round.

    Attributes:
        fed: the federation.
        context: the training's context.
        state: the server's state: ``"contacts"``, ``"selection"``, ``"server"``, ``"buffers"``.
        among: clients that it may invite; by default all.
    """

    fed: Federation
    context: Context
    state: Tree
    among: Parties | None = None

    @property
    def size(self) -> int:
        """The number of replies wanted."""
        return self.context.selection.cohort_size(len(self.fed.parties))

    def candidates(self) -> Candidates:
        """Return the clients that can be invited now.

        Raises:
            QuorumError: no client is available.
        """
        fed, turn = self.fed, self.state["contacts"]
        there = fed.available(fed.parties if self.among is None else self.among).by_name()
        if len(there) == 0:
            raise QuorumError(
                f"none of {len(fed.parties)} parties is available at {fed.clock.now():g} s",
                where=f"contact {turn}",
                remedy="use devices that are available more often, or a pacing that waits for them",
            )
        where = None if there is fed.parties else places_of(fed.parties.positions, there.positions)

        def sizes() -> Any:
            known = self.context.clients.sizes
            return known if known is None or where is None else np.asarray(known)[where]

        return Candidates(
            there,
            turn,
            fed.rng.child("selection", turn),
            sizes,
            lambda: self.seconds(there),
            lambda: fed.secret("selection", turn),
        )

    def seconds(self, there: Parties) -> NDArray[np.float64] | None:
        """Return the expected seconds of each client if nothing goes wrong; ``None`` if unknown."""
        if is_instant(self.fed.world.cost):
            return None
        server, phase = self.state["server"], self.context.algorithm.phases[-1]
        message: dict[str, Any] = {
            "broadcast": {
                **self.context.algorithm.broadcast(server, phase),
                **broadcast_extras(self.state, self.context.learner, self.state["contacts"]),
            },
            "phase": phase,
        }
        if self.context.selection.reports:
            message["reports"] = dict(self.context.selection.reports)
        return self.fed.forecast(there, self.context.learner.train, message, up=lambda: self.up(phase))

    def up(self, phase: str) -> int:
        """Return the expected bytes of a reply."""
        return reply_bytes(self.context, self.state, phase)

    def invite(self) -> Parties:
        """Return the cohort, without a survey."""
        candidates = self.candidates()
        count = self.context.pacing.invited(self.size)
        chosen: Parties = candidates.parties[self.context.selection.invite(candidates, count, self.state["selection"])]
        return chosen

    def odds(self, invited: Parties) -> dict[int, float] | None:
        """Return, for invited clients, position -> probability of a draw, if the aggregation needs it."""
        if not self.context.aggregation.weighs_odds:
            return None
        candidates = self.candidates()
        found = self.context.selection.odds(candidates, self.state["selection"])
        named = dict(zip(candidates.parties.positions.tolist(), found.tolist(), strict=True))
        return {k: named[k] for k in invited.positions.tolist()}

    async def run_survey(self) -> tuple[Tree, dict[str, Any]]:
        """Return the rule's memory after its survey, and the cost; the same memory if it asks no client."""
        rule, known = self.context.selection, self.state["selection"]
        if type(rule).survey is Selection.survey:
            return known, {}
        candidates = self.candidates()
        wanted = rule.survey(candidates, self.context.pacing.invited(self.size), known)
        if wanted is None or len(wanted) == 0:
            return known, {}
        model = global_model(self.state)
        if (inquiry := rule.inquiry) is not None:
            seen, known, spent = await self.run_inquiry(
                inquiry, candidates.parties[np.sort(wanted)], model, known, held=False
            )
            return rule.heard(seen, known), spent
        message = {"params": model, "reports": dict(rule.reports)}
        asked = candidates.parties[np.sort(wanted)]
        at = (self.state["contacts"], "survey")
        told = self._report_bytes(model)
        combined = await self.fed.sum(
            asked, self.context.learner.report, message, at=at, quorum=0, deadline=self.context.pacing.deadline, up=told
        )
        seen = seen_of(self.state["contacts"], combined, own_reports(self.context, model))
        spent = {"bytes_up": combined.bytes_up, "bytes_down": combined.bytes_down}
        return rule.heard(seen, known), spent

    async def run_inquiry(
        self, inquiry: Inquiry, parties: Parties, model: Tree, known: Tree, *, held: bool
    ) -> tuple[Seen, Tree, dict[str, Any]]:
        """Return the result of the rule's inquiry about some clients, its memory, and the cost.

        Args:
            inquiry: the rule's inquiry.
            parties: the clients, each once.
            model: the model to ask about.
            known: the rule's memory.
            held: whether the clients have the model already.
        """
        fed = self.fed
        before = fed.bytes()
        asked = Inquired(parties, model, held, self.state["contacts"], self.context.pacing.deadline)
        seen, known = await inquiry.hold(fed, self.context.learner, self.context.test, asked, known)
        after = fed.bytes()
        return seen, known, {name: after[name] - before[name] for name in ("bytes_up", "bytes_down")}

    def _report_bytes(self, model: Tree) -> int | None:
        """Return the bytes of a survey's reply, measured on the server's own rows; ``None`` if it has none."""
        rows = self.context.test
        if rows is None or len(rows) == 0 or is_instant(self.fed.world.cost):
            return None
        told = self.context.learner.report_of(model, rows.take(slice(0, 1)), self.context.selection.reports)
        return M.nbytes({key_of(name): {"kind": "parts", "value": v, "weight": 1.0} for name, v in told.items()})


def reply_form(
    context: Context,
    state: Tree,
    phase: str,
    reports: Mapping[str, Any] | None = None,
    broadcast: Tree | None = None,
) -> ReplyForm:
    """Return the form of a client's reply in a phase.

    Args:
        context: the training's context.
        state: a server's state, with ``"server"`` and ``"buffers"``; only the form of its model matters.
        phase: the phase.
        reports: the reports that were asked for: name -> options.
        broadcast: what clients get, where replies of a phase follow from what earlier phases have left at the server.
    """
    algorithm, params, buffers = context.local_algorithm, state["server"]["params"], state.get("buffers")
    one, three = (dry_reply(algorithm, params, phase, examples, broadcast=broadcast) for examples in (1.0, 3.0))
    later = dry_reply(algorithm, params, phase, 3.0, steps=2.0, broadcast=broadcast)
    optional: dict[str, Aggregate | None] = {
        key_of(name): _report(name, told) for name, told in (reports or {}).items()
    }
    if buffers:
        optional |= buffer_replies(buffers, buffers, 1.0, singly=context.singly)
    weights = {
        name: (float(one[name].weight), float(three[name].weight))
        for name in one
        if float(three[name].weight) == float(later[name].weight)  # those that depend on the steps have no bound
    }
    if (0.0, 0.0) in weights.values():
        # A client of an algorithm with several models gives weight to the one that it chooses, or that it was told: that of the algorithm inside.
        bare = [dry_reply(innermost(algorithm), params, phase, examples) for examples in (1.0, 3.0)]
        light, heavy = (max(float(found.weight) for found in each.values()) for each in bare)
        weights = {name: (light, heavy) if pair == (0.0, 0.0) else pair for name, pair in weights.items()}
    examples = dict.fromkeys((*optional, "loss"), (1.0, 3.0))
    return ReplyForm(one, optional, context.learner_metrics, {**examples, **weights})


def _report(name: str, options: Any) -> Aggregate | None:
    """Return an example of a report whose form is known; ``None`` for others."""
    if name == "loss":
        return Parts(np.float64(0.0), role="report")
    if name == "sketch":
        return Parts(np.zeros(int(options["size"])), role="report")
    return None


# ---------------------------------------------------------------- outcomes of a cohort on its devices


def outcome_columns(fed: Federation, combined: Combined) -> dict[str, Any]:
    """Return what a request adds to its round's row; empty in a world without devices.

    ``crashed``: clients that never answer; ``late``: replies not awaited; ``synchronised``: copies of the model sent; ``wasted``: discarded work
    in whole local updates (a crash discards the share done, a late reply all of it). See also `atoll.rounds.loop.Losses`.
    """
    outcomes, asked = combined.outcomes, combined.asked
    if is_instant(fed.world.cost) or outcomes is None or asked is None:
        return {}
    heard = among(asked.positions, combined.senders.positions)
    crashed, late = ~outcomes.done, outcomes.done & ~heard
    return {
        "crashed": int(crashed.sum()),
        "late": int(late.sum()),
        "synchronised": len(asked),
        "wasted": float(outcomes.fraction[crashed].sum() + late.sum()),
    }


def require_in_time(inviter: Inviter) -> None:
    """Refuse a deadline that no client can meet, of the pacing or of a selection rule such as FedCS.

    Raises:
        ConfigError: names the fastest client and its time.
    """
    context = inviter.context
    limits = {"pacing": context.pacing.deadline, "selection": getattr(context.selection, "deadline", None)}
    deadlines = {part: limit for part, limit in limits.items() if limit is not None}
    if not deadlines:
        return
    everyone = inviter.fed.parties
    seconds = inviter.seconds(everyone)
    if seconds is None or len(seconds) == 0:
        return
    fastest = int(np.argmin(seconds))
    for part, deadline in deadlines.items():
        if seconds[fastest] > deadline:
            raise ConfigError(
                f"no client can answer within deadline={deadline:g} s; the fastest, {everyone[fastest].name}, takes {seconds[fastest]:.4g} s",
                where=f"Training.{part}={type(getattr(context, part)).__name__}",
                remedy=f"use a deadline of at least {np.ceil(seconds[fastest]):g} s, or less local work",
            )
