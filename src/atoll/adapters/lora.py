"""The mean of several clients' LoRA factors, in several ways, and how far each is from the mean of their products.

A client k with the share p_k of the rows trains ``B_k``, ``(out, rank)``, and ``A_k``, ``(rank, in)``, which add ``B_k A_k`` to a frozen weight. Plain averaging
adds ``(sum p_k B_k)(sum p_k A_k)``, which is not ``sum p_k B_k A_k`` unless one factor is the same everywhere, as in FFA-LoRA (Sun et al. 2024, "Improving LoRA
in Privacy-preserving Federated Learning"), where ``A`` is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Factors = tuple[NDArray[np.float64], NDArray[np.float64]]

__all__ = ["average_factors", "mixing_error", "residual_of_mean", "stack_factors", "truncate_product"]


def average_factors(clients: Sequence[Factors], weights: Sequence[float] | None = None) -> Factors:
    """Return the means of the factors, ``(B, A)``: plain averaging. Factors of lower rank are padded with zeros (HetLoRA, Cho et al. 2024).

    Args:
        clients: ``(B, A)`` of each client, ``(out, rank)`` and ``(rank, in)``.
        weights: the clients' rows; by default all count the same.

    Raises:
        DataError: there are no clients, or factors do not fit together or are not finite.
        ConfigError: the weights do not fit the clients, or are not positive.
    """
    pairs, shares = _check(clients, weights)
    rank = max(a.shape[0] for _, a in pairs)
    left = sum(p * np.pad(b, ((0, 0), (0, rank - b.shape[1]))) for p, (b, _) in zip(shares, pairs, strict=True))
    right = sum(p * np.pad(a, ((0, rank - a.shape[0]), (0, 0))) for p, (_, a) in zip(shares, pairs, strict=True))
    return np.asarray(left), np.asarray(right)


def stack_factors(clients: Sequence[Factors], weights: Sequence[float] | None = None) -> Factors:
    """Return factors whose product is the mean of the products, of rank ``sum rank_k``: FLoRA (Wang et al. 2024), ``B = [p_1 B_1 … p_n B_n]``, ``A = [A_1; …; A_n]``.

    Arguments and errors are those of `average_factors`.
    """
    pairs, shares = _check(clients, weights)
    return (
        np.concatenate([p * b for p, (b, _) in zip(shares, pairs, strict=True)], axis=1),
        np.concatenate([a for _, a in pairs], axis=0),
    )


def residual_of_mean(clients: Sequence[Factors], weights: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Return what the product of the mean factors lacks, ``sum p_k B_k A_k - B A``: FedEx-LoRA (Singhal et al. 2024) adds it to the frozen weight.

    Arguments and errors are those of `average_factors`.
    """
    b, a = average_factors(clients, weights)
    left, right = stack_factors(clients, weights)
    return left @ right - b @ a


def truncate_product(clients: Sequence[Factors], rank: int, weights: Sequence[float] | None = None) -> Factors:
    """Return the factors of one rank nearest to the mean of the products, by its largest singular values; clients may have any ranks (FlexLoRA, Bai et al. 2024).

    The work grows with the clients' ranks, not with the layer: QR of both stacked factors, and the SVD of the small product between.

    Args:
        clients: see `average_factors`.
        rank: the rank; more than the product has are zeros.
        weights: see `average_factors`.

    Raises:
        ConfigError: the rank is no whole number of at least 1.
    """
    if rank < 1:
        raise ConfigError(f"rank={rank}", where="truncate_product", remedy="use at least 1")
    left, right = stack_factors(clients, weights)
    (q, r), (p, s) = np.linalg.qr(left), np.linalg.qr(right.T)
    b, a = truncate_matrix(r @ s.T, rank)
    return q @ b, a @ p.T


def truncate_matrix(matrix: NDArray[np.float64], rank: int) -> Factors:
    """Return the factors of one rank nearest to a matrix, by its largest singular values, each shared evenly; more than it has are zeros."""
    u, sizes, v = np.linalg.svd(matrix, full_matrices=False)
    kept = min(rank, len(sizes))
    root = np.sqrt(sizes[:kept])
    b, a = u[:, :kept] * root, root[:, None] * v[:kept]
    return np.pad(b, ((0, 0), (0, rank - kept))), np.pad(a, ((0, rank - kept), (0, 0)))


def mixing_error(
    clients: Sequence[Factors], factors: Factors | None = None, weights: Sequence[float] | None = None
) -> float:
    """Return ``||B A - sum p_k B_k A_k|| / ||sum p_k B_k A_k||`` in the Frobenius norm; 0 if both are zero, infinite if only the mean is.

    Args:
        clients: see `average_factors`.
        factors: what replaces them; by default their plain average.
        weights: see `average_factors`.
    """
    b, a = average_factors(clients, weights) if factors is None else factors
    left, right = stack_factors(clients, weights)
    exact = left @ right
    off, size = float(np.linalg.norm(b @ a - exact)), float(np.linalg.norm(exact))
    return off / size if size else (0.0 if not off else math.inf)


def _check(clients: Sequence[Factors], weights: Sequence[float] | None) -> tuple[list[Factors], NDArray[np.float64]]:
    pairs = [(np.asarray(b, dtype=np.float64), np.asarray(a, dtype=np.float64)) for b, a in clients]
    if not pairs:
        raise DataError("there are no factors", where="LoRA", remedy="give (B, A) of at least one client")
    rows, columns = pairs[0][0].shape[0], pairs[0][1].shape[-1]
    for place, (b, a) in enumerate(pairs):
        fits = b.ndim == a.ndim == 2 and b.shape[1] == a.shape[0] and b.shape[0] == rows and a.shape[1] == columns
        if not fits:
            raise DataError(
                f"factors of shapes {b.shape} and {a.shape} at client {place}, the first has {rows} × {columns}",
                where="LoRA",
                remedy="give B of shape (out, rank) and A of shape (rank, in), of one layer",
            )
        if not (np.isfinite(b).all() and np.isfinite(a).all()):
            raise DataError(f"factors of client {place} are not finite", where="LoRA", remedy="leave the client out")
    given = np.ones(len(pairs)) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != (len(pairs),) or not (np.isfinite(given).all() and (given > 0).all()):
        raise ConfigError(
            f"weights={list(given)} for {len(pairs)} clients",
            where="LoRA",
            remedy="give each client a positive number of rows",
        )
    return pairs, given / given.max() / (given / given.max()).sum()
