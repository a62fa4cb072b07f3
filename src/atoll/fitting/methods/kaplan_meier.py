"""Kaplan-Meier curves and the log-rank test, from counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Laplace
from atoll.fitting.method import AtParty, Known, State, Sums
from atoll.fitting.rows import PartyRows
from atoll.statistics.disclosure import discrete_laplace, noise_std, rate_of

from .times import SurvivalMethod

__all__ = ["KaplanMeier"]

_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class KaplanMeier(SurvivalMethod):
    """The Kaplan-Meier estimate ``S(t) = prod_(t_j <= t) (1 - d_j / n_j)``, with Greenwood's standard error; by group, with the log-rank test.

    The parties add up, at each time of the grid, events ``d_j`` and rows that leave without one. From these the server computes everything; it equals that of all rows. See
    `SurvivalMethod` for the grid and for minimum counts.

    With ``epsilon`` each party adds discrete Laplace noise to all its counts. A row is in one count, so the guarantee is ``epsilon`` for each row, once. ``times`` are then needed.

    Attributes:
        by: column of groups; empty for one curve.
        epsilon: differential privacy of each row towards the server and everyone after it; 0 adds no noise.
    """

    featured: ClassVar[bool] = False
    measure: ClassVar[str] = "distance"
    first: ClassVar[str] = "counts"
    by: str = ""
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon < np.inf:
            raise ConfigError(f"epsilon={self.epsilon}", remedy="use a finite number > 0, or leave it out")
        if self.epsilon and not len(self.times):
            raise ConfigError(
                "epsilon without times: the times that occur would be told without noise",
                remedy="agree on a grid, times=[30, 60, 90]",
            )

    @property
    def extra(self) -> tuple[str, ...]:
        """Time, event and group."""
        return (*super().extra, *([self.by] if self.by else []))

    @property
    def grouped(self) -> tuple[str, ...]:
        """The groups."""
        return (self.by,) if self.by else ()

    def events(self) -> tuple[Event, ...] | None:
        """The noise of the counts."""
        return (Laplace(unit="example", epsilon=self.epsilon),) if self.epsilon else None

    def start(self, known: Known) -> State:
        """Ask for times unless the grid is given."""
        names = list(known.layout.groups.get(self.by, ("all",)))
        return {**self.begun(), "groups": names}

    def gather(self, state: State, told: Sequence[Mapping[str, NDArray[Any]]], known: Known) -> State:
        """The union of the times."""
        return {**super().gather(state, told, known), "groups": state["groups"]}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Counts by group, kind and time, ``(groups, 2, times)``: events, and rows that leave; and the rows that leave before the grid, ``(groups,)``."""
        groups, width = len(state["groups"]), len(state["grid"])
        group = np.asarray(rows.extra[self.by], dtype=np.int64) if self.by else np.zeros(len(rows), np.int64)
        placed = self.placed(rows, state, group)
        counts = np.zeros((groups, 2, width), np.int64)
        seen = placed.place >= 0
        np.add.at(counts, (group[placed.rows][seen], 1 - placed.event[seen].astype(int), placed.place[seen]), 1)
        before = np.bincount(group[placed.rows][~seen], minlength=groups)
        if self.epsilon:  # a row is in one count of both
            rate = rate_of(self.epsilon, 1)
            noisy = counts + discrete_laplace(rate, party.secret, counts.shape)
            return {"counts": noisy, "before": before + discrete_laplace(rate, party.secret, before.shape)}
        return {
            "counts": counts,
            "before": before,
            "moved": np.array(placed.moved),
            "left_out": np.array(placed.left_out),
        }

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Keep the counts; negative ones, which noise makes, are 0."""
        del known
        told = {name: float(sums[name]) for name in ("moved", "left_out") if name in sums}
        counts, before = (np.maximum(np.asarray(sums[name]), 0.0) for name in ("counts", "before"))
        return {**state, **told, "phase": "solved", "counts": counts, "before": before, "done": True}

    def result(self, state: State) -> dict[str, Any]:
        """``times``; ``rows`` of each group; ``events``, ``at_risk``, ``survival``, ``standard_error`` ``(groups, times)``; ``median`` (NaN if not reached); ``logrank`` and ``p_value``."""
        grid, counts = np.asarray(state["grid"]), np.asarray(state["counts"])
        events, leaving = counts[:, 0], counts.sum(axis=1)
        at_risk = np.cumsum(leaving[:, ::-1], axis=1)[:, ::-1]
        some, left = np.maximum(at_risk, 1.0), np.maximum(at_risk - events, 0.0)
        survival = np.cumprod(1 - np.minimum(events / some, 1.0), axis=1)
        greenwood = np.cumsum(np.where(left > 0, events / (some * np.maximum(left, 1.0)), 0.0), axis=1)
        # A product of fractions that is 1/2 can be rounded to a little more, which is no later median.
        reached = survival <= 0.5 * (1 + _ROUNDING)
        median = [float(grid[row.argmax()]) if row.any() else np.nan for row in reached]
        made = {
            "times": grid, "rows": leaving.sum(axis=1) + np.asarray(state.get("before", 0.0)), "groups": np.array(state["groups"], dtype=np.str_), "events": events, "at_risk": at_risk, "survival": survival,
            "standard_error": survival * np.sqrt(greenwood), "median": np.array(median),
            "moved": float(state.get("moved", 0.0)), "left_out": float(state.get("left_out", 0.0)),
        }  # fmt: skip
        if len(events) > 1:
            made["logrank"] = _logrank(events, at_risk)
            made["p_value"] = _tail(made["logrank"], len(events) - 1)
        if self.epsilon:
            made["noise_std"] = noise_std(rate_of(self.epsilon, 1))
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """Refused: a curve predicts nothing of a row."""
        raise CompositionError(
            "a Kaplan-Meier curve does not predict rows",
            where="KaplanMeier",
            remedy="read the curve itself (model.curves, and the saved model has it); or fit Cox, which has a risk for each row",
        )

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The largest distance of the curves from those of these rows alone."""
        known = Known(_layout(params, self), np.random.default_rng(0))
        state = {**self.start(known), "phase": "counts", "grid": np.asarray(params["times"])}
        quiet = PartyRows(rows.x, rows.y, rows.extra, rows.name)
        plain = type(self)(**{name: getattr(self, name) for name in ("time", "event", "times", "width", "by")})
        own = plain.result(plain.step(state, plain.reply(quiet, state, AtParty(np.random.default_rng(0), None)), known))
        return float(np.abs(np.asarray(own["survival"]) - np.asarray(params["survival"])).max())


def _layout(params: Mapping[str, Any], method: KaplanMeier) -> Any:
    from atoll.fitting.rows import FeatureLayout

    return FeatureLayout(groups={method.by: [str(name) for name in params["groups"]]} if method.by else {})


def _logrank(events: NDArray[np.float64], at_risk: NDArray[np.float64]) -> float:
    """``Z' V^- Z`` for observed minus expected events of all groups but the last (Mantel 1966; Peto and Peto 1972)."""
    d, n = events.sum(axis=0), at_risk.sum(axis=0)
    use = (d > 0) & (n > 1)
    share = at_risk[:, use] / n[use]
    away = (events[:, use] - d[use] * share).sum(axis=1)
    scale = d[use] * (n[use] - d[use]) / (n[use] - 1)
    variance = np.diag((scale * share).sum(axis=1)) - (scale * share) @ share.T
    inner = away[:-1]
    return float(inner @ np.linalg.lstsq(variance[:-1, :-1], inner, rcond=None)[0])


def _tail(value: float, freedom: int) -> float:
    """``P(chi^2_freedom > value)``: ``Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1)`` from ``Q(1/2, x) = erfc(sqrt x)`` or ``Q(1, x) = e^-x``."""
    x = max(value, 0.0) / 2
    a, found = (0.5, math.erfc(math.sqrt(x))) if freedom % 2 else (1.0, math.exp(-x))
    while 2 * a < freedom:
        found += math.exp(a * math.log(x) - x - math.lgamma(a + 1)) if x > 0 else 0.0
        a += 1
    return found
