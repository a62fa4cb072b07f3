"""DP-FTRL: differential privacy at a trusted server that cannot sample its clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian
from atoll.core.requests.results import Combined
from atoll.learn.selection.base import Selection
from atoll.learn.selection.uniform import CyclicGroups
from atoll.privacy.discrete import snap
from atoll.privacy.factorisation import BandedFactorisation, Factorisation, TreeFactorisation

from ..algorithm import RoundInfo
from ..capabilities import SAMPLE
from .base import TrainingParts
from .central import CentralDP
from .claim import Attendance
from .noisy_sum import NoisySum, entries, noisy_sums

__all__ = ["DPFTRL"]


@dataclass(frozen=True, kw_only=True)
class CorrelatedSum(NoisySum):
    """``(sum_{k in S} v_k + s D n_t) / m`` with the noise ``n_t`` of a factorisation: `NoisySum`, but what one round adds, later rounds take back in part.

    With noise multiplier ``z`` a participation, ``s = z sqrt(values cost)``. The memory is what later rounds need of earlier noise; it is in checkpoints, so a run that
    resumes goes on with the very same noise. It must stay with the server: who has it can subtract it.

    Attributes:
        factorisation: how noise is correlated.
        cost: squared sensitivity of one participation, see `Factorisation.cost`.
    """

    factorisation: Factorisation
    cost: float

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the noisy sums, over the fixed denominator where the algorithm takes a mean.

        Raises:
            CompositionError: the round has no secret, because it is none of a central server's own.
        """
        del params
        numbers, size = self.secret_of(info).generator(), entries(combined)
        noise, memory = self.factorisation.step(memory, lambda: numbers.standard_normal(size))
        deviation = self.noise * math.sqrt(self.values * self.cost) * self.sensitivity
        rest = iter(np.split(noise, np.cumsum([_size(combined.value[name]) for name in sorted(combined.value)])[:-1]))

        def add(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
            del name
            return snap(values + deviation * next(rest), deviation)

        return noisy_sums(combined, add, self.expected), memory


def _size(value: Any) -> int:
    return sum(math.prod(np.shape(leaf)) for leaf in T.leaves(value))


# ---------------------------------------------------------------- DP-FTRL


_MOST_BANDS = 32
"""Bands by default: the server remembers a vector for each."""


@dataclass(frozen=True, kw_only=True)
class DPFTRL(CentralDP):
    """Noise that later rounds take back in part, in place of a secret sample: for servers whose clients come when they can.

    As `CentralDP`, clients clip, and a trusted server adds noise to their sum. But the noise of a round is correlated with that of the rounds before, so that the sum of all
    rounds, which is what the model follows, has little of it: ``factorisation="tree"`` (Kairouz et al. 2021, with restarts and Honaker's estimate), ``"banded"``
    (Kalinin, Lampert 2024) or ``"optimal"`` (Choquette-Choo et al. 2023: bands of least error for the rounds of the training, found by SciPy). See ``atoll.privacy.factorisation``. No amplification is claimed, so nothing about the selection need be secret; what counts is how often
    a client takes part, and how many rounds lie between. ``Uniform(m)`` therefore becomes ``CyclicGroups(m)``: groups of ``m`` clients take turns. An event is
    charged to a client for every round in which it takes part. The noise is floating-point, since no lattice has the sums of several rounds; what is released is rounded to ``2^-20`` of its scale.

    Attributes:
        factorisation: ``"banded"``, ``"optimal"`` or ``"tree"``.
        bands: diagonals of a banded factorisation; by default the number of rounds between two turns of a client, at most 32.
        restart: rounds of a tree; by default all rounds.
        honaker: whether nodes of a tree are estimated from those below.
    """

    factorisation: Literal["banded", "optimal", "tree"] = "banded"
    bands: int | None = None
    restart: int | None = None
    honaker: bool = True
    amplified: Literal[False] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factorisation not in ("banded", "optimal", "tree"):
            raise ConfigError(
                f"factorisation={self.factorisation!r}", where="DPFTRL", remedy="use 'banded', 'optimal' or 'tree'"
            )
        if self.amplified:
            raise ConfigError(
                f"amplified={self.amplified!r}",
                where="DPFTRL",
                remedy="leave it out, or use CentralDP: DP-FTRL needs no secret sample",
            )
        if self.adapt is not None:
            raise ConfigError(
                f"adapt={self.adapt!r}",
                where="DPFTRL",
                remedy="leave it out: noise that later rounds take back needs the same clip in all of them",
            )
        if self.factorisation == "tree" and self.bands is not None:
            raise ConfigError(
                f"bands={self.bands} of a tree", where="DPFTRL", remedy="use restart, or factorisation='banded'"
            )
        if self.factorisation != "tree" and self.restart is not None:
            raise ConfigError(
                f"restart={self.restart} of bands", where="DPFTRL", remedy="use bands, or factorisation='tree'"
            )

    def selected(self, training: TrainingParts) -> Selection:
        """Return the selection; a uniform sample becomes groups that take turns."""
        rule = training.selection
        return CyclicGroups(getattr(rule, "count", 1.0)) if SAMPLE in rule.offers else rule

    @property
    def assuming(self) -> tuple[str, ...]:
        """As `CentralDP`; and turns are public: a client that is left out sends nothing at its turns, which stay as they are."""
        return (*super().assuming, "who takes its turn when is public, and does not depend on anybody's data")

    def turns(self, taking: Attendance) -> tuple[int, int]:
        """Return how often a client takes part at most, and how many rounds lie between, at least."""
        return taking.participations, max(1, taking.separation)

    def factor(self, taking: Attendance) -> Factorisation:
        """Return the factorisation for this attendance."""
        if self.factorisation == "tree":
            return TreeFactorisation(self.restart or taking.rounds, self.honaker)
        most, separation = self.turns(taking)
        free = taking.rounds if most == 1 else separation
        bands = self.bands or max(1, min(_MOST_BANDS, free))
        return BandedFactorisation(bands, taking.rounds if self.factorisation == "optimal" else 0)

    def check(self, training: TrainingParts) -> None:
        """Refuse rounds that invite more clients than the selection says, and rounds of several sums."""
        super().check(training)
        phases = training.algorithm.phases
        if len(phases) > 1:
            raise CompositionError(
                f"DPFTRL correlates the one sum of a round with that of the round before, and {type(training.algorithm).__name__} has {len(phases)} phases",
                where="Training.privacy",
                remedy="use an algorithm with one phase, such as FedAvg or Scaffold, or CentralDP: a client in two sums of a round would move neighbouring rows",
            )
        invited = getattr(training.pacing, "over_select", 1.0)
        if invited > 1.0:
            raise CompositionError(
                f"{type(training.pacing).__name__}(over_select={invited}) invites clients before their turn",
                where="Training.pacing",
                remedy="leave over_select out: DPFTRL counts the rounds between two turns of a client",
            )

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install a clip at the clients, and correlated noise over a fixed denominator at the server."""
        made = dict(super().parts(training, taking, noise))
        plain, factor = made["aggregation"], self.factor(taking)
        cost = factor.cost(*self.turns(taking)) if taking.clients else 1.0
        own = {
            name: getattr(plain, name) for name in ("bound", "sensitivity", "expected", "noise", "values", "released")
        }
        made["aggregation"] = CorrelatedSum(**own, factorisation=factor, cost=cost)
        return made

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return one Gaussian release for each participation: they add up to the release of all rounds."""
        between = "add-remove" if self.neighbours == "add-remove" else ""
        return (Gaussian(unit=self.unit, noise_multiplier=noise, between=between),)
