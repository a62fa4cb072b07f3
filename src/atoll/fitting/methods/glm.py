"""Generalised linear models by Newton's method on sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError
from atoll.core.extras import need
from atoll.fitting.method import AtParty, FitMethod, Known, State, Sums, positive
from atoll.fitting.rows import PartyRows, typed

__all__ = ["GLM", "newton_step"]


# One step of Newton's method where each value of the loss costs a contact.


_HALVINGS = 30


def newton_step(state: State, loss: float, gradient: NDArray[Any], hessian: NDArray[Any], tolerance: float) -> State:
    """The next point to ask about.

    A point whose loss is larger than that of the last accepted one is given up for the middle between them. An accepted one is left by ``-H^-1 g``, with the
    smallest step if ``H`` has no inverse. It is the last if ``g' H^-1 g / 2``, what the step promises, is at most ``tolerance`` times the loss.

    Args:
        state: has the point asked about, ``at``; once one is accepted, ``best`` and its ``loss``.
        loss: there.
        gradient: there.
        hessian: there.
        tolerance: see above.
    """
    at = np.asarray(state["at"])
    halvings = int(state.get("halvings", 0))
    slack = 1e-14 * (1 + abs(float(state.get("loss", 0.0))))
    if "best" in state and not loss <= float(state["loss"]) + slack:
        if halvings >= _HALVINGS:
            return {**state, "done": True}
        return {**state, "at": (at + np.asarray(state["best"])) / 2, "halvings": halvings + 1}
    step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
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
        "hessian": hessian if done else None,
    }


@dataclass(frozen=True, kw_only=True)
class GLM(FitMethod):
    """Logistic and Poisson regression: ``min sum loss(x w + b, y) + alpha |w|^2 / 2``, the intercept ``b`` without penalty.

    Each contact adds up the loss, its gradient and its Hessian at the current coefficients; the server makes a Newton step, and half of it as long as the
    loss would rise. It ends at the optimum of all rows, when the step promises less than ``tolerance`` times the loss. ``family="binomial"`` with more than two classes is
    multinomial. scikit-learn's ``LogisticRegression(C=1 / alpha)`` has the same optimum.

    Attributes:
        family: ``"binomial"`` or ``"poisson"``.
        alpha: penalty; without any, separable classes have no optimum.
        tolerance: see above.
    """

    measure: ClassVar[str] = "accuracy"
    family: str = "binomial"
    alpha: float = 1.0
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        positive(self, alpha=0, tolerance=0)
        if self.family not in ("binomial", "poisson"):
            raise ConfigError(f"family={self.family!r}", remedy="use 'binomial' or 'poisson'; Ridge is for 'gaussian'")

    @property
    def target(self) -> Any:  # type: ignore[override]
        """Classes, or counts."""
        return "class" if self.family == "binomial" else "number"

    def _outputs(self, classes: int) -> int:
        return 1 if classes <= 2 else classes

    def check(self, known: Known) -> None:
        """There are classes to tell apart."""
        if self.family == "binomial" and len(known.layout.classes) < 2:
            raise DataError(
                f"the label has the values {list(known.layout.classes)}",
                where="GLM",
                remedy="give a label of at least two classes",
            )

    def start(self, known: Known) -> State:
        """Begin with zeros."""
        outputs = self._outputs(len(known.layout.classes))
        return {"phase": "newton", "at": np.zeros((known.features + 1) * outputs), "outputs": outputs}

    def reply(self, rows: PartyRows, state: State, party: AtParty) -> Sums:
        """Loss, gradient and Hessian of a party's rows, without the penalty."""
        del party
        outputs = int(state["outputs"])
        x = np.concatenate([rows.x, np.ones((len(rows), 1))], axis=1)
        z = x @ np.asarray(state["at"]).reshape(outputs, -1).T
        if outputs > 1:
            return _sum_softmax(x, z, rows.y)
        if self.family == "poisson":
            if (rows.y < 0).any():
                raise DataError("a negative number is no count", where=rows.name, remedy="use Ridge")
            mean = np.exp(z[:, 0])
            return {
                "loss": (mean - rows.y * z[:, 0]).sum(),
                "gradient": x.T @ (mean - rows.y),
                "hessian": (x * mean[:, None]).T @ x,
            }
        p = 1 / (1 + np.exp(-np.clip(z[:, 0], -500, 500)))
        loss = np.logaddexp(0, z[:, 0]) - rows.y * z[:, 0]
        return {"loss": loss.sum(), "gradient": x.T @ (p - rows.y), "hessian": (x * (p * (1 - p))[:, None]).T @ x}

    def step(self, state: State, sums: Mapping[str, NDArray[Any]], known: Known) -> State:
        """A Newton step."""
        del known
        at, outputs = np.asarray(state["at"]), int(state["outputs"])
        mask = np.ones(len(at)).reshape(outputs, -1)
        mask[:, -1] = 0.0  # the intercepts
        weights = self.alpha * mask.reshape(-1)
        loss = float(sums["loss"]) + 0.5 * float(weights @ at**2)
        return newton_step(
            state, loss, sums["gradient"] + weights * at, sums["hessian"] + np.diag(weights), self.tolerance
        )

    def measures(self, state: State) -> dict[str, float]:
        """The loss of the last accepted coefficients."""
        return {"loss": float(state["loss"])} if "loss" in state else {}

    def result(self, state: State) -> dict[str, Any]:
        """``coef`` ``(outputs, features)`` and ``intercept`` ``(outputs,)``; the loss."""
        whole = np.asarray(state["best"]).reshape(int(state["outputs"]), -1)
        if len(whole) > 1:  # a constant added to all classes changes nothing: scikit-learn's intercepts add up to 0
            whole = np.concatenate([whole[:, :-1], whole[:, -1:] - whole[:, -1].mean()], axis=1)
        return {"coef": whole[:, :-1], "intercept": whole[:, -1], "loss": float(state["loss"])}

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
        made.fit(np.zeros((len(labels), coef.shape[1])), labels)
        made.coef_, made.intercept_ = coef, intercept
        return made

    def predict(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> NDArray[Any]:
        """Classes, or expected counts."""
        z = rows.x @ np.asarray(params["coef"]).T + np.asarray(params["intercept"])
        if self.family == "poisson":
            return np.asarray(np.exp(z[:, 0]))
        place = (z[:, 0] > 0).astype(np.int64) if z.shape[1] == 1 else z.argmax(axis=1)
        return np.asarray(typed([*classes])[place])

    def score(self, params: Mapping[str, Any], rows: PartyRows, classes: Sequence[str]) -> float:
        """The share of right classes; for counts, minus the mean absolute error."""
        found = self.predict(params, rows, classes)
        if self.family == "poisson":
            return -float(np.abs(found - rows.y).mean())
        return float((found == typed([*classes])[rows.y]).mean())


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
