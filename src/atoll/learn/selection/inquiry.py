"""The contract of a conversation by which a selection rule learns of clients, where that takes more than reports beside their replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.party import Parties
    from atoll.core.requests.task import Task

    from ..learner import Learner
    from .seen import Seen

__all__ = ["Inquired", "Inquiry"]


@dataclass(frozen=True)
class Inquired:
    """Who is asked, and about what.

    Attributes:
        parties: each once.
        model: parameters, and buffers where they travel, by name.
        known: whether they hold the model already, because the round sent it.
        round: 1-based number of the contact.
        deadline: seconds for each answer; ``None`` for no limit.
    """

    parties: Parties
    model: Tree
    known: bool
    round: int
    deadline: float | None


class Inquiry(Protocol):
    """A conversation that takes the place of a rule's ``reports``: with those whom its ``survey`` names, and with those who replied in a round."""

    @property
    def others(self) -> Mapping[str, str]:
        """Parties that it needs besides the clients, name -> role."""
        ...

    def check(self, learner: Learner) -> None:
        """Refuse what makes no sense, before anyone is contacted."""
        ...

    def tasks(self, learner: Learner) -> tuple[Task, ...]:
        """What the world must know by name."""
        ...

    async def hold(
        self, fed: Federation, learner: Learner, rows: Any, asked: Inquired, memory: Tree
    ) -> tuple[Seen, Tree]:
        """Hold it: what it showed, for ``heard`` or ``accept``, and the rule's memory with what the conversation must keep.

        Args:
            fed: where.
            learner: the training's.
            rows: the server's own.
            asked: of whom.
            memory: the rule's.
        """
        ...
