"""From events to epsilon: what each party has spent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.errors import ConfigError
from atoll.core.event import (
    Event,
    Gaussian,
    Laplace,
    Ledger,
    LettersUnencrypted,
    NonPrivate,
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
    """The minimiser of a perturbed objective: a release that is ``epsilon``-private."""

    epsilon: float
    kind: ClassVar[str] = "perturbed-objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"epsilon={self.epsilon}", remedy="use a finite number > 0")


@dataclass(frozen=True)
class PrivacyLoss:
    """What some releases cost together; costs add up, whatever the releases depend on.

    Attributes:
        gaussian: ``sum D^2 / sigma^2`` over the Gaussian releases.
        pure: sum of the epsilons of the pure ones.
    """

    gaussian: float = 0.0
    pure: float = 0.0

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        return PrivacyLoss(self.gaussian + other.gaussian, self.pure + other.pure)

    @classmethod
    def of(cls, event: Event) -> PrivacyLoss:
        """The cost of an event. Sampling is counted as if everything took part: an upper bound, for no amplification is claimed.

        Raises:
            ConfigError: no accountant knows this kind of event.
        """
        if isinstance(event, Gaussian):
            z = event.noise_multiplier
            return cls(gaussian=event.count / z**2 if z > 0 else math.inf)
        if isinstance(event, Laplace | Perturbed):
            return cls(pure=event.count * event.epsilon)
        if isinstance(event, NonPrivate):
            return cls(pure=math.inf)
        if isinstance(event, SeededSecret | LettersUnencrypted):
            return cls()
        raise ConfigError(
            f"what an event of kind {event.kind!r} costs is not known",
            where="Loss.of",
            remedy="release with Gaussian or Laplace noise, or count it yourself",
        )

    def epsilon(self, delta: float, method: str = "exact") -> float:
        """Epsilon at ``delta``: all of ``delta`` is for the Gaussian part.

        Args:
            delta: in (0, 1]; plays no role where nothing Gaussian was released.
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
    """The losses of all parties, kept up as a ledger grows.

    Attributes:
        ledger: of a world; its entries are read in order and never taken back.
    """

    ledger: Iterable[Mapping[str, Any]]
    losses: dict[str, PrivacyLoss] = field(default_factory=dict)
    seeded: bool = False
    _read: int = 0

    def update(self) -> LossTally:
        """Read what is new."""
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
        """What a party has spent, with what was spent in everybody's name."""
        both = self.losses.get(party, PrivacyLoss())
        return both + self.losses["*"] if "*" in self.losses and party != "*" else both

    def most(self, delta: float, method: str = "exact") -> float:
        """Epsilon of the party that has spent most."""
        return max((loss.epsilon(delta, method) for loss in {self.of(name) for name in self.losses}), default=0.0)


def spent(ledger: Iterable[Mapping[str, Any]], delta: float, method: str = "exact") -> dict[str, float]:
    """Epsilon of every party in a ledger at ``delta``."""
    tally = LossTally(ledger).update()
    return {party: tally.of(party).epsilon(delta, method) for party in tally.losses if party != "*"}
