"""A sight: every word that a server receives in one run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atoll.core import message as M
from atoll.core.algebra import tree as T

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree

__all__ = ["SecretDraw", "Sight", "WordAt"]


class SecretDraw(NamedTuple):
    """One call of a method of ``island.secret``."""

    request: str
    party: str
    place: int


class WordAt(NamedTuple):
    """Where a word of at most eight bytes, or a whole number of any size, is in what the server receives."""

    request: str
    party: str
    path: str
    place: int

    @property
    def column(self) -> tuple[str, str, int]:
        """Return where it is, whichever party sends it."""
        return self.request, self.path, self.place


@dataclass
class Sight:
    """What the server received in one run.

    Attributes:
        words: every word, as a whole number.
        bits: how many bits each word has.
        draws: the secret draws of parties, in order.
        messages: id of a request -> what the parties received.
        asked: id of a request -> the parties that received it.
        wrapping: ids of the requests whose replies consist of the program's totals.
        result: what the program returned.
    """

    words: dict[WordAt, int] = field(default_factory=dict)
    bits: dict[WordAt, int] = field(default_factory=dict)
    draws: list[SecretDraw] = field(default_factory=list)
    messages: dict[str, Tree] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    wrapping: list[str] = field(default_factory=list)
    result: Any = None

    def note(self, request: str, party: str, sent: Tree) -> None:
        """Record what one party sent."""
        for path, leaf in T.items(sent):
            for index, (word, bits) in enumerate(_words(leaf)):
                at = WordAt(request, party, path, index)
                self.words[at], self.bits[at] = word, bits

    def leave_out(self, tasks: Collection[str]) -> None:
        """Forget what was sent in reply to these tasks."""
        for at in [at for at in self.words if any(f"/{name}/" in at.request for name in tasks)]:
            del self.words[at], self.bits[at]

    def differs(self, other: Sight) -> set[WordAt] | None:
        """Return where another sight has other words; ``None`` if the two have words at different places."""
        if self.words.keys() != other.words.keys():
            return None
        return {at for at, word in self.words.items() if other.words[at] != word}


def _words(leaf: Any) -> Iterator[tuple[int, int]]:
    """Yield the words of a leaf, with their bits."""
    if isinstance(leaf, int) and not isinstance(leaf, bool):
        bits = max(64, -(-leaf.bit_length() // 64) * 64)
        yield leaf % (1 << bits), bits
        return
    plain = isinstance(leaf, np.ndarray | np.generic | float) and np.asarray(leaf).dtype.kind in "biufc"
    if plain:
        array = np.asarray(leaf)
        raw, size = array.astype(array.dtype.newbyteorder("<")).tobytes(), array.dtype.itemsize
    else:
        raw, size = leaf if isinstance(leaf, bytes) else M.encode(leaf), 8
    for start in range(0, len(raw), size):
        part = raw[start : start + size]
        yield int.from_bytes(part, "little"), 8 * len(part)
