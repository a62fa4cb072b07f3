"""The contract of a pacing: when a round begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.algebra.aggregate import Mean, Parts
from atoll.core.algebra.tree import Tree
from atoll.core.capability import CENTRAL_SERVER, FIXED_COHORT, Capability, Need
from atoll.core.errors import CompositionError
from atoll.core.validation import Checked

from ..capabilities import EDGE_ROUNDS, ONE_MODEL, ROUNDS, WHOLE_POPULATION
from ..wrapped import dry_reply

if TYPE_CHECKING:
    from atoll.rounds.loop import Course

    from ..algorithm import Algorithm
    from ..context import Context

__all__ = ["Pacing", "refuse", "weighs_examples"]


@dataclass(frozen=True, kw_only=True)
class Pacing(Checked):
    """Base of pacings: frozen dataclasses of settings. ``course`` says what happens in the rounds; everything else is checked before."""

    layered: ClassVar[bool] = False
    """Its rounds are those of edge servers under a cloud (``topology=Hierarchical``), not of a star."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer: servers whose rounds it may hold; add rows of your own to ``super().needs``."""
        wanted = Need(EDGE_ROUNDS, "paces the rounds of edges under a cloud", "Synchronous()")
        return (wanted if self.layered else Need(CENTRAL_SERVER, "paces the rounds of a server", "Synchronous()"),)

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a training; take out what its rounds are not."""
        return frozenset({FIXED_COHORT, ROUNDS, ONE_MODEL, WHOLE_POPULATION})

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

    def check(self, context: Context) -> None:
        """Refuse what makes no sense at this pace, before anyone is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def course(self, context: Context) -> Course:
        """What happens in the rounds of a star; in those of edges and cloud, if it is ``layered``."""
        raise NotImplementedError


def weighs_examples(pacing: Pacing, algorithm: Algorithm, params: Tree) -> bool:
    """Whether a reply's update of the model is a mean by examples; otherwise clients count alike.

    Raises:
        CompositionError: it is neither, and single models cannot be rebuilt and weighed.
    """
    update = dry_reply(algorithm, params, examples=3.0).get("update")
    weight = float(update.examples) if isinstance(update, Mean | Parts) else 0.0
    if weight not in (1.0, 3.0):
        name = type(algorithm).__name__
        refuse(
            pacing,
            f"{name} does not reply with an update of the model whose mean is taken, by examples or by clients",
            "algorithm",
            "use an algorithm such as FedAvg or Scaffold",
        )
    return weight == 3.0


def refuse(pacing: Pacing, what: str, where: str, remedy: str) -> None:
    """Raise the error of a composition that makes no sense."""
    raise CompositionError(f"{type(pacing).__name__}: {what}", where=f"Training.{where}", remedy=remedy)
