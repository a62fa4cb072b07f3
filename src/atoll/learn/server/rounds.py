"""Rounds of one server: invite, run the phases, advance; and the course of a synchronous training in a star."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import PolicyError, QuorumError
from atoll.core.facets import facet
from atoll.rounds.loop import Course

from ..algorithm import Phased
from ..checks import require_finite
from ..counts import weighed
from ..selection import Seen
from .affordable import Affordable
from .device_outcomes import require_in_time
from .invitation import Inviter
from .phases import Phases, round_info
from .row_sums import scores
from .state import global_model, initial

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

    from ..context import Context
    from ..selection.inquiry import Inquiry

__all__ = ["ServerRounds", "server_round"]


class ServerRounds(Course):
    """One server's rounds.

    Args:
        context: the training's context.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._affordable: Affordable | None = None

    def initial(self, fed: Federation) -> Tree:
        """Return the server's state before the first round."""
        return initial(fed, self.context)

    def turns(self, rounds: int) -> int | None:
        """Return the number of rounds with clients: a turn is such a round."""
        return facet(self.context.algorithm, Phased).contacts(rounds)

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Return why the next round is not allowed, from the ledger and what its cohort would release.

        Raises:
            PolicyError: the budget does not allow the first round, or all rounds; see `Affordable.require_all`.
        """
        if self.context.budget is None:
            return None
        self._affordable = self._affordable or Affordable(fed, self.context, self.context.budget)
        over = self._affordable.refusal(state)
        if number == 1:
            if over is not None:
                raise PolicyError(over, where="Training.budget", remedy="raise the budget, or add noise")
            self._affordable.require_all(state)
        return over

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run one round of the server."""
        state = await weighed(fed, self.context, state)
        return await server_round(fed, self.context, state, number)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the server's model."""
        del watch, number
        return global_model(state), {}


async def server_round(
    fed: Federation, context: Context, state: Tree, number: int, among: Parties | None = None
) -> tuple[Tree, dict[str, Any]]:
    """Run a round of one server: invite (``among`` some clients, if given), run the phases, advance, and let the selection rule learn.

    Returns:
        The new state and the round's row.
    """
    phases = context.algorithm.plan(state["server"])
    row: dict[str, Any] = {"selected": 0, "bytes_up": 0, "bytes_down": 0, "replied": 0}
    seen: Seen | None = None
    if phases:
        # Contacts are counted separately: rounds of the server alone leave cohorts and random numbers unchanged.
        state = {**state, "contacts": state["contacts"] + 1}
        start = fed.clock.now()
        state, row, seen = await _contact(Inviter(fed, context, state, among), phases, number, row)
        if "failed" in row and context.pacing.deadline is not None and fed.clock.now() == start:
            await fed.clock.sleep_until(
                start + context.pacing.deadline
            )  # no client was asked: the next round finds another situation
        if "failed" not in row:
            told, memory = context.aggregation.measured(
                state["aggregation"], _utility(context, state), fed.world.roster.name
            )
            state, row = {**state, "aggregation": memory}, {**row, **told}
    if "failed" not in row:
        info = round_info(fed, state, (number, bool(phases)), row["selected"], row["replied"])
        info = context.aggregation.disclosed(info)
        state = {**state, "server": facet(context.algorithm, Phased).advance(state["server"], info)}
        found = facet(context.algorithm, Phased).outliers(state["server"])
        if found and phases:
            named = {fed.world.roster.name(position): why for position, why in found.items()}
            row["outlying_clients"] = {**row.get("outlying_clients", {}), **named}
        require_finite(state["server"]["params"], number)
    if seen is not None:
        rule = context.selection
        row.update(context.evaluation.told(seen.asked, seen.replied))
        if (inquiry := rule.inquiry) is not None and len(seen.replied):
            state, seen = await _inquired(inquiry, Inviter(fed, context, state), seen, row)
        state = {**state, "selection": rule.accept(replace(seen, row={"round": number, **row}), state["selection"])}
    return state, row


def _utility(context: Context, state: Tree) -> Callable[[Tree], float] | None:
    """Return a function that gives minus the loss of a model on the server's own rows; ``None`` without such rows."""
    rows = context.test
    if rows is None or not len(rows):
        return None
    return lambda params: -scores(context.learner.evaluate({**params, **state["buffers"]}, rows))["loss"]


async def _inquired(inquiry: Inquiry, inviter: Inviter, seen: Seen, row: dict[str, Any]) -> tuple[Tree, Seen]:
    """Return the state and what was seen after the selection rule's inquiry with the clients that replied; its cost is added to the row."""
    who = inviter.fed.world.roster.all()[np.unique(seen.replied.positions)]
    told, known, spent = await inviter.inquired(inquiry, who, seen.model, inviter.state["selection"], held=True)
    row.update({name: row.get(name, 0) + value for name, value in spent.items()})
    seen = replace(seen, replied=told.replied, seconds=told.seconds, reports=told.reports, examples=told.examples)
    return {**inviter.state, "selection": known}, seen


async def _contact(
    inviter: Inviter, phases: tuple[str, ...], number: int, row: dict[str, Any]
) -> tuple[Tree, dict[str, Any], Seen | None]:
    """Survey, invite, and run the phases with the cohort."""
    fed, context, state = inviter.fed, inviter.context, inviter.state
    if number == 1:
        require_in_time(inviter)
    try:
        heard, spent = await inviter.surveyed()
        state = {**state, "selection": heard}
        inviter = replace(inviter, state=state)
        invited = inviter.invite()
    except QuorumError as error:  # no client is available
        if context.pacing.on_failure == "stop" or context.algorithm.card.everyone:
            raise
        return state, {**row, "failed": error.what}, None
    run = Phases(fed, inviter.context, invited, number, inviter.odds(invited))
    return await run.all(state, phases, spent)
