"""What a task promises about the numbers in its reply, for sites whose policy asks for it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Disclosure"]


@dataclass(frozen=True)
class Disclosure:
    """The promise of one request.

    Attributes:
        min_count: every number that describes values rests on at least this many rows of the party.
        private: whether the reply has noise of differential privacy instead, which the ledger has.
    """

    min_count: int = 1
    private: bool = False
