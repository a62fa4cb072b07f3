"""Label skew by Dirichlet draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, check_parties, check_sizes, class_codes, even, rows_by_class, short

_TRIES = 20
_SWEEPS = 50
_TINY = 1e-300  # a class or a client without rows


@checked_call
def dirichlet(
    dataset: Dataset,
    *,
    parties: int,
    alpha: float,
    seed: int | Rng = 0,
    balanced: bool = False,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Skew the labels: each class is divided among the clients by a draw from a Dirichlet distribution.

    For each class ``c``, ``p_c ~ Dir(alpha * 1)`` over the clients, and the rows of the class are cut in these
    proportions (Yurochkin et al. 2019; Li et al. 2022, NIID-Bench). Small ``alpha`` gives few classes and uneven
    sizes; large ``alpha`` approaches an even division of each class. As usual, a draw in which a client has
    fewer than ``min_size`` rows is repeated, up to 20 times.

    With ``balanced=True`` all clients have the same size and each draws its class mix ``q_k ~ Dir(alpha * 1)`` over
    the classes (as in Hsu, Qi and Brown 2019, whose concentration is ``classes * alpha`` here). Their clients draw
    in turn until classes run out; here all mixes are scaled together to the classes' totals
    (iterative proportional fitting), so that no client is special.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        alpha: concentration, above 0.
        seed: seed or random stream.
        balanced: whether all clients have the same size.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: there are no classes, ``alpha`` is not positive, or every draw leaves a client with fewer than ``min_size`` rows.
    """
    scheme = f"dirichlet(alpha={alpha:g}{', balanced' if balanced else ''})"
    check_parties(dataset, parties, scheme)
    if not 0.0 < alpha < np.inf:
        raise DataError(f"alpha={alpha}", where=scheme, remedy="choose a positive number, such as 0.3")
    codes, classes = class_codes(dataset, scheme)
    totals = np.bincount(codes, minlength=classes).astype(np.int64)
    rng = root(seed).child("dirichlet")
    for attempt in range(1 if balanced else _TRIES):
        generator = rng.child(attempt).generator()
        if balanced:
            counts = _balanced(alpha, totals, even(len(dataset), parties), generator)
        else:
            counts = _by_class(alpha, totals, parties, generator)
        sizes = counts.sum(axis=1)
        if not len(short(sizes, min_size, allow_empty)):
            break
    remedy = "ask for fewer parties, a larger alpha or balanced=True"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy=remedy)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, classes, rng.child("rows").generator())):
        owner[rows] = np.repeat(np.arange(parties), counts[:, c])
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def draw(alpha: float, shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw from Dir(alpha) along an axis, in logarithms, so that a tiny ``alpha`` does not underflow to 0/0.

    If G ~ Gamma(alpha + 1) and U is uniform, then G * U^(1/alpha) ~ Gamma(alpha).
    """
    logs = np.log(rng.standard_gamma(alpha + 1.0, shape)) + np.log1p(-rng.random(shape)) / alpha
    weights = np.exp(logs - logs.max(axis=axis, keepdims=True))
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def _by_class(alpha: float, totals: Counts, parties: int, rng: np.random.Generator) -> Counts:
    """Counts ``(parties, classes)``: each class cut at its cumulative shares."""
    ends = np.cumsum(draw(alpha, (parties, len(totals)), 0, rng), axis=0)
    cuts = np.rint(ends * totals).astype(np.int64)
    cuts[-1] = totals
    return np.diff(cuts, axis=0, prepend=0)


def _balanced(alpha: float, totals: Counts, sizes: Counts, rng: np.random.Generator) -> Counts:
    """Counts ``(parties, classes)`` with exact row sums ``sizes`` and column sums ``totals``."""
    fit = draw(alpha, (len(sizes), len(totals)), 1, rng) + 1e-12
    for _ in range(_SWEEPS):
        fit *= (totals / np.maximum(fit.sum(axis=0), _TINY))[None, :]
        fit *= (sizes / np.maximum(fit.sum(axis=1), _TINY))[:, None]
    fit *= np.minimum(1.0, totals / np.maximum(fit.sum(axis=0), _TINY))[None, :]
    counts = np.floor(fit * (1.0 - 1e-12)).astype(np.int64)
    # Deal out the remainder of the floors at random: rows and columns have the same number of slots.
    clients = np.repeat(np.arange(len(sizes)), sizes - counts.sum(axis=1))
    classes = np.repeat(np.arange(len(totals)), totals - counts.sum(axis=0))
    np.add.at(counts, (rng.permutation(clients), classes), 1)
    return counts
