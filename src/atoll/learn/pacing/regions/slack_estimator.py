"""The contract of slack estimators: an edge's memory of its rounds, and the factor that follows; see `slack`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

__all__ = ["Floats", "SlackEstimator", "State"]

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

    def begun(self, theta: float) -> SlackEstimator:
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
