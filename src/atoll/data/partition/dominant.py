"""Label skew by one dominant class per client."""

from __future__ import annotations

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import check_between, check_parties, check_sizes, class_codes, rows_by_class


@checked_call
def dominant_class(
    dataset: Dataset,
    *,
    parties: int,
    share: float = 0.6,
    random: bool = False,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Give client ``k`` mostly rows of class ``k mod C``.

    Of the rows of class ``y``, the fraction ``share`` goes to the clients with ``k mod C = y`` and the rest to the
    others. With equal class sizes, about ``share`` of each client's rows are of its dominant class. FedProf
    uses 0.6 ("dc0.6"), HybridFL 0.75 ("non-IID 0.75"). HybridFL does not state where the other quarter goes;
    the uniform spread over the other clients is our reading.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients, at least one per class.
        share: fraction of a class's rows that its own clients get.
        random: whether to assign each row independently with these probabilities (sizes vary), not in exact, even parts.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: fewer clients than classes, a share outside [0, 1], or a client with fewer than ``min_size`` rows.
    """
    scheme = f"dominant_class(share={share:g})"
    check_parties(dataset, parties, scheme)
    check_between(share, 0.0, 1.0, "share", scheme)
    codes, classes = class_codes(dataset, scheme)
    if parties < classes or classes < 2:
        raise DataError(
            f"parties={parties} for {classes} classes",
            where=f"{scheme} of {dataset.name!r}",
            remedy=f"use two classes or more and at least {classes} parties",
        )
    rng = root(seed).child("dominant_class")
    clients = np.arange(parties)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, classes, rng.child("rows").generator())):
        generator = rng.child("deal", c).generator()
        own = int(generator.binomial(len(rows), share)) if random else round(share * len(rows))
        owner[rows[:own]] = _deal(clients[clients % classes == c], own, random, generator)
        owner[rows[own:]] = _deal(clients[clients % classes != c], len(rows) - own, random, generator)
    sizes = np.bincount(owner, minlength=parties)
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _deal(
    clients: np.ndarray[tuple[int], np.dtype[np.int64]], rows: int, random: bool, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Draw an owner for each row: at random, or in turns from a random start."""
    if random:
        return rng.choice(clients, rows)
    return np.resize(rng.permutation(clients), rows)
