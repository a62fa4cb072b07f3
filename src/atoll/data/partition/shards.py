"""Label skew by shards, and by a fixed number of classes per client."""

from __future__ import annotations

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import Counts, check_parties, check_sizes, class_codes, even, rows_by_class


@checked_call
def shards(
    dataset: Dataset,
    *,
    parties: int,
    per_client: int = 2,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Sort by label, cut into ``parties * per_client`` equal shards, and give each client ``per_client`` of them.

    The pathological split of McMahan et al. (2017), section 3: with two shards most clients see two classes.

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        per_client: shards per client.
        seed: shuffles the rows within a class and the shards.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: there are no classes, or a client has fewer than ``min_size`` rows.
    """
    scheme = f"shards(per_client={per_client})"
    check_parties(dataset, parties, scheme)
    if per_client < 1:
        raise DataError(f"per_client={per_client}", where=scheme, remedy="give each client at least one shard")
    codes, classes = class_codes(dataset, scheme)
    rng = root(seed).child("shards")
    by_label = np.concatenate(rows_by_class(codes, classes, rng.child("rows").generator()))
    dealt = rng.child("deal").generator().permutation(parties * per_client)
    owner_of_shard = np.empty(parties * per_client, np.int64)
    owner_of_shard[dealt] = np.repeat(np.arange(parties), per_client)
    owner = np.empty(len(dataset), np.int64)
    owner[by_label] = np.repeat(owner_of_shard, even(len(dataset), parties * per_client))
    sizes = np.bincount(owner, minlength=parties)
    remedy = "ask for fewer parties or fewer shards per client"
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy=remedy)
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


@checked_call
def classes_per_client(
    dataset: Dataset,
    *,
    parties: int,
    classes: int,
    cyclic: bool = False,
    seed: int | Rng = 0,
    min_size: int = 1,
    allow_empty: bool = False,
) -> Islands:
    """Give each client rows of ``classes`` classes; a class is divided evenly among the clients that have it.

    The "#C = k" split of Li et al. (2022, NIID-Bench). Client ``k`` always has class ``k mod C`` (the classes in
    random order), so that each class has a client. Its other classes are drawn at random, or are the next ones
    in a circle with ``cyclic=True`` (then in code order, as in the FEMNIST split of FedProx: ``(k + j) mod C``).

    Args:
        dataset: the rows to divide; a classification.
        parties: number of clients.
        classes: classes per client, ``1..C``.
        cyclic: whether to use neighbouring classes instead of random ones.
        seed: seed or random stream.
        min_size: minimum number of rows of a client.
        allow_empty: whether clients may have no rows.

    Raises:
        DataError: a class would have no client, or a client has fewer than ``min_size`` rows.
    """
    scheme = f"classes_per_client({classes})"
    check_parties(dataset, parties, scheme)
    codes, total = class_codes(dataset, scheme)
    if not 1 <= classes <= total:
        raise DataError(f"classes={classes} of {total}", where=scheme, remedy=f"choose 1 to {total}")
    rng = root(seed).child("classes_per_client")
    has_class = _cyclic(parties, classes, total) if cyclic else _drawn(parties, classes, total, rng)
    owner = np.empty(len(dataset), np.int64)
    for c, rows in enumerate(rows_by_class(codes, total, rng.child("rows").generator())):
        owners = np.flatnonzero((has_class == c).any(axis=1))
        if len(owners):
            mixed = rng.child("order", c).generator().permutation(owners)
            owner[rows] = np.repeat(mixed, even(len(rows), len(owners)))
        elif len(rows):
            raise DataError(
                f"no client would have class {c}, which has {len(rows)} rows",
                where=f"{scheme} of {dataset.name!r}",
                remedy=f"ask for at least {-(-total // classes)} parties or more classes per client",
            )
    sizes = np.bincount(owner, minlength=parties)
    check_sizes(sizes, dataset, scheme, min_size=min_size, allow_empty=allow_empty, remedy="ask for fewer parties")
    return Islands.from_owner(dataset, owner, parties, scheme=scheme)


def _cyclic(parties: int, classes: int, total: int) -> Counts:
    return (np.arange(parties)[:, None] + np.arange(classes)[None, :]) % total


def _drawn(parties: int, classes: int, total: int, rng: Rng) -> Counts:
    """Distinct classes per client, ``(parties, classes)``: the first in turns, the others at random."""
    first = rng.child("first").generator().permutation(total)[np.arange(parties) % total]
    order = rng.child("others").generator().random((parties, total))
    order[np.arange(parties), first] = -1.0
    return np.argsort(order, axis=1)[:, :classes]
