"""What a program knows of the replies to a sum before any of them is there, so that none is believed because it came first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..algebra.rng import Rng

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..algebra.aggregate import Aggregate, Totals
    from ..algebra.tree import Tree
    from .chain import Chain

__all__ = ["Expects", "ReplyForm", "weight_bound"]


@dataclass(frozen=True, eq=False)
class ReplyForm:
    """The form of one party's reply to a sum: names, kinds, shapes, metrics and weights.

    A task that can say this of all its replies has a `TaskSchema`. This is for a task whose replies follow from the request, such as the update of a model.

    Attributes:
        reply: an example of a reply; only its form matters.
        optional: aggregates that a reply may also have; ``None`` for a value of any form.
        metrics: names of the numbers that a reply may also have as metrics; ``None`` for any short name.
        weights: maps a name to the weights of a party with one row and with three rows: that of a party lies between 0 and the line through both.
            A weight without a bound need only be finite and at least 0.
    """

    reply: Mapping[str, Aggregate]
    optional: Mapping[str, Aggregate | None] = field(default_factory=dict)
    metrics: frozenset[str] | None = frozenset()
    weights: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def totals(self, uplink: Chain, public: Sequence[Tree]) -> tuple[Totals, dict[str, Totals | None]]:
        """Return what an example adds to the sum after the stages, and what each optional aggregate would add."""

        def added(reply: Mapping[str, Aggregate]) -> Totals:
            leaving = uplink.leaving(reply)
            return {name: uplink.rehearsed(name, one, public, Rng(0)).total for name, one in leaving.items()}

        more = {name: None if one is None else added({name: one}) for name, one in self.optional.items()}
        return added(self.reply), more


Expects = Callable[[], ReplyForm]
"""Gives the form of the replies; it is called only where replies come from other machines."""


def weight_bound(weights: tuple[float, float], rows: int) -> float:
    """Return the largest weight of a party with this many rows, given those of one row and of three.

    That of the line through both, which is above every concave weight, and a little more: weights are sums of floating-point numbers.
    """
    one, three = weights
    line = max(one, one + (three - one) / 2 * (max(rows, 1) - 1))
    most = line * 1.05 if rows == 2 else line  # between the two, a square root is above the line
    return float(np.nextafter(most, np.inf)) * (1 + 1e-9)
