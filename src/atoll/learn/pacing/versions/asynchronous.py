"""Paces at which clients work on models of several versions."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.capability import DISTINCT_CLIENTS, Capability, Need

from ...capabilities import ONE_PHASE, WHOLE_POPULATION
from ...checks import require_positive
from ..base import Pacing, refuse

__all__ = ["Asynchronous", "require_at_work"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Pacing):
    """Base of the asynchronous pacings.

    Attributes:
        look_again: seconds after which a server that has nobody at work looks again for clients that are there.
    """

    look_again: float = 60.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, look_again=self.look_again)

    @property
    def needs(self) -> tuple[Need, ...]:
        """A server, clients that are asked once at a time, and one contact a round."""
        return (
            *super().needs,
            Need(ONE_PHASE, "has clients at work in different rounds", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "has a client work once at a time", "Synchronous()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Only that everybody is in its rounds sometime: clients work on models of several versions."""
        return frozenset({WHOLE_POPULATION})


def require_at_work(pacing: Pacing, setting: str, wanted: int, most: int) -> None:
    """Refuse a setting that wants more clients than can be at work.

    Args:
        pacing: whose it is.
        setting: its name and value.
        wanted: clients.
        most: that are at work.

    Raises:
        CompositionError: it does.
    """
    if wanted > most:
        why = f"{setting}, and {most} clients are at work"
        refuse(pacing, why, "pacing", f"use at most {most}, or select more clients")
