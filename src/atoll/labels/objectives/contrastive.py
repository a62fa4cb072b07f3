"""Contrastive objectives: two views of a row attract each other, and other rows repel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

__all__ = ["enqueue", "info_nce", "nt_xent"]

Tensor = torch.Tensor
_NOWHERE = -1e30
"""A logit that takes no part in a softmax and, unlike minus infinity, leaves gradients finite."""


def nt_xent(
    first: Tensor,
    second: Tensor,
    temperature: float = 0.5,
    real: Tensor | None = None,
    negatives: Tensor | None = None,
) -> Tensor:
    """Return the normalised temperature-scaled cross-entropy of SimCLR, for each row the mean over its two anchors.

    With ``2N`` embeddings ``z`` of ``N`` rows, ``s_ij = cos(z_i, z_j) / T`` and ``p(i)`` the other view of ``i``:
    ``l_i = -s_ip(i) + log sum_{j != i} exp(s_ij)``, a softmax over ``2N - 1`` others.

    Args:
        first: embeddings of the first views, ``(rows, width)``; any length, they are normalised here.
        second: embeddings of the second views, in the same order.
        temperature: ``T``, above 0.
        real: 1 for a row, 0 for padding, ``(rows,)``. Padding repels nothing. A row alone in its batch has loss 0.
        negatives: further embeddings that repel every row, ``(entries, width)``, such as FedCA's dictionary; zeros where there is none yet. No
            gradient flows through them.

    Returns:
        Losses, ``(rows,)``.

    Raises:
        DataError: fewer than two rows: nothing to contrast with.
        ConfigError: a temperature that is not above 0.

    Source: Chen, Kornblith, Norouzi, Hinton. A Simple Framework for Contrastive Learning of Visual Representations. ICML 2020, eq. 1.
    """
    _require_temperature(temperature, "nt_xent")
    rows = first.shape[0]
    if rows < 2:
        raise DataError(
            f"a batch of {rows} row{'' if rows == 1 else 's'}",
            where="nt_xent",
            remedy="contrast a row with others: use batches of at least 2 rows",
        )
    z = F.normalize(torch.cat([first, second]), dim=1)
    logits = z @ z.T / temperature
    place = torch.arange(2 * rows, device=z.device)
    positive = (place + rows) % (2 * rows)
    others = place.unsqueeze(0) != place.unsqueeze(1)
    if real is not None:
        there = torch.cat([real, real]) > 0
        others = others & (there.unsqueeze(0) | (place.unsqueeze(0) == positive.unsqueeze(1)))
    logits = torch.where(others, logits, _NOWHERE)
    if negatives is not None:
        logits = torch.cat([logits, _against(z, negatives, temperature)], 1)
    total = logits.logsumexp(1)
    attraction = (z * z[positive]).sum(1) / temperature
    losses = total - attraction
    return (losses[:rows] + losses[rows:]) / 2


def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float = 0.2) -> Tensor:
    """Return MoCo's loss of each row: its key against a queue of earlier keys.

    ``l_i = -log( exp(q_i k_i / T) / (exp(q_i k_i / T) + sum_j exp(q_i u_j / T)) )`` over the queue's entries ``u_j``, all normalised.
    Entries that are still zero do not count. Gradients flow through the queries only.

    Args:
        query: embeddings of the online network, ``(rows, width)``.
        key: embeddings of the target network for other views of the same rows.
        queue: earlier keys, ``(entries, width)``; zeros where nothing has entered yet.
        temperature: ``T``, above 0.

    Raises:
        ConfigError: a temperature that is not above 0.

    Source: He, Fan, Wu, Xie, Girshick. Momentum Contrast for Unsupervised Visual Representation Learning. CVPR 2020, eq. 1.
    """
    _require_temperature(temperature, "info_nce")
    q, k = F.normalize(query, dim=1), F.normalize(key.detach(), dim=1)
    attraction = (q * k).sum(1, keepdim=True) / temperature
    return torch.cat([attraction, _against(q, queue, temperature)], 1).logsumexp(1) - attraction.squeeze(1)


def enqueue(queue: Tensor, keys: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the queue with normalised keys at its head; the oldest entries leave, padding does not enter.

    Args:
        queue: ``(entries, width)``, newest first.
        keys: ``(rows, width)``.
        real: 1 for a row, 0 for padding.
    """
    new = F.normalize(keys.detach(), dim=1)
    joined = torch.cat([new, queue])
    if real is None:
        return joined[: len(queue)]
    padding = torch.where(real > 0, 0, 2)
    rank = torch.cat([padding, torch.ones(len(queue), dtype=padding.dtype, device=queue.device)])
    return joined[rank.argsort(stable=True)][: len(queue)]


def _against(z: Tensor, entries: Tensor, temperature: float) -> Tensor:
    """Return logits of normalised rows against entries, ``(rows, entries)``; those that are zero take no part."""
    fixed = entries.detach()
    entered = (fixed != 0).any(1)
    return torch.where(entered.unsqueeze(0), z @ F.normalize(fixed, dim=1).T / temperature, _NOWHERE)


def _require_temperature(temperature: float, where: str) -> None:
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}", where=where, remedy="use a number above 0, such as 0.5")
