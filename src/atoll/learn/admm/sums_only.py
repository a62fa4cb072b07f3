"""A server that is shown sums and nothing else: what an aggregate form of a protocol must be content with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.federation.reducer import Reducer
from atoll.core.federation.reduction import Reduction
from atoll.core.requests.chain import Chain
from atoll.core.requests.party import Parties
from atoll.core.requests.request import Reduced
from atoll.core.requests.results import Terms
from atoll.core.requests.task import Task

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

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts of fewer parties.

        Raises:
            CompositionError: too few parties, or stages whose encodings cannot be added up.
        """
        super().check(uplink, parties, terms, task)
        self._require(len(parties), "are asked")

    async def reduce(self, reduction: Reduction) -> Reduced:
        """The sum.

        Raises:
            CompositionError: too few replies, or single replies in what they sent.
        """
        found = await reduction.fold()
        self._require(len(found.senders), "replied")
        if any(total.kind == "parts" for total in found.totals.values()):
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
