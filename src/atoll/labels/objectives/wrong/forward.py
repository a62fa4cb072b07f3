"""Cross-entropy under wrong labels, and the labels of neighbours, which tell how labels go wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["forward_corrected", "label_triples"]

Tensor = torch.Tensor


def forward_corrected(logits: Tensor, target: Tensor, transition: Tensor) -> Tensor:
    """Return ``-log sum_c p_c T[c, y]`` of each row: how unlikely its label is, if true labels go wrong as ``T`` says.

    Patrini et al. 2017, "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach", theorem 2: its minimiser is the one of
    cross-entropy on true labels, ``p_c = P(c | x)``. With the identity as ``T`` it is cross-entropy, to the bit.

    Args:
        logits: ``[B, C]``.
        target: the given labels ``y``, ``[B]``.
        transition: ``T[c, y]``, the probability that a row of class ``c`` has the label ``y``, ``[C, C]``; rows add up to 1.

    Returns:
        ``[B]``; 0 for a label that no class has, which teaches nothing.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    given = (target.unsqueeze(1) == classes).to(logits.dtype)
    column = given @ transition.to(logits.dtype).T
    possible = (column > 0).any(1)
    weights = torch.where(possible.unsqueeze(1), column, 1.0).log()
    return torch.where(possible, -torch.logsumexp(F.log_softmax(logits, 1) + weights, 1), 0.0)


def label_triples(features: Tensor, target: Tensor, counts: Tensor, classes: int) -> Tensor:
    """Count the labels of each row and of its two nearest neighbours: ``N[r, s, t]`` rows have the label ``r``, and their neighbours ``s`` and ``t``.

    Rows near each other are of one class more often than not, so that these are three labels of one hidden class, each wrong by itself. From the counts,
    `atoll.labels.objectives.estimate_transition` learns how labels go wrong. Counts of several clients add up.

    Source: Zhu, Song, Liu 2021, "Clusterability as an Alternative to Anchor Points When Learning with Noisy Labels".

    Args:
        features: ``[B, D]``; rows are near by their Euclidean distance.
        target: the given labels, ``[B]``.
        counts: which rows count, as rows and as neighbours, booleans ``[B]``.
        classes: ``C``.

    Returns:
        ``[C, C, C]``; 0 if fewer than three rows count.
    """
    squares = (features**2).sum(1)
    apart = squares.unsqueeze(1) + squares - 2.0 * features @ features.T
    own = torch.arange(len(target), device=target.device)
    far = torch.full_like(apart, torch.inf)
    apart = torch.where((own.unsqueeze(1) == own) | ~counts, far, apart)
    first = apart.argmin(1)
    second = torch.where(first.unsqueeze(1) == own, far, apart).argmin(1)
    given = (target.unsqueeze(1) == torch.arange(classes, device=target.device)).to(features.dtype)
    rows = given * (counts & (counts.sum() > 2)).to(features.dtype).unsqueeze(1)
    pairs = (given[first].unsqueeze(2) * given[second].unsqueeze(1)).reshape(len(target), -1)
    return (rows.T @ pairs).reshape(classes, classes, classes)
