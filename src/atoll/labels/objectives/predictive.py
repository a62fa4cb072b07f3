"""Objectives without negatives: predict one view's embedding from the other's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["byol", "feature_spread", "simsiam", "standardised"]

Tensor = torch.Tensor


def byol(prediction: Tensor, target: Tensor) -> Tensor:
    """Return BYOL's loss of each row, ``|p/|p| - t/|t||^2 = 2 - 2 cos(p, t)``, between 0 and 4. No gradient flows through the target.

    Args:
        prediction: what the online network predicts, ``(rows, width)``.
        target: embeddings of another view by the target network.

    Source: Grill et al. Bootstrap Your Own Latent. NeurIPS 2020, eq. 2. The method adds the losses of both directions.
    """
    return 2 - 2 * F.cosine_similarity(prediction, target.detach(), dim=1)


def simsiam(prediction: Tensor, projection: Tensor) -> Tensor:
    """Return SimSiam's loss of each row, ``-cos(p, z)``, between -1 and 1. No gradient flows through the projection.

    Args:
        prediction: predictor's output for one view, ``(rows, width)``.
        projection: projector's output for the other view, by the same network.

    Source: Chen, He. Exploring Simple Siamese Representation Learning. CVPR 2021, eq. 1-2. The method takes half of both directions.
    """
    return -F.cosine_similarity(prediction, projection.detach(), dim=1)


def standardised(embeddings: Tensor, real: Tensor | None = None) -> Tensor:
    """Return embeddings with mean 0 and variance 1 in every direction of the batch: batch normalisation without scale and shift.

    A target that is standardised cannot be the same for all rows, so that a network that outputs a constant has a large loss. Rows that are
    equal in a direction, or alone, become 0 there.

    Args:
        embeddings: ``(rows, width)``.
        real: 1 for a row, 0 for padding, which does not count.

    Source: Ioffe, Szegedy. Batch Normalization. ICML 2015; the last layer of SimSiam's projector has one.
    """
    weights = torch.ones_like(embeddings[:, :1]) if real is None else real.unsqueeze(1).to(embeddings.dtype)
    total = weights.sum().clamp(min=1)
    centred = embeddings - (embeddings * weights).sum(0) / total
    variance = (centred.square() * weights).sum(0) / total
    return centred * (variance + 1e-5).rsqrt()


def feature_spread(embeddings: Tensor, real: Tensor | None = None) -> Tensor:
    """Return how far normalised embeddings spread, a scalar in ``[0, 1]``: 0 if all are equal, 1 if they are uniform on the sphere.

    ``1 - |mean_i z_i / |z_i||^2``: the mean squared distance of the normalised embeddings to their mean. It falls to 0 when a method
    without negatives collapses to a constant, while its loss looks perfect.

    Args:
        embeddings: ``(rows, width)``.
        real: 1 for a row, 0 for padding.

    Source: Chen, He. Exploring Simple Siamese Representation Learning. CVPR 2021, section 4.1, which watches the standard deviation instead.
    """
    z = F.normalize(embeddings.detach(), dim=1)
    if real is None:
        return 1 - z.mean(0).square().sum()
    mean = (z * real.unsqueeze(1)).sum(0) / real.sum().clamp(min=1)
    return 1 - mean.square().sum()
