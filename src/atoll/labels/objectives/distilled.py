"""Predictions that travel in place of parameters: check them, average them, sharpen them."""

from __future__ import annotations

import torch

from atoll.core.errors import ConfigError, DataError

from .mixing import check_temperature

__all__ = ["check_predictions", "era", "mean_prediction"]

Tensor = torch.Tensor


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
