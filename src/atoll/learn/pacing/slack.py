"""How an edge estimates the share of its clients that return: slack factors and their estimators.

HybridFL (W. Wu 2021, section 4.4.2) selects ``C_r = C / theta_r`` of region r's clients, where ``theta_r`` is the region's share of clients that do not drop
out. No client may be identified or probed, so theta is estimated from a round's counts: clients selected, submitted before the round closed, and, if the
edge keeps counting until the time limit, completed.

The published estimator (`PaperLiteral`) cannot learn: with its own definition of q, every observation has the slope ``C / C_r``, the factor in
force, whatever is submitted. The others differ in how they treat censoring: a round that closes at its quota hides which clients would still have finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

__all__ = [
    "ChanceConstrained",
    "Forgetting",
    "LateCount",
    "PaperLiteral",
    "Ratio",
    "SlackEstimator",
    "UncensoredOnly",
    "at_least",
    "success_law",
]


def success_law(probabilities: ArrayLike, trials: ArrayLike = 1) -> NDArray[np.float64]:
    """Return ``P(S = k)`` for ``k = 0..n``, where ``S = sum_j Binomial(trials_j, p_j)`` and ``n = sum_j trials_j``.

    The characteristic function ``prod_j (1 - p_j + p_j e^{iw})^{trials_j}`` at ``n + 1`` angles, transformed back (Hong 2013, "On computing
    the distribution function for the Poisson binomial distribution"). Exact up to rounding, about 1e-15 per entry.

    Args:
        probabilities: probabilities of success, each in [0, 1], shape ``(groups,)``.
        trials: how many trials have each probability; one number for all or ``(groups,)``.

    Raises:
        ConfigError: a probability is outside [0, 1] or a number of trials is negative.
    """
    p = np.atleast_1d(np.asarray(probabilities, dtype=np.float64))
    n = np.broadcast_to(np.asarray(trials), p.shape)
    if not ((p >= 0) & (p <= 1)).all() or (n < 0).any():
        raise ConfigError(
            f"probabilities {p[:5].tolist()} with trials {n[:5].tolist()}",
            where="success_law",
            remedy="use probabilities in [0, 1] and numbers of trials of at least 0",
        )
    total = int(n.sum())
    turn = np.exp(2j * np.pi * np.arange(total + 1) / (total + 1))
    wave = np.ones(total + 1, dtype=np.complex128)
    for share, times in zip(p, n, strict=True):
        wave *= (1 - share + share * turn) ** int(times)
    law: NDArray[np.float64] = np.clip(np.fft.fft(wave).real / (total + 1), 0.0, 1.0)
    return law


def at_least(quota: int, probabilities: ArrayLike, trials: ArrayLike = 1) -> float:
    """Return ``P(S >= quota)``; see `success_law`."""
    return float(min(1.0, success_law(probabilities, trials)[max(quota, 0) :].sum()))


# ---------------------------------------------------------------- the contract of an estimator


Floats = NDArray[np.float64]
State = dict[str, Floats]


@dataclass(frozen=True, kw_only=True)
class SlackEstimator(Checked):
    """Least squares through the origin, ``y ~ theta x``, over the rounds so far; subclasses define x and y.

    All counts can be numbers (one edge) or arrays ``(regions,)``; the state is a tree of two arrays of that shape.

    Attributes:
        initial: theta before any observation.
        floor: the smallest theta, so that ``C / theta`` stays finite.
    """

    initial: float = 0.5
    floor: float = 0.01

    def __post_init__(self) -> None:
        for name in ("initial", "floor"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}={getattr(self, name)}", where=type(self).__name__, remedy="use (0, 1]")

    @property
    def counts_late(self) -> bool:
        """Whether it needs the count of clients that finish after the round has closed."""
        return False

    def begin_at(self, theta: float) -> SlackEstimator:
        """Return the same estimator with another initial theta."""
        return replace(self, initial=theta)

    def init(self, regions: int | None = None) -> State:
        """Start without observations; ``regions=None`` is a single region with plain numbers as counts."""
        shape = () if regions is None else (regions,)
        return {"xx": np.zeros(shape), "xy": np.zeros(shape)}

    def update(
        self,
        state: State,
        selected: ArrayLike,
        submitted: ArrayLike,
        quota_hit: bool,
        completed: ArrayLike | None = None,
        *,
        wanted: ArrayLike | None = None,
    ) -> State:
        """Learn from a round.

        Args:
            state: the state from `init` or the last update.
            selected: clients invited, ``|S_r|``.
            submitted: models that arrived before the round closed, ``|Psi_r|``.
            quota_hit: whether the round closed because its quota was full, so that later arrivals are not in ``submitted``.
            completed: clients that finished by the time limit, in the round or after it, ``|X_r|``.
            wanted: target number of submissions, ``C N_r``.

        Raises:
            ConfigError: the counts are out of order, or a count that this estimator needs is missing.
        """
        asked, came = np.asarray(selected, dtype=np.float64), np.asarray(submitted, dtype=np.float64)
        done = None if completed is None else np.asarray(completed, dtype=np.float64)
        top = asked if done is None else done
        if not ((came >= 0) & (came <= top) & (top <= asked)).all():
            raise ConfigError(
                f"selected={selected!r}, submitted={submitted!r}, completed={completed!r}",
                where=type(self).__name__,
                remedy="count so that 0 <= submitted <= completed <= selected in every region",
            )
        aim = None if wanted is None else np.asarray(wanted, dtype=np.float64)
        x, y = self._observe(state, asked, came, quota_hit, done, aim)
        kept = self._kept
        return {"xx": kept * state["xx"] + x * x, "xy": kept * state["xy"] + x * y}

    def theta(self, state: State) -> Floats:
        """Return the estimate; `initial` without observations."""
        seen = state["xx"] > 0
        fit = np.where(seen, state["xy"], self.initial) / np.where(seen, state["xx"], 1.0)
        return np.clip(fit, self.floor, self._ceiling)

    def fraction(self, state: State, share: float) -> Floats:
        """Return ``C_r = min(1, C / theta_r)``.

        Args:
            state: the estimator's state.
            share: ``C``, submissions wanted divided by clients.
        """
        return np.minimum(1.0, share / self.theta(state))

    def counts(self, state: State, share: float, clients: ArrayLike) -> NDArray[np.int64]:
        """Return how many to select in each region: ``ceil(C_r N_r)``, as in the thesis's algorithm.

        Args:
            state: the estimator's state.
            share: ``C``.
            clients: ``N_r``, a number or ``(regions,)``.
        """
        return np.asarray(np.ceil(self.fraction(state, share) * np.asarray(clients) - 1e-9), dtype=np.int64)

    @property
    def _kept(self) -> float:
        return 1.0

    @property
    def _ceiling(self) -> float:
        return 1.0

    def _observe(self, state: State, asked: Floats, came: Floats, hit: bool, done: Any, aim: Any) -> tuple[Any, Any]:
        raise NotImplementedError


# ---------------------------------------------------------------- estimators


@dataclass(frozen=True, kw_only=True)
class PaperLiteral(SlackEstimator):
    """The published rule, (4.14) and (4.17): ``x = C_r q_r`` with ``q_r = |Psi_r| / (C N_r)``, and ``y = |Psi_r| / N_r``.

    ``y / x = C / C_r`` in every round: the estimate is a mean of earlier factors and never learns. With ``symbol="selected"``, ``y = |S_r| / N_r`` as the
    equation is printed; the estimate then grows without bound.

    Attributes:
        symbol: the count behind y: ``"submitted"`` (the equation from which the printed one is derived) or ``"selected"``.
        rounded: use the actual ``C_r``, ``|S_r| / N_r``; otherwise the intended one, ``C / theta_r``.
    """

    symbol: str = "submitted"
    rounded: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.symbol not in ("submitted", "selected"):
            raise ConfigError(f"symbol={self.symbol!r}", where="PaperLiteral", remedy="use 'submitted' or 'selected'")

    @property
    def _ceiling(self) -> float:
        return np.inf

    def _observe(self, state: State, asked: Floats, came: Floats, hit: bool, done: Any, aim: Any) -> tuple[Any, Any]:
        if self.rounded and (aim is None or not (aim > 0).all()):
            raise ConfigError(
                f"wanted={aim}",
                where="PaperLiteral",
                remedy="give the target number of submissions, C * N_r, or rounded=False",
            )
        excess = asked / aim if self.rounded else 1.0 / self.theta(state)
        return excess * came, came if self.symbol == "submitted" else np.where(came > 0, asked, 0.0)


@dataclass(frozen=True, kw_only=True)
class LateCount(SlackEstimator):
    """Counts completions until the time limit, also after the round has closed: ``x = |S_r|``, ``y = |X_r|``.

    It needs one anonymous bit from late clients, no model, and is consistent: theta tends to the mean survival probability of the selected clients. A
    round that did not close early needs no late count.
    """

    @property
    def counts_late(self) -> bool:
        """Yes."""
        return True

    def _observe(self, state: State, asked: Floats, came: Floats, hit: bool, done: Any, aim: Any) -> tuple[Any, Any]:
        if done is None and hit:
            raise ConfigError(
                "a round that closed at its quota without a count of late completions",
                where=type(self).__name__,
                remedy="give completed=, or use UncensoredOnly",
            )
        return asked, came if done is None else done


@dataclass(frozen=True, kw_only=True)
class Forgetting(LateCount):
    """`LateCount` with fading rounds, for survival that changes: every later round multiplies a round's weight by ``memory``.

    Attributes:
        memory: a factor in (0, 1]; about ``1 / (1 - memory)`` rounds count.
    """

    memory: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.memory <= 1.0:
            raise ConfigError(f"memory={self.memory}", where="Forgetting", remedy="use (0, 1]")

    @property
    def _kept(self) -> float:
        return self.memory


@dataclass(frozen=True, kw_only=True)
class UncensoredOnly(SlackEstimator):
    """Uses only rounds that ended at the time limit, in which submitted and completed are equal; needs no late count.

    It starts at 1, so that the first round selects too few and is uncensored. Which rounds are uncensored depends on the submissions, so the estimate is low.
    """

    initial: float = 1.0

    def _observe(self, state: State, asked: Floats, came: Floats, hit: bool, done: Any, aim: Any) -> tuple[Any, Any]:
        return (np.zeros_like(asked), came) if hit else (asked, came)


@dataclass(frozen=True, kw_only=True)
class Ratio(SlackEstimator):
    """``x = |S_r|``, ``y = |Psi_r|``: counts clients cut off by the close as drop-outs, selects more, and closes sooner. For comparison only."""

    def _observe(self, state: State, asked: Floats, came: Floats, hit: bool, done: Any, aim: Any) -> tuple[Any, Any]:
        return asked, came


@dataclass(frozen=True, kw_only=True)
class ChanceConstrained(SlackEstimator):
    """Selects the fewest clients that reach the quota with probability ``1 - delta``, ``P(sum_r Binomial(n_r, theta_r) >= C N) >= 1 - delta``.

    Matching the mean, as ``C / theta`` does, misses the quota in about half of the rounds, and each of those lasts until the time limit. ``n_r`` is
    ``C N_r / theta_r`` times the smallest common factor, rounded up; for one region, this is the smallest possible number. The rule treats a region's clients
    as equal and theta as known. If even all clients are too few, it selects all. (`fraction` stays ``C / theta``; select by `counts`.)

    Attributes:
        delta: accepted probability of missing the quota.
        base: the estimator of theta.
    """

    delta: float = 0.1
    base: SlackEstimator = field(default_factory=LateCount)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(f"delta={self.delta}", where="ChanceConstrained", remedy="use (0, 1)")

    @property
    def counts_late(self) -> bool:
        """Whether the base needs late counts."""
        return self.base.counts_late

    def begin_at(self, theta: float) -> SlackEstimator:
        """Return the same estimator with another initial theta of the base."""
        return replace(self, base=self.base.begin_at(theta))

    def init(self, regions: int | None = None) -> State:
        """Start with the base's state."""
        return self.base.init(regions)

    def update(
        self,
        state: State,
        selected: ArrayLike,
        submitted: ArrayLike,
        quota_hit: bool,
        completed: ArrayLike | None = None,
        *,
        wanted: ArrayLike | None = None,
    ) -> State:
        """Learn from a round as the base does."""
        return self.base.update(state, selected, submitted, quota_hit, completed, wanted=wanted)

    def theta(self, state: State) -> Floats:
        """Return the base's estimate."""
        return self.base.theta(state)

    def counts(self, state: State, share: float, clients: ArrayLike) -> NDArray[np.int64]:
        """Return the smallest selection on the ray ``s C N_r / theta_r``."""
        sizes = np.asarray(clients, dtype=np.int64)
        theta = np.minimum(np.broadcast_to(self.theta(state), sizes.shape), 1.0)
        quota = int(np.ceil(share * sizes.sum() - 1e-9))

        def choose_counts(scale: float) -> NDArray[np.int64]:
            return np.asarray(np.minimum(sizes, np.ceil(scale * share * sizes / theta - 1e-9)), dtype=np.int64)

        low, high = 0.0, 1.0 / share
        if at_least(quota, np.atleast_1d(theta), np.atleast_1d(choose_counts(high))) < 1.0 - self.delta:
            return np.array(sizes)
        while choose_counts(high).sum() - choose_counts(low).sum() > 1 and high - low > 1e-12:
            middle = (low + high) / 2
            enough = at_least(quota, np.atleast_1d(theta), np.atleast_1d(choose_counts(middle))) >= 1.0 - self.delta
            low, high = (low, middle) if enough else (middle, high)
        return choose_counts(high)
