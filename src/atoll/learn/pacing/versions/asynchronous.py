"""Pacings with clients that work on models of several versions."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.capability import DISTINCT_CLIENTS, Capability, Need

from ...capabilities import ONE_PHASE, WHOLE_POPULATION
from ...checks import require_positive
from ..base import Pacing, refuse

__all__ = ["Asynchronous", "require_at_work"]


@dataclass(frozen=True, kw_only=True)
class Asynchronous(Pacing):
    """Base class of the asynchronous pacings.

    Attributes:
        look_again: seconds after which a server without working clients looks again for available ones.
    """

    look_again: float = 60.0

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, look_again=self.look_again)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, a server, distinct clients, and one contact per round."""
        return (
            *super().needs,
            Need(ONE_PHASE, "lets clients work in different rounds", "Synchronous()"),
            Need(DISTINCT_CLIENTS, "gives a client one request at a time", "Synchronous()"),
        )

    @property
    def offers(self) -> frozenset[Capability]:
        """Only the whole population, over several rounds: clients work on models of several versions."""
        return frozenset({WHOLE_POPULATION})


def require_at_work(pacing: Pacing, setting: str, wanted: int, most: int) -> None:
    """Refuse a setting that needs more clients than can work at once.

    Args:
        pacing: the pacing with the setting.
        setting: name and value of the setting.
        wanted: number of clients needed.
        most: number of clients that work.

    Raises:
        CompositionError: the setting needs more.
    """
    if wanted > most:
        why = f"{setting}, but only {most} clients work at once"
        refuse(pacing, why, "pacing", f"use at most {most}, or select more clients")
