"""Distances between the features of two batches, by their moments: each is one number for two batches, not a loss for each example."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atoll.core.errors import DataError

__all__ = ["coral", "gaussian_mmd", "linear_mmd"]

Tensor = torch.Tensor


def linear_mmd(source: Tensor, target: Tensor) -> Tensor:
    """Return the squared distance of two batches' means, ``||mean f(X_S) - mean f(X_T)||^2``: the maximum mean discrepancy of the linear kernel.

    Gretton et al. 2012, "A Kernel Two-Sample Test", eq. 3, with ``k(x, y) = <x, y>``. It needs only the sums of two batches, so parties can add up
    ciphertexts of them.

    Args:
        source: ``(n, D)``.
        target: ``(m, D)``.

    Raises:
        DataError: a batch is empty, or they have different numbers of features.
    """
    _require_two(source, target, 1, "linear_mmd")
    return ((source.mean(0) - target.mean(0)) ** 2).sum()


def gaussian_mmd(source: Tensor, target: Tensor, bandwidths: Sequence[float] = (1.0,)) -> Tensor:
    """Return the squared maximum mean discrepancy under a sum of Gaussian kernels, never negative.

    ``sum_ij k(s_i, s_j)/n^2 + sum_ij k(t_i, t_j)/m^2 - 2 sum_ij k(s_i, t_j)/(nm)`` with ``k(x, y) = sum_b exp(-||x - y||^2 / (2 b^2))`` (Gretton et al.
    2012, eq. 5). Every pair of rows meets, so it can only be computed where the rows of both are.

    Args:
        source: ``(n, D)``.
        target: ``(m, D)``.
        bandwidths: the ``b``, in units of the features.

    Raises:
        DataError: a batch is empty, or they have different numbers of features.
    """
    _require_two(source, target, 1, "gaussian_mmd")

    def mean_kernel(x: Tensor, y: Tensor) -> Tensor:
        squares = ((x.unsqueeze(1) - y.unsqueeze(0)) ** 2).sum(2)
        return torch.stack([torch.exp(-squares / (2.0 * b * b)).mean() for b in bandwidths]).sum()

    return mean_kernel(source, source) + mean_kernel(target, target) - 2.0 * mean_kernel(source, target)


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Return the distance of two batches' covariances, ``||C_S - C_T||_F^2 / (4 D^2)``.

    Sun and Saenko 2016, "Deep CORAL", eq. 1. The covariances are unbiased: divided by ``n - 1``.

    Args:
        source: ``(n, D)``, at least two rows.
        target: ``(m, D)``, at least two rows.

    Raises:
        DataError: a batch has fewer than two rows, or they have different numbers of features.
    """
    _require_two(source, target, 2, "coral")

    def covariance(x: Tensor) -> Tensor:
        centred = x - x.mean(0)
        return centred.T @ centred / (len(x) - 1)

    return ((covariance(source) - covariance(target)) ** 2).sum() / (4.0 * source.shape[1] ** 2)


def _require_two(source: Tensor, target: Tensor, least: int, where: str) -> None:
    if source.dim() != 2 or target.dim() != 2 or source.shape[1] != target.shape[1]:
        raise DataError(
            f"features {tuple(source.shape)} and {tuple(target.shape)}",
            where=where,
            remedy="give both batches as matrices with the same number of features",
        )
    if min(len(source), len(target)) < least:
        raise DataError(
            f"batches of {len(source)} and {len(target)} rows",
            where=where,
            remedy=f"give at least {least} rows of each",
        )
