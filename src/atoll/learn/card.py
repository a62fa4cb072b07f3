"""Facts about an algorithm that its code does not show: its family and its properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Card", "Family"]

Family = Literal["first order", "compressed", "second order", "admm", "personal", "statistics", "wrapper"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """An algorithm's entry in ``atoll algorithms``. The paper is the class's ``citation``. Client state and floats on the wire are measured, not written here.

    Attributes:
        family: the algorithm's family.
        unbiased: with full participation and identical step counts, the fixed point is the optimum of the global objective.
        everyone: needs every client in every round.
        note: what a user needs to know, in one sentence.
        part: the class is only a pass or phase of other algorithms; the table leaves it out.
        down: for a program only: floats sent to one client in a round, as a formula that the docstring explains.
        up: for a program only: floats that one client sends in a round.
        state: for a program only: floats that a client keeps.
        secure: for a program only: it works with a reducer that reveals only sums.
        example: settings with which the table measures the algorithm, if the defaults are not enough.
    """

    family: Family = "first order"
    unbiased: bool = False
    everyone: bool = False
    note: str = ""
    part: bool = False
    down: str = ""
    up: str = ""
    state: str = ""
    secure: bool = False
    example: Mapping[str, Any] = field(default_factory=dict, hash=False)
