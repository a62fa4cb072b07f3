"""What became of a cohort on its devices, as numbers of a round's row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.clock import Free
from atoll.core.errors import ConfigError
from atoll.core.party import among

if TYPE_CHECKING:
    from atoll.core.federation import Federation
    from atoll.core.results import Combined

    from .invitation import Inviter

__all__ = ["Losses", "fates", "require_in_time"]


def fates(fed: Federation, combined: Combined) -> dict[str, Any]:
    """What a request adds to its round's row; nothing in a world without devices.

    ``crashed``: who never answers; ``late``: whose reply nobody waits for; ``synchronised``: copies of the model that were sent; ``wasted``: work
    that is thrown away, in whole local updates (a crash throws away the share that it had done, a late reply all of it). See also `Losses`.
    """
    outcomes, asked = combined.outcomes, combined.asked
    if type(fed.world.cost) is Free or outcomes is None or asked is None:
        return {}
    heard = among(asked.positions, combined.senders.positions)
    crashed, late = ~outcomes.done, outcomes.done & ~heard
    return {
        "crashed": int(crashed.sum()),
        "late": int(late.sum()),
        "synchronised": len(asked),
        "wasted": float(outcomes.fraction[crashed].sum() + late.sum()),
    }


@dataclass(frozen=True)
class Losses:
    """What the meters of a scope, and of all below it, have counted of devices by some moment.

    Attributes:
        crashed: requests on which a device was lost.
        joules: spent; ``None`` where devices do not say.
    """

    crashed: int
    joules: float | None

    @classmethod
    def of(cls, fed: Federation) -> Losses:
        """By now."""
        meters = [fed.meter, *(member.meter for member in fed.below())]
        told = [meter.joules for meter in meters if meter.joules is not None]
        return cls(sum(meter.crashed for meter in meters), sum(told) if told else None)

    def since(self, fed: Federation) -> dict[str, Any]:
        """``crashed`` and ``energy_wh`` of a round that began then, whatever it asked of whom; nothing in a world without devices.

        A request is charged when it is sent. Work that is called off is given back in the round that calls it off, which may be a later one.
        """
        if type(fed.world.cost) is Free:
            return {}
        now = Losses.of(fed)
        lost = {"crashed": now.crashed - self.crashed}
        return lost if now.joules is None else {**lost, "energy_wh": (now.joules - (self.joules or 0.0)) / 3600.0}


def require_in_time(inviter: Inviter) -> None:
    """Refuse a deadline that no client can meet, be it of the pacing or of a selection rule such as FedCS.

    Raises:
        ConfigError: it says which client is the fastest, and when.
    """
    job = inviter.job
    limits = {"pacing": job.pacing.deadline, "selection": getattr(job.selection, "deadline", None)}
    deadlines = {part: limit for part, limit in limits.items() if limit is not None}
    if not deadlines:
        return
    everyone = inviter.fed.parties
    seconds = inviter.seconds(everyone)
    if seconds is None or len(seconds) == 0:
        return
    fastest = int(np.argmin(seconds))
    for part, deadline in deadlines.items():
        if seconds[fastest] > deadline:
            raise ConfigError(
                f"no client can answer within deadline={deadline:g} s; the fastest, {everyone[fastest].name}, takes {seconds[fastest]:.4g} s",
                where=f"Training.{part}={type(getattr(job, part)).__name__}",
                remedy=f"use a deadline of at least {np.ceil(seconds[fastest]):g} s, or less local work",
            )
