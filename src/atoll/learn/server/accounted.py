"""The privacy that clients have spent, in every round's row, whatever happens in the round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.privacy import LossTally
from atoll.privacy.sampling import neighbours_counted
from atoll.rounds.loop import Course

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["Accounted", "counted_as"]


class Accounted(Course):
    """A course with ``"epsilon"`` in its rows: the largest amount that a client has spent by the end of the round.

    It is counted as the mechanism or the budget says, or else at delta 1e-5. With an asynchronous pacing, it includes replies that are not used yet,
    because they have left their clients. A mechanism's accountant takes some 10 ms: then the rows with an evaluation have it.

    Args:
        course: the course of the rounds.
        context: the context of a training with private replies.
    """

    def __init__(self, course: Course, context: Context) -> None:
        self._course = course
        self._context = context
        self._terms = _terms(context)
        self._tally: LossTally | None = None

    def initial(self, fed: Federation) -> Tree:
        """Start with the course's state."""
        return self._course.initial(fed)

    def turns(self, rounds: int) -> int | None:
        """Return the course's number of turns."""
        return self._course.turns(rounds)

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """Return the course's reason against the next round."""
        return self._course.barred(fed, state, number)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Run the course's round, and add what the ledger says after it."""
        state, row = await self._course.round(fed, state, number)
        if not self._due(number):
            return state, row
        self._tally = self._tally or LossTally(fed.world.ledger, within=fed.running.slot)
        tally, claim = self._tally.update(), self._context.claim
        return state, {**row, "epsilon": tally.most(*self._terms) if claim is None else claim.spent(tally)}

    def _due(self, number: int) -> bool:
        context = self._context
        if context.claim is None:
            return True
        return context.evaluation.due(number, number == context.rounds)

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """Return the course's model."""
        return await self._course.model(watch, state, number)


def _terms(context: Context) -> tuple[float, str, str, str]:
    """Delta, accountant, adversary and neighbours, without a mechanism that has its own."""
    budget = context.budget
    if budget is not None:
        return budget.delta, budget.method, budget.adversary, budget.neighbours
    stages = [stage for phase in context.algorithm.phases for stage in context.uplink(phase).stages]
    trusted = any(getattr(stage, "trusted", False) for stage in stages)
    return 1e-5, "exact", "model" if trusted else "server", "add-remove"


_MANY = 1 << 20
"""A number of examples with which every mechanism has an event: only its unit is looked at."""


def counted_as(context: Context) -> dict[str, Any]:
    """Return what the epsilon of the rows means, of a training whose replies are private without a mechanism; empty if they are not.

    Args:
        context: the training's context.
    """
    if context.claim is not None or not context.protected:
        return {}
    delta, accountant, adversary, neighbours = _terms(context)
    phases = context.algorithm.phases
    events = context.events(_MANY, phases, context.learner.init(Rng(0)))
    units = {event.unit for event in events}
    unit = " and ".join(sorted(units))
    neighbours = neighbours_counted(events, adversary, neighbours)
    return {"unit": unit, "neighbours": neighbours, "adversary": adversary, "accountant": accountant, "delta": delta}
