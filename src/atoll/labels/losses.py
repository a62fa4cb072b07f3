"""What losses of methods are written with: views by number, cross-entropy by row, and means over some rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .views.base import OwnRows, View
from .views.draws import child_keys_of_rows
from .views.pixels import Mixup

__all__ = ["cross_entropy_of_rows", "each_through", "mean_of", "mix_rows", "of_batch", "seen"]

Tensor = torch.Tensor


def seen(view: View | None, x: Tensor, keys: Tensor, number: int, real: Tensor) -> Tensor:
    """Return the rows of a mini-batch as a view shows them; as they are without one.

    A view that takes values from other rows takes them from the mini-batch.

    Args:
        view: the view.
        x: rows, ``(B, ...)``.
        keys: one for each row, the loss's input ``keys``.
        number: of the view within the step: 0, 1, ...; equal views with different numbers are unrelated.
        real: 1 for a row, 0 for padding, ``(B,)``; padding comes last.
    """
    if view is None:
        return x
    return view(x, child_keys_of_rows(keys, number), of_batch(x, real) if view.uses_own else None)


def each_through(first: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """Return the rows of ``near`` where ``first`` is true, and those of ``far`` elsewhere: one pass of the model does for both.

    Args:
        first: booleans, ``(B,)``.
        near: one view of the rows, ``(B, ...)``.
        far: another view of the same rows.
    """
    return torch.where(first.reshape(-1, *[1] * (near.dim() - 1)), near, far)


def of_batch(x: Tensor, real: Tensor) -> OwnRows:
    """Return the rows of a mini-batch, without padding, as the rows from which a view takes values."""
    count = real.sum().to(torch.int64).expand(len(x))
    return OwnRows(x, torch.zeros_like(count), count)


def mix_rows(x: Tensor, keys: Tensor, number: int, real: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mix each row with another one of the mini-batch: ``w x + (1 - w) x'`` with ``w = max(v, 1 - v)``, ``v ~ Beta(alpha, alpha)``.

    Args:
        x: rows, ``(B, ...)``.
        keys: one for each row.
        number: of the view within the step.
        real: 1 for a row, 0 for padding, ``(B,)``.
        alpha: parameter of the distribution.

    Returns:
        The mixtures, the numbers of the other rows, and the weights ``w``, ``(B,)``.
    """
    other, weight = Mixup(alpha).drawn(child_keys_of_rows(keys, number), of_batch(x, real))
    share = weight.to(x.dtype)
    beside = x[other]
    return beside + (x - beside) * share.reshape(-1, *[1] * (x.dim() - 1)), other, share


def cross_entropy_of_rows(outputs: Tensor, target: Tensor) -> Tensor:
    """Return ``-log softmax(outputs)[i, target[i]]``, ``(B,)``, without a look-up, so that blocks of clients trace it."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    return -torch.where(target.unsqueeze(1) == classes, F.log_softmax(outputs, 1), 0.0).sum(1)


def mean_of(values: Tensor, weights: Tensor, over: Tensor | None = None) -> Tensor:
    """Return ``sum_i w_i l_i / sum_i v_i``, and 0 if no row counts.

    Args:
        values: one a row; those of weight 0 must be finite.
        weights: the ``w_i``.
        over: the ``v_i``; by default the weights.
    """
    weights = weights.to(values.dtype)
    total = (weights if over is None else over.to(values.dtype)).sum()
    return (values * weights).sum() / torch.where(total > 0, total, torch.ones_like(total))
