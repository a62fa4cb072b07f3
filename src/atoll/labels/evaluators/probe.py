"""Linear probes: a logistic regression on frozen features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.algebra.metric import Summary
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.learn.metrics.base import ScoreMetric, ratio

__all__ = ["LinearProbe", "ProbeAccuracy", "fit_probe"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A fitted probe.

    Attributes:
        mean: of each feature over the rows that it was fitted on.
        scale: their standard deviations; 1 for constant features.
        weight: ``(features, classes)``.
        bias: ``(classes,)``.
    """

    mean: Floats
    scale: Floats
    weight: Floats
    bias: Floats

    def scores(self, features: ArrayLike) -> Floats:
        """Return logits ``(n, classes)``."""
        rows = np.asarray(features, np.float64)
        return np.asarray((rows.reshape(len(rows), -1) - self.mean) / self.scale @ self.weight + self.bias)

    def predict(self, features: ArrayLike) -> NDArray[np.int64]:
        """Return classes ``(n,)``."""
        return np.asarray(self.scores(features).argmax(axis=1), np.int64)

    def accuracy(self, features: ArrayLike, labels: ArrayLike) -> float:
        """Return the share of rows of the right class."""
        return float((self.predict(features) == np.asarray(labels)).mean())


@checked_call
def fit_probe(
    features: ArrayLike, labels: ArrayLike, *, classes: int | None = None, l2: float = 1.0, steps: int = 200
) -> LinearProbe:
    """Fit a multinomial logistic regression on features that are standardised first.

    It minimises ``sum_i CE(z_i, y_i) + l2/2 ||W||^2``, without a penalty on the bias, by L-BFGS in float64: scikit-learn's ``LogisticRegression(C=1/l2)`` after
    its ``StandardScaler``.

    Args:
        features: ``(n, ...)``; frozen outputs of an encoder, or pixels.
        labels: ``(n,)``.
        classes: number of classes; ``max + 1`` by default.
        l2: the penalty.
        steps: the most iterations.

    Raises:
        DataError: no rows, another number of labels, or features that are not finite.
    """
    import torch

    rows, y = np.asarray(features, np.float64), np.asarray(labels, np.int64)
    rows = rows.reshape(len(rows), -1)
    if not len(rows) or y.shape != (len(rows),) or not np.isfinite(rows).all():
        raise DataError(
            f"{len(rows)} rows and labels of shape {y.shape}" + ("" if np.isfinite(rows).all() else ", with features that are not finite"),
            where="linear probe", remedy="give finite features and one class for each row",
        )  # fmt: skip
    if l2 < 0 or steps < 1:
        raise ConfigError(
            f"l2={l2}, steps={steps}", where="linear probe", remedy="use l2 of 0 or more and at least one step"
        )
    count = int(y.max()) + 1 if classes is None else classes
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    x, t = torch.from_numpy((rows - mean) / scale), torch.from_numpy(y)
    weight = torch.zeros(rows.shape[1], count, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=steps,
        tolerance_grad=1e-7 * len(rows),
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = (
            torch.nn.functional.cross_entropy(x @ weight + bias, t, reduction="sum") + 0.5 * l2 * weight.square().sum()
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return LinearProbe(mean, scale, weight.detach().numpy(), bias.detach().numpy())


@dataclass(frozen=True)
class ProbeAccuracy(ScoreMetric):
    """The accuracy of a linear probe on the model's outputs, round by round: fitted on the even rows, measured on the odd ones.

    Attributes:
        l2: see `fit_probe`.
    """

    l2: float = 1.0

    def zero(self) -> Summary:
        """Return the summary of no rows."""
        return {"n": 0.0, "hits": 0.0}

    def of(self, scores: ArrayLike, targets: ArrayLike) -> Summary:
        """Return the number of measured rows, and of those of the right class."""
        x, y = np.asarray(scores, np.float64), np.asarray(targets).reshape(-1).astype(np.int64)
        if len(y) < 2:
            return self.zero()
        codes = np.unique(y, return_inverse=True)[1]
        probe = fit_probe(x[::2], codes[::2], classes=int(codes.max()) + 1, l2=self.l2)
        return {"n": float(len(y) // 2), "hits": float((probe.predict(x[1::2]) == codes[1::2]).sum())}

    def result(self, summary: Summary) -> dict[str, float]:
        """Return the share of such rows."""
        return {"probe_accuracy": ratio(summary["hits"], summary["n"])}
