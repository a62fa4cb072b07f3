"""What all parties of one bounded sum are told, and what of their totals is bounded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.errors import CompositionError, PolicyError

from ..ballot import Electorate
from ..words import FixedPoint, WordLayout
from .projections import RATIO

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree

    from ..words.slots import Slot

__all__ = ["BoundPlan", "BoundedTotal"]

BITS = 64
MOVING = ("buffer", "side", "update")
"""Roles of totals that move the model; metrics and reports do not."""


@dataclass(frozen=True)
class BoundedTotal:
    """A total whose norm is bounded.

    Attributes:
        slots: its arrays, in one lane.
        weight: its weight, if it is a mean.
        limit: ``b`` of `projections`, as a whole number; of a mean, for a weight of 1.
    """

    slots: list[Slot]
    weight: Slot | None
    limit: float

    @property
    def size(self) -> int:
        """Its numbers."""
        return sum(slot.size for slot in self.slots)


@dataclass(frozen=True)
class BoundPlan:
    """What all parties of one sum know.

    Attributes:
        names: the cohort.
        least: smallest number of parties in the sum.
        norm: the largest norm of an update.
        max_weight: the largest weight.
    """

    names: tuple[str, ...]
    least: int
    norm: float
    max_weight: float

    def message(self) -> Tree:
        """The plan as a message."""
        return {**asdict(self), "names": list(self.names)}

    @property
    def parties(self) -> int:
        """Size of the cohort."""
        return len(self.names)

    def electorate(self) -> Electorate:
        """Who votes on the set of the sum."""
        return Electorate(self.names, self.least, self.fingerprint)

    @classmethod
    def of(cls, message: Any) -> BoundPlan:
        """The inverse of `message`.

        Raises:
            PolicyError: it is something else, or hides nobody.
        """
        try:
            made = cls(**{**message, "names": tuple(message["names"])})
            sound = 2 <= made.least <= made.parties and made.norm > 0 and made.max_weight > 0
        except (TypeError, KeyError) as error:
            raise PolicyError(f"a plan of a bounded sum that cannot be read: {error}", where="bounded sum") from error
        if not sound:
            raise PolicyError(
                f"a bounded sum of {made.parties} parties, at least {made.least}",
                where="bounded sum",
                remedy="look at the server: a sum needs two parties and more",
            )
        return made

    @property
    def fingerprint(self) -> bytes:
        """A hash of the plan, 32 bytes."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def layout(self, form: Tree) -> WordLayout:
        """The layout of totals of a form: numbers are words of 64 bits, and so are votes, so that no projection wraps around unseen."""
        return WordLayout(form, FixedPoint(max_weight=self.max_weight), self.parties, None, signs=False)

    def find_bounded(self, layout: WordLayout) -> dict[str, BoundedTotal]:
        """The totals that move the model, by name.

        Raises:
            CompositionError: one of them has no norm, or is so large that sums could wrap around.
        """
        found = {}
        for name, _, role, _ in layout.form:
            if role not in MOVING:
                continue
            slots, weight = layout.slots_of(name)
            for unit in sorted({slot.unit for slot in slots}, key=str):  # whole numbers apart
                some = [slot for slot in slots if slot.unit == unit]
                if unit is None or {slot.bits for slot in some} != {BITS}:
                    raise CompositionError(
                        f"{name!r} has no norm that two servers can check",
                        where="BoundedSum",
                        remedy="send numbers, without stages that make words of them",
                    )
                made = found[f"{name} {unit}"] = BoundedTotal(some, weight, RATIO * self.norm * 2.0**-unit)
                self._require_room(made)
        return found

    def _require_room(self, total: BoundedTotal) -> None:
        """Require that no projection of numbers within their range wraps around; see `atoll.secure.bounded.projections`."""
        most = (2 * total.size + 1) * total.limit * (self.max_weight if total.weight is not None else 1.0)
        if most >= 2.0**63:
            raise CompositionError(
                f"norm={self.norm:g}, weights up to {self.max_weight:g} and {total.size} numbers need words of more than 64 bits",
                where="BoundedSum",
                remedy=f"use max_weight={self.max_weight * 2.0**62 / most:.3g} or less, or a smaller norm",
            )
