"""The uniform partition."""

from __future__ import annotations

from atoll.core.algebra.rng import Rng
from atoll.core.calls import checked_call

from ..dataset import Dataset, root
from ..islands import Islands
from ._rows import check_parties, check_sizes, consecutive, even


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
