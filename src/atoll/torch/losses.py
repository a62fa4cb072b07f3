"""Losses by name, exact on padded batches, and the check that a model's outputs fit the labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, nearest
from atoll.learn.targets import check_classes, check_shape, check_signs

__all__ = ["LOSSES", "Loss", "loss_of"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class Loss:
    """A mean loss over the examples of a batch.

    Attributes:
        name: for messages.
        mean: ``(outputs, targets) -> scalar``.
        each: ``(outputs, targets) -> one loss per example``; ``None`` for a callable that only gives the mean, whose
            batches can then not be padded.
        task: "classes" (labels 0..K-1), "signs" (-1/+1 or 0/1), "values", or "" for unchecked.
    """

    name: str
    mean: Callable[[Tensor, Tensor], Tensor]
    each: Callable[[Tensor, Tensor], Tensor] | None = None
    task: str = ""

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """``sum_i w_i l_i / sum_i w_i``; the plain mean without weights."""
        if weights is None:
            return self.mean(outputs, targets)
        if self.each is None:
            raise TypeError(f"loss {self.name!r} gives a mean only and cannot weight its examples")
        losses = self.each(outputs, targets)
        return (losses * weights).sum() / weights.sum()

    def check(self, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
        """Refuse a model whose output cannot be compared with the labels.

        Args:
            shape: of the model's output for ``shape[0]`` examples.
            labels: the targets, one row an example.
            where: model or party, for the message.

        Raises:
            DataError: labels outside the outputs, or another shape.
        """
        if self.task == "classes":
            check_classes(self.name, shape, labels, where)
        elif self.task == "signs" and labels.size:
            check_shape(self.name, shape, labels, where)
            check_signs(self.name, labels, where)
        elif self.task == "values":
            check_shape(self.name, shape, labels, where)


def _rows(losses: Tensor) -> Tensor:
    """The mean over everything but the first axis."""
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _like(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs in the shape of the targets (a trailing axis of one falls away), targets in the outputs' dtype."""
    return outputs.reshape(targets.shape), targets.to(outputs.dtype)


def _elementwise(fn: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: _rows(fn(*_like(outputs, targets)))


def _mean(each: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: each(outputs, targets).mean()


def _multiclass_hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    """Crammer and Singer 2001: ``max(0, 1 + max_{j != y} s_j - s_y)``."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    true = classes == targets.unsqueeze(1)
    score = torch.where(true, outputs, torch.zeros_like(outputs)).sum(1)
    rival = torch.where(true, torch.full_like(outputs, -torch.inf), outputs).amax(1)
    return F.relu(1.0 + rival - score)


def _hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.relu(1.0 - targets * outputs)


def _nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """``-outputs[i, targets[i]]``, written out: in a block of clients PyTorch's own is thirty operations and loads sympy."""
    classes = torch.arange(outputs.shape[1], device=outputs.device).reshape(-1, *[1] * (outputs.dim() - 2))
    return -torch.where(targets.unsqueeze(1) == classes, outputs, 0.0).sum(1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return _nll(F.log_softmax(outputs, 1), targets)


def _named() -> dict[str, Loss]:
    def by_row(name: str, fn: Callable[[Tensor, Tensor], Tensor], task: str) -> Loss:
        return Loss(name, _mean(fn), lambda outputs, targets: _rows(fn(outputs, targets)), task)

    def elementwise(name: str, fn: Callable[[Tensor, Tensor], Tensor], task: str) -> Loss:
        each = _elementwise(fn)
        return Loss(name, _mean(each), each, task)

    return {
        "cross_entropy": by_row("cross_entropy", _cross_entropy, "classes"),
        "nll": by_row("nll", _nll, "classes"),
        "multiclass_hinge": Loss("multiclass_hinge", _mean(_multiclass_hinge), _multiclass_hinge, "classes"),
        "mse": elementwise("mse", lambda o, t: (o - t) ** 2, "values"),
        "l1": elementwise("l1", lambda o, t: (o - t).abs(), "values"),
        "bce": elementwise("bce", lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none"), "signs"),
        "hinge": elementwise("hinge", _hinge, "signs"),
        "squared_hinge": elementwise("squared_hinge", lambda o, t: _hinge(o, t) ** 2, "signs"),
    }


LOSSES: dict[str, Loss] = _named()
"""``cross_entropy`` and ``nll`` (log-probabilities) over classes; ``multiclass_hinge``; ``mse``, ``l1``; ``bce`` on logits with 0/1
labels; ``hinge`` = ``max(0, 1 - y s)`` and its square with -1/+1 labels."""


def loss_of(loss: str | Loss | Callable[..., Any], outputs: int | None = None) -> Loss:
    """Return the loss of a name, or of a callable ``(outputs, targets) -> scalar mean``.

    ``"hinge"`` is the binary one for a model with one output and Crammer and Singer's for several.

    Raises:
        ConfigError: no loss has this name, or it is a class in place of an instance.
    """
    if isinstance(loss, Loss):
        return loss
    _require_instance(loss)
    if callable(loss):
        return Loss(getattr(loss, "__name__", type(loss).__name__), loss)
    if loss not in LOSSES:
        raise ConfigError(
            f"loss={loss!r} is not known.{nearest(str(loss), LOSSES)}",
            remedy=f"use one of {', '.join(LOSSES)}, or a callable (outputs, targets) -> mean",
        )
    if loss == "hinge" and outputs is not None and outputs > 1:
        return LOSSES["multiclass_hinge"]
    return LOSSES[loss]


def _require_instance(loss: Any) -> None:
    """Refuse a module's class: called with outputs and targets, it would be made of them."""
    if inspect.isclass(loss) and issubclass(loss, torch.nn.Module):
        raise ConfigError(
            f"loss={loss.__name__} is a class",
            where="Training.loss",
            remedy=f"give an instance: loss={loss.__name__}(), as in loss=nn.CrossEntropyLoss()",
        )
