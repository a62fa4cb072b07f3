"""What the parties are told: of a set-up of keys, and of each sum under it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import PolicyError

from ..masking.agreement import Agreement

__all__ = ["MOST", "StandingTerms", "label_of_path", "setup_context"]

MOST = 10_000
"""The most sums that one set-up serves."""


@dataclass(frozen=True)
class StandingTerms:
    """The terms of one sum under standing keys.

    Attributes:
        agreed: the agreement, whose parties are those of the set-up.
        setup: names the set-up.
        round: number of the sum under it, from 0; each is used once.
        who: the places of the parties that are asked.
    """

    agreed: Agreement
    setup: str
    round: int
    who: tuple[int, ...]

    def message(self) -> Tree:
        """The terms as a message."""
        return {"agreed": self.agreed.message(), "id": self.setup, "round": self.round, "who": list(self.who)}

    @classmethod
    def of(cls, message: Any) -> StandingTerms:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else.
        """
        try:
            made = cls(
                Agreement.of(message["agreed"]),
                str(message["id"]),
                int(message["round"]),
                tuple(map(int, message["who"])),
            )
        except (TypeError, KeyError, ValueError) as error:
            raise PolicyError(f"terms of a sum that cannot be read: {error}", where="masked sum") from error
        return made

    def context(self, asked: str, layout: bytes) -> bytes:
        """What masks are bound to: the agreement, the program's request, the layout of the words, the set-up, the sum's number and who is asked."""
        rest = np.array([self.round, *sorted(self.who)], dtype="<i8").tobytes()
        return hashlib.sha256(self.agreed.context(asked, layout) + self.setup.encode() + b"\0" + rest).digest()


def setup_context(message: Any) -> tuple[int, str]:
    """The number of sums that a set-up is for, and its name.

    Raises:
        PolicyError: these are none.
    """
    sums, label = message.get("sums"), message.get("id")
    if not isinstance(sums, int) or not 1 <= sums <= MOST or not isinstance(label, str) or len(label) != 32:
        raise PolicyError(
            f"a set-up of keys for {sums!r} sums", where="masked sum", remedy=f"use a number from 1 to {MOST}"
        )
    return sums, label


def label_of_path(path: str) -> str:
    """The name of the set-up in a sum of this path. A run has no second one; its resumption repeats the set-up, with the answers of the parties' journals."""
    return hashlib.sha256(b"atoll set-up " + path.encode()).hexdigest()[:32]
