"""What a party demands of jobs: differential privacy for a unit, and a budget of all jobs together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atoll.core.errors import ConfigError, PolicyError
from atoll.core.event import Event, NonPrivate
from atoll.core.requests.policy import ReplyDemand
from atoll.core.validation import Checked, require_parts

from ..accountant import PrivacyLoss
from ..budget import Budget
from ..sampling import in_the_clear

__all__ = ["UNITS", "Demand", "at_unit"]

UNITS = ("example", "user", "island")
"""Units of protection; each contains those before it."""


def at_unit(loss: PrivacyLoss, unit: str) -> PrivacyLoss:
    """The loss of one unit: a release that protects only smaller units protects this one not at all."""
    wanted = UNITS.index(unit)
    weak = sum(n for event, n in loss.releases if UNITS.index(event.unit) < wanted)
    if not weak:
        return loss
    rest = (PrivacyLoss.of(event).times(n) for event, n in loss.releases if UNITS.index(event.unit) >= wanted)
    return sum(rest, PrivacyLoss.of(NonPrivate(unit=unit, what="protects smaller units only", count=weak)))


@dataclass(frozen=True)
class Demand(Checked, ReplyDemand):
    """What a party demands of every job, whatever the job says.

    Attributes:
        require: refuse replies, and jobs, that release anything without differential privacy.
        unit: what must be protected: ``"example"``, ``"user"`` or ``"island"``. A release that protects a larger unit is enough.
        budget: what all jobs together may spend of each party; ``None`` sets no limit.
    """

    require: bool = True
    unit: Literal["example", "user", "island"] = "user"
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ConfigError(f"unit={self.unit!r}", where="Demand", remedy=f"use one of {', '.join(UNITS)}")
        require_parts(self, {}, optional={"budget": (Budget, "atoll.privacy.Budget(epsilon=4.0)")})

    @property
    def adversary(self) -> str:
        """From whom it protects: the budget's, or else the server, who sees most."""
        return "server" if self.budget is None else self.budget.adversary

    def terms(self) -> dict[str, Any]:
        """The budget's terms as plain values, as the ledger notes them; empty without a budget."""
        if self.budget is None:
            return {}
        names = ("epsilon", "delta", "method", "adversary", "neighbours")
        return {"unit": self.unit, **{name: getattr(self.budget, name) for name in names}}

    def counted(self, loss: PrivacyLoss) -> float:
        """Epsilon of a loss, as the budget counts."""
        if self.budget is None:
            raise ConfigError("there is no budget", where="Demand", remedy="give Demand(budget=Budget(...))")
        return self.budget.counted(at_unit(loss, self.unit))

    def settle(self, task: str, events: Sequence[Event]) -> None:
        """Keep a reply from leaving that is not protected.

        Raises:
            PolicyError: nothing protects it, or only smaller units, or it says so itself.
        """
        why = self.unprotected(events)
        if why:
            raise PolicyError(
                f"the reply of task {task} {why}, and this party demands differential privacy of unit {self.unit!r}",
                remedy=_remedy(self.unit),
            )

    def unprotected(self, events: Sequence[Event]) -> str:
        """Why these releases are not protected as demanded; empty if they are, or if nothing is demanded."""
        counted = [event for event in events if not event.free]
        if not self.require:
            return ""
        for event in counted:
            if in_the_clear(event, self.adversary):
                return f"has {getattr(event, 'what', '') or 'a release'} without noise"
            if isinstance(event, NonPrivate):
                continue  # those from whom this party protects do not see it
            if UNITS.index(event.unit) < UNITS.index(self.unit):
                return f"protects unit {event.unit!r} only"
        return "" if any(not isinstance(event, NonPrivate) for event in counted) else "leaves without noise"

    def refusal(self, title: str, most: Sequence[Event] | None) -> PolicyError | None:
        """Why a job may not begin, from what it releases of a party at most.

        Args:
            title: the job, as errors name it.
            most: its releases; ``None`` if nobody can say.
        """
        if most is None and (self.require or self.budget is not None):
            return PolicyError(
                f"{title} does not say what it releases of a party at most, and this party demands differential privacy of unit {self.unit!r}",
                remedy="run a job that says it, such as a training with noise; a program says it in its attribute `releases`",
            )
        why = self.unprotected(most or ())
        if most and why:
            return PolicyError(
                f"{title} {why}, and this party demands differential privacy of unit {self.unit!r}",
                remedy=_remedy(self.unit),
            )
        return None


def _remedy(unit: str) -> str:
    return f"use a mechanism whose noise protects one {unit} at the clients (privacy=..., or uplink: Clip, then GaussianNoise), evaluate at the server, or leave the party out"
