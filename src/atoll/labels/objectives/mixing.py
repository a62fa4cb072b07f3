"""MixMatch: guess labels over several views, sharpen them, and train on mixtures of rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError

__all__ = ["guess", "mixmatch_labelled", "mixmatch_unlabelled", "mixup", "sharpen", "soft_cross_entropy"]

Tensor = torch.Tensor


def sharpen(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """Return ``p_c^(1/T) / sum_j p_j^(1/T)``: lower entropy for ``T < 1``, the same distribution for ``T = 1``.

    Source: Berthelot et al. 2019, "MixMatch", equation 7.

    Args:
        probabilities: ``[B, C]``.
        temperature: ``T > 0``.

    Raises:
        ConfigError: a temperature that is not positive.
    """
    check_temperature(temperature, "sharpen")
    # As a softmax of logarithms: a small power of a small number would vanish.
    return torch.softmax(torch.log(probabilities) / temperature, 1)


def guess(logits: list[Tensor] | tuple[Tensor, ...], temperature: float = 0.5) -> Tensor:
    """Return the labels that MixMatch guesses: the mean of the probabilities of several views of a row, sharpened; no gradient flows through them.

    Args:
        logits: one ``[B, C]`` for each view.
        temperature: see `sharpen`.
    """
    return sharpen(torch.stack([torch.softmax(one.detach(), 1) for one in logits]).mean(0), temperature)


def mixup(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Return ``s first + (1 - s) second`` with ``s = max(share, 1 - share)``, so that the result stays closer to the first.

    Source: Zhang et al. 2018, "mixup"; MixMatch, equations 8 to 11, for the maximum. Use the same share for rows and for labels.

    Args:
        first: rows ``[B, ...]`` or label distributions ``[B, C]``.
        second: the partners, in the same shape.
        share: ``[B]`` in ``[0, 1]``; drawn from ``Beta(alpha, alpha)``.
    """
    kept = torch.maximum(share, 1 - share).reshape(-1, *[1] * (first.dim() - 1)).to(first.dtype)
    return kept * first + (1 - kept) * second


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``-sum_c q_c log p_c`` for each row, with a distribution ``q`` as target, ``[B]``."""
    return -(target * F.log_softmax(logits, 1)).sum(1)


def mixmatch_labelled(logits: Tensor, target: Tensor) -> Tensor:
    """Return MixMatch's loss of labelled mixtures: cross-entropy with the mixed label, equation 3, ``[B]``."""
    return soft_cross_entropy(logits, target)


def mixmatch_unlabelled(logits: Tensor, target: Tensor) -> Tensor:
    """Return MixMatch's loss of unlabelled mixtures: the mean over classes of ``(q - p)^2``, equation 4, ``[B]``."""
    return (torch.softmax(logits, 1) - target).square().mean(1)


def check_temperature(temperature: float, where: str) -> None:
    """Refuse a temperature that is not positive.

    Raises:
        ConfigError: the temperature is 0 or less.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}", where=where, remedy="use a positive number, such as 0.5")
