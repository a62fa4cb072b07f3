"""Orchestra's clusters: equal-sized assignments, centroids that no row dominates, and the loss that predicts assignments."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

from .contrastive import _require_temperature

__all__ = ["assignment_loss", "balanced_centroids", "refined_centroids", "sinkhorn"]

Tensor = torch.Tensor


def sinkhorn(scores: Tensor, sharpness: float = 25.0, iterations: int = 100) -> Tensor:
    """Return soft assignments of rows to clusters of equal size, by the algorithm of Sinkhorn and Knopp.

    The result ``A`` is ``diag(u) exp(sharpness scores) diag(v)``, scaled until every row sums to 1 and every column to ``rows / clusters``.
    It is the assignment of largest ``<A, scores> + entropy(A) / sharpness`` among those. The last scaling is that of the
    rows after that of the columns; with enough iterations both hold.

    Args:
        scores: similarity of rows and clusters, ``(rows, clusters)``.
        sharpness: the inverse of the entropy's weight; the authors' code has 25.
        iterations: scalings of rows and columns, 1 or more.

    Raises:
        ConfigError: no iteration, or a sharpness that is not above 0.

    Source: Cuturi. Sinkhorn Distances. NIPS 2013; Lubana et al. Orchestra. ICML 2022.
    """
    if not (sharpness > 0 and iterations >= 1):
        raise ConfigError(
            f"sharpness={sharpness}, iterations={iterations}",
            where="sinkhorn",
            remedy="use a positive sharpness, and 1 iteration or more",
        )
    rows, clusters = scores.shape
    log = scores.detach() * sharpness
    share = math.log(rows / clusters)
    for _ in range(iterations):
        log = log - log.logsumexp(0, keepdim=True) + share
        log = log - log.logsumexp(1, keepdim=True)
    return log.exp()


def balanced_centroids(
    features: Tensor, start: Tensor, *, sharpness: float = 25.0, rounds: int = 5, iterations: int = 30
) -> Tensor:
    """Return unit centroids of clusters of equal size: what a client sends in place of its rows' features.

    Each round assigns rows by `sinkhorn` and moves every centroid to the weighted sum of the rows, normalised. No entry of the
    assignment exceeds 1, and it is divided by ``rows / clusters`` or more. So no row has a weight above ``clusters / rows`` before
    that normalisation: with 128 rows and 16 clusters, a centroid has at least 8 rows in it. The authors' code averages the rows whose largest
    weight is at the cluster instead; a cluster can then be one row, whose features the server would see.

    Args:
        features: of the client's rows, ``(rows, width)``, normalised here.
        start: the first centroids, ``(clusters, width)``.
        sharpness: of the assignment.
        rounds: of assignment and mean.
        iterations: scalings in each round.

    Raises:
        DataError: fewer than two rows for each cluster: a centroid would be a row.

    Source: Lubana et al. Orchestra. ICML 2022, section 4.
    """
    rows, clusters = len(features), len(start)
    if rows < 2 * clusters:
        raise DataError(
            f"{rows} rows for {clusters} clusters",
            where="balanced_centroids",
            remedy="use at least two rows for each cluster: a centroid of fewer would show a row's features",
        )
    z, centroids = F.normalize(features.detach(), dim=1), F.normalize(start.detach(), dim=1)
    for _ in range(rounds):
        centroids = F.normalize(_dominated_by_none(sinkhorn(z @ centroids.T, sharpness, iterations)).T @ z, dim=1)
    return centroids


def _dominated_by_none(assignment: Tensor) -> Tensor:
    """Return weights of rows in centroids: columns of the assignment by the size of their cluster, or by the equal size where that is less."""
    rows, clusters = assignment.shape
    return assignment / assignment.sum(0, keepdim=True).clamp(min=rows / clusters)


def assignment_loss(online: Tensor, target: Tensor, centroids: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the cross-entropy of each row between the target's and the online network's assignment to the global clusters.

    ``-sum_g a_g log b_g`` with ``a = softmax(z_target C / T)``, which has no gradient, and ``b = softmax(z_online C / T)``.

    Args:
        online: embeddings of one view, ``(rows, width)``.
        target: embeddings of the other view by the target network.
        centroids: global centroids ``C``, ``(clusters, width)``; no gradient flows through them.
        temperature: ``T``, above 0.

    Raises:
        ConfigError: a temperature that is not above 0.

    Source: Lubana et al. Orchestra. ICML 2022, eq. 3.
    """
    _require_temperature(temperature, "assignment_loss")
    fixed = F.normalize(centroids.detach(), dim=1)
    aim = (F.normalize(target.detach(), dim=1) @ fixed.T / temperature).softmax(1)
    said = (F.normalize(online, dim=1) @ fixed.T / temperature).log_softmax(1)
    return -(aim * said).sum(1)


def refined_centroids(
    local: Tensor, start: Tensor, *, temperature: float = 0.1, rate: float = 0.1, steps: int = 500
) -> Tensor:
    """Return global centroids from the local ones: the server's second clustering.

    Each step assigns local centroids to global ones by `sinkhorn`, and takes a gradient step on the mean of
    ``-cos(assignment, softmax(z C / T))``; centroids stay on the unit sphere.

    Args:
        local: all clients' centroids, ``(local, width)``.
        start: the global centroids before, ``(clusters, width)``.
        temperature: ``T``, above 0.
        rate: of the steps.
        steps: number of them; the authors' code takes 500.

    Source: Lubana et al. Orchestra. ICML 2022, section 4, and the authors' code.
    """
    _require_temperature(temperature, "refined_centroids")
    z, centroids = F.normalize(local.detach(), dim=1), F.normalize(start.detach(), dim=1)
    for _ in range(steps):
        aim = sinkhorn(z @ centroids.T, iterations=10)
        with torch.enable_grad():
            moving = centroids.requires_grad_(True)
            said = (z @ moving.T / temperature).softmax(1)
            (slope,) = torch.autograd.grad(-F.cosine_similarity(aim, said, dim=1).mean(), moving)
        centroids = F.normalize(centroids.detach() - rate * slope, dim=1)
    return centroids
