"""Thresholds of pseudo-labels that follow from what the model believes: one for each client and class."""

from __future__ import annotations

import torch

__all__ = ["free_thresholds"]

Tensor = torch.Tensor


def free_thresholds(probabilities: Tensor, counts: Tensor, ceiling: float = 0.95) -> Tensor:
    """Return a threshold for each class: ``t_c = min(ceiling, (q_c / max_k q_k) mean_i max_k p_ik)`` with ``q = mean_i p_i``.

    The mean confidence of a client's rows says how far its learning is, and ``q_c`` how far the class is. A class that the model hardly ever names gets a
    low threshold, and so more pseudo-labels. Source: Wang et al. 2023, "FreeMatch", equations 3 to 7, without their moving averages over steps: here the
    numbers are those of the mini-batch of one client, so that nothing is kept; Lee et al. 2024, "(FL)^2", likewise give each client a threshold of its own.

    Args:
        probabilities: of the rows without labels, ``[B, C]``; no gradient flows through them.
        counts: 1 for a row that counts, 0 for others, ``[B]``.
        ceiling: no threshold is above this.

    Returns:
        ``[C]``; all at the ceiling if no row counts.
    """
    p = probabilities.detach()
    weights = counts.to(p.dtype)
    n = weights.sum().clamp(min=1)
    sure = (p.amax(1) * weights).sum() / n
    share = (p * weights.unsqueeze(1)).sum(0) / n
    most = share.amax()
    made = (
        torch.where(most > 0, share / torch.where(most > 0, most, torch.ones_like(most)), torch.ones_like(share)) * sure
    )
    return torch.where(weights.sum() > 0, made, torch.ones_like(made)).clamp(max=ceiling)
