"""The contract of a pacing: when a round begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.errors import CompositionError

if TYPE_CHECKING:
    from ..algorithm import Algorithm
    from ..course import Course
    from ..learner import Learner
    from ..training import Training

__all__ = ["Pacing", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Pacing:
    """Base of pacings: frozen dataclasses of settings. ``course`` says what happens in the rounds; everything else is checked before."""

    single: ClassVar[bool] = False
    """It looks at single replies, which a secure reducer hides."""

    @property
    def deadline(self) -> float | None:
        """Seconds that a round may take; ``None`` for no limit."""
        return None

    @property
    def on_failure(self) -> str:
        """What becomes of a round with too few replies: ``"stop"`` or ``"skip"``."""
        return "stop"

    def terms(self, cohort: int) -> dict[str, Any]:
        """Arguments for ``Federation.sum`` in a round that wants so many replies."""
        del cohort
        return {"deadline": self.deadline}

    def invited(self, cohort: int) -> int:
        """Clients to invite so that ``cohort`` answer."""
        return cohort

    def algorithm(self, base: Algorithm) -> Algorithm:
        """What clients run: the base, or the base with other replies."""
        return base

    def check(self, job: Training, learner: Learner, data: Any) -> None:
        """Refuse what makes no sense at this pace, before anyone is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def course(self, job: Training, learner: Learner, data: Any) -> Course:
        """What happens in the rounds of a star."""
        raise NotImplementedError


def refuse(pacing: Pacing, what: str, where: str, remedy: str) -> None:
    """Raise the error of a composition that makes no sense."""
    raise CompositionError(f"{type(pacing).__name__}: {what}", where=f"Training.{where}", remedy=remedy)
