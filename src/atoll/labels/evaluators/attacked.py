"""Accuracy where every row is changed against the model."""

from __future__ import annotations

import torch

from atoll.core.calls import checked_call

from ..losses import cross_entropy_of_rows

__all__ = ["accuracy_under_attack"]


@checked_call
def accuracy_under_attack(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float, steps: int = 10
) -> tuple[float, float]:
    """Return the accuracy on rows as they are, and after ``steps`` steps of projected gradient ascent within ``radius`` of each number.

    Source: Madry, Makelov, Schmidt, Tsipras, Vladu 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks". The start is random, with a fixed
    seed; a step is a quarter of the radius.

    Args:
        model: rows -> logits.
        x: rows with numbers in [0, 1], ``(n, ...)``.
        y: classes, ``(n,)``.
        radius: largest change of a number.
        steps: of the ascent.
    """
    model.eval()
    gen = torch.Generator().manual_seed(0)
    change = (2.0 * torch.rand(x.shape, generator=gen) - 1.0) * radius
    for _ in range(steps):
        change.requires_grad_(True)
        loss = cross_entropy_of_rows(model((x + change).clamp(0.0, 1.0)), y).sum()
        (slope,) = torch.autograd.grad(loss, change)
        change = (change.detach() + radius / 4.0 * slope.sign()).clamp(-radius, radius)
    with torch.no_grad():
        plain, under = (model(rows).argmax(1) == y for rows in (x, (x + change).clamp(0.0, 1.0)))
    return float(plain.float().mean()), float(under.float().mean())
