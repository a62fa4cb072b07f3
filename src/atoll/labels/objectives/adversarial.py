"""Adversarial alignment: a discriminator tells domains apart, and the features are trained to fool it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

__all__ = ["certainty", "conditioned", "domain_loss", "reverse_gradient"]

Tensor = torch.Tensor


def reverse_gradient(x: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """Return ``x`` unchanged, with a gradient of ``-scale``.

    Ganin et al. 2016, "Domain-Adversarial Training of Neural Networks", eq. 16-17. It is written with plain operations, so it can be traced, vectorised
    and differentiated like any other.

    Args:
        x: finite, of any shape.
        scale: weight of the adversarial gradient.
    """
    held = x.detach()
    return held - scale * (x - held)


def domain_loss(scores: Tensor, source: Tensor, power: int = 1) -> Tensor:
    """Return the discriminator's loss of each example, ``L^p / p`` with ``L = -s log D - (1 - s) log(1 - D)``.

    ``D = sigmoid(score)`` is the probability of the source domain. ``p = 1`` is DANN's loss (Ganin et al. 2016, eq. 7); ``p = 2`` is the squared loss of
    FADE (Hong et al. 2021, "Federated Adversarial Debiasing for Fair and Transferable Representations"), which reacts more to large losses: its slope
    is ``L`` times as steep.

    Args:
        scores: logits, ``(B,)`` or ``(B, 1)``.
        source: 1 for a row of a source domain, 0 for one of the target, ``(B,)``.
        power: ``p``, at least 1.

    Raises:
        ConfigError: the power is below 1.
        DataError: there is not one score for each row.
    """
    if power < 1:
        raise ConfigError(f"power={power}", where="domain_loss", remedy="use 1 (DANN), or 2 (FADE)")
    if scores.numel() != source.numel():
        raise DataError(
            f"scores {tuple(scores.shape)} for {source.numel()} rows",
            where="domain_loss",
            remedy="end the discriminator in one output: nn.Linear(..., 1)",
        )
    flat = scores.reshape(source.shape)
    loss = F.softplus(flat) - source.to(flat.dtype) * flat
    return loss if power == 1 else loss**power / power


def conditioned(features: Tensor, logits: Tensor) -> Tensor:
    """Return what a conditional discriminator looks at: the outer product of each row's class probabilities and its features.

    ``out[b, c D + d] = softmax(logits_b)_c features_bd`` (Long et al. 2018, "Conditional Adversarial Domain Adaptation", eq. 4). The probabilities pass no
    gradient on.

    Args:
        features: ``(B, D)``.
        logits: ``(B, C)``.

    Returns:
        ``(B, C D)``.

    Raises:
        DataError: the two have different numbers of rows, or are no matrices.
    """
    if features.dim() != 2 or logits.dim() != 2 or len(features) != len(logits):
        raise DataError(
            f"features {tuple(features.shape)} and logits {tuple(logits.shape)}",
            where="conditioned",
            remedy="give one row of each for each example: flatten the features",
        )
    chances = logits.detach().softmax(1)
    return (chances.unsqueeze(2) * features.unsqueeze(1)).flatten(1)


def certainty(logits: Tensor) -> Tensor:
    """Return the weight of each example at a conditional discriminator, ``1 + exp(-H)``: between 1 and 2, more for sure predictions.

    ``H = -sum_c p_c log p_c`` is the entropy of the prediction in nats (Long et al. 2018, eq. 9). Weights pass no gradient on.

    Args:
        logits: ``(B, C)``.

    Returns:
        ``(B,)``.
    """
    log_p = logits.detach().log_softmax(1)
    return 1.0 + (log_p.exp() * log_p).sum(1).exp()
