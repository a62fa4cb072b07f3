"""FedX: two views of a row relate to other rows alike."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .contrastive import _NOWHERE, _require_temperature

__all__ = ["jensen_shannon", "relational", "relations"]

Tensor = torch.Tensor


def relations(embeddings: Tensor, reference: Tensor, temperature: float = 0.1, real: Tensor | None = None) -> Tensor:
    """Return how each row relates to a reference set, ``r_i^j = softmax_j( cos(z_i, z_j) / T )``, ``(rows, references)``.

    Args:
        embeddings: ``z_i``, ``(rows, width)``.
        reference: ``z_j``, ``(references, width)``: of the same batch, or of the global model.
        temperature: ``T``, above 0. The survey's equation (96) has none, which is ``T = 1``; the authors' code has 0.1.
        real: 1 for a reference, 0 for padding.

    Raises:
        ConfigError: a temperature that is not above 0.

    Source: Han et al. FedX: Unsupervised Federated Learning with Cross Knowledge Distillation. ECCV 2022; the survey's equation (96).
    """
    _require_temperature(temperature, "relations")
    logits = F.normalize(embeddings, dim=1) @ F.normalize(reference, dim=1).T / temperature
    if real is not None:
        logits = torch.where(real.unsqueeze(0) > 0, logits, _NOWHERE)
    return logits.softmax(1)


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each row, ``(KL(p|m) + KL(q|m)) / 2`` with ``m = (p + q) / 2``, between 0 and ``ln 2``.

    Args:
        p: distributions, ``(rows, classes)``.
        q: distributions of the same shape.
    """
    m = (p + q) / 2
    return (_relative_entropy(p, m) + _relative_entropy(q, m)) / 2


def relational(
    first: Tensor, second: Tensor, reference: Tensor, temperature: float = 0.1, real: Tensor | None = None
) -> Tensor:
    """Return FedX's relation loss of each row, ``JS(r_i, r_i+)``, between 0 and ``ln 2``; 0 exactly if the two views relate alike.

    Args:
        first: embeddings of one view, ``(rows, width)``.
        second: embeddings of the other view.
        reference: rows to relate to; no gradient flows through them.
        temperature: of both relations.
        real: 1 for a reference, 0 for padding.

    Source: the survey's equation (97).
    """
    fixed = reference.detach()
    return jensen_shannon(relations(first, fixed, temperature, real), relations(second, fixed, temperature, real))


def _relative_entropy(p: Tensor, m: Tensor) -> Tensor:
    """Return ``sum_j p_j log(p_j / m_j)``, with ``0 log 0 = 0`` and a finite gradient there."""
    tiny = torch.finfo(p.dtype).tiny
    return (p * (p.clamp(min=tiny).log() - m.clamp(min=tiny).log())).sum(1)
