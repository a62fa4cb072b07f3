"""What the uplink's stages release for a cohort's replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..errors import PolicyError
from ..event import Event

if TYPE_CHECKING:
    from ..requests.party import Roster
    from ..requests.request import Request

__all__ = ["Booked", "Spend", "UplinkSpending"]

Spend = Callable[[Event, "str | Sequence[str]", str], None]
"""Records an event of one or several parties in a ledger; it is durable when the call returns."""


@dataclass
class Booked:
    """Spends, and remembers what was spent: a policy may look at it before a reply leaves.

    Attributes:
        spend: records events; ``None`` without a ledger.
        events: what was recorded.
    """

    spend: Spend | None
    events: list[Event] = field(default_factory=list)

    @property
    def noting(self) -> Spend | None:
        """What the task spends with."""
        return None if self.spend is None else self._noted

    def _noted(self, event: Event, party: str | Sequence[str], request: str) -> None:
        if self.spend is not None:
            self.spend(event, party, request)
        self.events.append(event)


@dataclass
class UplinkSpending:
    """Collect what the replies of a cohort release, and record it as one column for all parties with the same releases.

    Attributes:
        request: the request with the uplink.
        roster: all parties, for names.
        spend: records events.
    """

    request: Request
    roster: Roster
    spend: Spend | None
    _released: dict[int, list[int]] = field(default_factory=dict)

    def add(self, positions: Sequence[int], values: int) -> None:
        """Count this many named values of these parties that go through the stages."""
        if values and self.request.uplink.events:
            self._released.setdefault(values, []).extend(positions)

    def write(self) -> None:
        """Record the events. They are durable when this returns; only then may the replies leave.

        Raises:
            PolicyError: there is no ledger.
        """
        for values, positions in self._released.items():
            if self.spend is None:
                raise PolicyError(
                    "the uplink releases under privacy, but there is no ledger",
                    where=self.request.id,
                    remedy="run the task through a federation",
                )
            names = [self.roster.name(p) for p in dict.fromkeys(positions)]
            for i, event in enumerate(self.request.uplink.events):
                label = f"{self.request.id}#uplink/{i}"
                self.spend(replace(event, count=event.count * values), names, label)
        self._released = {}
