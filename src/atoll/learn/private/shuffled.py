"""Shuffled differential privacy: local replies, and somebody named who hides whose is whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from atoll.core.capability import DISTINCT_CLIENTS, FIXED_COHORT, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.stages.local import Anonymous

from ..aggregation.base import EqualWeights
from ..capabilities import SUMMED
from .base import Mechanism, TrainingParts
from .claim import Attendance
from .local import LocalDP

if TYPE_CHECKING:
    from atoll.stages.local import Randomiser

__all__ = ["ShuffledDP"]


@dataclass(frozen=True, kw_only=True)
class ShuffledDP(LocalDP):
    """Local randomisers whose replies are seen only together: then each hides among the others.

    ``n`` replies of an ``e0``-private randomiser in unknown order are ``(epsilon, delta)``-private with ``epsilon`` of about
    ``sqrt(e^e0 ln(1 / delta) / n)``: Feldman, McMillan, Talwar 2021, "Hiding Among the Clones". A sum does not depend on the order of its addends. So whoever
    reveals only the sum shuffles:

    * ``shuffler="reducer"``: a secure sum (masks, an enclave, two servers, encryption). The server sees nothing else and is an adversary too.
    * ``shuffler="server"``: the server sees single replies and is trusted not to use or show them; the promise is against those who get the sum or the model.
      A reply that leaks still has the local promise ``e0``.

    Every round must have all its replies: the bound is for the number that is invited, and a round with fewer fails.

    Attributes:
        local: a pure local mechanism, such as ``LaplaceLDP(noise=0.25, clip=1.0)``; its own noise is the one to be found if ``epsilon`` is given.
        shuffler: who hides whose reply is whose.
    """

    local: Mechanism
    shuffler: Literal["server", "reducer"]
    adversary: Literal["server", "clients", "model"] = "model"

    pure: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.local, LocalDP) or not self.local.pure:
            raise ConfigError(
                f"local={type(self.local).__name__} has no epsilon without a delta",
                where="ShuffledDP",
                remedy="use LaplaceLDP, SignsLDP or FedSelDP",
            )
        if self.shuffler not in ("server", "reducer"):
            raise ConfigError(
                f"shuffler={self.shuffler!r}", where="ShuffledDP", remedy="name who shuffles: 'server' or 'reducer'"
            )
        if self.shuffler == "server" and self.adversary == "server":
            raise ConfigError(
                "the server would hide replies from itself",
                where="ShuffledDP",
                remedy="use shuffler='reducer' with a secure reducer, or adversary='model'",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The number of replies of a round is known beforehand, and each is another client's."""
        why = "hides a reply among a known number of others"
        return (*super().needs, Need(FIXED_COHORT, why), Need(DISTINCT_CLIENTS, why), Need(SUMMED, why))

    @property
    def assuming(self) -> tuple[str, ...]:
        """Who is trusted, and with what."""
        who = {
            "server": "the server is trusted not to use or show single replies",
            "reducer": "the secure sum reveals nothing but the sum, under its own assumptions",
        }
        return (who[self.shuffler], "the other clients randomise their replies as they should")

    def check(self, training: TrainingParts) -> None:
        """Refuse a shuffler that is not there."""
        super().check(training)
        if self.shuffler == "reducer" and not training.reducer.secure:
            raise CompositionError(
                f"shuffler='reducer', and {type(training.reducer).__name__} shows single replies to the server",
                where="Training.reducer",
                remedy="use a secure reducer, such as reducer=SecureAggregation(), or shuffler='server'",
            )
        if training.pacing.terms(1000).get("quorum") != 1000:
            raise CompositionError(
                "a reply hides among all that are invited, and a round may end with fewer",
                where="Training.pacing",
                remedy="use pacing=Synchronous(quorum=1.0)",
            )
        if (training.selection.drawn(1000) or ("", ""))[1] == "poisson":
            raise CompositionError(
                f"{type(training.selection).__name__} draws a number of clients that nobody knows beforehand",
                where="Training.selection",
                remedy="use Everyone() or Uniform(count): the bound is for the number of replies",
            )

    def randomiser(self, values: int, noise: float) -> Randomiser:
        """Return the local mechanism's."""
        made: Randomiser = self.local.randomiser(values, noise)  # type: ignore[attr-defined]
        return made

    def stage(self, taking: Attendance, noise: float) -> Randomiser:
        """Return the local mechanism's for these values."""
        made: Randomiser = self.local.stage(taking, noise)  # type: ignore[attr-defined]
        return made

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install the randomiser with what it costs among so many, and equal weights."""
        return {"uplink": (self._shuffle_stage(taking, noise), *training.uplink), "aggregation": EqualWeights()}

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return one shuffled reply for each value of a round."""
        return tuple(event for event in self._shuffle_stage(taking, noise).events(None) for _ in range(taking.values))

    def _shuffle_stage(self, taking: Attendance, noise: float) -> Anonymous:
        among = max(1, int(taking.cohort))
        return Anonymous(self.stage(taking, noise), clients=among, shuffled_by=self.shuffler)
