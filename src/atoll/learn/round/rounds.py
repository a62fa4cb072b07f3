"""A whole round of a server, phase by phase, and whether the budget of privacy affords it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, PolicyError, QuorumError
from atoll.core.event import Event
from atoll.core.facets import facet
from atoll.core.requests.results import is_instant
from atoll.learn.selection.base import Seen
from atoll.privacy import Budget, LossTally
from atoll.privacy.accountant import PrivacyLoss
from atoll.rounds.loop import Course

from ..algorithm import Phased
from ..checks import require_finite
from ..local.reports import is_private
from ..private.claim import charges_everyone
from .evaluation import scores
from .invitation import Inviter, require_in_time
from .phases import Phases, round_info
from .state import global_model, initial, weigh_population

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties

    from ..context import Context
    from ..selection.base import Inquiry

__all__ = ["ServerRounds", "server_round"]


class Affordable:
    """A training's budget, compared with the ledger.

    Args:
        fed: the federation.
        context: the training's context.
        budget: the training's budget.

    Raises:
        CompositionError: the data set does not give its clients' numbers of examples.
    """

    def __init__(self, fed: Federation, context: Context, budget: Budget) -> None:
        self.fed, self.context, self.budget = fed, context, budget
        self.tally = LossTally(fed.world.ledger, within=fed.running.slot)
        self.sizes: Any = context.clients.sizes
        self._places = (
            {str(one): place for place, one in enumerate(context.clients.names)} if self.sizes is not None else {}
        )
        self._shared = _Shared(self)
        if self.sizes is None and is_private(context.algorithm):
            raise CompositionError(
                "a privacy budget needs the clients' numbers of examples beforehand",
                where="Training.budget",
                remedy="give the federated data set `sizes`, which determine what each client would release",
            )

    def refusal(self, state: Tree) -> str | None:
        """Return why the next round is not allowed, from what its cohort has released and would release; ``None`` if it is."""
        phases = self.context.algorithm.plan(state["server"])
        if not phases:
            return None
        params = state["server"]["params"]
        if self.everyone:
            return self._shared.refusal(self.context.events(0, phases, params))
        coming = {**state, "contacts": state["contacts"] + 1}
        names = [p.name for p in Inviter(self.fed, self.context, coming).invite()]
        sizes = {name: self._size(name) for name in names}
        by_size = {size: self.context.events(size, phases, params) for size in set(sizes.values())}
        planned = {name: by_size[size] for name, size in sizes.items()}
        return self.budget.exceeded(self.tally, names, planned)

    def require_all(self, state: Tree) -> None:
        """Refuse a training with more rounds than the budget allows, if that is known before any client is contacted.

        A client ``k`` can afford ``a_k`` contacts. ``R`` rounds with ``m`` distinct clients each are possible only if ``m R <= sum_k min(a_k, R)``: no client
        is in more than ``R`` rounds, or in more than it affords. With all clients in every round, this is ``R <= min_k a_k`` and exact; with a sample, it is
        the most that any draw allows. The bound is unknown if a stop rule may end the training sooner, devices may be away, or
        another rule selects. Callbacks do not count, because most only observe. If a client has released before (a run that resumes after a crash in its
        first round, a program that has trained already), nothing is refused: training ends in time.

        Raises:
            PolicyError: names the number of rounds that fit.
        """
        context = self.context
        last, phases = (
            facet(context.algorithm, Phased).contacts(context.rounds),
            context.algorithm.plan(state["server"]),
        )
        each = len(self.fed.parties) if self.everyone else context.selection.distinct(len(self.fed.parties))
        known = is_instant(self.fed.world.cost) and not context.ends_early
        begun = self._begun()
        if begun or self.budget.on_excess == "stop" or not known or each is None or not last or not phases:
            return
        self.tally.update()
        able = self._contacts(last, phases, state["server"]["params"])
        count = sum(able.values())
        # The slack, sum_k min(a_k, R) - m R, is concave in R and 0 at R = 0: it is negative from some R on.
        fit = bisect_right(range(1, last + 1), 0, key=lambda r: each * r - sum(n * min(a, r) for a, n in able.items()))
        if fit < last:
            rounds = bisect_right(
                range(1, context.rounds + 1), fit, key=lambda r: facet(context.algorithm, Phased).contacts(r) or 0
            )
            raise PolicyError(
                f"{context.rounds} rounds exceed the privacy budget, and {'' if each == count else 'at most '}{rounds} fit: "
                f"{last} contacts with {each} of {count} clients are needed, but a client affords {min(able)}"
                + ("" if len(able) == 1 else f" to {max(able)}"),
                where="Training.budget",
                remedy=f"use rounds={rounds}, more noise or a larger budget, or Budget(..., on_excess='stop') to train as long as it lasts",
            )

    def _begun(self) -> bool:
        """Whether a client has released something in this run; a ledger may hold other runs too."""
        ledger = self.fed.world.ledger
        own = [line for line in ledger.lines() if line.get("job", "") == ledger.job]
        return bool(LossTally(own, within=self.fed.running.slot).update().losses.keys() - {"*"})

    def _contacts(self, most: int, phases: Sequence[str], params: Tree) -> Counter[int]:
        """Return the number of contacts that clients afford, up to ``most`` -> how many clients."""
        budget, tally = self.budget, self.tally
        alike = Counter(
            (budget.of(p.name), tally.of(p.name), self._size(p.name)) for p in self.fed.parties
        )  # a round's cost depends only on this
        able: Counter[int] = Counter()
        for (epsilon, before, size), count in alike.items():
            once = sum(map(PrivacyLoss.of, self.context.events(size, phases, params)), PrivacyLoss())
            able[budget.affords(epsilon, before, once, most)] += count
        return able

    @property
    def everyone(self) -> bool:
        """Whether a round costs every client, whoever takes part."""
        event = self.context.aggregation.event
        return event is not None and charges_everyone(event)

    def _size(self, name: str) -> int:
        return 0 if self.sizes is None else int(self.sizes[self._places[name]])


class _Shared:
    """Rounds that cost every client the same: how many fit is computed once, and again only if the ledger has something else."""

    def __init__(self, whole: Affordable) -> None:
        self.whole = whole
        self._begun: dict[str, PrivacyLoss] = {}
        self._once = PrivacyLoss()
        self._able = 0

    def refusal(self, events: Sequence[Event]) -> str | None:
        """Return why the next round is not allowed."""
        budget, tally = self.whole.budget, self.whole.tally.update()
        once = sum(map(PrivacyLoss.of, events), PrivacyLoss())
        done = self._count_charged(tally.losses, once)
        if done is None or done >= self._able:
            self._begun, self._once, done = dict(tally.losses), once, 0
            alike = {(budget.of(name), tally.losses.get(name)): name for name in self._names()}
            most = self.whole.context.rounds
            self._able = min(
                budget.affords(epsilon, tally.of(name), once, most) for (epsilon, _), name in alike.items()
            )
            if self._able == 0:
                planned = dict.fromkeys(alike.values(), events)
                return budget.exceeded(tally, alike.values(), planned)
        return None

    def _names(self) -> list[str]:
        return list(self.whole.fed.parties.names)

    def _count_charged(self, losses: dict[str, PrivacyLoss], once: PrivacyLoss) -> int | None:
        """Return how many rounds have been charged since the last count; ``None`` if the ledger has anything else."""
        if once != self._once or _alone(losses) != _alone(self._begun):
            return None
        before, now = (dict(found.get("*", PrivacyLoss()).releases) for found in (self._begun, losses))
        more = {event: n - before.get(event, 0) for event, n in now.items() if n != before.get(event, 0)}
        times = dict(once.releases)
        counts = {n / times[event] if event in times else -1.0 for event, n in more.items()}
        if len(counts) > 1 or (more and more.keys() != times.keys()) or any(c < 0 or c != int(c) for c in counts):
            return None
        return int(next(iter(counts), 0))


def _alone(losses: dict[str, PrivacyLoss]) -> dict[str, PrivacyLoss]:
    """Return what single parties have released."""
    return {name: loss for name, loss in losses.items() if name != "*" and loss.releases}


# ---------------------------------------------------------------- rounds of one server


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

    def find_objection(self, fed: Federation, state: Tree, number: int) -> str | None:
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
        state = await weigh_population(fed, self.context, state)
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
        row.update(context.evaluation.list_participants(seen.asked, seen.replied))
        if (inquiry := rule.inquiry) is not None and len(seen.replied):
            state, seen = await _run_inquiry(inquiry, Inviter(fed, context, state), seen, row)
        state = {**state, "selection": rule.accept(replace(seen, row={"round": number, **row}), state["selection"])}
    return state, row


def _utility(context: Context, state: Tree) -> Callable[[Tree], float] | None:
    """Return a function that gives minus the loss of a model on the server's own rows; ``None`` without such rows."""
    rows = context.test
    if rows is None or not len(rows):
        return None
    return lambda params: -scores(context.learner.evaluate({**params, **state["buffers"]}, rows))["loss"]


async def _run_inquiry(inquiry: Inquiry, inviter: Inviter, seen: Seen, row: dict[str, Any]) -> tuple[Tree, Seen]:
    """Return the state and what was seen after the selection rule's inquiry with the clients that replied; its cost is added to the row."""
    who = inviter.fed.world.roster.all()[np.unique(seen.replied.positions)]
    told, known, spent = await inviter.run_inquiry(inquiry, who, seen.model, inviter.state["selection"], held=True)
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
        heard, spent = await inviter.run_survey()
        state = {**state, "selection": heard}
        inviter = replace(inviter, state=state)
        invited = inviter.invite()
    except QuorumError as error:  # no client is available
        if context.pacing.on_failure == "stop" or context.algorithm.card.everyone:
            raise
        return state, {**row, "failed": error.what}, None
    run = Phases(fed, inviter.context, invited, number, inviter.odds(invited))
    return await run.all(state, phases, spent)
