"""The contract of a selection rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.party import Parties
from atoll.core.rng import Rng
from atoll.core.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Candidates", "Selection"]


@dataclass(frozen=True)
class Candidates:
    """Whom a rule may invite.

    Attributes:
        parties: the population.
        round: 1-based number of the round.
        rng: the stream of this round's selection.
        sizes: called for the number of examples of each candidate, shape ``(population,)``, when the rule wants it; ``None`` when unknown.
    """

    parties: Parties
    round: int
    rng: Rng
    sizes: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Selection:
    """Base of selection rules: pure, with its memory in ``state`` (a tree that checkpoints carry).

    ``invite`` runs before the round, ``accept`` after the replies are in.
    """

    @property
    def repeats(self) -> bool:
        """Whether a client may be drawn twice in a round; its reply then counts twice."""
        return False

    def init(self, parties: Parties) -> Tree:
        """The rule's memory at the start."""
        del parties
        return None

    def cohort_size(self, population: int) -> int:
        """Replies wanted in a round."""
        return population

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Indices into ``candidates.parties`` of ``count`` clients to ask, without repetition unless ``repeats``."""
        raise NotImplementedError

    def accept(self, invited: Parties, replied: Parties, metrics: dict[str, Any], state: Tree) -> Tree:
        """Learn from a round; return the new memory."""
        del invited, replied, metrics
        return state
