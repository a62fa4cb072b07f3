"""Checks that a model's outputs fit the targets of a data set, by loss."""

from __future__ import annotations

import numpy as np

from atoll.core.errors import DataError
from atoll.core.redaction import private

__all__ = ["LOSS_NAMES", "OutputsError", "check_classes", "check_shape", "check_signs"]

LOSS_NAMES = ("cross_entropy", "nll", "multiclass_hinge", "mse", "l1", "bce", "hinge", "squared_hinge")
"""All named losses, kept here so that a file can be checked without the library that computes them."""


class OutputsError(ValueError):
    """The cause of an error about a label beyond a model's outputs; a caller that knows the names of the classes can add them.

    Attributes:
        outputs: number of outputs.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(f"the model has {outputs} outputs")
        self.outputs = outputs


def check_classes(name: str, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
    """Refuse targets that are not classes, or classes without a score in the outputs.

    Args:
        name: the loss.
        shape: shape of the model's output; its first axis is the examples.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"loss {name!r} needs whole-number labels, not {labels.dtype}",
            where=where,
            remedy="encode the classes as 0..K-1, or use loss='mse'",
        )
    if len(shape) < 2 or len(shape) != labels.ndim + 1 or shape[2:] != labels.shape[1:]:
        raise DataError(
            f"the model's output has shape {('batch', *shape[1:])}, labels have {('batch', *labels.shape[1:])}",
            where=where,
            remedy=f"for loss {name!r} the model must return one score per class: (batch, classes, ...)",
        )
    if labels.size and (int(labels.max()) >= shape[1] or int(labels.min()) < 0):
        wrong = int(labels.max()) if int(labels.max()) >= shape[1] else int(labels.min())
        raise DataError(
            f"label {private(wrong)} does not fit a model with {shape[1]} outputs (classes 0..{shape[1] - 1})",
            where=where,
            remedy=f"give the model at least {private(max(wrong, 0) + 1)} outputs, or number the classes from 0"
            + (", or, for two classes and one score, use loss='bce' or 'hinge'" if shape[1] == 1 else ""),
        ) from OutputsError(shape[1])


def check_shape(name: str, shape: tuple[int, ...], labels: np.ndarray, where: str) -> None:
    """Refuse another number of outputs than targets.

    Args:
        name: the loss.
        shape: shape of the model's output; its first axis is the examples.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    if int(np.prod(shape[1:])) != int(np.prod(labels.shape[1:])):
        raise DataError(
            f"the model's output has shape {('batch', *shape[1:])}, targets have {('batch', *labels.shape[1:])}",
            where=where,
            remedy=f"for loss {name!r} the model must return {int(np.prod(labels.shape[1:]))} value(s) per example",
        )


def check_signs(name: str, labels: np.ndarray, where: str) -> None:
    """Refuse labels other than the loss's two.

    Args:
        name: the loss.
        labels: the targets, one row per example.
        where: the model or party, for the message.

    Raises:
        DataError: the targets do not fit.
    """
    allowed = (-1, 1) if name.endswith("hinge") else (0, 1)
    if not np.isin(labels, allowed).all():
        wrong = labels[~np.isin(labels, allowed)].ravel()[0]
        raise DataError(
            f"label {private(wrong)} with loss {name!r}",
            where=where,
            remedy=f"encode the two classes as {allowed[0]} and {allowed[1]}",
        )
