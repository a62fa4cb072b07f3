"""Conversion of what users pass as clients into a population."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.core.errors import DataError
from atoll.core.requests.cohort import Community, Population

from .dataset import Dataset
from .islands import Islands

__all__ = ["as_population"]

_ONE_EACH = "give a list or dict of data sets, one a client"


def as_population(given: Any) -> Population:
    """Turn a list or dict of data sets, one a client, into a federated data set.

    Args:
        given: a population, which is returned unchanged; a list of data sets; or a dict that maps names to data sets or to data of any kind.

    Raises:
            DataError: anything else, such as one data set, which does not say which client has which rows.
    """
    if all(hasattr(given, attribute) for attribute in ("names", "shard", "__len__")):
        return given  # type: ignore[no-any-return]
    if isinstance(given, Dataset):
        raise DataError(
            f"{given.name!r} is one data set, not divided among clients",
            where="islands",
            remedy=f"divide it: atoll.data.iid(data, parties=10, seed=0), or another partitioner; or {_ONE_EACH}",
        )
    several = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(several, list | tuple) and several:
        if all(isinstance(one, Dataset) for one in several):
            return Islands.from_datasets(
                dict(zip(map(str, given), several, strict=True)) if isinstance(given, Mapping) else several
            )
        if isinstance(given, Mapping) and not any(isinstance(one, Dataset) for one in several):
            return Community({str(name): one for name, one in given.items()})
    kinds = {type(one).__name__ for one in several} if isinstance(several, list | tuple) else ()
    what = f"a {type(given).__name__}" + (f" of {', '.join(sorted(kinds))}" if kinds else "")
    raise DataError(
        f"{what} is not a federated data set",
        where="islands",
        remedy=f"divide a data set with a partitioner, such as atoll.data.iid, or {_ONE_EACH}; "
        "put data of any other kind into a dict that maps names to data",
    )
