"""The contract of a mechanism of privacy: what it may look at in a training, what it refuses, and how it finds noise and states its claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from atoll.core.capability import PROTECTION, Capability, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event
from atoll.core.exposure import Exposure
from atoll.core.facets import facet
from atoll.core.validation import Checked
from atoll.learn.selection.base import Selection
from atoll.learn.selection.secret_sample import FixedSample, PoissonSample
from atoll.privacy import ACCOUNTANTS, Budget, smallest_noise

from ..algorithm import Compressing, Phased
from ..capabilities import SAMPLE
from .claim import Attendance, Guarantee, charges_everyone, count_epsilon

if TYPE_CHECKING:
    from atoll.core.federation.reducer import Reducer
    from atoll.core.requests.chain import Chain
    from atoll.core.requests.stage import Stage

    from ..aggregation.base import Aggregation
    from ..algorithm import Algorithm
    from ..pacing.base import Pacing
    from ..topology.base import Topology

__all__ = ["Mechanism", "TrainingParts", "secret_sample"]


class Claiming(Protocol):
    """A mechanism, for those who ask only what its claim is about."""

    @property
    def neighbours(self) -> str:
        """What neighbouring data sets differ in."""
        ...

    @property
    def adversary(self) -> str:
        """From whom it protects."""
        ...


class TrainingParts(Protocol):
    """The parts of a training that a mechanism may look at and replace."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm."""
        ...

    @property
    def topology(self) -> Topology:
        """Who talks to whom."""
        ...

    @property
    def selection(self) -> Selection:
        """Who is invited."""
        ...

    @property
    def aggregation(self) -> Aggregation:
        """How replies become one."""
        ...

    @property
    def pacing(self) -> Pacing:
        """When a round ends."""
        ...

    @property
    def uplink(self) -> Sequence[Stage]:
        """Stages of replies."""
        ...

    @property
    def reducer(self) -> Reducer:
        """How replies are added up."""
        ...

    @property
    def budget(self) -> Budget | None:
        """What a client may spend."""
        ...

    @property
    def rounds(self) -> int:
        """Rounds of the training."""
        ...

    def up(self, phase: str) -> Chain:
        """Return the uplink stages of a phase."""
        ...


# ---------------------------------------------------------------- what every mechanism refuses


def secret_sample(mechanism: Claiming, training: TrainingParts, amplified: bool) -> Selection:
    """Return the training's selection, drawn from the server's secret if the sampling is to be counted.

    Raises:
        CompositionError: the sampling is to be counted, but whoever knows the seed knows the sample.
    """
    rule, name = training.selection, type(mechanism).__name__
    if amplified and (rule.drawn(1) or ("", ""))[1] == "fixed" and mechanism.neighbours == "add-remove":
        raise CompositionError(
            f"{name} counts a sample for {mechanism.neighbours} neighbours, and {type(rule).__name__} draws one of fixed size",
            where="Training.selection",
            remedy="use PoissonSample(...), or neighbours='replace-one': adding a client to a sample of fixed size changes everybody's chance",
        )
    if not amplified or rule.drawn(1) is not None or rule.distinct(10**9) == 10**9:
        return rule
    if SAMPLE in rule.offers:
        count = getattr(rule, "count", 1.0)
        if isinstance(count, float) and count == 0.0:
            count = 1
        return PoissonSample(count) if mechanism.neighbours == "add-remove" else FixedSample(count)
    raise CompositionError(
        f"{name} counts a sample that nobody knows, and {type(rule).__name__} invites clients that others can foresee",
        where="Training.selection",
        remedy="use selection=PoissonSample(...) or Uniform(...), or amplified=False: then every round counts in full",
    )


def require_one(mechanism: Claiming, training: TrainingParts) -> None:
    """Refuse a second mechanism for the same values."""
    own = [
        stage for phase in training.algorithm.phases for stage in facet(training.algorithm, Compressing).uplink(phase)
    ]
    parts: Sequence[Any] = (training.algorithm, *own, *training.uplink)
    for part in parts:
        if PROTECTION in part.offers:
            raise CompositionError(
                f"{type(part).__name__} protects the replies already, and {type(mechanism).__name__} would protect them again",
                where="Training.privacy",
                remedy="use one mechanism: noise that is added twice costs accuracy twice and is counted once",
            )


def require_budget(mechanism: Claiming, budget: Budget | None) -> None:
    """Refuse a budget that counts something other than the mechanism claims."""
    for name in ("adversary", "neighbours") if budget is not None else ():
        own, other = getattr(mechanism, name), getattr(budget, name)
        if own != other:
            raise CompositionError(
                f"the budget counts for {name} {other!r}, and {type(mechanism).__name__} protects for {own!r}",
                where="Training.budget",
                remedy=f"use Budget(..., {name}={own!r}), or leave the budget out: epsilon is one already",
            )


# ---------------------------------------------------------------- the contract of a mechanism


_TYPICAL_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Mechanism(Checked):
    """Base class of mechanisms: ``Training(privacy=...)``.

    A mechanism is given either ``epsilon`` (and ``delta``), and finds the noise from the rounds and the sampling, or ``noise``. It replaces parts of the
    training (``parts``) and says what one participation releases (``events``). Everything else follows: the search for the noise, the claim, the
    budget that ends a run in time, the refusals.

    Attributes:
        epsilon: what a client may spend in all rounds together.
        delta: the probability with which the promise may fail; less than one over the number of clients.
        noise: the noise multiplier of one participation, instead of ``epsilon``: the noise's standard deviation divided by what one unit can change.
        accountant: how epsilon is counted; see `atoll.privacy.epsilon_of`.
        unit: what is protected: ``"user"`` (all data of a client) or ``"example"`` (one row).
        neighbours: data sets that differ by one unit that is added or removed (``"add-remove"``), or by one that is replaced (``"replace-one"``).
        adversary: from whom: ``"server"``, ``"clients"`` or ``"model"`` (whoever gets the model).
    """

    epsilon: float | None = None
    delta: float | None = None
    noise: float | None = None
    accountant: Literal["rdp", "pld", "dp-accounting-rdp", "dp-accounting-pld"] = "pld"
    unit: str = "user"
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"
    adversary: Literal["server", "clients", "model"] = "model"

    per: ClassVar[str] = "round"
    """To what the noise belongs: a round, or a local step."""
    pure: ClassVar[bool] = False
    """Whether it needs no delta."""
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """What it can promise: ``"unit"``, ``"neighbours"``, ``"adversary"`` -> the values that hold; all if it is not named."""
    instead: ClassVar[Mapping[str, str]] = {}
    """What to use instead, by a value that it cannot promise: ``{"server": "a mechanism under secure sums"}``."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.epsilon is None) == (self.noise is None):
            raise ConfigError(
                f"epsilon={self.epsilon}, noise={self.noise}",
                where=name,
                remedy="give one of them: epsilon (the noise is found), or noise (epsilon is found)",
            )
        for key in ("epsilon", "noise"):
            value = getattr(self, key)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{key}={value}", where=name, remedy="use a finite number above 0")
        if self.epsilon is not None and self.delta is None and not self.pure:
            raise ConfigError(
                f"epsilon={self.epsilon} without a delta",
                where=name,
                remedy="give delta, less than one over the number of clients, such as delta=1e-6",
            )
        if self.delta is not None and not 0 < self.delta < 1:
            raise ConfigError(f"delta={self.delta}", where=name, remedy="use a probability in (0, 1)")
        if self.accountant not in ACCOUNTANTS:
            raise ConfigError(
                f"accountant={self.accountant!r}", where=name, remedy=f"use one of {', '.join(ACCOUNTANTS)}"
            )
        for key, known in self.protects.items():
            value = getattr(self, key)
            if value not in known:
                words = " or ".join(map(repr, known))
                others = self.instead.get(value, "")
                raise ConfigError(
                    f"{key}={value!r}, and {name} protects {key} {words} only",
                    where=name,
                    remedy=f"use {words}" + (f", or {others}" if others else ""),
                )

    # ------------------------------------------------------------------ what a mechanism says

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Return the parts that replace the training's, by name: ``uplink``, ``selection``, ``aggregation``, ``algorithm``, ``reducer``.

        It is called first without knowledge of the data, with made-up numbers, to see whether the parts go together.

        Args:
            training: the training as the user wrote it.
            taking: how often a client takes part.
            noise: the noise multiplier of one participation.
        """
        raise NotImplementedError

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return what one participation releases: for a client that takes part in a round or, if a secret sample is counted, for every client."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the other parts of a training must offer."""
        return ()

    @property
    def offers(self) -> frozenset[Capability]:
        """What it offers to the other parts: releases that a budget can count."""
        return frozenset({PROTECTION})

    @property
    def assuming(self) -> tuple[str, ...]:
        """What must hold so that the claim does, each as a sentence."""
        return ()

    def exposures(self, claim: Guarantee) -> tuple[Exposure, ...]:
        """Return who sees what beside the parts' own exposures."""
        del claim
        return ()

    def selected(self, training: TrainingParts) -> Selection:
        """Return the selection of the installed training; by default the training's own."""
        return training.selection

    def locally(self, training: TrainingParts) -> Any:
        """Return what ``events`` must know of a client's local work, as a value that can be hashed; ``None`` for nothing."""
        del training
        return None

    def check(self, training: TrainingParts) -> None:
        """Refuse a training in which the claim would not hold; call ``super().check`` first.

        Raises:
            CompositionError: with the reason and the remedy.
        """
        require_one(self, training)
        require_budget(self, training.budget)

    # ------------------------------------------------------------------ what follows

    def install(
        self,
        training: TrainingParts,
        clients: int = 0,
        values: int = 1,
        sizes: Sequence[int] = (),
        *,
        alone: bool = True,
        entries: int = 0,
    ) -> tuple[dict[str, Any], Guarantee]:
        """Return the parts of the installed training, and the claim.

        Args:
            training: the training with ``privacy``.
            clients: number of clients; 0 if unknown.
            values: named values of a client's replies in a round.
            sizes: the numbers of examples that clients have, ascending, each once.
            alone: see `Attendance`.
            entries: entries of the largest value.

        Raises:
            CompositionError: the claim would not hold.
            ConfigError: delta allows the release of one client's data.
        """
        self.check(training)
        self._require_delta(clients)
        selection = self.selected(training)
        contacts = facet(training.algorithm, Phased).contacts(training.rounds)
        taking = Attendance(
            clients,
            training.rounds if contacts is None else max(1, contacts),
            values,
            sizes=tuple(sizes),
            local=self.locally(training),
            alone=alone,
            entries=entries,
        )
        if clients:
            most, separation = selection.turns(clients, taking.rounds)
            taking = replace(taking, most=most, separation=separation)
        drawn, cohort = selection.drawn(clients) if clients else None, selection.cohort_size(clients) if clients else 1
        if drawn is not None:
            taking = replace(taking, rate=drawn[0], scheme=drawn[1], cohort=drawn[0] * clients)
        else:
            taking = replace(taking, cohort=float(cohort))
        noise, claim = (1.0, self._make_claim(taking, 1.0, math.nan)) if not clients else self.solved(taking)
        made = {"selection": selection, **self.parts(training, taking, noise)}
        if training.budget is None and self.epsilon is not None and clients:
            pure = self._delta == 0
            made["budget"] = Budget(
                self.epsilon,
                self._delta or _TYPICAL_DELTA,
                method="exact" if pure else self.accountant,
                adversary=self.adversary,
                neighbours=self.neighbours,
            )
        return made, claim

    def _require_delta(self, clients: int) -> None:
        """Refuse a delta with which a mechanism may publish all that a client holds: it does so with chance delta, of one of 1 / delta clients."""
        if self.unit != "example" and clients > 1 and self._delta * clients >= 1:
            raise ConfigError(
                f"delta={self._delta:g} for {clients} clients",
                where=type(self).__name__,
                remedy=f"use a delta well below 1/{clients}, such as {10.0 ** -math.ceil(math.log10(clients) + 1):g}: with this one, publishing a client's data would be allowed",
            )

    def solved(self, taking: Attendance) -> tuple[float, Guarantee]:
        """Return the noise multiplier of one participation, and the claim that holds with it.

        Raises:
            ConfigError: no noise keeps the epsilon.
        """
        noise = _noise(self, taking) if self.noise is None else self.noise
        return noise, self._make_claim(taking, noise, self.spent(taking, noise))

    def spent(self, taking: Attendance, noise: float) -> float:
        """Return epsilon after all rounds."""
        releases = tuple(
            (event, taking.rounds if charges_everyone(event) else taking.participations)
            for event in self.events(taking, noise)
        )
        return count_epsilon(releases, self._delta, self.accountant, self.adversary, self.neighbours)

    @property
    def _delta(self) -> float:
        typical = 0.0 if self.pure else _TYPICAL_DELTA
        return typical if self.delta is None else self.delta

    def _make_claim(self, taking: Attendance, noise: float, epsilon: float) -> Guarantee:
        return Guarantee(
            type(self).__name__,
            epsilon,
            self._delta,
            self.unit,
            self.neighbours,
            self.adversary,
            self.accountant,
            noise,
            taking,
            self.events(taking, noise),
            self.assuming,
            self.per,
        )


@lru_cache(maxsize=256)
def _noise(mechanism: Mechanism, taking: Attendance) -> float:
    """Return the smallest noise that keeps the mechanism's epsilon."""
    return smallest_noise(lambda noise: mechanism.spent(taking, noise), mechanism.epsilon or math.nan)
