"""Linear and ridge regression by normal equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.fitting.method import OWN, AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.numerics import Design, add_up_products, add_up_rows, invert, scale, solve
from atoll.fitting.rows import PartyRows

__all__ = ["Ridge"]


@dataclass(frozen=True, kw_only=True)
class Ridge(FitMethod):
    """Ridge regression: ``min_w,b sum (y - x w - b)^2 + alpha |w|^2``, solved exactly in three contacts.

    The parties add up means, then ``X'X`` and ``X'y`` around the common means: ``w = (X'X + alpha I)^-1 X'y``. A third contact adds up the residuals of rows at that solution, which
    refines it and gives ``R^2`` without cancellation (corrected seminormal equations: Bjorck 1987). Where ``alpha`` is 0 and columns depend on each other, ``w`` is the shortest solution
    in standard deviations, and what the rows do not determine has no standard error; see `atoll.fitting.numerics`.

    Standard errors are those of least squares, with the residual variance ``RSS / (n - rank - 1)``; with a penalty, of the posterior whose prior is the penalty.

    Attributes:
        alpha: penalty; 0 is ordinary least squares.
    """

    target: ClassVar[Any] = "number"
    measure: ClassVar[str] = "r2"
    alpha: float = 0.0

    def __post_init__(self) -> None:
        positive(self, alpha=0)

    @property
    def coding(self) -> str:
        """Without a penalty each value against the first, as R does: one coefficient a value and an intercept have no single optimum."""
        return "onehot" if self.alpha else "dummy"

    def start(self, known: Known) -> State:
        """Ask for means first."""
        del known
        return {"phase": "means"}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums, or products around the means."""
        del party
        if state["phase"] == "means":
            return {**add_up_rows(rows.x), "y": rows.y.sum()}
        y = rows.y - float(state["level"])
        if state["phase"] == "products":
            x = rows.x - np.asarray(state["mean"])
            return {**add_up_products(rows.x, state["mean"]), "xy": x.T @ y, "yy": y @ y, "above": y.sum()}
        z = scale(rows.x, state["centre"], state["inverse"])
        rest = y - z @ np.asarray(state["at"]) - float(state["lift"])
        return {"zr": z.T @ rest, "rr": rest @ rest, "rest": rest.sum()}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Means, the solution, and the solution refined."""
        del known
        if state["phase"] == "means":
            n = float(sums["n"])
            return {"phase": "products", "n": n, "mean": sums["x"] / n, "level": float(sums["y"]) / n}
        if state["phase"] == "products":
            n = float(state["n"])
            design = Design.of_sums(n, state["mean"], sums)
            off, lift = np.asarray(sums["off"]) / n, float(sums["above"]) / n
            cross = (np.asarray(sums["xy"]) - n * off * lift) * design.inverse
            whole = float(sums["yy"]) - n * lift * lift
            at = self._solve(design, cross)
            own = {"design": design.packed(), "yy": whole}
            told = {
                "phase": "residuals",
                "level": state["level"],
                "lift": lift,
                "centre": design.centre,
                "inverse": design.inverse,
            }
            return {**told, "at": at, OWN: own}
        own = state[OWN]
        design, at = Design.unpacked(own["design"]), np.asarray(state["at"])
        # z is centred, so the sum of residuals only corrects the level; the loss is quadratic, so its change is exact.
        lift, slope = float(sums["rest"]) / design.n, np.asarray(sums["zr"])
        step = self._solve(design, slope - self.alpha * design.inverse**2 * at)
        left = (
            float(sums["rr"])
            - design.n * lift * lift
            - 2 * float(step @ slope)
            + design.n * float(step @ design.gram @ step)
        )
        r2 = 1 - max(left, 0.0) / own["yy"] if own["yy"] > 0 else 0.0
        level = float(state["level"]) + float(state["lift"]) + lift
        return {
            **state,
            "phase": "solved",
            "at": at + step,
            "level": level,
            "rss": max(left, 0.0),
            "r2": r2,
            "done": True,
        }

    def _solve(self, design: Design, right: NDArray[np.float64]) -> NDArray[np.float64]:
        free = design.free(self.alpha)
        return np.asarray(free @ solve(free.T @ self._normal(design) @ free, free.T @ right))

    def _normal(self, design: Design) -> NDArray[np.float64]:
        return np.asarray(design.n * design.gram + self.alpha * np.diag(design.inverse**2))

    def measures(self, state: State) -> dict[str, float]:
        """The share of the variance that is explained."""
        return {"r2": float(state["r2"])} if "r2" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``coef``, ``intercept``, and ``r2`` on the training rows; their standard errors, ``freedom``, and what `Design.facts` says of the columns."""
        if "at" not in state:  # no contact is left, and nothing is solved
            raise ConfigError("Ridge takes three contacts", where="Fit.rounds", remedy="use rounds=3 or more")
        design = Design.unpacked(state[OWN]["design"])
        at, freedom = np.asarray(state["at"]), design.n - design.rank - 1
        free = design.free(self.alpha)
        variance = float(state.get("rss", 0.0)) / freedom if freedom > 0 and "rss" in state else np.nan
        spread = np.zeros((len(at) + 1, len(at) + 1))
        spread[:-1, :-1] = free @ invert(free.T @ self._normal(design) @ free) @ free.T
        spread[-1, -1] = 1 / design.n
        coef, intercept, errors = design.in_units(at, float(state["level"]), variance * spread, self.alpha)
        return {
            "coef": coef, "intercept": float(intercept), "r2": float(state.get("r2", np.nan)), "standard_error": errors[:-1],
            "intercept_error": float(errors[-1]), "freedom": float(freedom), **design.facts(self.alpha),
        }  # fmt: skip

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.linear_model.Ridge`, or ``LinearRegression`` without a penalty."""
        del classes
        linear = need("sklearn.linear_model", "sklearn", "an estimator")
        made = linear.Ridge(alpha=self.alpha) if self.alpha else linear.LinearRegression()
        made.fit(np.eye(len(params["coef"])), np.zeros(len(params["coef"])))
        made.coef_, made.intercept_ = np.array(params["coef"]), float(params["intercept"])
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """``x w + b``."""
        del classes
        made: NDArray[Any] = rows.x @ np.asarray(params["coef"]) + float(params["intercept"])
        return made

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """``R^2``."""
        error = ((rows.y - self.predict(params, rows, classes)) ** 2).sum()
        whole = ((rows.y - rows.y.mean()) ** 2).sum()
        return float(1 - error / whole) if whole > 0 else 0.0
