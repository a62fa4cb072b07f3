"""What a task promises about the numbers in its reply, and what a site's policy says about numbers that describe its rows."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

__all__ = ["RULES_TASK", "Disclosure", "RowRules"]

RULES_TASK = "atoll.core.federation.row_rules:told_rules"
"""The task that tells a party's smallest minimum count. It looks at the policy and at no row, so every policy admits it."""


@dataclass(frozen=True)
class Disclosure:
    """The promise of one request.

    Attributes:
        min_count: every number that describes values rests on at least this many rows of the party.
        private: whether the reply has noise of differential privacy instead, which the ledger has.
        summed: whether the promise holds for the sum over the parties alone: a request for the reply itself, outside one of Atoll's own secure reducers, is refused.
    """

    min_count: int = 1
    private: bool = False
    summed: bool = False


@dataclass(frozen=True)
class RowRules:
    """What a party's policy says about numbers that describe its rows.

    Attributes:
        min_count: smallest number of rows behind every number.
        extremes: names of columns whose smallest and largest value may be told, with ``*`` and ``?``; ``None`` is no word: then they may be told where a
            single row may be.
        min_aligned: smallest number of shared keys of an alignment; with fewer the party tells nothing of them.
        predictions_per_hour: most rows that the party helps to predict within an hour; ``None`` is any number.
    """

    min_count: int = 1
    extremes: tuple[str, ...] | None = None
    min_aligned: int = 1
    predictions_per_hour: int | None = None

    def tells_extremes(self, column: str, least: int) -> bool:
        """Whether the smallest and the largest value of a column may be told.

        Args:
            column: its name.
            least: the minimum count of the request.
        """
        if self.extremes is None:
            return max(least, self.min_count) <= 1
        return any(fnmatchcase(column, pattern) for pattern in self.extremes)
