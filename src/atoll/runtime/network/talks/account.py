"""What a role that may talk directly reports to the server; see `atoll.runtime.network.talks.direct`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["WORDS", "Account"]

WORDS = 512
"""Words of a role that are collected at most."""


class Account:
    """The words of one role, in the order of its actions.

    Args:
        session: its number.
        role: the role.
        reached: the roles that it reaches directly -> their site; None if no roles in the session reach each other, and
            the server sees all.
        say: sends a frame to the server.

    Attributes:
        reached: see above; empty for None.
    """

    def __init__(
        self, session: int, role: str, reached: Mapping[str, str] | None, say: Callable[[Mapping[str, Any]], object]
    ) -> None:
        self.reached = dict(reached or {})
        self._kept = reached is not None
        self._frame = {"op": "words", "session": session, "role": role}
        self._say = say
        self._words: list[list[Any]] = []

    def note(self, *word: Any) -> None:
        """Keep a word."""
        if self._kept:
            self._words.append(list(word))
            if len(self._words) >= WORDS:
                self.tell()

    def tell(self) -> None:
        """Send the words so far to the server."""
        if self._words:
            self._say({**self._frame, "words": self._words})
            self._words = []
