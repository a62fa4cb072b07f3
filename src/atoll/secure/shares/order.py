"""Orders: what a dealer is asked for. A dealer serves only orders that its sharing can need."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.errors import LetterError

from .sharing import AuthenticatedSharing
from .word_ring import WordRing

if TYPE_CHECKING:
    from .sharing import Sharing

__all__ = ["Order"]

MOST = 1 << 27
"""Entries of one order: a gigabyte of words a party."""
_SHAPES = {"triple": 1, "dot": 2, "mask": 1, "bit": 1, "cut": 1, "random": 1, "input": 1, "key": 0}


@dataclass(frozen=True)
class Order:
    """An order; the arguments are those of `Dealer.get`."""

    what: str
    shapes: tuple[tuple[int, ...], ...]
    bitwise: bool = False
    by: int = 0
    owner: int | None = None

    def packed(self) -> dict[str, Any]:
        """The order as it travels."""
        shapes = [list(map(int, shape)) for shape in self.shapes]
        return {"what": self.what, "shapes": shapes, "bitwise": self.bitwise, "by": self.by, "owner": self.owner}

    def __str__(self) -> str:
        return f"{self.what} {list(self.shapes)}"

    @classmethod
    def read(cls, told: Any, sharing: Sharing, party: str) -> Order:
        """The order that a party has sent.

        Raises:
            LetterError: it has no form, is too large, or is for something that the sharing does not have.
        """
        made = _formed(told)
        if made is None or made._unfit(sharing):
            raise LetterError(
                f"an order of {party} that the dealer cannot serve: {told!r:.200}",
                remedy=f"look at {party}: the parties and the dealer must run the same version and the same sharing",
            )
        return made

    def _unfit(self, sharing: Sharing) -> bool:
        coded = isinstance(sharing, AuthenticatedSharing)
        if self.what == "dot" and not (
            all(len(shape) == 2 for shape in self.shapes) and self.shapes[0][1] == self.shapes[1][0]
        ):
            return True
        if self.what == "cut":
            return coded or not isinstance(sharing.domain, WordRing) or not 1 <= self.by <= sharing.domain.bits - 2
        if self.what == "input":
            return not coded or self.owner is None or not 0 <= self.owner < sharing.n
        return self.what == "key" and not coded


def _formed(told: Any) -> Order | None:
    """An order of the right types and of a size that can be served."""
    if not isinstance(told, dict) or set(told) != {"what", "shapes", "bitwise", "by", "owner"}:
        return None
    what, shapes, bitwise, by, owner = (told[name] for name in ("what", "shapes", "bitwise", "by", "owner"))
    if not isinstance(what, str) or _SHAPES.get(what) is None or not isinstance(shapes, list):
        return None
    formed = all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes)
    if not formed or len(shapes) != _SHAPES[what] or any(math.prod(shape) > MOST for shape in shapes):
        return None
    if what == "dot" and len(shapes[0]) == 2 == len(shapes[1]) and shapes[0][0] * shapes[1][1] > MOST:
        return None
    if type(bitwise) is not bool or type(by) is not int or not (owner is None or type(owner) is int):
        return None
    return Order(what, tuple(map(tuple, shapes)), bitwise, by, owner)
