"""Evaluation: sums of metrics over a data set, or over each of many clients' data at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.learn.local.own_loss import LABELLED

from .blocks.pool import pool_of
from .blocks.source import RowSource
from .losses import means_of_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .blocks.pool import Pool
    from .network import FunctionalModule

__all__ = ["evaluate", "evaluate_many", "pullback", "run_over", "score"]

Tensor = torch.Tensor
_ROWS = 2048
_CLIENTS = 512


def evaluate(network: FunctionalModule, params: Mapping[str, NDArray[Any]], data: Any) -> dict[str, float]:
    """Evaluate in evaluation mode (no dropout, running statistics).

    Args:
        network: model and loss.
        params: parameters, and travelling buffers, by name.
        data: columns ``x`` and ``y``, and further columns that the loss asks for.

    Returns:
        Sums over the examples: ``n``, ``loss_sum``; for classes and signs ``correct``; for values ``squared_error`` and
        ``absolute_error`` (each averaged over the entries of a target). A mean over the examples is ``sum / n``. If
        labels are missing (a column ``labelled``), an example counts as the share of its labels that exist, and its
        values are means over those. A loss that needs what exists only in training is replaced by the plain loss of the
        data's task.
    """
    pool = RowSource([data], 1).pool(np.zeros(1, np.int64), network, network.measured)
    return {name: float(values[0]) for name, values in _segments(network, params, pool).items()}


def evaluate_many(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], shards: Any, count: int
) -> dict[str, NDArray[np.float64]]:
    """Evaluate one model on many clients' data, in large batches across clients.

    Args:
        network: model and loss.
        params: as in `evaluate`.
        shards: one for each client, or `atoll.torch.blocks.source.Rows`.
        count: clients.

    Returns:
        The sums of `evaluate` for each client, each ``(clients,)``.
    """
    source = RowSource(shards, count)
    parts: list[dict[str, NDArray[np.float64]]] = []
    for begin in range(0, count, _CLIENTS):
        positions = np.arange(begin, min(begin + _CLIENTS, count))
        parts.append(_segments(network, params, source.pool(positions, network, network.measured)))
    names = max(parts, key=len, default={"n": np.zeros(0)})
    return {
        name: np.concatenate([part.get(name, np.zeros(len(part["n"]))) for part in parts] or [np.zeros(0)])
        for name in names
    }


def score(network: FunctionalModule, params: Mapping[str, NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
    """Return the model's outputs in evaluation mode, one row for each input."""
    pool = _inputs_alone(network, x)
    with torch.no_grad():
        made = [outputs.cpu() for _, outputs in run_over(network, params, pool)]
    return np.asarray(torch.cat(made).numpy()) if made else np.zeros((0,))


def pullback(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], x: NDArray[Any], slope: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the gradient of ``sum(slope * scores)`` by the parameters, in evaluation mode; ``slope`` has one row for each input."""
    pool = _inputs_alone(network, x)
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


def _inputs_alone(network: FunctionalModule, x: NDArray[Any]) -> Pool:
    x = np.asarray(x)
    columns = {"x": x, "y": np.zeros(len(x), np.int64)}
    return pool_of(columns, np.array([0, len(x)], np.int64), network.device, network.dtype)


def run_over(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool
) -> Iterator[tuple[slice, Tensor]]:
    """Run the model over a pool, some rows at a time."""
    given = {name: torch.as_tensor(np.array(value)).to(network.device, network.dtype) for name, value in params.items()}
    buffers = {n: b for n, b in network.evaluation.named_buffers() if n not in given}
    fixed = {n: p for n, p in network.evaluation.named_parameters() if not p.requires_grad}
    for begin in range(0, len(pool.x), _ROWS):
        rows = slice(begin, begin + _ROWS)
        yield rows, network.outputs(given, {**fixed, **buffers}, pool.x[rows], training=False)


def _segments(
    network: FunctionalModule, params: Mapping[str, NDArray[Any]], pool: Pool
) -> dict[str, NDArray[np.float64]]:
    """Return sums over each client's rows of a pool."""
    sums: dict[str, NDArray[np.float64]] = {
        "n": pool.sizes.astype(np.float64),
        "loss_sum": np.zeros(len(pool.sizes)),
    }
    owner = np.repeat(np.arange(len(pool.sizes)), pool.sizes)
    if len(owner):
        network.measured.check(network.settle(pool, "evaluation"), pool.labels, "evaluation")
        network.measured.check_holes(pool.columns, "evaluation")
    if LABELLED in pool.columns:
        sums["n"] = np.zeros(len(pool.sizes))
    with torch.no_grad():
        for rows, outputs in run_over(network, params, pool):
            for name, values in _metrics(network, outputs, {n: c[rows] for n, c in pool.columns.items()}):
                total = sums.setdefault(name, np.zeros(len(pool.sizes)))
                total += np.bincount(owner[rows], values.double().cpu().numpy(), minlength=len(total))
    return sums


def _metrics(network: FunctionalModule, outputs: Tensor, columns: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, one value for each example)``, each times the share of the example's labels that exist."""
    losses, share = network.row_losses(outputs, columns)
    there = columns[LABELLED] != 0 if share is not None else None

    def counted(values: Tensor) -> Tensor:
        found = means_of_rows(values, there)
        return found if share is None else found * share

    yield "loss_sum", losses if share is None else losses * share
    if share is not None:
        yield "n", share
    for name, values in _hits(network.measured.task, outputs, columns["y"]):
        yield name, counted(values)


def _hits(task: str, outputs: Tensor, targets: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(name, a value for each entry of the targets)``."""
    if not task and _one_score(outputs, targets):
        return  # the score at which a callable's second class begins is unknown
    if task == "classes" or (not task and _looks_like_classes(outputs, targets)):
        yield "correct", (outputs.argmax(1) == targets).to(outputs.dtype)
    elif task == "signs":
        scores = outputs.reshape(targets.shape)
        yield "correct", ((scores > 0) == (targets > 0)).to(outputs.dtype)
    elif task == "values" or outputs.numel() == targets.numel():
        error = outputs.reshape(targets.shape) - targets.to(outputs.dtype)
        yield "squared_error", error**2
        yield "absolute_error", error.abs()


def _looks_like_classes(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.dim() == targets.dim() + 1


def _one_score(outputs: Tensor, targets: Tensor) -> bool:
    return not targets.is_floating_point() and outputs.numel() == targets.numel()
