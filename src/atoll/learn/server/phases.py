"""The phases of a round with one cohort: what is sent, what comes back, and how it is folded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, QuorumError
from atoll.core.facets import facet

from ..algorithm import Algorithm, Helped, Phased, RoundInfo
from ..checks import require_finite
from ..selection import Seen
from .declared import declare
from .device_outcomes import outcome_columns
from .downlink import compressed_broadcast, held_by
from .expected import reply_form
from .fitting import fitted_to_mock, fitted_to_sum
from .invitation import reply_bytes
from .observed import own_reports, seen_of
from .releasing import nothing, released
from .state import broadcast_extras

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.results import Combined

    from ..context import Context

__all__ = ["Phases", "account", "folded", "lengths", "outgoing", "received_model", "round_info", "shares"]


def round_info(fed: Federation, state: Tree, at: tuple[int, bool], selected: int, replied: int) -> RoundInfo:
    """Return what a fold can use.

    Args:
        fed: the federation, for the server's random stream.
        state: the server's state.
        at: the round, and whether it contacts clients.
        selected: number of invited clients.
        replied: number of clients that answered.
    """
    # The server's random numbers follow the contacts; a round without clients has others.
    number, met = at
    stream = fed.rng.child("server", state["contacts"] if met else f"alone-{number}")
    return RoundInfo(number, selected, replied, len(fed.parties), state["weight"], stream)


@dataclass(frozen=True)
class Phases:
    """The phases of a round with one cohort."""

    fed: Federation
    context: Context
    invited: Parties
    number: int
    odds: dict[int, float] | None = None

    async def all(
        self, state: Tree, phases: tuple[str, ...], spent: dict[str, Any]
    ) -> tuple[Tree, dict[str, Any], Seen]:
        """Run the phases; ``spent`` are earlier bytes of the round. Return the state, the row and what was seen."""
        row: dict[str, Any] = {"selected": len(self.invited), "bytes_up": 0, "bytes_down": 0, **spent}
        before, sent, begins = state, None, True
        seen = Seen(state["contacts"], self.invited, self.invited, np.zeros(len(self.invited)))
        for phase in phases:
            if not facet(self.context.algorithm, Phased).wanted(state["server"], phase):
                continue
            helpers = facet(self.context.algorithm, Helped).asks(phase)
            if not helpers:
                state, message, sizes = outgoing(self.fed, self.context, state, self.invited, phase)
                state = await fitted_to_mock(self.fed, self.context, state, phase, message)
                sent = received_model(message)
                step = {"number": self.number, "phase": phase}
                self.fed.announce("before_training", **step, clients=self.invited)
            try:
                if helpers:
                    state = await self._helped(state, phase, helpers, row)
                    continue
                combined = await self._ask(state, phase, message, sizes)
            except QuorumError as error:
                if self.context.pacing.on_failure == "stop" or self.context.algorithm.card.everyone:
                    raise self._failed(error) from error
                # Clients already keep the results of earlier phases, and so does the server: both end at the same phase.
                if error.combined is not None:
                    self._account(row, error.combined)
                return state, {**row, "replied": 0, "failed": str(error.what)}, self._nobody(seen)
            self.fed.announce("after_training", **step, clients=combined.senders, silent=combined.silent)
            self._account(row, combined)
            declare(row, self.context.declared(state, phase), combined.n)
            noisy = self.context.aggregation.event is not None
            if combined.n == 0 and noisy:
                combined = nothing(self.fed, self.context, state, phase)
            elif combined.n == 0:  # a quorum of 0 is met, but there is nothing to fold
                return state, {**row, "failed": "no client replied"}, self._nobody(seen)
            info = round_info(self.fed, before, (self.number, True), len(self.invited), combined.n)
            info = info if self.odds is None else replace(info, odds=self.odds)
            seen = seen_of(info.round, combined, own_reports(self.context, sent))
            state = {**state, "down": held_by(state["down"], combined.senders.positions)}
            info = released(self.fed, self.context, combined, info, (state["contacts"], phase), first=begins)
            begins = False
            self.fed.announce("before_aggregation", **step, params=state["server"]["params"])
            state = folded(self.context, state, combined, info, phase)
            self.fed.announce("after_aggregation", **step, params=state["server"]["params"])
            state = fitted_to_sum(self.fed, self.context, state, phase, combined)
        return state, row, replace(seen, round=before["contacts"], model=sent)

    async def _helped(self, state: Tree, phase: str, names: tuple[str, ...], row: dict[str, Any]) -> Tree:
        """Return the state after a phase that helpers do on rows of their own: all of them must reply, and nothing compresses or hides their replies."""
        context = self.context
        rest = broadcast_extras(state, context.learner, state["contacts"])
        message = {"broadcast": {**context.algorithm.broadcast(state["server"], phase), **rest}, "phase": phase}
        asked = self.fed.parties.named(*names)
        combined = await self.fed.sum(
            asked, context.learner.train, message, quorum=len(asked), at=(state["contacts"], phase)
        )
        row["bytes_up"] += combined.bytes_up
        row["bytes_down"] += combined.bytes_down
        row.setdefault("replied", 0)  # a round may ask no client
        row.update({f"{phase}_{name}": float(value) for name, value in combined.of("metric").items()})
        info = round_info(self.fed, state, (self.number, True), len(asked), combined.n)
        server = _folded(context.algorithm, state["server"], combined.of("update", "side"), info, phase)
        require_finite(server["params"], self.number)
        return {**state, "server": server, "buffers": combined.value.get("buffers", state["buffers"])}

    def _account(self, row: dict[str, Any], combined: Combined) -> None:
        """Write a phase into the round's row. Crashed and late clients are those of the last phase; copies sent add up."""
        account(row, combined)
        found, copies = outcome_columns(self.fed, combined), row.get("synchronised", 0)
        row.update(found)
        if found:
            row["synchronised"] += copies

    def _nobody(self, seen: Seen) -> Seen:
        return replace(seen, replied=self.invited[:0], seconds=np.zeros(0), reports={})

    async def _ask(self, state: Tree, phase: str, message: Tree, sizes: NDArray[np.int64] | None) -> Combined:
        context = self.context
        if not len(self.invited) and context.selection.random_size:
            return nothing(self.fed, context, state, phase)
        if not len(self.invited):
            raise QuorumError(
                f"{type(context.selection).__name__} invites no client",
                where=f"contact {state['contacts']}",
                remedy="let it choose among more clients, or a longer deadline",
            )
        size = context.selection.wanted(len(self.fed.parties), len(self.invited))
        terms = context.pacing.terms(size)
        if context.algorithm.card.everyone:  # with fewer, it would converge to another point
            terms["quorum"] = len(self.fed.parties)
        if context.selection.picks:
            terms["accept"] = lambda arrived: context.selection.take(arrived, size, state["selection"])
        return await self.fed.sum(
            self.invited,
            self.context.learner.train,
            message,
            uplink=context.chain(state, phase),
            reducer=context.reducer,
            at=(state["contacts"], phase),
            down=sizes,
            up=lambda: reply_bytes(context, state, phase),
            expects=lambda: reply_form(context, state, phase, message.get("reports")),
            **terms,
        )

    def _failed(self, error: QuorumError) -> QuorumError:
        """Return the error that ends a training after a round with too few replies."""
        what, remedy = error.what, error.remedy
        if self.context.algorithm.card.everyone:
            what = f"{what}; {type(self.context.algorithm).__name__} needs every client in every round"
            remedy = f"{remedy}; with fewer, only an algorithm such as Scaffold can continue"
        return type(error)(what, where=f"round {self.number}, {error.where}", remedy=remedy)


def outgoing(
    fed: Federation, context: Context, state: Tree, invited: Parties, phase: str
) -> tuple[Tree, Tree, NDArray[np.int64] | None]:
    """Return the message to a cohort in a phase: the state with what clients then have, the message, and bytes per party (``None``: the message's own)."""
    broadcast = context.algorithm.broadcast(state["server"], phase)
    rest = broadcast_extras(state, context.learner, state["contacts"])
    broadcast, down, sizes = compressed_broadcast(
        fed, context.downlink, state["down"], broadcast, rest, invited, (state["contacts"], phase)
    )
    told = (
        context.selection.reports
        if phase == context.algorithm.phases[-1] and not context.selection.surveys_only
        else {}
    )
    reports = {"reports": dict(told)} if told else {}
    return {**state, "down": down}, {"broadcast": {**broadcast, **rest}, "phase": phase, **reports}, sizes


def folded(context: Context, state: Tree, combined: Combined, info: RoundInfo, phase: str) -> Tree:
    """Return the server's state after a phase: the aggregation operator, then the algorithm's fold."""
    server = state["server"]
    # Operators and algorithms see updates; running statistics are averaged directly.
    state = {**state, "buffers": combined.value.get("buffers", state["buffers"])}
    updates = combined.of("update", "side")
    sums, memory = context.aggregation.combine(
        replace(combined, value=updates), server["params"], state["aggregation"], info
    )
    server = _folded(context.algorithm, server, sums, info, phase)
    require_finite(server["params"], info.round)
    return {**state, "server": server, "aggregation": memory}


def account(row: dict[str, Any], combined: Combined) -> None:
    """Write the bytes and measures of a request into the round's row."""
    row["bytes_up"] += combined.bytes_up
    row["bytes_down"] += combined.bytes_down
    row["replied"] = combined.n
    row["silent"] = len(combined.silent)
    row["rejected"] = len(combined.rejected)
    if combined.rejected:
        row["rejected_clients"] = {**row.get("rejected_clients", {}), **combined.rejected}
    if combined.outliers:
        row["outliers"] = row.get("outliers", 0) + len(combined.outliers)
        row["outlying_clients"] = {**row.get("outlying_clients", {}), **combined.outliers}
    if combined.errors:
        row["errors"] = {name: str(error) for name, error in combined.errors.items()}
    row.update({name: float(value) for name, value in combined.of("metric").items()})
    row.update(shares(combined.counts))
    row.update(lengths(combined.told))
    for name in ("wrong_shares", "excess_left"):
        if combined.counts.get(name):
            row[name] = row.get(name, 0) + combined.counts[name]
    if "key_set_ups" in combined.counts:
        row["key_set_ups"] = row.get("key_set_ups", 0) + combined.counts["key_set_ups"]


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Return the share of entries clamped at clients, and, if it is known of all, the share overflowed in the sum; nothing if no entry travelled as a word."""
    found = dict[str, float]()
    if counts.get("words"):
        found["clamped"] = counts.get("clamped", 0) / counts["coded"]
        if not counts.get("unchecked"):
            found["overflowed"] = counts.get("overflowed", 0) / counts["words"]
    return found


def lengths(told: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the length of the longest words in a sum, where a stage makes them as long as the last sum needs; else nothing."""
    words = [counted["word_bits"] for counted in told.values() if "word_bits" in counted]
    return {"word_bits": max(words)} if words else {}


def received_model(message: Tree) -> Tree:
    """Return the model that clients receive in a train message and report on. It can differ from the server's, by downlink compression or the algorithm."""
    broadcast = message["broadcast"]
    model: Tree = {**broadcast["params"], **broadcast.get("buffers", {})}
    return model


def _folded(algorithm: Algorithm, server: Tree, sums: dict[str, Any], info: RoundInfo, phase: str) -> Tree:
    """Fold, and explain a name that is neither in the replies nor in the state."""
    try:
        return algorithm.fold(server, sums, info, phase)
    except KeyError as error:
        raise ConfigError(
            f"fold found no {error.args[0]!r}: the replies have {', '.join(sums) or 'nothing'}, and the state {', '.join(server)}",
            where=f"{type(algorithm).__name__}.fold",
            remedy="return it from finish under this name, put it into the state in init, or override fold",
        ) from error
