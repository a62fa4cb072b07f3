"""What clients have spent of their privacy, in a row of every round, whatever happens in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.core.algebra.tree import Tree
from atoll.privacy import LossTally
from atoll.rounds.loop import Course

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

    from ..context import Context

__all__ = ["Accounted"]


class Accounted(Course):
    """A course whose rows have ``"epsilon"``: what the client that spent most has spent by the end of the round, at the budget's delta or 1e-5.

    At a pace without rounds in step, that includes replies which are made and not used yet: they have left their clients.

    Args:
        course: what happens in the rounds.
        context: the training's, whose replies promise privacy.
    """

    def __init__(self, course: Course, context: Context) -> None:
        self._course = course
        budget = context.budget
        self._terms = (1e-5, "exact") if budget is None else (budget.delta, budget.method)
        self._tally: LossTally | None = None

    def initial(self, fed: Federation) -> Tree:
        """The course's."""
        return self._course.initial(fed)

    def turns(self, rounds: int) -> int | None:
        """The course's."""
        return self._course.turns(rounds)

    def barred(self, fed: Federation, state: Tree, number: int) -> str | None:
        """The course's."""
        return self._course.barred(fed, state, number)

    async def round(self, fed: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """The course's, and what the ledger says after it."""
        state, row = await self._course.round(fed, state, number)
        self._tally = self._tally or LossTally(fed.world.ledger)
        return state, {**row, "epsilon": self._tally.update().most(*self._terms)}

    async def model(self, watch: Federation, state: Tree, number: int) -> tuple[Tree, dict[str, Any]]:
        """The course's."""
        return await self._course.model(watch, state, number)
