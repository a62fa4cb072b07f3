"""Losses that make a model agree with a teacher: pseudo-labels, FixMatch and mean teachers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

__all__ = ["check_threshold", "fixmatch", "mean_teacher", "moving_average", "pseudo_label", "pseudo_labels"]

Tensor = torch.Tensor


def check_threshold(tau: float, classes: int, where: str = "tau") -> None:
    """Refuse a threshold that selects nothing by confidence, or that no probability can be compared with.

    The largest of ``C`` probabilities is at least ``1/C``. A threshold of ``1/C`` or less therefore keeps every row.

    Raises:
        ConfigError: ``tau <= 1/C`` or ``tau > 1``.
    """
    if not 1 / classes < tau <= 1:
        raise ConfigError(
            f"tau={tau} with {classes} classes: " + ("no probability is above 1" if tau > 1 else "every row is kept"),
            where=where,
            remedy=f"use a number above 1/{classes} = {1 / classes:.3g} and at most 1, such as 0.95",
        )


def pseudo_labels(logits: Tensor, tau: float, where: str = "tau") -> tuple[Tensor, Tensor]:
    """Return the class that a model believes in, and whether it is sure: ``y = argmax_c p_c``, kept if ``max_c p_c > tau``.

    Source: Lee 2013, "Pseudo-Label"; the survey's equations 84 and 85, repaired: the survey compares the class with the threshold, which must be
    compared with its probability.

    Args:
        logits: ``[B, C]``.
        tau: threshold in ``(1/C, 1]``. A larger threshold never keeps more rows.
        where: the method, for errors.

    Returns:
        Classes, int64 ``[B]``, and booleans ``[B]``; no gradient flows through them.

    Raises:
        ConfigError: ``tau <= 1/C`` or ``tau > 1``.
    """
    check_threshold(tau, logits.shape[1], where)
    sure, classes = torch.softmax(logits.detach(), 1).max(1)
    return classes, sure > tau


def pseudo_label(logits: Tensor, teacher: Tensor, tau: float) -> Tensor:
    """Return ``-log p_y`` of each row's pseudo-label ``y``, and 0 where the teacher is not sure.

    Args:
        logits: of the model that learns, ``[B, C]``.
        teacher: logits that give the labels, ``[B, C]``: the model itself on the same rows (Lee 2013), or the global model (SemiFL).
        tau: see `pseudo_labels`.

    Returns:
        ``[B]``. Its mean over all rows, as FixMatch takes it, weighs the loss by the coverage.

    Raises:
        ConfigError: ``tau <= 1/C`` or ``tau > 1``.
    """
    classes, kept = pseudo_labels(teacher, tau)
    logs = F.log_softmax(logits, 1)
    loss = -torch.where(classes.unsqueeze(1) == torch.arange(logs.shape[1], device=logs.device), logs, 0.0).sum(1)
    return torch.where(kept, loss, 0.0)


def fixmatch(strong: Tensor, weak: Tensor, tau: float = 0.95) -> Tensor:
    """Return the loss of a strong view under the pseudo-label of the weak view of the same row.

    Source: Sohn et al. 2020, "FixMatch", equation 4.

    Args:
        strong: logits of strong views, ``[B, C]``.
        weak: logits of weak views, ``[B, C]``; no gradient flows through them.
        tau: see `pseudo_labels`.

    Returns:
        ``[B]``; 0 where the model is not sure.
    """
    return pseudo_label(strong, weak, tau)


def mean_teacher(student: Tensor, teacher: Tensor, distance: str = "mse") -> Tensor:
    """Return the distance between a student's and a teacher's probabilities; the survey's equation 86.

    Source: Tarvainen and Valpola 2017, "Mean teachers are better role models". The teacher's parameters follow `moving_average`.

    Args:
        student: logits, ``[B, C]``.
        teacher: logits of the same rows, ``[B, C]``; no gradient flows through them.
        distance: ``"mse"``, the mean over classes of ``(p - q)^2``, or ``"kl"``, ``KL(q || p)`` with ``q`` the teacher's.

    Returns:
        ``[B]``, at least 0, and 0 for equal logits.

    Raises:
        ConfigError: another distance.
    """
    if distance not in ("mse", "kl"):
        raise ConfigError(f"distance={distance!r}", where="mean_teacher", remedy="use 'mse' or 'kl'")
    if distance == "mse":
        return (torch.softmax(student, 1) - torch.softmax(teacher.detach(), 1)).square().mean(1)
    said = F.log_softmax(teacher.detach(), 1)
    return (said.exp() * (said - F.log_softmax(student, 1))).sum(1)


def moving_average(teacher: Tree, student: Tree, share: float) -> Tree:
    """Return the teacher's next parameters, ``(1 - a) teacher + a student``; the survey's equation 87.

    Args:
        teacher: parameters.
        student: parameters of the same shapes.
        share: ``a`` in ``[0, 1]``: 0 leaves the teacher, 1 replaces it. The authors' decay 0.999 is ``a = 0.001``.

    Raises:
        ConfigError: a share outside ``[0, 1]``.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"share={share}", where="moving_average", remedy="use a number in [0, 1], such as 0.001")
    if share in (0, 1):  # to the bit
        return student if share else teacher
    return T.add(T.scale(teacher, 1 - share), T.scale(student, share))
