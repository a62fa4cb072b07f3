"""The words of a block of parties that run together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .layout import form_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atoll.core.algebra.tree import Tree
    from atoll.core.requests.cohort import TotalsBlock

    from .layout import WordLayout

__all__ = ["CodedBlock"]


class CodedBlock(NamedTuple):
    """Words of a block, without those parties whose totals have none.

    Attributes:
        positions: places of the parties in the cohort.
        good: their places in the block.
        lanes: their words.
        layout: of the words.
        errors: place in the cohort -> why a party has no words.
    """

    positions: Any
    good: list[int]
    lanes: dict[str, Any]
    layout: WordLayout
    errors: dict[int, Exception]

    @classmethod
    def of(cls, block: TotalsBlock, layout_of: Callable[[Tree], WordLayout], names: Sequence[str] = ()) -> CodedBlock:
        """Encode the totals of a block.

        Args:
            block: the totals.
            layout_of: form of totals -> the layout of their words.
            names: of the parties, for errors.
        """
        return cls.under(layout_of(form_of(block.totals, block=True)), block, names)

    @classmethod
    def under(cls, layout: WordLayout, block: TotalsBlock, names: Sequence[str] = ()) -> CodedBlock:
        """Encode the totals of a block by a layout."""
        made = layout.encode_block(block.totals, list(names))
        good = [i for i in range(len(block.positions)) if i not in made.errors]
        lanes = made.lanes if not made.errors else {lane: words[good] for lane, words in made.lanes.items()}
        errors = {int(block.positions[i]): error for i, error in made.errors.items()}
        return cls(block.positions[good], good, lanes, layout, errors)
