"""Evaluation: sums of metrics over a data set, or over each of many clients' data at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .pool import columns_of, pool_of
from .source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .losses import Loss
    from .network import Network
    from .pool import Pool

__all__ = ["evaluate", "evaluate_many", "pullback", "run_over", "score"]

Tensor = torch.Tensor
_ROWS = 2048
_CLIENTS = 512


def evaluate(network: Network, params: Mapping[str, NDArray[Any]], data: Any) -> dict[str, float]:
    """Evaluate in evaluation mode (no dropout, running statistics).

    Args:
        network: model and loss.
        params: parameters, and buffers where they travel, by name.
        data: columns ``x`` and ``y``.

    Returns:
        Sums over the examples: ``n``, ``loss_sum``; for classes and signs ``correct``; for values ``squared_error`` and
        ``absolute_error`` (each averaged over the entries of a target). A mean over the examples is ``sum / n``.
    """
    x, y = columns_of(data)
    pool = pool_of(x, y, np.array([0, len(x)], dtype=np.int64), network.device, network.dtype)
    return {name: float(values[0]) for name, values in _segments(network, params, pool).items()}


def evaluate_many(
    network: Network, params: Mapping[str, NDArray[Any]], shards: Any, count: int
) -> dict[str, NDArray[np.float64]]:
    """Evaluate one model on many clients' data, in large batches across clients.

    Args:
        network: model and loss.
        params: as in `evaluate`.
        shards: one a client, or ``positions -> (x, y, offsets)``.
        count: clients.

    Returns:
        The sums of `evaluate`, one a client, each ``(clients,)``.
    """
    source = Source(shards, count)
    parts: list[dict[str, NDArray[np.float64]]] = []
    for begin in range(0, count, _CLIENTS):
        positions = np.arange(begin, min(begin + _CLIENTS, count))
        parts.append(_segments(network, params, source.pool(positions, network)))
    names = max(parts, key=len, default={"n": np.zeros(0)})
    return {
        name: np.concatenate([part.get(name, np.zeros(len(part["n"]))) for part in parts] or [np.zeros(0)])
        for name in names
    }


def score(network: Network, params: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
    """The model's outputs in evaluation mode, one row an input."""
    x = np.asarray(x)
    pool = pool_of(x, np.zeros(len(x), np.int64), np.array([0, len(x)], np.int64), network.device, network.dtype)
    with torch.no_grad():
        made = [outputs.cpu() for _, outputs in run_over(network, params, pool)]
    return np.asarray(torch.cat(made).numpy()) if made else np.zeros((0,))


def pullback(
    network: Network, params: Mapping[str, NDArray[Any]], x: NDArray[Any], slope: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """The gradient of ``sum(slope * scores)`` by the parameters, in evaluation mode; ``slope`` has one row an input."""
    x = np.asarray(x)
    pool = pool_of(x, np.zeros(len(x), np.int64), np.array([0, len(x)], np.int64), network.device, network.dtype)
    leaves = {
        name: torch.as_tensor(np.array(value)).to(network.device, network.dtype).requires_grad_()
        for name, value in params.items()
    }
    fixed = {n: p for n, p in network.evaluation.named_parameters() if not p.requires_grad}
    buffers = {n: b for n, b in network.evaluation.named_buffers() if n not in leaves}
    outputs = network.outputs(leaves, {**fixed, **buffers}, pool.x, training=False)
    weight = torch.as_tensor(np.asarray(slope)).to(outputs)
    found = torch.autograd.grad((outputs * weight).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {
        name: np.asarray((torch.zeros_like(leaf) if grad is None else grad).detach().cpu().numpy())
        for (name, leaf), grad in pairs
    }


def run_over(network: Network, params: Mapping[str, NDArray[Any]], pool: Pool) -> Iterator[tuple[slice, Tensor]]:
    """Run the model over a pool, some rows at a time."""
    given = {name: torch.as_tensor(np.array(value)).to(network.device, network.dtype) for name, value in params.items()}
    buffers = {n: b for n, b in network.evaluation.named_buffers() if n not in given}
    fixed = {n: p for n, p in network.evaluation.named_parameters() if not p.requires_grad}
    for begin in range(0, len(pool.x), _ROWS):
        rows = slice(begin, begin + _ROWS)
        yield rows, network.outputs(given, {**fixed, **buffers}, pool.x[rows], training=False)


def _segments(network: Network, params: Mapping[str, NDArray[Any]], pool: Pool) -> dict[str, NDArray[np.float64]]:
    """Sums over each client's rows of a pool."""
    sums: dict[str, NDArray[np.float64]] = {
        "n": pool.sizes.astype(np.float64),
        "loss_sum": np.zeros(len(pool.sizes)),
    }
    owner = np.repeat(np.arange(len(pool.sizes)), pool.sizes)
    if len(owner):
        network.settle(pool.x[:2], pool.labels, "evaluation")
    with torch.no_grad():
        for rows, outputs in run_over(network, params, pool):
            for name, values in _metrics(network.loss, outputs, pool.y[rows]):
                total = sums.setdefault(name, np.zeros(len(pool.sizes)))
                total += np.bincount(owner[rows], values.double().cpu().numpy(), minlength=len(total))
    return sums


def _metrics(loss: Loss, outputs: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, one value an example)``."""
    if loss.each is not None:
        yield "loss_sum", loss.each(outputs, targets)
    else:
        # A callable gives the mean of a batch only; every example of the batch is given that mean.
        yield "loss_sum", loss.mean(outputs, targets).expand(len(targets))
    if not loss.task and _one_score(outputs, targets):
        return  # of a callable nobody knows from which score on it is the second class
    if loss.task == "classes" or (not loss.task and _looks_like_classes(outputs, targets)):
        yield "correct", _mean_rows((outputs.argmax(1) == targets).to(outputs.dtype))
    elif loss.task == "signs":
        scores = outputs.reshape(targets.shape)
        yield "correct", _mean_rows(((scores > 0) == (targets > 0)).to(outputs.dtype))
    elif loss.task == "values" or outputs.numel() == targets.numel():
        error = outputs.reshape(targets.shape) - targets.to(outputs.dtype)
        yield "squared_error", _mean_rows(error**2)
        yield "absolute_error", _mean_rows(error.abs())


def _looks_like_classes(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.dim() == targets.dim() + 1


def _one_score(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.numel() == targets.numel()


def _mean_rows(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.flatten(1).mean(1)
