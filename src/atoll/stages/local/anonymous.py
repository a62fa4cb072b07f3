"""A randomiser whose replies are seen only together with those of others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.core.facets import facet
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Guarding, Stage, WithMemory
from atoll.privacy import Shuffled

from .base import Randomiser
from .noise import LocalLaplace

__all__ = ["Anonymous"]


@dataclass(frozen=True)
class Anonymous(Stage, WithMemory, Guarding):
    """Randomise, and count a reply as one of ``clients`` in an order that nobody knows; see `atoll.privacy.Shuffled`.

    Nothing is shuffled here: it is the sum that hides the order, and whoever adds up that must be trusted to reveal the sum alone. A party refuses to
    reply where a sum of fewer replies could be used.

    Attributes:
        stage: a randomiser with an epsilon of its own.
        clients: replies of a sum, at least.
        shuffled_by: who hides whose reply is whose: ``"server"`` or ``"reducer"``.
    """

    stage: Randomiser = field(default_factory=LocalLaplace)
    clients: int = 1
    shuffled_by: Literal["server", "reducer"] = "server"
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not hasattr(self.stage, "randomise") or not all(hasattr(e, "epsilon") for e in self.stage.events(None)):
            raise ConfigError(
                f"stage={type(self.stage).__name__} has no epsilon of its own",
                where="Anonymous",
                remedy="use a pure randomiser, such as LocalLaplace or RandomisedSigns",
            )
        object.__setattr__(self, "remembers", facet(self.stage, WithMemory).remembers)

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Randomise one client's value."""
        return self.stage.encode(value, self._among(context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Randomise each client's value."""
        return self.stage.encode_block(block, self._among(context))

    def fresh(self, value: Tree) -> Tree:
        """Return the randomiser's first memory."""
        return facet(self.stage, WithMemory).fresh(value)

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Randomise with memory."""
        return facet(self.stage, WithMemory).remember(value, memory, self._among(context))

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Randomise each client's value with its memory."""
        return facet(self.stage, WithMemory).remember_block(block, memory, self._among(context))

    def events(self, sensitivity: float | None) -> tuple[Event, ...]:
        """Return one shuffled reply."""
        del sensitivity
        events = self.stage.events(None)
        epsilon = math.fsum(getattr(event, "epsilon", math.inf) * event.count for event in events)
        return (Shuffled(unit=events[0].unit, epsilon=epsilon, clients=self.clients, shuffled_by=self.shuffled_by),)

    def _among(self, context: StageContext) -> StageContext:
        """Refuse a sum that could have fewer replies, or that is not as hidden as it is counted."""
        if context.replies < self.clients or (self.shuffled_by == "reducer" and not context.hidden):
            raise CompositionError(
                f"a reply is counted as one of {self.clients} behind a {self.shuffled_by}, and this sum may have {context.replies}"
                + ("" if context.hidden else " that the server sees one by one"),
                where="Anonymous",
                remedy="use a quorum of all invited clients, and a secure reducer where shuffled_by is 'reducer'",
            )
        return context
