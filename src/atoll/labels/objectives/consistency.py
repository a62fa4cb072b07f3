"""Predictions on rows without labels: pseudo-labels, sharpened and mixed targets, and what must not change between views of a row."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError

from ..losses import cross_entropy_of_rows

__all__ = [
    "attacked_rows",
    "check_predictions",
    "check_threshold",
    "era",
    "fixmatch",
    "free_thresholds",
    "guess",
    "mean_prediction",
    "mean_teacher",
    "mixmatch_labelled",
    "mixmatch_unlabelled",
    "mixup",
    "moving_average",
    "pseudo_label",
    "pseudo_labels",
    "sharpen",
    "soft_cross_entropy",
    "vat",
    "worst_change",
]

# Losses that make a model agree with a teacher: pseudo-labels, FixMatch and mean teachers.


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


# Thresholds of pseudo-labels that follow from what the model believes: one for each client and class.


def free_thresholds(probabilities: Tensor, counts: Tensor, ceiling: float = 0.95) -> Tensor:
    """Return a threshold for each class: ``t_c = min(ceiling, (q_c / max_k q_k) mean_i max_k p_ik)`` with ``q = mean_i p_i``.

    The mean confidence of a client's rows says how far its learning is, and ``q_c`` how far the class is. A class that the model hardly ever names gets a
    low threshold, and so more pseudo-labels. Source: Wang et al. 2023, "FreeMatch", equations 3 to 7, without their moving averages over steps: here the
    numbers are those of the mini-batch of one client, so that nothing is kept; Lee et al. 2024, "(FL)^2", likewise give each client a threshold of its own.

    Args:
        probabilities: of the rows without labels, ``[B, C]``; no gradient flows through them.
        counts: 1 for a row that counts, 0 for others, ``[B]``.
        ceiling: no threshold is above this.

    Returns:
        ``[C]``; all at the ceiling if no row counts.
    """
    p = probabilities.detach()
    weights = counts.to(p.dtype)
    n = weights.sum().clamp(min=1)
    sure = (p.amax(1) * weights).sum() / n
    share = (p * weights.unsqueeze(1)).sum(0) / n
    most = share.amax()
    made = (
        torch.where(most > 0, share / torch.where(most > 0, most, torch.ones_like(most)), torch.ones_like(share)) * sure
    )
    return torch.where(weights.sum() > 0, made, torch.ones_like(made)).clamp(max=ceiling)


# MixMatch: guess labels over several views, sharpen them, and train on mixtures of rows.


def sharpen(probabilities: Tensor, temperature: float = 0.5) -> Tensor:
    """Return ``p_c^(1/T) / sum_j p_j^(1/T)``: lower entropy for ``T < 1``, the same distribution for ``T = 1``.

    Source: Berthelot et al. 2019, "MixMatch", equation 7.

    Args:
        probabilities: ``[B, C]``.
        temperature: ``T > 0``.

    Raises:
        ConfigError: a temperature that is not positive.
    """
    check_temperature(temperature, "sharpen")
    # As a softmax of logarithms: a small power of a small number would vanish.
    return torch.softmax(torch.log(probabilities) / temperature, 1)


def guess(logits: list[Tensor] | tuple[Tensor, ...], temperature: float = 0.5) -> Tensor:
    """Return the labels that MixMatch guesses: the mean of the probabilities of several views of a row, sharpened; no gradient flows through them.

    Args:
        logits: one ``[B, C]`` for each view.
        temperature: see `sharpen`.
    """
    return sharpen(torch.stack([torch.softmax(one.detach(), 1) for one in logits]).mean(0), temperature)


def mixup(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Return ``s first + (1 - s) second`` with ``s = max(share, 1 - share)``, so that the result stays closer to the first.

    Source: Zhang et al. 2018, "mixup"; MixMatch, equations 8 to 11, for the maximum. Use the same share for rows and for labels.

    Args:
        first: rows ``[B, ...]`` or label distributions ``[B, C]``.
        second: the partners, in the same shape.
        share: ``[B]`` in ``[0, 1]``; drawn from ``Beta(alpha, alpha)``.
    """
    kept = torch.maximum(share, 1 - share).reshape(-1, *[1] * (first.dim() - 1)).to(first.dtype)
    return kept * first + (1 - kept) * second


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``-sum_c q_c log p_c`` for each row, with a distribution ``q`` as target, ``[B]``."""
    return -(target * F.log_softmax(logits, 1)).sum(1)


def mixmatch_labelled(logits: Tensor, target: Tensor) -> Tensor:
    """Return MixMatch's loss of labelled mixtures: cross-entropy with the mixed label, equation 3, ``[B]``."""
    return soft_cross_entropy(logits, target)


def mixmatch_unlabelled(logits: Tensor, target: Tensor) -> Tensor:
    """Return MixMatch's loss of unlabelled mixtures: the mean over classes of ``(q - p)^2``, equation 4, ``[B]``."""
    return (torch.softmax(logits, 1) - target).square().mean(1)


def check_temperature(temperature: float, where: str) -> None:
    """Refuse a temperature that is not positive.

    Raises:
        ConfigError: the temperature is 0 or less.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}", where=where, remedy="use a positive number, such as 0.5")


# Predictions that travel in place of parameters: check them, average them, sharpen them.


def era(probabilities: Tensor, temperature: float = 0.1) -> Tensor:
    """Return ``softmax(p / T)``: entropy reduction averaging sharpens what clients predict before a model trains on it.

    ``(.5, .3, .2)`` with ``T = .1`` becomes ``(.8438, .1142, .0420)``. For ``T = 1`` it is ``softmax(p)``, flatter than ``p``, and a large ``T``
    gives the uniform distribution: unlike `sharpen`, no temperature leaves ``p`` as it is. Entropy falls where one class leads; where classes tie, the
    others gain a little, since a softmax gives no class 0.

    Source: Itahara et al. 2021, "Distillation-Based Semi-Supervised Federated Learning", equation 7.

    Args:
        probabilities: ``[B, C]``.
        temperature: ``T > 0``.

    Raises:
        ConfigError: a temperature that is not positive.
    """
    check_temperature(temperature, "era")
    return torch.softmax(probabilities / temperature, 1)


def mean_prediction(predictions: Tensor, temperature: float = 0.1, order: str = "after") -> Tensor:
    """Return the labels that clients agree on.

    The survey sharpens each client's prediction and then averages (``"before"``); the paper sharpens the mean (``"after"``).

    Args:
        predictions: probabilities of each client, ``[K, B, C]``.
        temperature: of `era`.
        order: ``"before"`` or ``"after"`` the mean, or ``"never"`` for the plain mean.

    Returns:
        ``[B, C]``, distributions.

    Raises:
        ConfigError: another order.
    """
    if order == "never":
        return predictions.mean(0)
    if order == "after":
        return era(predictions.mean(0), temperature)
    if order == "before":
        return era(predictions.flatten(0, 1), temperature).reshape(predictions.shape).mean(0)
    raise ConfigError(f"order={order!r}", where="mean_prediction", remedy="use 'before', 'after' or 'never'")


def check_predictions(probabilities: Tensor, party: str, shape: tuple[int, int], tolerance: float = 1e-4) -> None:
    """Refuse predictions that are not distributions over the classes.

    A party that may send anything in place of probabilities moves the mean as far as it likes.

    Args:
        probabilities: what the party sent.
        party: its name, for the message.
        shape: rows and classes that were asked for.
        tolerance: of each row's sum.

    Raises:
        DataError: another shape, a number outside ``[0, 1]`` or not finite, or a row that does not add up to 1.
    """
    remedy = "send the softmax of the model's outputs, one row for each row of the public pool that was asked for"
    if tuple(probabilities.shape) != shape:
        raise DataError(f"predictions have shape {tuple(probabilities.shape)}, not {shape}", where=party, remedy=remedy)
    outside = ~((probabilities >= -tolerance) & (probabilities <= 1 + tolerance))  # NaN is outside as well
    if bool(outside.any()):
        row = int(outside.any(1).nonzero()[0])
        raise DataError(
            f"row {row} of the predictions has {float(probabilities[row][outside[row]][0]):g}: not a probability",
            where=party,
            remedy=remedy,
        )
    sums = probabilities.sum(1)
    off = (sums - 1).abs() > tolerance
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise DataError(
            f"row {row} of the predictions adds up to {float(sums[row]):.6g}, not to 1", where=party, remedy=remedy
        )


# Virtual adversarial training: the model must not change its mind under the worst small change of a row.


def worst_change(
    model: Callable[[Tensor], Tensor], rows: Tensor, noise: Tensor, *, radius: float, probe: float = 0.1, steps: int = 1
) -> Tensor:
    """Return, for each row, a change of length ``radius`` under which the model's distribution changes most.

    ``d <- unit(grad_r KL(p(x) || p(x + r)) at r = probe d)``, from ``d = unit(noise)``: power iteration for the largest eigenvector of the
    divergence's Hessian.

    Source: Miyato et al. 2018, "Virtual Adversarial Training", section 3.3.

    Args:
        model: rows ``[B, ...]`` -> logits ``[B, C]``.
        rows: ``[B, ...]``, floating point.
        noise: where the iteration begins, in the shape of ``rows``; standard normal numbers.
        radius: length of the change, in the rows' units; at least 0.
        probe: length of the step at which the gradient is taken, ``xi``.
        steps: iterations.

    Raises:
        ConfigError: a negative radius, a probe that is not positive, or less than one step.
    """
    if radius < 0 or probe <= 0 or steps < 1:
        raise ConfigError(
            f"radius={radius}, probe={probe}, steps={steps}",
            where="vat",
            remedy="use a radius of at least 0, a positive probe, and 1 step or more",
        )
    said = model(rows).detach()

    def divergence(change: Tensor) -> Tensor:
        return mean_teacher(model(rows + change), said, "kl").sum()

    toward = _unit(noise)
    for _ in range(steps):
        toward = _unit(torch.func.grad(divergence)(probe * toward).detach())
    return radius * toward


def vat(
    model: Callable[[Tensor], Tensor], rows: Tensor, noise: Tensor, *, radius: float, probe: float = 0.1, steps: int = 1
) -> Tensor:
    """Return ``KL(p(x) || p(x + r))`` for the worst change ``r`` of each row; see `worst_change`.

    Returns:
        ``[B]``, at least 0. The model's distribution at the row itself is a constant, as in the paper.
    """
    change = worst_change(model, rows, noise, radius=radius, probe=probe, steps=steps)
    return mean_teacher(model(rows + change), model(rows), "kl")


def entropy(logits: Tensor) -> Tensor:
    """Return ``-sum_c p_c log p_c`` of each row, in nats, ``[B]``; VAT is often used with it."""
    logs = F.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1)


def _unit(change: Tensor) -> Tensor:
    """Return each row's change with length 1, or 0 where it is 0."""
    flat = change.flatten(1)
    length = flat.norm(dim=1, keepdim=True)
    return torch.where(length > 0, flat / torch.where(length > 0, length, 1.0), 0.0).reshape(change.shape)


# Rows that are changed against a model, within a small radius of each number.


def attacked_rows(
    model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, start: Tensor, radius: float, step: float
) -> Tensor:
    """Return rows within ``radius`` of theirs, number by number, after one step that raises the loss most, from ``start``; values stay in [0, 1].

    ``x + clip(start + step sign(grad_x CE(f(x + start), y)), -radius, radius)``: the fast gradient sign method with a random start.

    Source: Wong, Rice, Kolter 2020, "Fast is better than free: Revisiting adversarial training", algorithm 3.

    Args:
        model: rows ``(B, ...)`` -> logits ``(B, C)``.
        x: rows with numbers in [0, 1], ``(B, ...)``.
        y: classes, ``(B,)``.
        start: changes to begin with, within the radius, in the shape of ``x``.
        radius: largest change of a number.
        step: length of the step.
    """

    def loss(change: Tensor) -> Tensor:
        return cross_entropy_of_rows(model(x + change), y).sum()

    toward: Tensor = torch.func.grad(loss)(start).detach().sign()
    return (x + (start + step * toward).clamp(-radius, radius)).clamp(0.0, 1.0)
