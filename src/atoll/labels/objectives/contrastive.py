"""Features without labels: what brings views of a row together, by contrast, prediction, clusters and rotations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError, DataError

__all__ = [
    "assignment_loss",
    "balanced_centroids",
    "byol",
    "enqueue",
    "feature_spread",
    "info_nce",
    "jensen_shannon",
    "nt_xent",
    "predict_rotation",
    "quarter_turns",
    "refined_centroids",
    "relational",
    "relations",
    "simsiam",
    "sinkhorn",
    "standardised",
]

# Contrastive objectives: two views of a row attract each other, and other rows repel.


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


# Objectives without negatives: predict one view's embedding from the other's.


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


# FedX: two views of a row relate to other rows alike.


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


# Orchestra's clusters: equal-sized assignments, centroids that no row dominates, and the loss that predicts assignments.


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


# Rotation prediction: by how many quarter turns was an image turned?


def quarter_turns(images: Tensor, turns: Tensor) -> Tensor:
    """Return images turned counter-clockwise, each by its own number of quarter turns.

    Args:
        images: ``(rows, channels, side, side)``.
        turns: 0, 1, 2 or 3 for each row.

    Raises:
        DataError: images that are not square.
    """
    if images.dim() != 4 or images.shape[2] != images.shape[3]:
        raise DataError(
            f"rows of shape {tuple(images.shape[1:])}",
            where="quarter_turns",
            remedy="give square images, (rows, channels, side, side)",
        )
    made = images
    for k in (1, 2, 3):
        chosen = (turns == k).reshape(-1, 1, 1, 1)
        made = torch.where(chosen, torch.rot90(images, k, (2, 3)), made)
    return made


def predict_rotation(logits: Tensor, turns: Tensor) -> Tensor:
    """Return the cross-entropy of each row over the four turns.

    Args:
        logits: ``(rows, 4)``, of the turned images.
        turns: the true number of quarter turns, ``(rows,)``.

    Source: Gidaris, Singh, Komodakis. Unsupervised Representation Learning by Predicting Image Rotations. ICLR 2018.
    """
    classes = torch.arange(4, device=logits.device)
    true = turns.unsqueeze(1) == classes
    return -torch.where(true, F.log_softmax(logits, 1), 0.0).sum(1)
