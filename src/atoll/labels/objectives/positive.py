"""The multi-class risk of positive and unlabelled rows: a client has labels of some classes only."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.errors import ConfigError

__all__ = ["check_priors", "positive_unlabelled"]

Tensor = torch.Tensor


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
