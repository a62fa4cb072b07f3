"""Accounting: from events to the epsilon that each party has spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError
from atoll.core.event import (
    AttestationSimulated,
    Event,
    Gaussian,
    Laplace,
    Ledger,
    LettersUnencrypted,
    MasksVirtual,
    NonPrivate,
    Promise,
    SeededSecret,
    register_event,
    unpack_event,
)

from .gaussian import exact_epsilon, moments_epsilon

__all__ = ["LossTally", "Perturbed", "PrivacyLoss", "spent"]

_FIELDS = ("party", "request")


@register_event
@dataclass(frozen=True, kw_only=True)
class Perturbed(Event):
    """The minimiser of a perturbed objective: an ``epsilon``-private release."""

    epsilon: float
    kind: ClassVar[str] = "perturbed-objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon={self.epsilon}", remedy="use a finite number > 0")


@dataclass(frozen=True)
class PrivacyLoss:
    """The joint cost of releases. Costs add up, whatever the releases depend on.

    Attributes:
        gaussian: ``sum D^2 / sigma^2`` over the Gaussian releases.
        pure: sum of the epsilons of the pure releases.
    """

    gaussian: float = 0.0
    pure: float = 0.0

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        return PrivacyLoss(self.gaussian + other.gaussian, self.pure + other.pure)

    @classmethod
    def of(cls, event: Event) -> PrivacyLoss:
        """Return the cost of an event. Sampling counts as full participation, which is an upper bound: no amplification is claimed.

        Raises:
            ConfigError: no accountant supports this kind of event.
        """
        if isinstance(event, Gaussian):
            z = event.noise_multiplier
            return cls(gaussian=event.count / z**2 if z > 0 else math.inf)
        if isinstance(event, Laplace | Perturbed):
            return cls(pure=event.count * event.epsilon)
        if isinstance(event, NonPrivate):
            return cls(pure=math.inf)
        if isinstance(event, AttestationSimulated | SeededSecret | LettersUnencrypted | MasksVirtual | Promise):
            return cls()
        raise ConfigError(
            f"the cost of an event of kind {event.kind!r} is not known",
            where="Loss.of",
            remedy="release with Gaussian or Laplace noise, or count it yourself",
        )

    def epsilon(self, delta: float, method: str = "exact") -> float:
        """Epsilon at ``delta``; all of ``delta`` goes to the Gaussian part.

        Args:
            delta: in (0, 1]; unused if no release was Gaussian.
            method: ``"exact"`` or ``"moments"`` (never smaller; the bound that papers report).
        """
        if method not in ("exact", "moments"):
            raise ConfigError(f"method={method!r}", where="Loss.epsilon", remedy="use 'exact' or 'moments'")
        if not (math.isfinite(self.gaussian) and math.isfinite(self.pure)):
            return math.inf
        if self.gaussian == 0.0:
            return self.pure
        bound = exact_epsilon if method == "exact" else moments_epsilon
        return self.pure + bound(self.gaussian, delta)


@dataclass
class LossTally:
    """The losses of all parties, updated as a ledger grows.

    Attributes:
        ledger: the ledger of a world; entries are read in order and never removed.
    """

    ledger: Iterable[Mapping[str, Any]]
    losses: dict[str, PrivacyLoss] = field(default_factory=dict)
    seeded: bool = False
    _read: int = 0

    def update(self) -> LossTally:
        """Read the new entries."""
        lines = self.ledger.lines(self._read) if isinstance(self.ledger, Ledger) else [*self.ledger][self._read :]
        self._read += len(lines)
        for entry in lines:
            event = unpack_event({name: value for name, value in entry.items() if name not in _FIELDS})
            self.seeded = self.seeded or isinstance(event, SeededSecret)
            loss, party = PrivacyLoss.of(event), entry["party"]
            for name in [party] if isinstance(party, str) else party:
                self.losses[name] = self.losses.get(name, PrivacyLoss()) + loss
        return self

    def of(self, party: str) -> PrivacyLoss:
        """The loss of a party, including releases in the name of all parties."""
        both = self.losses.get(party, PrivacyLoss())
        return both + self.losses["*"] if "*" in self.losses and party != "*" else both

    def most(self, delta: float, method: str = "exact") -> float:
        """Epsilon of the party that has spent the most."""
        return max((loss.epsilon(delta, method) for loss in {self.of(name) for name in self.losses}), default=0.0)


@checked_call
def spent(ledger: Iterable[Mapping[str, Any]], delta: float, method: str = "exact") -> dict[str, float]:
    """Epsilon of each party in a ledger at ``delta``."""
    tally = LossTally(ledger).update()
    return {party: tally.of(party).epsilon(delta, method) for party in tally.losses if party != "*"}
