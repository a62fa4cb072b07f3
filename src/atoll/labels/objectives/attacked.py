"""Rows that are changed against a model, within a small radius of each number."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..losses import cross_entropy_of_rows

__all__ = ["attacked_rows"]

Tensor = torch.Tensor


def attacked_rows(
    model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, start: Tensor, radius: float, step: float
) -> Tensor:
    """Return rows within ``radius`` of theirs, number by number, after one step that raises the loss most, from ``start``; values stay in [0, 1].

    ``x + clip(start + step sign(grad_x CE(f(x + start), y)), -radius, radius)``: the fast gradient sign method with a random start.

    Source: Wong, Rice, Kolter 2020, "Fast is better than free: Revisiting adversarial training", algorithm 3.

    Args:
        model: rows ``(B, ...)`` -> logits ``(B, C)``.
        x: rows with numbers in [0, 1], ``(B, ...)``.
        y: classes, ``(B,)``.
        start: changes to begin with, within the radius, in the shape of ``x``.
        radius: largest change of a number.
        step: length of the step.
    """

    def loss(change: Tensor) -> Tensor:
        return cross_entropy_of_rows(model(x + change), y).sum()

    toward: Tensor = torch.func.grad(loss)(start).detach().sign()
    return (x + (start + step * toward).clamp(-radius, radius)).clamp(0.0, 1.0)
