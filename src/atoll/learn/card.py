"""What is known of an algorithm beside its code: its family and its promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Card", "Family"]

Family = Literal["first order", "compressed", "second order", "admm", "personal", "statistics", "wrapper"]


@dataclass(frozen=True, kw_only=True)
class Card:
    """An algorithm's entry in ``atoll algorithms``. The paper is the class's ``citation``. What can be measured (client state, floats on the wire) is measured, not written here.

    Attributes:
        family: the group that it belongs to.
        unbiased: with full participation and identical step counts its fixed point is the optimum of the global objective.
        everyone: needs every client in every round.
        note: what a user should know, in a sentence.
        part: does not train by itself: a pass or phase of other algorithms, left out of the table.
        down: of a program, whose messages depend on its problem: floats to one client in a round, as a formula that its docstring explains.
        up: of a program: floats from it.
        state: of a program: floats that it keeps.
        secure: of a program: it takes a reducer that shows sums alone.
        example: settings with which the table measures it, where the defaults alone are not enough.
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
