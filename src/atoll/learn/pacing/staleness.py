"""Staleness functions: a reply's weight falls with the number of server updates since its base."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

from ..checks import require_positive

__all__ = ["ConstantStaleness", "HingeStaleness", "PolynomialStaleness", "Staleness"]


@dataclass(frozen=True, kw_only=True)
class Staleness(Checked):
    """Base class of staleness functions ``s(d)`` of the server updates ``d`` since the base: non-increasing, ``s(0) = 1``."""

    def weight(self, staleness: int) -> float:
        """Return ``s(d)``, in (0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ConstantStaleness(Staleness):
    """``s(d) = 1``. Xie, Koyejo, Gupta 2019, section 5.2."""

    def weight(self, staleness: int) -> float:
        """1."""
        del staleness
        return 1.0


@dataclass(frozen=True, kw_only=True)
class PolynomialStaleness(Staleness):
    """``s(d) = (1 + d)^-a``. Xie, Koyejo, Gupta 2019, section 5.2; with ``a = 1/2`` the weight of FedBuff (Nguyen et al. 2022, section 5).

    Attributes:
        a: exponent, 0 or more.
    """

    a: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.a < math.inf:
            raise ConfigError(f"a={self.a}", where=type(self).__name__, remedy="use an exponent of 0 or more")

    def weight(self, staleness: int) -> float:
        """Return ``(1 + d)^-a``."""
        return float((1.0 + staleness) ** -self.a)


@dataclass(frozen=True, kw_only=True)
class HingeStaleness(Staleness):
    """``s(d) = 1`` up to ``d = b``, then ``1 / (a (d - b) + 1)``. Xie, Koyejo, Gupta 2019, section 5.2.

    Attributes:
        a: slope of the denominator, positive.
        b: updates that reduce nothing, 0 or more.
    """

    a: float = 10.0
    b: int = 4

    def __post_init__(self) -> None:
        require_positive(type(self).__name__, a=self.a)
        if self.b < 0:
            raise ConfigError(f"b={self.b}", where=type(self).__name__, remedy="use a number of updates of 0 or more")

    def weight(self, staleness: int) -> float:
        """Return 1 up to ``b``, then the hyperbola."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)
