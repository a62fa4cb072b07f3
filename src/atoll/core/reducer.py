"""Reducers: how many replies become one.

A reducer is a sub-protocol. The plain one lets the engine add up replies; a secure one runs supersteps of ``exchange`` whose party half wraps
the task, so that nobody sees a single reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from .chain import Chain
from .errors import CompositionError, ConfigError
from .results import Combined, Terms
from .tree import Tree

if TYPE_CHECKING:
    from .federation import Federation
    from .party import Parties
    from .task import Task

__all__ = ["Plain", "Reducer", "TreeReducer"]


@dataclass(frozen=True)
class Reducer:
    """Base of reducers.

    Attributes:
        secure: the server sees sums only, so stages must be summable and ``Parts`` are refused.
    """

    secure: ClassVar[bool] = False

    def check(self, uplink: Chain) -> None:
        """Refuse what cannot be combined soundly, before anyone is contacted."""
        if self.secure:
            uplink.require_summable(type(self).__name__)

    async def reduce(
        self, fed: Federation, parties: Parties, task: Task, message: Tree, uplink: Chain, terms: Terms, at: Any
    ) -> Combined:
        """Ask the parties and combine their replies."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Reducer):
    """Adds up the replies as they come, in cohort order."""

    async def reduce(
        self, fed: Federation, parties: Parties, task: Task, message: Tree, uplink: Chain, terms: Terms, at: Any
    ) -> Combined:
        """Ask the parties and add up."""
        return await fed.fold(parties, task, message, uplink, terms, at)


@dataclass(frozen=True)
class TreeReducer(Reducer):
    """Adds up in groups of ``fan_in``, then the groups: the order of a tree of aggregators.

    Attributes:
        fan_in: replies a node adds up.
    """

    fan_in: int = 8

    def __post_init__(self) -> None:
        if self.fan_in < 2:
            raise ConfigError(f"fan_in={self.fan_in}", remedy="use a whole number of at least 2")

    async def reduce(
        self, fed: Federation, parties: Parties, task: Task, message: Tree, uplink: Chain, terms: Terms, at: Any
    ) -> Combined:
        """Ask the parties and add up by groups."""
        if terms.late == "arrive":
            raise CompositionError(
                "late='arrive' hands single replies to the program", where="TreeReducer", remedy="use the plain reducer"
            )
        return await fed.fold(parties, task, message, uplink, terms, at, fan_in=self.fan_in)
