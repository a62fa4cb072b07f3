"""Evaluation: one forward pass over rows, in batches; sums by row, so that clients are added up afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import torch
from atoll.core.tree import Tree

from .pool import columns_of, pool_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .local import LocalTraining

__all__ = ["row_sums", "score_rows"]

_ROWS = 4096  # rows of one forward pass, at most
_VALUES = 1 << 22  # input values of one forward pass, at most


def score_rows(training: LocalTraining, params: Tree, x: Any) -> NDArray[Any]:
    """The model's outputs in evaluation mode, one row an input."""
    x = np.asarray(x)
    pool = pool_of(
        x, np.zeros(len(x), np.int64), np.array([0, len(x)]), training.network.device, training.network.dtype
    )
    with torch.no_grad():
        made = [outputs.cpu() for outputs, _ in _passes(training, params, pool.x, pool.y)]
    return np.asarray(torch.cat(made).numpy())


def row_sums(training: LocalTraining, params: Tree, data: Any) -> dict[str, NDArray[np.float64]]:
    """What each row adds to the metrics.

    Returns:
        ``n`` (1 a row), ``loss_sum``, and by the loss's kind ``correct`` (classes, signs) or ``squared_error`` and
        ``absolute_error`` (values), each of shape ``(rows,)``.
    """
    x, y = columns_of(data)
    if len(y) == 0:
        return {"n": np.zeros(0), "loss_sum": np.zeros(0)}
    pool = pool_of(x, y, np.array([0, len(x)]), training.network.device, training.network.dtype)
    training.check(pool, "the data to evaluate")
    columns: dict[str, list[torch.Tensor]] = {}
    with torch.no_grad():
        for outputs, targets in _passes(training, params, pool.x, pool.y):
            for name, values in _columns(training, outputs, targets).items():
                columns.setdefault(name, []).append(values.double().cpu())
    return {name: np.asarray(torch.cat(parts).numpy()) for name, parts in columns.items()}


def _passes(training: LocalTraining, params: Tree, x: torch.Tensor, y: torch.Tensor) -> Any:
    network = training.network
    tensors = {
        name: torch.from_numpy(np.array(value)).to(network.device, network.dtype) for name, value in params.items()
    }
    size = max(1, min(_ROWS, _VALUES // max(1, x[0].numel())))
    for begin in range(0, len(x), size):
        rows = slice(begin, begin + size)
        yield network.outputs(tensors, network.frozen, x[rows], training=False), y[rows]


def _columns(training: LocalTraining, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    loss = training.network.loss
    count = len(targets)
    made = {"n": torch.ones(count)}
    if loss.each is not None:
        made["loss_sum"] = loss.each(outputs, targets)
    else:
        made["loss_sum"] = loss(outputs, targets, None).expand(count)
    if loss.task == "classes":
        made["correct"] = _mean_rows((outputs.argmax(1) == targets).float())
    elif loss.task == "signs":
        threshold = 0.5 if loss.name == "bce" else 0.0
        made["correct"] = _mean_rows(((outputs > 0) == (targets > threshold)).float())
    elif loss.task == "values":
        error = (outputs.reshape(targets.shape) if outputs.numel() == targets.numel() else outputs) - targets
        made["squared_error"] = _mean_rows(error**2)
        made["absolute_error"] = _mean_rows(error.abs())
    return made


def _mean_rows(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(len(values), -1).mean(1)
