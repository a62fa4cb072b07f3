"""PATE over clients (Papernot et al. 2017, 2018): clients' own models vote on public rows, and a student learns the winners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from atoll.core.capability import NO_BUFFERS, RELEASED_ONLY, SERVER, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.learn.capabilities import CLASS_SCORES
from atoll.learn.topology.base import Decentralised, refuse
from atoll.privacy import PrivacyLoss
from atoll.privacy.events import Skellam

from .votes import VoteNoise, VoteRule

if TYPE_CHECKING:
    from atoll.core.event import Event
    from atoll.learn.context import Context

    from .course import VotingRounds

__all__ = ["PATE", "PUBLIC"]

PUBLIC = "public"
"""Name and role of the party with public rows."""


@dataclass(frozen=True, kw_only=True)
class PATE(Decentralised):
    """Each client trains a model on its own rows alone, a teacher. Teachers vote on public rows, and the student, the global model, learns the winners.

    The rows belong to a helper party, ``"public"``: ``islands.with_others({"public": rows})`` in a simulation, its site's rows between organisations. Their labels, if
    there are any, stay there. A round asks for ``rows`` further ones, each once. No model and no gradient leaves a client. With ``noise_at``:

    * ``"server"``: the server adds up the votes and adds noise from its secret. With a secure reducer it sees their sums only. It protects clients from
      everybody else, who see the student.
    * ``"clients"``: each client adds a share of Skellam noise before its votes leave, so that any sum of ``least`` replies has all of it, and the server
      need not be trusted. That takes a secure reducer; with ``least=1`` each client adds all of the noise itself.

    What an answer costs is in the ledger before the student sees it: a Gaussian release of noise multiplier ``sigma / sqrt(2)``, as one client, or one row of it,
    changes one vote. Reading winners off noisy counts is free. With a ``threshold``, rows whose teachers disagree stay without an answer, and each check costs a
    release of multiplier ``threshold_sigma`` (Confident-GNMax); with noise at clients the check reads the same noisy counts and is free.

    With ``bound="dependent"``, the ledger also says how sure each outcome was, and accountant ``"rdp"`` uses it: where nearly all agree, an answer costs
    little. **Such an epsilon depends on the votes**; it is for those who may see them, and promises nothing in advance.

    Use it as a topology, with the algorithm that teachers train by:
    ``Training(model=net, algorithm=FedAvg(lr=0.1, epochs=50), topology=PATE(rows=100, sigma=10, threshold=30), rounds=3)``.

    We deviate from the paper: its teachers divide one data set; ours are the clients, as they are. A client without a labelled row does not vote.

    Attributes:
        rows: public rows of a round.
        sigma: deviation of the noise on each count, in votes.
        threshold: votes that the largest count needs for an answer; ``None`` answers every row.
        threshold_sigma: deviation of the noise on the largest count when it is checked, in votes.
        noise_at: ``"server"`` or ``"clients"``.
        least: with noise at clients, replies that share the noise.
        neighbours: ``"replace-one"``: a client's vote changes; ``"add-remove"``: a client votes or does not. A row of a client changes its vote.
        bound: ``"independent"`` of the votes, or ``"dependent"``.
        delta: at which the rounds' rows show epsilon.
        teaching: rounds of the algorithm with which a teacher trains, before its first vote.
        lr: learning rate of the student; ``None`` is the algorithm's.
        epochs: the student's passes, each round, over all rows that have an answer.
        batch_size: rows of its mini-batches.

    Raises:
        ConfigError: a setting makes no sense.
    """

    citation: ClassVar[str] = (
        "Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson. Scalable Private Learning with PATE. ICLR 2018."
    )

    rows: int = 100
    sigma: float = 10.0
    threshold: float | None = None
    threshold_sigma: float = 20.0
    noise_at: Literal["server", "clients"] = "server"
    least: int = 2
    neighbours: Literal["replace-one", "add-remove"] = "replace-one"
    bound: Literal["independent", "dependent"] = "independent"
    delta: float = 1e-5
    teaching: int = 1
    lr: float | None = None
    epochs: int = 20
    batch_size: int = 50

    def __post_init__(self) -> None:
        counts = min(self.rows, self.least, self.teaching, self.epochs, self.batch_size) >= 1
        if not counts or not (self.lr is None or self.lr > 0) or not 0 < self.delta < 1:
            raise ConfigError(
                f"rows={self.rows}, least={self.least}, teaching={self.teaching}, epochs={self.epochs}, batch_size={self.batch_size}, "
                f"lr={self.lr}, delta={self.delta}",
                where="PATE",
                remedy="use 1 or more of each, a positive rate, and a delta in (0, 1)",
            )
        known = {
            "noise_at": ("server", "clients"),
            "neighbours": ("replace-one", "add-remove"),
            "bound": ("independent", "dependent"),
        }
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r}", where="PATE", remedy=f"use {' or '.join(map(repr, values))}"
                )
        if self.bound == "dependent" and self.noise_at == "clients":
            raise ConfigError(
                "bound='dependent' with noise_at='clients': the server hears noisy counts, not winners alone",
                where="PATE",
                remedy="use bound='independent', or noise_at='server'",
            )
        self.rule  # noqa: B018 - refuses what makes no sense

    @property
    def rule(self) -> VoteRule:
        """Which rows get an answer."""
        replaced = self.neighbours == "replace-one"
        return VoteRule(self.sigma, self.threshold, self.threshold_sigma, replaced, self.bound == "dependent")

    def noise(self, rows: int) -> VoteNoise:
        """Return the stage that adds noise to the votes on ``rows`` rows at clients."""
        return VoteNoise.among(rows, self.sigma, self.least, replaced=self.neighbours == "replace-one")

    @property
    def against(self) -> str:
        """Whom the noise keeps in the dark: the server too, if clients add it; else everybody but the server."""
        return "server" if self.noise_at == "clients" else "clients"

    def released(self, rounds: int) -> tuple[Event, ...]:
        """Return what the votes of all rounds release of a client at most."""
        once = self.rule.most(self.rows) if self.noise_at == "server" else (self.noise(self.rows).released(),)
        return tuple(replace(event, count=event.count * rounds) for event in once)

    def epsilon(self, rounds: int) -> float:
        """Return what ``rounds`` full rounds cost a client at most, whatever the votes are."""
        return self.counted(sum((PrivacyLoss.of(event) for event in self.released(rounds)), PrivacyLoss()))

    def counted(self, loss: PrivacyLoss) -> float:
        """Return the epsilon of a loss, whatever the votes were."""
        method = "rdp" if any(isinstance(event, Skellam) for event, _ in loss.releases) else "exact"
        return loss.epsilon(self.delta, method, self.against, self.neighbours)

    @property
    def helpers(self) -> Mapping[str, str]:
        """The party with public rows."""
        return {PUBLIC: PUBLIC}

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a model with class scores."""
        why = "lets models vote on classes"
        return (*super().needs, Need(CLASS_SCORES, why, "Star()"), Need(NO_BUFFERS, why, "Star()"))

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a server that adds up the votes of all clients."""
        return super().offers | {SERVER}

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the topology does not offer."""
        return {
            **super().lacks,
            RELEASED_ONLY: "sends votes of models that a mechanism would protect; they have noise of their own",
        }

    def check(self, context: Context) -> None:
        """Refuse data without classes, stages for updates, which nobody sends, and shared noise without secure sums."""
        if context.clients.task != "classification":
            why = "lets models vote on classes, but these data have no classes"
            refuse(self, why, "model", "use a classifier: a PyTorch module or atoll.models.linear")
        if any(context.uplink(phase).stages for phase in context.algorithm.phases):
            refuse(self, "clients send votes, not updates", "uplink", "leave the uplink stages out")
        if self.noise_at == "clients" and self.least > 1 and not context.reducer.secure:
            raise CompositionError(
                f"PATE shares the noise among {self.least} clients, and {type(context.reducer).__name__} shows the server single votes, with too little noise each",
                where="Training.reducer",
                remedy="use reducer=SecureAggregation(), PATE(least=1) for noise that single votes have, or noise_at='server'",
            )

    def course(self, context: Context) -> VotingRounds:
        """Return the rounds of votes."""
        from .course import VotingRounds

        return VotingRounds(self, context)
