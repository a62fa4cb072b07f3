"""What a mechanism of privacy may look at in a training, and what is to be known of a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from atoll.privacy import Budget

from ..selection import Selection

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.stage import Stage

    from ..aggregation.base import Aggregation
    from ..algorithm import Algorithm
    from ..pacing.base import Pacing
    from ..topology.base import Topology

__all__ = ["Claiming", "TrainingParts"]


class Claiming(Protocol):
    """A mechanism, for those who ask only what its claim is about."""

    @property
    def neighbours(self) -> str:
        """What neighbouring data sets differ in."""
        ...

    @property
    def adversary(self) -> str:
        """From whom it protects."""
        ...


class TrainingParts(Protocol):
    """The parts of a training that a mechanism may look at and replace."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""
        ...

    @property
    def topology(self) -> Topology:
        """Who talks to whom."""
        ...

    @property
    def selection(self) -> Selection:
        """Who is invited."""
        ...

    @property
    def aggregation(self) -> Aggregation:
        """How replies become one."""
        ...

    @property
    def pacing(self) -> Pacing:
        """When a round ends."""
        ...

    @property
    def uplink(self) -> Sequence[Stage]:
        """Stages of replies."""
        ...

    @property
    def reducer(self) -> Reducer:
        """How replies are added up."""
        ...

    @property
    def budget(self) -> Budget | None:
        """What a client may spend."""
        ...

    @property
    def rounds(self) -> int:
        """Rounds of the training."""
        ...

    def up(self, phase: str) -> Chain:
        """Return the uplink stages of a phase."""
        ...
