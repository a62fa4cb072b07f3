"""Outcomes of a cohort on its devices, as numbers of a round's row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.requests.cost import is_instant
from atoll.core.requests.party import among

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.results import Combined

    from .invitation import Inviter

__all__ = ["outcome_columns", "require_in_time"]


def outcome_columns(fed: Federation, combined: Combined) -> dict[str, Any]:
    """Return what a request adds to its round's row; empty in a world without devices.

    ``crashed``: clients that never answer; ``late``: replies not awaited; ``synchronised``: copies of the model sent; ``wasted``: discarded work
    in whole local updates (a crash discards the share done, a late reply all of it). See also `atoll.rounds.loop.Losses`.
    """
    outcomes, asked = combined.outcomes, combined.asked
    if is_instant(fed.world.cost) or outcomes is None or asked is None:
        return {}
    heard = among(asked.positions, combined.senders.positions)
    crashed, late = ~outcomes.done, outcomes.done & ~heard
    return {
        "crashed": int(crashed.sum()),
        "late": int(late.sum()),
        "synchronised": len(asked),
        "wasted": float(outcomes.fraction[crashed].sum() + late.sum()),
    }


def require_in_time(inviter: Inviter) -> None:
    """Refuse a deadline that no client can meet, of the pacing or of a selection rule such as FedCS.

    Raises:
        ConfigError: names the fastest client and its time.
    """
    context = inviter.context
    limits = {"pacing": context.pacing.deadline, "selection": getattr(context.selection, "deadline", None)}
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
                where=f"Training.{part}={type(getattr(context, part)).__name__}",
                remedy=f"use a deadline of at least {np.ceil(seconds[fastest]):g} s, or less local work",
            )
