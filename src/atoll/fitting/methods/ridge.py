"""Linear and ridge regression by normal equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.extras import need
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.rows import PartyRows

__all__ = ["Ridge"]


@dataclass(frozen=True, kw_only=True)
class Ridge(FitMethod):
    """Ridge regression: ``min_w,b sum (y - x w - b)^2 + alpha |w|^2``, solved exactly in two contacts.

    The parties add up means, then ``X'X`` and ``X'y`` around the common means: ``w = (X'X + alpha I)^-1 X'y``, with the smallest ``w`` if that has no inverse.

    Attributes:
        alpha: penalty; 0 is ordinary least squares.
    """

    target: ClassVar[Any] = "number"
    measure: ClassVar[str] = "r2"
    alpha: float = 0.0

    def __post_init__(self) -> None:
        positive(self, alpha=0)

    def start(self, known: Known) -> State:
        """Ask for means first."""
        del known
        return {"phase": "means"}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums, or products around the means."""
        del party
        if state["phase"] == "means":
            return {"x": rows.x.sum(axis=0), "y": rows.y.sum(), "n": np.float64(len(rows))}
        x, y = rows.x - np.asarray(state["mean"]), rows.y - float(state["level"])
        return {"xx": x.T @ x, "xy": x.T @ y, "yy": y @ y}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Means, then the solution."""
        del known
        if state["phase"] == "means":
            n = float(sums["n"])
            return {"phase": "products", "mean": sums["x"] / n, "level": float(sums["y"]) / n}
        gram, cross = sums["xx"] + self.alpha * np.eye(len(sums["xy"])), sums["xy"]
        coef = np.linalg.lstsq(gram, cross, rcond=None)[0]
        left = float(sums["yy"] - 2 * coef @ cross + coef @ sums["xx"] @ coef)
        r2 = 1 - left / float(sums["yy"]) if sums["yy"] > 0 else 0.0
        return {**state, "phase": "solved", "coef": coef, "r2": r2, "done": True}

    def measures(self, state: State) -> dict[str, float]:
        """The share of the variance that is explained."""
        return {"r2": float(state["r2"])} if "r2" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``coef``, ``intercept``, and ``r2`` on the training rows."""
        coef = np.asarray(state["coef"])
        return {
            "coef": coef,
            "intercept": float(state["level"]) - float(np.asarray(state["mean"]) @ coef),
            "r2": float(state["r2"]),
        }

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
        return float(1 - error / ((rows.y - rows.y.mean()) ** 2).sum())
