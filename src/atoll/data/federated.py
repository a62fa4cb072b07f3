"""Conversion of what users pass as clients into a population."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.requests.cohort import Community, Population

from .dataset import Dataset
from .islands import Islands

__all__ = ["are_arrays", "as_dataset", "as_population"]

_ONE_EACH = "give a list or dict of data sets, one a client"


def as_population(given: Any, *, one_form: bool = False) -> Population:
    """Turn a list or dict of data sets, one a client, into a federated data set.

    Args:
        given: a population, which is returned unchanged; a list of data sets; or a dict that maps names to data sets or to data of any kind,
            which tasks then find unchanged.
        one_form: whether the job needs data of one form; see `atoll.core.job.Job`. A client's dict of arrays is then made a data set.

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
    if one_form and isinstance(given, Mapping):
        given = {name: as_dataset(one, f"the data of {str(name)!r}") for name, one in given.items()}
    several = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(several, list | tuple) and several:
        if all(isinstance(one, Dataset) for one in several):
            return Islands.from_datasets(
                dict(zip(map(str, given), several, strict=True)) if isinstance(given, Mapping) else several
            )
        if isinstance(given, Mapping) and not (one_form and any(isinstance(one, Dataset) for one in several)):
            return Community({str(name): one for name, one in given.items()})
    kinds = {type(one).__name__ for one in several} if isinstance(several, list | tuple) else ()
    what = f"a {type(given).__name__}" + (f" of {', '.join(sorted(kinds))}" if kinds else "")
    raise DataError(
        f"{what} is not a federated data set",
        where="islands",
        remedy=f"divide a data set with a partitioner, such as atoll.data.iid, or {_ONE_EACH}; "
        "put data of any other kind into a dict that maps names to data",
    )


def are_arrays(given: Any) -> bool:
    """Tell whether data are a dict of arrays, from which a data set can be made."""
    return isinstance(given, Mapping) and bool(given) and all(isinstance(one, np.ndarray) for one in given.values())


def as_dataset(given: Any, where: str | None, **settings: Any) -> Any:
    """The data of one party for a job whose parties have one form: a dict of arrays is made a data set, anything else stays as it is.

    Args:
        given: the party's data.
        where: whose they are, for errors; ``None`` if the caller says it.
        settings: those of `Dataset`.

    Raises:
        DataError: a dict of something else, such as of tables, which nobody can train on.
    """
    if not isinstance(given, Mapping):
        return given
    if are_arrays(given):
        return Dataset(given, **settings)
    held = {str(name): type(values).__name__ for name, values in given.items()}
    shown = ", ".join(f"{name} ({kind})" for name, kind in list(held.items())[:5])
    raise DataError(
        f"a dict of {shown or 'nothing'}; this job trains on the rows of one data set",
        where=where,
        remedy="make one of it: atoll.data.Dataset({'x': features, 'y': labels}), or a dict of the two arrays; a program, or a kind of "
        "job of your own, gets the dict as it is",
    )
