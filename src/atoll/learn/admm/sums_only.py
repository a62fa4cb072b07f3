"""A server that is shown sums and nothing else: what an aggregate form of a protocol must be content with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.chain import Chain
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation import Federation
from atoll.core.party import Parties
from atoll.core.reducer import Reducer
from atoll.core.results import Combined, Terms
from atoll.core.task import Task
from atoll.core.tree import Tree

__all__ = ["SumsOnly"]


@dataclass(frozen=True)
class SumsOnly(Reducer):
    """Adds up as the plain reducer does and hands over no single reply: it stands for secure aggregation in a simulation and gives none itself.

    Attributes:
        least: replies without which a sum would tell too much about one party; at least 2.
    """

    least: int = 2
    secure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(
                f"least={self.least}", where="SumsOnly", remedy="use at least 2: a sum of one is that one's reply"
            )

    async def reduce(
        self, fed: Federation, parties: Parties, task: Task, message: Tree, uplink: Chain, terms: Terms, at: Any
    ) -> Combined:
        """The sum.

        Raises:
            CompositionError: too few parties, or single replies in what they sent.
        """
        self._require(len(parties), "are asked")
        found = await fed.fold(parties, task, message, uplink, terms, at)
        self._require(found.n, "replied")
        if "parts" in found.kinds.values():
            raise CompositionError(
                "a reply holds parts", where="SumsOnly", remedy="reply with Sum or Mean, or use the plain reducer"
            )
        return found

    def _require(self, count: int, what: str) -> None:
        if count < self.least:
            raise CompositionError(
                f"{count} parties {what} and a sum needs {self.least}",
                where="SumsOnly",
                remedy="use larger cohorts: a sum of one is that one's reply",
            )
