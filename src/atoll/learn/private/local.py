"""Local differential privacy: every reply is private by itself, so nobody needs to be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from atoll.core.capability import CENTRAL_SERVER, SERVER, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.stages.local import FedSel, LocalGaussian, LocalLaplace, RandomisedSigns, Randomiser

from ..aggregation.base import EqualWeights
from ..capabilities import EQUAL_REPLIES, ONE_MODEL, PLAIN_MEAN
from .base import Mechanism, TrainingParts
from .claim import Attendance

__all__ = ["FedSelDP", "GaussianLDP", "LaplaceLDP", "LocalDP", "SignsLDP"]


@dataclass(frozen=True, kw_only=True)
class LocalDP(Mechanism):
    """Base class of local mechanisms: each client randomises what it sends.

    Whoever sees a reply, the server first, cannot tell which of two values the client had: neighbours replace all that a client has. The price is noise in every
    reply, which falls with the root of the number of replies only. Replies count equally, so that sizes stay at the clients.
    """

    unit: Literal["user"] = "user"
    neighbours: Literal["replace-one"] = "replace-one"
    adversary: Literal["server", "clients", "model"] = "server"
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "unit": ("user",),
        "neighbours": ("replace-one",),
        "adversary": ("server", "clients", "model"),
    }
    instead: ClassVar[Mapping[str, str]] = {
        "example": "a mechanism for examples",
        "add-remove": "CentralDP: a server that sees single replies knows who takes part",
    }

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return the stage that randomises one value of a reply.

        Args:
            values: named values of a client's replies in a round; they share what a round costs.
            noise: of all of them together; what it means is up to the mechanism.
        """
        raise NotImplementedError

    def stage(self, taking: Attendance, noise: float) -> Randomiser:
        """Return the randomiser of each value of a round."""
        return self.randomiser(taking.values, noise)

    @property
    def needs(self) -> tuple[Need, ...]:
        """A server that takes a plain mean of one kind of reply."""
        why = "replaces what clients send a server"
        equal = Need(EQUAL_REPLIES, "keeps at the clients how much they hold")
        return (Need(SERVER, why), Need(CENTRAL_SERVER, why), Need(ONE_MODEL, why), equal)

    @property
    def assuming(self) -> tuple[str, ...]:
        """Nobody is trusted."""
        return ("nobody is trusted with a reply", "whether a client takes part does not depend on its data")

    def check(self, training: TrainingParts) -> None:
        """Refuse another aggregation."""
        super().check(training)
        if PLAIN_MEAN not in training.aggregation.offers:
            raise CompositionError(
                f"{type(self).__name__} weights clients equally, and {type(training.aggregation).__name__} weights them in its own way",
                where="Training.aggregation",
                remedy="leave aggregation out",
            )

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install the randomiser before all other stages, and equal weights."""
        return {"uplink": (self.stage(taking, noise), *training.uplink), "aggregation": EqualWeights()}

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return what the randomiser releases, for all values of a round."""
        each = self.stage(taking, noise).events(None)
        return tuple(event for event in each for _ in range(taking.values))


@dataclass(frozen=True, kw_only=True)
class _ClippedLDP(LocalDP):
    """A local mechanism whose noise is for updates that are scaled down to ``clip``."""

    clip: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip={self.clip}", where=type(self).__name__, remedy="use a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class GaussianLDP(_ClippedLDP):
    """Clients scale their update down to an L2 norm of ``clip`` and add ``N(0, (2 clip noise)^2)`` to each entry; see `atoll.stages.LocalGaussian`.

    Attributes:
        clip: largest L2 norm of an update.
    """

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return Gaussian noise whose releases, one for each value, are one of multiplier ``noise`` together."""
        return LocalGaussian(bound=self.clip, multiplier=noise * math.sqrt(values))


@dataclass(frozen=True, kw_only=True)
class _PureLDP(LocalDP):
    """A local mechanism without a delta; ``noise`` is one over the epsilon of a participation."""

    pure: ClassVar[bool] = True

    def _epsilon(self, values: int, noise: float) -> float:
        return 1 / (noise * values)


@dataclass(frozen=True, kw_only=True)
class LaplaceLDP(_PureLDP, _ClippedLDP):
    """Clients scale their update down to an L1 norm of ``clip`` and add Laplace noise of scale ``2 clip noise``; see `atoll.stages.LocalLaplace`.

    Attributes:
        clip: largest L1 norm of an update.
    """

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return Laplace noise; the values of a round share its epsilon."""
        return LocalLaplace(bound=self.clip, epsilon=self._epsilon(values, noise))


@dataclass(frozen=True, kw_only=True)
class _EntriesLDP(_PureLDP):
    """A local mechanism that reports single entries: at most as many as the largest value has, so that no part of epsilon is for reports that are never made.

    Attributes:
        entries: how many entries a client reports of a value.
    """

    entries: int = 1

    def stage(self, taking: Attendance, noise: float) -> Randomiser:
        """Return the randomiser for values of this size."""
        made = self.randomiser(taking.values, noise)
        return replace(made, entries=min(self.entries, taking.entries)) if taking.entries else made  # type: ignore[call-arg]


@dataclass(frozen=True, kw_only=True)
class SignsLDP(_EntriesLDP):
    """Clients report the signs of random entries by randomised response; see `atoll.stages.RandomisedSigns`.

    Attributes:
        limit: largest magnitude of an entry.
    """

    limit: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.randomiser(1, 1.0)  # refuses settings that make no sense

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return randomised response on signs."""
        return RandomisedSigns(limit=self.limit, epsilon=self._epsilon(values, noise), entries=self.entries)


@dataclass(frozen=True, kw_only=True)
class FedSelDP(_EntriesLDP):
    """Clients choose one of their largest entries privately and report it by randomised response; see `atoll.stages.FedSel`.

    Attributes:
        limit: largest magnitude of a reported entry.
        fraction: share of the entries that count as the largest.
        share: part of epsilon for the choice.
        decay: factor on what was not reported, from round to round.
    """

    limit: float
    fraction: float = 0.1
    share: float = 0.5
    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.randomiser(1, 1.0)

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return the choice and the report."""
        return FedSel(
            limit=self.limit, epsilon=self._epsilon(values, noise), fraction=self.fraction, entries=self.entries,
            share=self.share, decay=self.decay,
        )  # fmt: skip
