"""The discrepancy of two classifiers, which finds target rows unlike the source."""

from __future__ import annotations

import torch

from atoll.core.errors import DataError

__all__ = ["classifier_discrepancy"]

Tensor = torch.Tensor


def classifier_discrepancy(first: Tensor, second: Tensor) -> Tensor:
    """Return how far two classifiers' probabilities are apart, for each example: ``1/C sum_c |p_1c - p_2c|``, between 0 and ``2/C``.

    Saito et al. 2018, "Maximum Classifier Discrepancy for Unsupervised Domain Adaptation", eq. 2. Its training takes turns: the classifiers are trained to
    maximise it on target rows while the features are held, then the features to minimise it while the classifiers are held.

    Args:
        first: logits of the first classifier, ``(B, C)``.
        second: of the second, ``(B, C)``.

    Raises:
        DataError: the shapes differ.
    """
    if first.shape != second.shape or first.dim() != 2:
        raise DataError(
            f"logits {tuple(first.shape)} and {tuple(second.shape)}",
            where="classifier_discrepancy",
            remedy="give both classifiers the same rows and as many outputs",
        )
    return (first.softmax(1) - second.softmax(1)).abs().mean(1)
