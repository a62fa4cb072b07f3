"""A server that sees only sums, as in the aggregate form of a protocol."""

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
    """Adds up as the plain reducer does, but passes on no single reply. It models secure aggregation in a simulation and provides none itself.

    Attributes:
        least: smallest number of replies in a sum, so that it does not reveal too much about one party; at least 2.
    """

    least: int = 2
    secure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ConfigError(
                f"least={self.least}", where="SumsOnly", remedy="use at least 2: a sum of one reply is that reply"
            )

    def check(self, uplink: Chain, parties: Parties, terms: Terms, task: Task) -> None:
        """Refuse cohorts of fewer parties.

        Raises:
            CompositionError: there are too few parties, or stages with encodings that cannot be added up.
        """
        super().check(uplink, parties, terms, task)
        self._require(len(parties), "are asked")

    async def reduce(self, reduction: Reduction) -> Reduced:
        """Return the sum.

        Raises:
            CompositionError: there are too few replies, or they contain single replies.
        """
        found = await reduction.fold()
        self._require(len(found.senders), "replied")
        if any(total.kind == "parts" for total in found.totals.values()):
            raise CompositionError(
                "a reply contains parts", where="SumsOnly", remedy="reply with Sum or Mean, or use the plain reducer"
            )
        return found

    def _require(self, count: int, what: str) -> None:
        if count < self.least:
            raise CompositionError(
                f"{count} parties {what}, but a sum needs {self.least}",
                where="SumsOnly",
                remedy="use larger cohorts: a sum of one reply is that reply",
            )
