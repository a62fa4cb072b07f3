"""Synchronous rounds with deadline, over-selection and quorum (Bonawitz et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.core.capability import FITTED, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.results import Late

from .base import Pacing

if TYPE_CHECKING:
    from atoll.rounds.loop import Course

    from ..context import Context

__all__ = ["Synchronous"]


@dataclass(frozen=True, kw_only=True)
class Synchronous(Pacing):
    """Invite a cohort, wait, aggregate.

    Attributes:
        deadline: seconds that a round may take; ``None`` waits for all clients with a live link.
        over_select: invite ``ceil(over_select * cohort)`` clients and close when as many as the cohort's size have answered.
        quorum: replies that a round needs to succeed, a number or a fraction of the cohort.
        late: what to do with the others: ``"cancel"`` their work, or do it and ``"drop"`` the reply.
        on_failure: a round below the quorum stops the training (``"stop"``) or is skipped (``"skip"``). A skipped round ends before the
            phase that failed: its replies are not folded and ``advance`` is not called. What earlier phases folded stays, as it does at
            the clients. So with algorithms of one phase, the model is unchanged.
    """

    deadline: float | None = None
    over_select: float = 1.0
    quorum: int | float = 1
    late: Late = "cancel"
    on_failure: str = "stop"

    def __post_init__(self) -> None:
        if self.over_select < 1.0:
            raise ConfigError(f"over_select={self.over_select}", remedy="use a factor of at least 1.0")
        if self.deadline is not None and not self.deadline > 0:
            raise ConfigError(f"deadline={self.deadline} seconds", remedy="use a positive number, or None")
        if not isinstance(self.quorum, float) and self.quorum < 0:
            raise ConfigError(
                f"quorum={self.quorum}", remedy="use a fraction in (0, 1] or a whole number of at least 0"
            )
        if self.late not in ("cancel", "drop"):
            raise ConfigError(
                f"late={self.late!r}: a synchronous round takes no reply after it has closed",
                remedy="use 'cancel' or 'drop'",
            )
        if isinstance(self.quorum, float) and not 0.0 < self.quorum <= 1.0:
            raise ConfigError(
                f"quorum={self.quorum} is not a fraction", remedy="use a fraction in (0, 1] or a whole number"
            )
        if self.on_failure not in ("stop", "skip"):
            raise ConfigError(f"on_failure={self.on_failure!r}", remedy="use 'stop' or 'skip'")

    @property
    def needs(self) -> tuple[Need, ...]:
        """Nothing: every topology supports these settings. A class with its own ``course`` needs a server that runs it."""
        return () if type(self).course is Synchronous.course else super().needs

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's, and fitted stages. A class with its own ``course`` fits none unless it says so."""
        return super().offers | ({FITTED} if type(self).course is Synchronous.course else frozenset())

    def invited(self, cohort: int) -> int:
        """Return how many clients to invite so that ``cohort`` answer."""
        return math.ceil(self.over_select * cohort - 1e-9)

    def terms(self, cohort: int) -> dict[str, Any]:
        """Return arguments for ``Federation.sum``."""
        quorum = math.ceil(self.quorum * cohort) if isinstance(self.quorum, float) else self.quorum
        accept = cohort if self.over_select > 1.0 else None
        return {"deadline": self.deadline, "quorum": min(quorum, cohort), "accept": accept, "late": self.late}

    def check(self, context: Context) -> None:
        """Refuse a quorum that no cohort can reach.

        Raises:
            CompositionError: the quorum is larger than the cohort.
        """
        super().check(context)
        cohort = context.cohort
        if not isinstance(self.quorum, float) and self.quorum > cohort:
            raise CompositionError(
                f"quorum={self.quorum} replies, but {type(context.selection).__name__} has rounds of {cohort} clients",
                where="Training.pacing",
                remedy=f"use a quorum of at most {cohort}, or a share of the cohort such as quorum=0.8",
            )

    def course(self, context: Context) -> Course:
        """Return rounds of select, broadcast, train, sum, fold."""
        from ..round.rounds import ServerRounds

        return ServerRounds(context)
