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
    from ..selection.base import Selection

__all__ = ["Pacing", "refuse", "weighs_examples"]


@dataclass(frozen=True, kw_only=True)
class Pacing(Checked):
    """Base class of pacings: frozen dataclasses of settings. ``course`` defines the rounds; everything else is checked before them."""

    layered: ClassVar[bool] = False
    """Whether edge servers under a cloud (``topology=Hierarchical``) run the rounds, instead of a star."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer: servers for its rounds; add your own rows to ``super().needs``."""
        wanted = Need(EDGE_ROUNDS, "paces the rounds of edges under a cloud", "Synchronous()")
        return (wanted if self.layered else Need(CENTRAL_SERVER, "paces the rounds of a server", "Synchronous()"),)

    @property
    def offers(self) -> frozenset[Capability]:
        """What the pacing offers to the other parts of a training; remove what does not apply to its rounds."""
        return frozenset({FIXED_COHORT, ROUNDS, ONE_MODEL, WHOLE_POPULATION})

    @property
    def deadline(self) -> float | None:
        """Seconds that a round may take; ``None`` for no limit."""
        return None

    @property
    def on_failure(self) -> str:
        """What happens to a round with too few replies: ``"stop"`` or ``"skip"``."""
        return "stop"

    def terms(self, cohort: int) -> dict[str, Any]:
        """Return arguments for ``Federation.sum`` in a round that wants ``cohort`` replies."""
        del cohort
        return {"deadline": self.deadline}

    def invited(self, cohort: int) -> int:
        """Return how many clients to invite so that ``cohort`` answer."""
        return cohort

    def updates(self, selection: Selection, population: int) -> int:
        """Return about how many clients train in a round, by which the engine judges whether compiling pays off."""
        return selection.cohort_size(population)

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return what clients run: the base, or the base with other replies."""
        return base

    def check(self, context: Context) -> None:
        """Refuse parts that do not work with this pacing, before any client is contacted.

        Raises:
            CompositionError: with the reason and the remedy.
        """

    def course(self, context: Context) -> Course:
        """Return what happens in the rounds of a star, or of edges and cloud if the pacing is ``layered``."""
        raise NotImplementedError


def weighs_examples(pacing: Pacing, algorithm: Algorithm, params: Tree) -> bool:
    """Return whether a reply's update of the model is a mean by examples; otherwise clients count equally.

    Raises:
        CompositionError: it is neither, so that single models cannot be rebuilt and weighted.
    """
    update = dry_reply(algorithm, params, examples=3.0).get("update")
    weight = float(update.examples) if isinstance(update, Mean | Parts) else 0.0
    if weight not in (1.0, 3.0):
        name = type(algorithm).__name__
        refuse(
            pacing,
            f"{name} does not reply with a mean update of the model, by examples or by clients",
            "algorithm",
            "use an algorithm such as FedAvg or Scaffold",
        )
    return weight == 3.0


def refuse(pacing: Pacing, what: str, where: str, remedy: str) -> None:
    """Raise the error of parts that do not go together."""
    raise CompositionError(f"{type(pacing).__name__}: {what}", where=f"Training.{where}", remedy=remedy)
