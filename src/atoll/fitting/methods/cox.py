"""Cox regression by Newton's method on sums at event times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.fitting.method import OWN, AtParty, Known, State, Sums, positive
from atoll.fitting.numerics import Design, add_up_products, add_up_rows, invert, scale
from atoll.fitting.rows import PartyRows

from .glm import mark_separation, newton_step
from .times import SurvivalMethod

__all__ = ["Cox"]

_LARGEST_LOG, _LONGEST_STEP = 50.0, 10.0
_LOST = 1e-13
"""Information of a row in a direction, in squared standard deviations, that is rounding alone."""


@dataclass(frozen=True, kw_only=True)
class Cox(SurvivalMethod):
    """Proportional hazards ``h(t | x) = h_0(t) exp((x - mean) b)``: the maximum of the partial likelihood of all rows (Cox 1972).

    Two contacts add up means, then products around them, so that columns are centred and scaled (`atoll.fitting.numerics`). Each iteration has two more. The first adds up ``e = exp((x - mean) b)`` and ``e x`` of the rows that leave at each time of the grid, from which the server has the risk sets. The
    second adds up ``x x'`` with weights that the server now knows, so no party sends a matrix a time. Ties are treated as Efron or Breslow do.

    See `SurvivalMethod` for the grid and for minimum counts.

    Attributes:
        ties: ``"efron"`` or ``"breslow"``.
        alpha: penalty ``alpha |b|^2 / 2``.
        tolerance: it ends when a step promises less than this times the log-likelihood.
    """

    measure: ClassVar[str] = "concordance"
    first: ClassVar[str] = "moments"
    ties: str = "efron"
    alpha: float = 0.0
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, alpha=0, tolerance=0)
        if self.ties not in ("efron", "breslow"):
            raise ConfigError(f"ties={self.ties!r}", remedy="use 'efron' or 'breslow'")

    @property
    def coding(self) -> str:
        """Without a penalty each value against the first, as R does: one coefficient a value and an intercept have no single optimum."""
        return "onehot" if self.alpha else "dummy"

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Sums by time, or the weighted products."""
        del party
        placed = self.placed(rows, state)
        x = rows.x[placed.rows]
        if state["phase"] == "products":
            return add_up_products(x, state["mean"])
        if state["phase"] == "moments":
            return {
                **add_up_rows(x),
                "moved": np.array(placed.moved, np.float64),
                "left_out": np.array(placed.left_out, np.float64),
            }
        x = scale(x, state["centre"], state["inverse"])
        seen = placed.place >= 0
        x, place, event = x[seen], placed.place[seen], placed.event[seen]
        # A step that goes too far is shortened, so its sums only have to stay finite.
        z = x @ np.asarray(state["at"])
        far = (z > _LARGEST_LOG) | (np.abs(z - x @ np.asarray(state.get("best", state["at"]))) > _LONGEST_STEP)
        e = np.exp(np.clip(z, -_LARGEST_LOG, _LARGEST_LOG))
        if state["phase"] == "curvature":
            risk = np.cumsum(np.asarray(state["weights"]))[place] - np.where(
                event, np.asarray(state["tied"])[place], 0.0
            )
            return {"xx": (x * (e * risk)[:, None]).T @ x}
        width = len(state["grid"])

        def by_time(values: NDArray[np.float64], keep: NDArray[np.bool_]) -> NDArray[np.float64]:
            made = np.zeros((width, *values.shape[1:]))
            np.add.at(made, place[keep], values[keep])
            return made

        everyone = np.ones(len(x), bool)
        ex = e[:, None] * x
        return {
            "s0": by_time(e, everyone), "s1": by_time(ex, everyone), "d0": by_time(e, event), "d1": by_time(ex, event),
            "d": by_time(np.ones(len(x)), event), "events": x[event].sum(axis=0), "far": np.float64(far.sum()),
        }  # fmt: skip

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """Centre; risk sets; a Newton step; and the baseline at the end."""
        del known
        if state["phase"] == "moments":
            told = {name: float(sums[name]) for name in ("moved", "left_out")}
            n = float(sums["n"])
            return {**state, **told, "phase": "products", "n": n, "mean": sums["x"] / n}
        if state["phase"] == "products":
            design = Design.of_sums(float(state["n"]), state["mean"], sums)
            own = {OWN: {"design": design.packed()}, "centre": design.centre, "inverse": design.inverse}
            return {**state, **own, "phase": "risk", "at": np.zeros(len(design.centre))}
        design = Design.unpacked(state[OWN]["design"])
        if state["phase"] == "curvature":
            hessian = sums["xx"] - np.asarray(state["outer"]) + self.alpha * np.diag(design.inverse**2)
            next_ = newton_step(
                state,
                float(state["asked"]),
                np.asarray(state["slope"]),
                hessian,
                self.tolerance,
                design.free(self.alpha),
            )
            if next_["done"]:
                next_ = self._marked(next_, design)
            keep = {
                name: one for name, one in next_.items() if name not in ("weights", "tied", "outer", "slope", "asked")
            }
            if next_["done"]:
                return {**keep, "phase": "baseline", "at": np.asarray(next_["best"]), "done": False}
            return {**keep, "phase": "risk"}
        return self._at_risk(state, sums, design)

    def _at_risk(self, state: State, sums: Mapping[str, NDArray[Any]], design: Design) -> State:
        at, d = np.asarray(state["at"]), np.rint(sums["d"]).astype(np.int64)
        if not d.any():
            raise DataError("no event is at a time of the grid", where="Cox", remedy=f"give times= up to the last event, and look whether 1 is an event in the column {self.event!r}")  # fmt: skip
        s0, s1 = (np.cumsum(sums[name][::-1], axis=0)[::-1] for name in ("s0", "s1"))
        penalty = self.alpha * design.inverse**2
        loss = -float(sums["events"] @ at) + 0.5 * float(penalty @ at**2)
        slope = -np.asarray(sums["events"]) + penalty * at
        weights, tied, outer = np.zeros(len(d)), np.zeros(len(d)), np.zeros((len(at), len(at)))
        for j in np.flatnonzero(d):
            share = np.arange(d[j]) / d[j] if self.ties == "efron" else np.zeros(d[j])
            left = s0[j] - share * sums["d0"][j]
            mean = (s1[j] - share[:, None] * sums["d1"][j]) / left[:, None]
            loss += float(np.log(left).sum())
            slope += mean.sum(axis=0)
            outer += mean.T @ mean
            weights[j], tied[j] = (1 / left).sum(), (share / left).sum()
        if state["phase"] == "baseline":
            return {**state, "phase": "solved", "loss": loss, "baseline": np.cumsum(weights), "done": True}
        if "best" in state and float(sums["far"]) >= 0.5:
            # Beyond the largest hazard sums are cut, and the loss with them falls for ever. A step of more than e^10 may lead to where the curvature is rounding, and no way back is seen.
            loss = np.inf
        if "best" in state and not loss <= float(state["loss"]) + 1e-14 * (1 + abs(float(state["loss"]))):
            # The middle, a shorter step, or the end.
            made = newton_step(state, loss, slope, outer, self.tolerance, design.free(self.alpha))
            return (
                {**self._marked(made, design), "phase": "baseline", "at": np.asarray(state["best"]), "done": False}
                if made.get("done")
                else made
            )
        return {
            **state,
            "phase": "curvature",
            "asked": loss,
            "slope": slope,
            "weights": weights,
            "tied": tied,
            "outer": outer,
        }

    def _marked(self, state: State, design: Design) -> State:
        if self.alpha:
            return state
        # The Hessian is a difference of sums. If a long step led to where hazards differ by e^40, what is left of it in that direction is rounding, and so is the last step.
        hessian = np.asarray(state[OWN]["hessian"])
        if len(hessian) and np.linalg.eigvalsh(hessian)[0] < _LOST * design.n:
            return {**state, "separated": True}
        return mark_separation(state, design.basis.T @ design.gram @ design.basis * design.n, design.n)

    def measures(self, state: State) -> dict[str, float]:
        """The partial log-likelihood of the last accepted coefficients."""
        return {"log_likelihood": -float(state["loss"])} if "loss" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``coef``, ``standard_error``, ``log_likelihood``; ``times`` and the cumulative ``baseline`` hazard at the ``mean``."""
        if "loss" not in state:
            raise ConfigError(
                "no contact was left for a Newton step", where="Fit.rounds", remedy="use rounds=20 or more"
            )
        design, at = Design.unpacked(state[OWN]["design"]), np.asarray(state["at"])
        free, hessian = design.free(self.alpha), state[OWN].get("hessian")
        spread = np.full((len(at) + 1, len(at) + 1), np.nan)
        if hessian is not None and not state.get("separated", False):
            spread[:-1, :-1] = free @ invert(np.asarray(hessian)) @ free.T
            spread[-1] = spread[:, -1] = 0.0
        coef, _, errors = design.in_units(at, 0.0, spread, self.alpha)
        return {
            "coef": coef, "standard_error": errors[:-1], "log_likelihood": -float(state["loss"]), "times": np.asarray(state["grid"]),
            "baseline": np.asarray(state.get("baseline", np.zeros(len(state["grid"])))), "mean": np.asarray(state["centre"]),
            "moved": float(state["moved"]), "left_out": float(state["left_out"]), "separated": bool(state.get("separated", False)), **design.facts(self.alpha),
        }  # fmt: skip

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """The hazard relative to that at the mean, ``exp((x - mean) b)``."""
        del classes
        return np.asarray(np.exp((rows.x - np.asarray(params["mean"])) @ np.asarray(params["coef"])))

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """Harrell's concordance: the share of comparable pairs in which the row with the earlier event has the larger hazard; ties count half."""
        times, events = self._columns(rows)
        risk = self.predict(params, rows, classes)
        right = pairs = 0.0
        for i in np.flatnonzero(events):
            later = (times > times[i]) | ((times == times[i]) & ~events)
            right += (risk[i] > risk[later]).sum() + 0.5 * (risk[i] == risk[later]).sum()
            pairs += later.sum()
        return float(right / pairs) if pairs else 0.5
