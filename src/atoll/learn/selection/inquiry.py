"""The contract of a conversation between a selection rule and clients, if reports in replies are not enough."""

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
    """Parties to ask, and the model to ask about.

    Attributes:
        parties: the parties, each once.
        model: parameters, and buffers if they travel, by name.
        known: whether the parties have the model already, because the round sent it.
        round: 1-based number of the contact.
        deadline: seconds for each answer; ``None`` for no limit.
    """

    parties: Parties
    model: Tree
    known: bool
    round: int
    deadline: float | None


class Inquiry(Protocol):
    """A conversation that replaces a rule's ``reports``: with the clients of its ``survey``, and with those that replied in a round."""

    @property
    def others(self) -> Mapping[str, str]:
        """Parties that the conversation needs in addition to the clients, name -> role."""
        ...

    def check(self, learner: Learner) -> None:
        """Refuse a learner that cannot take part, before any client is contacted."""
        ...

    def tasks(self, learner: Learner) -> tuple[Task, ...]:
        """Return the tasks that the world must know by name."""
        ...

    async def hold(
        self, fed: Federation, learner: Learner, rows: Any, asked: Inquired, memory: Tree
    ) -> tuple[Seen, Tree]:
        """Hold the conversation. Return its result, for ``heard`` or ``accept``, and the rule's memory with what the conversation keeps.

        Args:
            fed: the federation.
            learner: the training's learner.
            rows: the server's own rows.
            asked: the parties and the model.
            memory: the rule's memory.
        """
        ...
