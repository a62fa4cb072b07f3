"""Reducers: how many replies become one.

A reducer is a sub-protocol over a ``Reduction``. The plain one lets the engine add up replies; a secure one runs steps whose party half wraps the
task, so that nobody sees a single reply. It returns little: named totals, and who is in them. The federation does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..capability import DISTINCT_CLIENTS, DROPPABLE, SERVER, SINGLE_REPLIES, Capability, Need
from ..errors import CompositionError, ConfigError
from ..requests.chain import Chain
from ..requests.request import Reduced

if TYPE_CHECKING:
    from ..requests.party import Parties
    from ..requests.results import Terms
    from ..requests.task import Task
    from .reduction import Reduction

__all__ = ["Plain", "Reducer", "TreeReducer"]


@dataclass(frozen=True)
class Reducer:
    """Base of reducers.

    Attributes:
        secure: the server sees sums only, so stages must be summable and ``Parts`` are refused.
        lasting: what the party halves leave in ``island.state`` outlives a sum that succeeds, at the parties in it: one key set-up may then serve many
            sums of a scope. By default it ends with the sum.
    """

    secure: ClassVar[bool] = False
    lasting: ClassVar[bool] = False

    @property
    def plain(self) -> bool:
        """Whether replies are added up as they come, so that no protocol stands between them and their sum."""
        return False

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a job must offer; add rows of your own to ``super().needs``."""
        server = () if self.plain else (Need(SERVER, "combines many replies", "Plain()"),)
        secure = (Need(DISTINCT_CLIENTS, "takes one reply of each client", "a plain reducer"),) if self.secure else ()
        return (*server, *secure)

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts of a job."""
        # A secure one that fails commits nothing: see `atoll.core.federation.reduction`.
        return frozenset({DROPPABLE}) if self.secure else frozenset({SINGLE_REPLIES})

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse what cannot be combined soundly, before anyone is contacted.

        Args:
            uplink: the stages of the replies.
            parties: the cohort.
            terms: when the sum closes; its quorum.
            task: what the cohort is asked to do.

        Raises:
            CompositionError: the parts do not go together.
            QuorumError: the cohort is too small; a training whose cohorts vary may skip such a round.
        """
        del parties, task
        name = type(self).__name__
        if self.secure:
            uplink.require_summable(name)
        if terms.late == "arrive":
            raise CompositionError(
                "late='arrive' hands single replies to the program", where=name, remedy="use the plain reducer"
            )

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and combine their replies.

        Args:
            reduction: the cohort, the program's request, and the verbs to speak to parties with.

        Returns:
            The totals, encoded as the stages left them, and the positions of those in them, in cohort order.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Reducer):
    """Adds up the replies as they come, in cohort order."""

    @property
    def plain(self) -> bool:
        """Yes, but for a subclass that hides replies or has a protocol of its own."""
        return not self.secure and type(self).reduce is Plain.reduce

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Anything goes, but for what a subclass that is ``secure`` must refuse."""
        if self.secure:
            super().check(uplink, parties, terms, task)

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up."""
        return await reduction.fold()


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

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Ask the parties and add up by groups."""
        return await reduction.fold(fan_in=self.fan_in)
