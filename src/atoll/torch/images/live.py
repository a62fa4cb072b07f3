"""How many rows of a mini-batch are real: the others only pad it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Live", "padded"]


class Live:
    """The real rows of the mini-batch that a program is about to see.

    Native layers leave out images that pad, and return zeros for them: the loss weighs these rows with zero, so that nothing depends on their values.

    Attributes:
        width: rows of the mini-batch, padding included.
        rows: real ones; they come first.
    """

    def __init__(self) -> None:
        self.width = -1
        self.rows = -1

    def of(self, count: int) -> int:
        """Return how many of some images are real: all of them, unless there is one for each row."""
        return self.rows if count == self.width else count


def padded(tensor: Tensor, rows: int) -> Tensor:
    """Fill the rows from a number on with zeros, in place, and return the tensor."""
    if rows < len(tensor):
        tensor[rows:].zero_()
    return tensor
