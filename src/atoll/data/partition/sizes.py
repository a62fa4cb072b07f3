"""Partitioners by size: equal shares at random, and sizes that are skewed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, apportion, check_parties, check_sizes, consecutive, even
from .label_skew import draw

# The uniform partition.


@checked_call
def iid(
    dataset: Dataset, *, parties: int, seed: int | Rng = 0, min_size: int = 1, allow_empty: bool = False
) -> Islands:
    """Shuffle the rows and deal them out evenly: sizes differ by at most one.

    Args:
        dataset: the rows to divide.
        parties: number of clients.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: a client would get fewer than ``min_size`` rows.
    """
    check_parties(dataset, parties, "iid")
    sizes = even(len(dataset), parties)
    check_sizes(sizes, dataset, "iid", min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    order = root(seed).child("iid").generator().permutation(len(dataset))
    return consecutive(dataset, order, sizes, "iid")


_TRIES = 100


@checked_call
def quantity_skew(
    dataset: Dataset,
    *,
    parties: int,
    alpha: float | None = None,
    power: float | None = None,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Give clients different numbers of rows, drawn at random from the data set.

    Each client first gets ``min_size`` rows (none with ``allow_empty=True``). The rest is divided in proportion
    to shares ``~ Dir(alpha * 1)``, or ``rank^-power`` with ranks assigned at random (a power law).

    Args:
        dataset: the rows to divide.
        parties: number of clients.
        alpha: concentration of the Dirichlet shares; small is more uneven.
        power: exponent of the power law; 0 is even. Give either this or ``alpha``.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: not exactly one of ``alpha`` and ``power`` is given, or there are too few rows for ``min_size``.
    """
    scheme = f"quantity_skew({f'alpha={alpha:g}' if alpha is not None else f'power={power}'})"
    check_parties(dataset, parties, scheme)
    rng = root(seed).child("quantity_skew")
    shares = _draw_shares(parties, alpha, power, rng.child("shares").generator(), scheme)
    floor = 0 if allow_empty else min_size
    if floor * parties > len(dataset):
        check_sizes(
            np.full(parties, len(dataset) // parties),
            dataset,
            scheme,
            min_size=min_size,
            allow_empty=allow_empty,
            remedy="ask for fewer parties",
        )
    sizes = floor + apportion(len(dataset) - floor * parties, shares)
    order = rng.child("rows").generator().permutation(len(dataset))
    return consecutive(dataset, order, sizes, scheme)


def _draw_shares(
    parties: int, alpha: float | None, power: float | None, rng: np.random.Generator, scheme: str
) -> NDArray[np.float64]:
    if (alpha is None) == (power is None):
        raise DataError(
            f"alpha={alpha} and power={power}", where=scheme, remedy="give exactly one: alpha=0.5, or power=1.2"
        )
    if alpha is not None:
        if not 0.0 < alpha < np.inf:
            raise DataError(f"alpha={alpha}", where=scheme, remedy="choose a positive number, such as 0.5")
        return draw(alpha, (parties,), 0, rng)
    if power is None or not 0.0 <= power < np.inf:
        raise DataError(f"power={power}", where=scheme, remedy="choose 0 or more, such as 1.2")
    return np.arange(1.0, parties + 1.0)[rng.permutation(parties)] ** -power


@checked_call
def gaussian_sizes(
    dataset: Dataset,
    *,
    parties: int,
    ratio: float = 0.3,
    min_size: int = 1,
    contiguous: bool = False,
    seed: int | Rng = 0,
) -> Islands:
    """Draw the clients' sizes from ``Normal(mu, (ratio * mu)^2)`` with ``mu = rows / parties``.

    The rule of the SAFA and FedProf experiments (ratio 0.3). Sizes are drawn again until each is at least
    ``min_size``, then scaled so that all rows are used. SAFA's own code takes consecutive slices in file order and
    a ``min_size`` of ``max(20, batch size)``: ``contiguous=True, min_size=20``.

    Args:
        dataset: the rows to divide.
        parties: number of clients.
        ratio: standard deviation as a share of the mean.
        min_size: minimum number of rows of a client.
        contiguous: whether clients get consecutive slices in the data's order, instead of rows drawn at random.
        seed: seed or random stream.

    Raises:
        DataError: the mean is so close to ``min_size`` that no draw fits.
    """
    scheme = f"gaussian_sizes(ratio={ratio:g}{', contiguous' if contiguous else ''})"
    check_parties(dataset, parties, scheme)
    if not 0.0 <= ratio < np.inf:
        raise DataError(f"ratio={ratio}", where=scheme, remedy="choose 0 or more, such as 0.3")
    rng = root(seed).child("gaussian_sizes")
    sizes = _normal_sizes(len(dataset), parties, ratio, min_size, rng.child("sizes").generator())
    remedy = "ask for fewer parties, a smaller ratio or a smaller min_size"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=False, remedy=remedy)
    order = None if contiguous else rng.child("rows").generator().permutation(len(dataset))
    return consecutive(dataset, order, sizes, scheme)


def _normal_sizes(total: int, parties: int, ratio: float, low: int, rng: np.random.Generator) -> Counts:
    """Sizes that sum to ``total``; if no draw keeps all of them at ``low`` or above, return the last draw."""
    mean = total / parties
    floor = min(float(low), mean)
    for _ in range(_TRIES):
        drawn = rng.normal(mean, ratio * mean, parties)
        for _ in range(_TRIES):
            bad = np.flatnonzero(drawn < floor)
            if not len(bad):
                break
            drawn[bad] = rng.normal(mean, ratio * mean, len(bad))
        sizes = apportion(total, np.maximum(drawn, floor))
        if sizes.min() >= low:
            break
    return sizes
