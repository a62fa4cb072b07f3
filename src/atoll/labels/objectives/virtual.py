"""Virtual adversarial training: the model must not change its mind under the worst small change of a row."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError

from .consistency import mean_teacher

__all__ = ["vat", "worst_change"]

Tensor = torch.Tensor


def worst_change(
    model: Callable[[Tensor], Tensor], rows: Tensor, noise: Tensor, *, radius: float, probe: float = 0.1, steps: int = 1
) -> Tensor:
    """Return, for each row, a change of length ``radius`` under which the model's distribution changes most.

    ``d <- unit(grad_r KL(p(x) || p(x + r)) at r = probe d)``, from ``d = unit(noise)``: power iteration for the largest eigenvector of the
    divergence's Hessian.

    Source: Miyato et al. 2018, "Virtual Adversarial Training", section 3.3.

    Args:
        model: rows ``[B, ...]`` -> logits ``[B, C]``.
        rows: ``[B, ...]``, floating point.
        noise: where the iteration begins, in the shape of ``rows``; standard normal numbers.
        radius: length of the change, in the rows' units; at least 0.
        probe: length of the step at which the gradient is taken, ``xi``.
        steps: iterations.

    Raises:
        ConfigError: a negative radius, a probe that is not positive, or less than one step.
    """
    if radius < 0 or probe <= 0 or steps < 1:
        raise ConfigError(
            f"radius={radius}, probe={probe}, steps={steps}",
            where="vat",
            remedy="use a radius of at least 0, a positive probe, and 1 step or more",
        )
    said = model(rows).detach()

    def divergence(change: Tensor) -> Tensor:
        return mean_teacher(model(rows + change), said, "kl").sum()

    toward = _unit(noise)
    for _ in range(steps):
        toward = _unit(torch.func.grad(divergence)(probe * toward).detach())
    return radius * toward


def vat(
    model: Callable[[Tensor], Tensor], rows: Tensor, noise: Tensor, *, radius: float, probe: float = 0.1, steps: int = 1
) -> Tensor:
    """Return ``KL(p(x) || p(x + r))`` for the worst change ``r`` of each row; see `worst_change`.

    Returns:
        ``[B]``, at least 0. The model's distribution at the row itself is a constant, as in the paper.
    """
    change = worst_change(model, rows, noise, radius=radius, probe=probe, steps=steps)
    return mean_teacher(model(rows + change), model(rows), "kl")


def entropy(logits: Tensor) -> Tensor:
    """Return ``-sum_c p_c log p_c`` of each row, in nats, ``[B]``; VAT is often used with it."""
    logs = F.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1)


def _unit(change: Tensor) -> Tensor:
    """Return each row's change with length 1, or 0 where it is 0."""
    flat = change.flatten(1)
    length = flat.norm(dim=1, keepdim=True)
    return torch.where(length > 0, flat / torch.where(length > 0, length, 1.0), 0.0).reshape(change.shape)
