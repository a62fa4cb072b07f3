"""Generalised linear models by Newton's method on sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.fitting.method import OWN, AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.numerics import Design, add_up_products, add_up_rows, invert, is_separated, scale, solve
from atoll.fitting.rows import PartyRows, typed

__all__ = ["GLM", "newton_step"]


# One step of Newton's method where each value of the loss costs a contact.


_HALVINGS, _OVERSHOOTS = 30, 8
"""Tries to shorten a step, and steps that may go out of bounds: where the loss falls for ever, every step does."""
_LARGEST_LOG = 50.0


def newton_step(
    state: State, loss: float, gradient: NDArray[Any], hessian: NDArray[Any], tolerance: float, free: NDArray[Any]
) -> State:
    """The next point to ask about.

    A point whose loss is larger than that of the last accepted one is given up for the middle between them; one whose loss is infinite, because it is out of bounds,
    for a shorter step, ``-(H + l I)^-1 g`` with a growing ``l``: flat directions are given up before others. An accepted point is left by ``-H^-1 g`` within the directions that are free. It is the last if ``g' H^-1 g / 2``, what the step promises, is at most ``tolerance`` times the loss.

    Args:
        state: has the point asked about, ``at``; once one is accepted, ``best`` and its ``loss``.
        loss: there.
        gradient: there.
        hessian: there.
        tolerance: see above.
        free: orthonormal directions, ``(numbers, directions)``.
    """
    at = np.asarray(state["at"])
    halvings = int(state.get("halvings", 0))
    slack = 1e-14 * (1 + abs(float(state.get("loss", 0.0))))
    if "best" in state and not loss <= float(state["loss"]) + slack:
        overshoots = int(state.get("overshoots", 0)) + (np.isinf(loss) and not halvings)
        if halvings >= _HALVINGS or overshoots > _OVERSHOOTS:
            return {**state, "done": True, "stuck": True}
        if np.isinf(loss):
            before, slope = (np.asarray(state[OWN][name]) for name in ("hessian", "slope"))
            damped = before + 10.0 ** (halvings - 8) * np.diag(before).max() * np.eye(len(before))
            return {
                **state,
                "at": np.asarray(state["best"]) - free @ solve(damped, slope),
                "halvings": halvings + 1,
                "overshoots": overshoots,
            }
        return {**state, "at": (at + np.asarray(state["best"])) / 2, "halvings": halvings + 1}
    hessian = free.T @ hessian @ free
    slope = free.T @ gradient
    inner = solve(hessian, slope)
    step = free @ inner
    promised = float(gradient @ step) / 2
    done = promised <= tolerance * (1 + abs(loss))
    # The last step is made without asking again: at the optimum its error is the square of the step's.
    best = at - step if done else at
    return {
        **state,
        "at": at - step,
        "best": best,
        "loss": loss,
        "halvings": 0,
        "done": done,
        OWN: {**state[OWN], "hessian": hessian, "slope": slope, "last": inner},
    }


def mark_separation(state: State, gram: NDArray[Any], n: float) -> State:
    """The last state, with ``separated``: see `is_separated`."""
    hessian, last = (np.asarray(state[OWN][name]) for name in ("hessian", "last"))
    return {**state, "separated": is_separated(hessian, gram, last, n, bool(state.get("stuck", False)))}


@dataclass(frozen=True, kw_only=True)
class GLM(FitMethod):
    """Logistic and Poisson regression: ``min sum loss(x w + b, y) + alpha |w|^2 / 2``, the intercept ``b`` without penalty.

    Two contacts add up means, then products around them, so that columns are centred and scaled (`atoll.fitting.numerics`). Each further one
    adds up the loss, its gradient and its Hessian at the current coefficients; the server makes a Newton step, and half of it as long as the
    loss would rise. It ends at the optimum of all rows, when the step promises less than ``tolerance`` times the loss. ``family="binomial"`` with more than two classes is
    multinomial. scikit-learn's ``LogisticRegression(C=1 / alpha)`` has the same optimum; its own default is a penalty of 1. Without a penalty, columns that depend on each other have the solution
    that is shortest in standard deviations, and rows that a combination of columns separates have no optimum: the result says so in ``separated``.

    Standard errors are from the inverse Hessian; with a penalty, of the posterior whose prior is the penalty. Those of more than two classes are of each class against the mean of all.

    Attributes:
        family: ``"binomial"`` or ``"poisson"``.
        alpha: penalty; 0 is maximum likelihood, as R and statsmodels fit it, and then separable classes have no optimum.
        tolerance: see above.
    """

    family: str = "binomial"
    alpha: float = 0.0
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        positive(self, alpha=0, tolerance=0)
        if self.family not in ("binomial", "poisson"):
            raise ConfigError(f"family={self.family!r}", remedy="use 'binomial' or 'poisson'; Ridge is for 'gaussian'")

    @property
    def coding(self) -> str:
        """Without a penalty each value against the first, as R does: one coefficient a value and an intercept have no single optimum."""
        return "onehot" if self.alpha else "dummy"

    @property
    def target(self) -> Any:  # type: ignore[override]
        """Classes, or counts."""
        return "class" if self.family == "binomial" else "number"

    @property
    def measure(self) -> str:  # type: ignore[override]
        """What `score` gives: a larger one is better, so the error of counts has a minus."""
        return "accuracy" if self.family == "binomial" else "neg_mean_absolute_error"

    def _outputs(self, classes: int) -> int:
        return 1 if classes <= 2 else classes

    def check(self, known: Known) -> None:
        """There are classes to tell apart."""
        if self.family == "binomial":
            known.require_classes("GLM")

    def start(self, known: Known) -> State:
        """Ask for means first."""
        outputs = self._outputs(len(known.layout.classes))
        return {"phase": "means", "outputs": outputs}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Loss, gradient and Hessian of a party's rows, without the penalty."""
        del party
        outputs = int(state["outputs"])
        if self.family == "poisson" and (rows.y < 0).any():
            raise DataError("a negative number is no count", where=rows.name, remedy="use Ridge")
        if state["phase"] == "means":
            return {**add_up_rows(rows.x), "y": np.asarray(rows.y, dtype=np.float64).sum()}
        if state["phase"] == "products":
            return add_up_products(rows.x, state["mean"])
        x = np.concatenate([scale(rows.x, state["centre"], state["inverse"]), np.ones((len(rows), 1))], axis=1)
        z = x @ np.asarray(state["at"]).reshape(outputs, -1).T
        if outputs > 1:
            return _sum_softmax(x, z, rows.y)
        if self.family == "poisson":
            # Beyond e^50 the loss goes on along its tangent: a step too far is finite, and halved.
            over = np.maximum(z[:, 0] - _LARGEST_LOG, 0.0)
            mean = np.exp(np.minimum(z[:, 0], _LARGEST_LOG))
            return {
                "loss": (mean * (1 + over) - rows.y * z[:, 0]).sum(),
                "gradient": x.T @ (mean - rows.y),
                "hessian": (x * mean[:, None]).T @ x,
            }
        sign = np.where(rows.y > 0, 1.0, -1.0)
        # The probability of the other class and that of the row's own, neither by a difference from 1.
        other, own = (1 / (1 + np.exp(np.clip(side * sign * z[:, 0], -500, 500))) for side in (1, -1))
        return {
            "loss": np.logaddexp(0, -sign * z[:, 0]).sum(),
            "gradient": x.T @ (-sign * other),
            "hessian": (x * (other * own)[:, None]).T @ x,
        }

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """The columns' means and scales, then Newton steps."""
        outputs = int(state["outputs"])
        if state["phase"] == "means":
            n = float(sums["n"])
            return {**state, "phase": "products", "n": n, "mean": sums["x"] / n, "level": float(sums["y"]) / n}
        if state["phase"] == "products":
            design = Design.of_sums(float(state["n"]), state["mean"], sums)
            at = np.zeros((outputs, known.features + 1))
            if self.family == "poisson":
                at[0, -1] = np.log(max(float(state["level"]), 0.5 / design.n))
            own = {OWN: {"design": design.packed()}, "centre": design.centre, "inverse": design.inverse}
            return {"phase": "newton", "outputs": outputs, "at": at.reshape(-1), **own}
        design, at = Design.unpacked(state[OWN]["design"]), np.asarray(state["at"])
        weights = self.alpha * np.tile(np.append(design.inverse**2, 0.0), outputs)  # the intercepts have none
        loss = float(sums["loss"]) + 0.5 * float(weights @ at**2)
        free = self._free(design, outputs)
        made = newton_step(
            state, loss, sums["gradient"] + weights * at, sums["hessian"] + np.diag(weights), self.tolerance, free
        )
        if made.get("done") and not self.alpha:
            gram = np.eye(design.rank + 1) * design.n
            gram[:-1, :-1] = design.basis.T @ design.gram @ design.basis * design.n
            return mark_separation(made, np.kron(np.eye(max(1, outputs - 1)), gram), design.n)
        return made

    def _free(self, design: Design, outputs: int) -> NDArray[np.float64]:
        """Directions of all coefficients: those of the columns and the intercept, and between classes only differences."""
        columns = design.free(self.alpha)
        inner = np.zeros((len(columns) + 1, columns.shape[1] + 1))
        inner[:-1, :-1], inner[-1, -1] = columns, 1.0
        return np.asarray(np.kron(_contrasts(outputs), inner) if outputs > 1 else inner)

    def measures(self, state: State) -> dict[str, float]:
        """The loss of the last accepted coefficients."""
        return {"loss": float(state["loss"])} if "loss" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``coef`` ``(outputs, features)`` and ``intercept`` ``(outputs,)``, their standard errors; the loss; and what `Design.facts` says of the columns."""
        if "best" not in state:
            raise ConfigError(
                "no contact was left for a Newton step", where="Fit.rounds", remedy="use rounds=10 or more"
            )
        outputs = int(state["outputs"])
        design, whole = Design.unpacked(state[OWN]["design"]), np.asarray(state["best"]).reshape(outputs, -1)
        free, hessian = self._free(design, outputs), state[OWN].get("hessian")
        spread = np.full((whole.size, whole.size), np.nan)
        if hessian is not None and not state.get("separated", False):
            spread = free @ invert(np.asarray(hessian)) @ free.T
        blocks = np.arange(whole.size).reshape(outputs, -1)
        found = [
            design.in_units(one[:-1], float(one[-1]), spread[np.ix_(block, block)], self.alpha)
            for one, block in zip(whole, blocks, strict=True)
        ]
        coef, intercept, errors = (np.array(list(part)) for part in zip(*found, strict=True))
        return {
            "coef": coef, "intercept": intercept, "loss": float(state["loss"]), "standard_error": errors[:, :-1], "intercept_error": errors[:, -1],
            "separated": bool(state.get("separated", False)), **design.facts(self.alpha),
        }  # fmt: skip

    def estimator(self, params: Mapping[str, Any], classes: Sequence[str]) -> Any:
        """`sklearn.linear_model.LogisticRegression`, or ``PoissonRegressor`` (whose own penalty is per row)."""
        linear = need("sklearn.linear_model", "sklearn", "an estimator")
        coef, intercept = np.array(params["coef"]), np.array(params["intercept"])
        if self.family == "poisson":
            made = linear.PoissonRegressor(max_iter=1000).fit(np.zeros((2, coef.shape[1])), np.ones(2))
            made.coef_, made.intercept_ = coef[0], float(intercept[0])
            return made
        made = linear.LogisticRegression(C=1 / self.alpha if self.alpha else np.inf)
        labels = typed([*classes])
        # scikit-learn sorts the classes that it is fitted to; the coefficients have them in their agreed order.
        made.fit(np.zeros((len(labels), coef.shape[1])), np.arange(len(labels)))
        made.coef_, made.intercept_, made.classes_ = coef, intercept, labels
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """Classes, or expected counts."""
        z = rows.x @ np.asarray(params["coef"]).T + np.asarray(params["intercept"])
        if self.family == "poisson":
            return np.asarray(np.exp(z[:, 0]))
        place = (z[:, 0] > 0).astype(np.int64) if z.shape[1] == 1 else z.argmax(axis=1)
        return np.asarray(typed([*classes])[place])

    @property
    def probable(self) -> bool:
        """Counts have no classes."""
        return self.family == "binomial"

    def probabilities(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """``1 / (1 + e^-z)`` of the second of two classes, the softmax of several."""
        del classes
        z = rows.x @ np.asarray(params["coef"]).T + np.asarray(params["intercept"])
        z = np.concatenate([np.zeros_like(z), z], axis=1) if z.shape[1] == 1 else z
        weights = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of right classes; for counts, minus the mean absolute error."""
        found = self.predict(params, rows, classes)
        if self.family == "poisson":
            return -float(np.abs(found - rows.y).mean())
        return float((found == typed([*classes])[rows.y]).mean())


def _contrasts(classes: int) -> NDArray[np.float64]:
    """Orthonormal directions of ``(classes,)`` numbers that add up to 0: a constant added to all classes changes nothing."""
    return np.asarray(np.linalg.qr(np.eye(classes) - 1 / classes)[0][:, : classes - 1])


def _sum_softmax(x: NDArray[np.float64], z: NDArray[np.float64], y: NDArray[Any]) -> Sums:
    outputs, width = z.shape[1], x.shape[1]
    z = z - z.max(axis=1, keepdims=True, initial=-np.inf)
    logs = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    p, truth = np.exp(logs), (y[:, None] == np.arange(outputs)).astype(np.float64)
    hessian = np.zeros((outputs, width, outputs, width))
    for a in range(outputs):
        for b in range(a, outputs):
            weight = p[:, a] * ((a == b) - p[:, b])
            hessian[a, :, b] = (x * weight[:, None]).T @ x
            hessian[b, :, a] = hessian[a, :, b].T
    size = outputs * width
    return {
        "loss": -(logs * truth).sum(),
        "gradient": ((p - truth).T @ x).reshape(size),
        "hessian": hessian.reshape(size, size),
    }
