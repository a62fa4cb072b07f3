"""What features are worth: a linear probe on them, and fine-tuning with few labels."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from atoll.core.algebra.metric import Summary
from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import ConfigError, DataError
from atoll.data.labels.hiding import quotas
from atoll.learn.metrics.base import ScoreMetric, ratio

__all__ = ["FineTuned", "LinearProbe", "ProbeAccuracy", "fine_tune", "fit_probe", "labelled_share"]

# Linear probes: a logistic regression on frozen features.


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


# Fine-tuning with few labels: how far an encoder carries 1 or 10 % of them.


_BLOCK = 1024


@dataclass(frozen=True)
class FineTuned:
    """What came of fine-tuning.

    Attributes:
        accuracy: on the test rows.
        labels: number of labels that were used.
        model: the encoder with its new head, tuned.
    """

    accuracy: float
    labels: int
    model: nn.Module


@checked_call
def labelled_share(labels: ArrayLike, share: float, seed: int) -> NDArray[np.int64]:
    """Return row numbers of a share of the labels, by seed, with as equal numbers of each class as there are and at least one of each.

    Raises:
        ConfigError: a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share={share}", where="fine-tuning", remedy="use a share above 0 and up to 1, such as 0.01")
    y = np.asarray(labels, np.int64)
    rng = Rng.of(seed).child("fine-tune").generator()
    counts = np.bincount(y)
    total = max(round(share * len(y)), int((counts > 0).sum()))
    rows = [rng.permutation(np.flatnonzero(y == c))[:n] for c, n in enumerate(quotas(counts, total, rng))]
    return np.sort(np.concatenate(rows))


@checked_call
def fine_tune(
    encoder: nn.Module,
    x: ArrayLike,
    y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    *,
    share: float = 0.01,
    lr: float = 0.01,
    steps: int = 200,
    batch: int = 64,
    seed: int = 0,
) -> FineTuned:
    """Train a copy of an encoder with a new linear head on a share of the labels, all weights, and measure it.

    SGD with Nesterov's momentum .9 at a cosine rate, without dropout. The given encoder stays as it is.

    Args:
        encoder: maps rows to features ``(n, d)``.
        x: rows with labels, ``(n, ...)``.
        y: their classes.
        test_x: rows to measure on.
        test_y: their classes.
        share: share of the labels to use, such as 0.01 or 0.1.
        lr: first learning rate.
        steps: mini-batches.
        batch: rows of each.
        seed: chooses labels, mini-batches and the head.

    Raises:
        DataError: no rows, or other numbers of rows than of labels.
        ConfigError: a share outside (0, 1].
    """
    rows, labels = torch.as_tensor(np.array(x), dtype=torch.float32), torch.as_tensor(np.array(y), dtype=torch.int64)
    if not len(rows) or len(rows) != len(labels):
        raise DataError(
            f"{len(rows)} rows with {len(labels)} labels", where="fine-tuning", remedy="give each row one label"
        )
    chosen = labelled_share(labels.numpy(), share, seed)
    rng = Rng.of(seed).child("fine-tune", "steps").generator()
    own = copy.deepcopy(encoder).eval()
    with torch.no_grad():
        width = own(rows[:1]).numel()
    classes = int(max(labels.max(), np.max(test_y))) + 1
    # Its own first weights would come from PyTorch's global generator.
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, classes)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(rng.uniform(-1, 1, head.weight.shape) / np.sqrt(width)))
        head.bias.zero_()
    model = nn.Sequential(own, nn.Flatten(), head).requires_grad_(True).train()
    solver = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(solver, steps)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):  # its draws come from PyTorch's global generator
            module.eval()
    for _ in range(steps):
        picked = torch.from_numpy(rng.choice(chosen, min(batch, len(chosen)), replace=False))
        solver.zero_grad()
        nn.functional.cross_entropy(model(rows[picked]), labels[picked]).backward()  # type: ignore[no-untyped-call]
        solver.step()
        schedule.step()
    model.eval()
    asked = torch.as_tensor(np.array(test_x), dtype=torch.float32)
    with torch.no_grad():
        guess = torch.cat([model(asked[at : at + _BLOCK]).argmax(1) for at in range(0, len(asked), _BLOCK)])
    return FineTuned(float((guess.numpy() == np.asarray(test_y)).mean()), len(chosen), model)
