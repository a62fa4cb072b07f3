"""Labels that are wrong, or of one class alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "check_priors",
    "check_transition",
    "estimate_transition",
    "forward_corrected",
    "label_triples",
    "positive_unlabelled",
]

# How labels go wrong, from counts of neighbours' labels.


def check_transition(transition: Any, where: str) -> NDArray[np.float64]:
    """Return a transition matrix as an array.

    Raises:
        ConfigError: it is not square, or a row is no distribution.
    """
    try:
        made = np.asarray(transition, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"transition is no matrix: {error}", where=where, remedy=_REMEDY) from error
    if made.ndim != 2 or made.shape[0] != made.shape[1]:
        raise ConfigError(f"transition of shape {made.shape}", where=where, remedy=_REMEDY)
    wrong = ~(np.isfinite(made).all(axis=1) & (made >= 0).all(axis=1) & (abs(made.sum(axis=1) - 1.0) < 1e-6))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ConfigError(f"row {row} of transition is {made[row].tolist()}", where=where, remedy=_REMEDY)
    return made


_REMEDY = "give C rows of C probabilities, row c those of the labels of class c; each row adds up to 1"


def estimate_transition(triples: Any, *, iterations: int = 200, tolerance: float = 1e-5) -> NDArray[np.float64]:
    """Return the most likely transition matrix ``T[c, y] = P(label y | class c)``, given the labels of rows and of their two nearest neighbours.

    A latent class model: of a row's hidden class ``c``, of prior ``pi_c``, its label has the distribution ``T[c]`` and each neighbour's ``M[c]``, which are
    independent given ``c``. ``M`` differs from ``T`` since a neighbour may be of another class. Expectation maximisation (Dawid and Skene 1979):

        ``q_c(r, s, t) ~ pi_c T[c, r] M[c, s] M[c, t]``, then ``T[c, r] ~ sum_st N[r, s, t] q_c(r, s, t)``, likewise ``M`` and ``pi``.

    Three independent labels identify the matrices up to the order of the classes (Kruskal 1977); the start, half of the labels right, gives the order in which a
    class's most frequent label is its own. It also counts as one row of each class, so that a class without rows keeps it.

    Args:
        triples: the counts ``N``, ``[C, C, C]``, from `atoll.labels.objectives.label_triples`.
        iterations: the largest number of iterations.
        tolerance: it ends once no entry moves by more.

    Returns:
        ``[C, C]``; the identity if nothing is counted.
    """
    counts = np.asarray(triples, dtype=np.float64)
    classes = len(counts)
    own, one, two = np.nonzero(counts > 0)
    if not len(own):
        return np.eye(classes)
    weights, labels = counts[own, one, two], np.eye(classes)
    start = 0.5 * labels + 0.5 / classes
    mine = near = start
    prior = np.full(classes, 1.0 / classes)
    for _ in range(iterations):
        shares = prior[:, None] * mine[:, own] * near[:, one] * near[:, two]
        shares *= weights / shares.sum(axis=0)
        prior = (shares.sum(axis=1) + 1.0) / (weights.sum() + classes)
        before, mine = mine, _rows(shares @ labels[own] + start)
        near = _rows(shares @ (labels[one] + labels[two]) + start)
        if np.abs(mine - before).max() < tolerance:
            break
    return mine


def _rows(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows that add up to 1."""
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


# Cross-entropy under wrong labels, and the labels of neighbours, which tell how labels go wrong.


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


# The multi-class risk of positive and unlabelled rows: a client has labels of some classes only.


def check_priors(priors: Tensor, where: str = "priors") -> None:
    """Refuse class priors that are not a distribution.

    Raises:
        ConfigError: a prior is negative or not finite, or they do not add up to 1.
    """
    total = float(priors.sum())
    if not bool((priors >= 0).all()) or abs(total - 1) > 1e-4:
        raise ConfigError(
            f"class priors {[round(p, 4) for p in priors.tolist()]} add up to {total:.4g}",
            where=where,
            remedy="use the share of each class among the client's rows; shares add up to 1",
        )


def positive_unlabelled(
    logits: Tensor,
    target: Tensor,
    labelled: Tensor,
    priors: Tensor,
    positive: Tensor,
    shares: Tensor | None = None,
    *,
    real: Tensor | None = None,
    nonnegative: bool = False,
) -> Tensor:
    """Return terms whose mean over the rows estimates a client's whole risk without a label of its other classes.

    A client labels rows of the classes ``P``. A row of another class has the loss ``l_N = -log(1 - sum_{c in P} p_c)``: it is none of these. The
    clients that label this class tell which one it is. With class priors ``pi``, the client's risk is

        ``R = sum_{c in P} pi_c E_c[-log p_c] + sum_{c not in P} pi_c E_c[l_N]``.

    Its second part cannot be seen, but ``E[l_N] = sum_c pi_c E_c[l_N]`` over all rows can, and the positive classes' share of it too:

        ``R = sum_{c in P} pi_c E_c[-log p_c - l_N] + E[l_N]``.

    All rows of the client, labelled or not, stand for ``E[l_N]``: labels are missing from a sample, they are not a sample of their own. If every
    class is labelled, ``l_N`` is left out, and the risk is the cross-entropy weighted by the priors.

    Source: du Plessis et al. 2015 for the two-class risk; Lin et al. 2022, "Federated Learning with Positive and Unlabeled Data", section 3. Their
    loss of a negative row is the mean over ``P`` of ``-log(1 - p_c + 0.01)``; ours is the log-likelihood of "none of ``P``", which makes the
    clients' sum the likelihood of coarse labels. Their published code trains on cross-entropy alone.

    Args:
        logits: ``[B, C]``.
        target: classes, ``[B]``; any number where a row has no label.
        labelled: booleans ``[B]``.
        priors: ``[C]``: the share of each class among the client's rows, labelled or not.
        positive: booleans ``[C]``: the classes that the client labels.
        shares: ``[C]``: labelled rows of each class as a share of all the client's rows. The mean over a random mini-batch is then unbiased.
            ``None``: of the rows at hand, which is the estimate of the paper.
        real: 1 for a row, 0 for padding, ``[B]``; ``None`` if nothing is padded.
        nonnegative: replace an estimate below 0 of the second part by 0, and its gradient too (Kiryo et al. 2017). It is biased upwards, and it
            keeps a flexible model from driving the estimate to minus infinity.

    Returns:
        ``[B]``; single terms may be negative.
    """
    logs = F.log_softmax(logits, 1)
    classes = torch.arange(logs.shape[1], device=logs.device)
    whose = (target.unsqueeze(1) == classes) & labelled.unsqueeze(1) & positive
    rows = torch.ones_like(logs[:, 0]) if real is None else real.to(logs.dtype)
    counted = whose.to(logs.dtype)
    if shares is None:
        shares = (counted * rows.unsqueeze(1)).sum(0) / rows.sum()
    shares = shares.to(logs.dtype)
    # pi_c / s_c turns a mean over all rows into pi_c times a mean over the class's labelled rows.
    weight = torch.where(shares > 0, priors.to(logs.dtype) / torch.where(shares > 0, shares, 1.0), 0.0)
    weights = (counted * weight).sum(1)
    own = -torch.where(whose, logs, 0.0).sum(1)
    everything = positive.all()
    rest = -torch.logsumexp(torch.where(positive & ~everything, -torch.inf, logs), 1)
    negative = torch.where(everything, 0.0, (1 - weights) * rest)
    if nonnegative:
        negative = torch.where((negative * rows).sum() >= 0, negative, 0.0)
    return weights * own + negative
