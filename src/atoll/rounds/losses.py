"""What a round cost its devices: lost devices, and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.requests.cost import is_instant

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation

__all__ = ["Losses"]


@dataclass(frozen=True)
class Losses:
    """What the meters of a scope and its child scopes have counted of devices so far.

    Attributes:
        crashed: requests during which a device was lost.
        joules: energy spent; ``None`` if devices do not count it.
    """

    crashed: int
    joules: float | None

    @classmethod
    def of(cls, fed: Federation) -> Losses:
        """The losses so far."""
        meters = [fed.meter, *(member.meter for member in fed.below())]
        joules = [meter.joules for meter in meters if meter.joules is not None]
        return cls(sum(meter.crashed for meter in meters), sum(joules) if joules else None)

    def since(self, fed: Federation) -> dict[str, Any]:
        """``crashed`` and ``energy_wh`` of a round that began then, over all its requests; empty in a world without devices.

        A request is charged when it is sent. Work that is called off is credited in the round that calls it off, which may be a later one.
        """
        if is_instant(fed.world.cost):
            return {}
        now = Losses.of(fed)
        lost = {"crashed": now.crashed - self.crashed}
        return lost if now.joules is None else {**lost, "energy_wh": (now.joules - (self.joules or 0.0)) / 3600.0}
