"""What a mechanism claims, in numbers and in words: no epsilon without unit, neighbours and adversary."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from atoll.core.event import Event, Sampled
from atoll.privacy import LossTally, PrivacyLoss, epsilon_of

__all__ = ["Attendance", "Guarantee"]

ERROR = 1e-4
"""By about how much a guarantee's epsilon may be too large, so that it is found in milliseconds; it is never too small."""
_ADVERSARIES = {"server": "the server", "clients": "other clients", "model": "whoever gets the model"}
_SAMPLES = {"poisson": "a Poisson sample of rate", "fixed": "a sample of fixed size, of rate"}


@dataclass(frozen=True)
class Attendance:
    """How often a client takes part in a training, and with what chance.

    Attributes:
        clients: number of clients of the federation; 0 until the data are known.
        rounds: rounds that contact clients, at most.
        values: named values of a client's replies in a round, over all its phases; 1 until the model is known.
        rate: the chance with which a client takes part in a round; 1 unless the sample is secret.
        scheme: how the sample is drawn: ``"poisson"`` or ``"fixed"``.
        cohort: expected clients of a round.
        most: rounds in which one client takes part at most; 0 if in all.
        separation: rounds from one of them to the next, at least.
        entries: entries of the largest value; 0 until the model is known.
        sizes: the numbers of examples that clients have, ascending, each once; empty if they are unknown.
        local: what the mechanism says of a client's local work; see `Mechanism.locally`.
        alone: whether the model sends nothing beside an algorithm's replies if the algorithm says so (`Algorithm.alone`), and replies by its ``finish``.
    """

    clients: int = 0
    rounds: int = 1
    values: int = 1
    rate: float = 1.0
    scheme: str = "poisson"
    cohort: float = 1.0
    most: int = 0
    separation: int = 1
    entries: int = 0
    sizes: tuple[int, ...] = ()
    local: Any = None
    alone: bool = True

    @property
    def participations(self) -> int:
        """Rounds in which one client takes part at most."""
        return min(self.rounds, self.most or self.rounds)

    @property
    def drawn(self) -> dict[str, Any]:
        """The sampling as the settings of an event."""
        if self.rate == 1.0:
            return {}
        return {"sampling": self.rate, "scheme": self.scheme, "drawn_by": "server"}


@dataclass(frozen=True)
class Guarantee:
    """What a training promises its clients.

    Attributes:
        mechanism: name of the mechanism.
        epsilon: after all rounds, at most.
        delta: the probability with which the promise may fail; 0 for pure differential privacy.
        unit: what is protected: ``"user"``, ``"example"`` or ``"island"``.
        neighbours: data sets that differ by one unit: ``"add-remove"`` or ``"replace-one"``.
        adversary: from whom: ``"server"``, ``"clients"`` or ``"model"`` (whoever gets the model).
        accountant: how epsilon is counted.
        noise: the noise multiplier of one participation.
        attendance: how often a client takes part.
        events: what one participation releases.
        assuming: what must hold besides.
        per: to what the noise belongs: ``"round"`` or ``"local step"``.
    """

    mechanism: str
    epsilon: float
    delta: float
    unit: str
    neighbours: str
    adversary: str
    accountant: str
    noise: float
    attendance: Attendance
    events: tuple[Event, ...] = ()
    assuming: tuple[str, ...] = ()
    per: str = "round"

    def spent(self, tally: LossTally) -> float:
        """Return the epsilon of the party that has spent the most in a ledger, counted as the guarantee is."""
        everybody = {tally.of(name) for name in tally.losses}
        terms = (self.delta, self.accountant, self.adversary, self.neighbours)
        return max((count_epsilon(loss.releases, *terms) for loss in everybody), default=0.0)

    @property
    def charges_everyone(self) -> bool:
        """Whether a round costs every client, whoever takes part: a secret sample is counted."""
        return any(charges_everyone(event) for event in self.events)

    def __str__(self) -> str:
        at = f" at delta {self.delta:g}" if self.delta else ""
        return (
            f"epsilon {self.epsilon:.4g}{at} for one {self.unit} ({self.neighbours} neighbours) "
            f"against {_ADVERSARIES[self.adversary]}, counted by {self.accountant}"
        )

    @property
    def how(self) -> str:
        """The mechanism, its noise and its rounds in words."""
        part = self.attendance
        drawn = f", {_SAMPLES[part.scheme]} {part.rate:.4g} drawn from the server's secret" if part.rate < 1 else ""
        return f"{self.mechanism}: noise multiplier {self.noise:.4g} a {self.per}, {part.rounds} rounds{drawn}"

    def facts(self) -> dict[str, Any]:
        """The claim as plain values."""
        made = {name: value for name, value in asdict(self).items() if name not in ("events", "attendance")}
        part = self.attendance
        return {
            **made,
            "assuming": list(self.assuming),
            "rounds": part.rounds,
            "sampling": part.rate,
            "scheme": part.scheme if part.rate < 1 else None,
            "text": f"{self}. {self.how}",
        }


def count_epsilon(
    releases: tuple[tuple[Event, int], ...], delta: float, accountant: str, adversary: str, neighbours: str
) -> float:
    """Return epsilon of some releases at ``delta``; at 0, the sum of pure epsilons."""
    if delta > 0:
        return epsilon_of(releases, delta, accountant, adversary, neighbours, ERROR)
    loss = sum((PrivacyLoss.of(event).times(n) for event, n in releases), PrivacyLoss())
    return loss.pure if loss.gaussian == 0 else math.inf


def charges_everyone(event: Event) -> bool:
    """Return whether a release costs every client, whoever takes part in it: its cost counts a sample that the server draws in secret."""
    return isinstance(event, Sampled) and event.sampling < 1 and event.drawn_by == "server"
