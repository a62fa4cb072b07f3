"""Conversion of what users pass as clients into a population."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core.errors import DataError, nearest
from atoll.core.requests.cohort import Community, Population

from .dataset import Dataset
from .islands import Islands
from .partition import natural
from .readers.libraries import table_of_frame
from .readers.tables import islands_of_tables

__all__ = ["are_arrays", "as_dataset", "as_population"]

PARTY = "party"
"""The array of owners, as archives have it."""
TARGET = "y"
"""The target column of a table that comes without a word about it."""
_TESTS = ("x_test", "y_test")
_ONE_EACH = "give a list or dict of data sets, one a client"


def as_population(given: Any, *, one_form: bool = False, tables: bool = False) -> Population:
    """Turn a list or dict of data sets, one a client, into a federated data set.

    Args:
        given: a population, which is returned unchanged; a list of data sets; or a dict that maps names to data sets or to data of any kind,
            which tasks then find unchanged.
        one_form: whether the job needs data of one form; see `atoll.core.job.Job`. A client's dict of arrays, or its data frame, is then made a data set.
        tables: whether the job reads tables with columns of their own: data sets with other features then stay as they are, each its client's.

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
        given = _as_datasets(given)
    if isinstance(given, Islands):
        return given
    several = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(several, list | tuple) and several:
        features = {one.about.features for one in several if isinstance(one, Dataset)}
        apart = tables and isinstance(given, Mapping) and len(features) > 1
        if all(isinstance(one, Dataset) for one in several) and not apart:
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


def _as_datasets(given: Mapping[Any, Any]) -> Any:
    """The clients of a job that trains on data sets: tables together, since columns are matched and text is coded over all; arrays each for itself.

    Raises:
        DataError: it is one data set, a table has no target, or a client's arrays have no names.
    """
    if are_arrays(given) and "x" in given:
        return _divided(given)
    for name, one in given.items():
        if isinstance(one, tuple | list) and one and all(isinstance(part, list | tuple | np.ndarray) for part in one):
            raise DataError(
                f"the data of {str(name)!r} are a {type(one).__name__} of {len(one)}, whose parts have no names",
                where="islands",
                remedy="name the arrays: {'x': features, 'y': labels}, or give a data set or a table with named columns",
            )
    tables = {str(name): one for name, one in given.items() if _is_table(one)}
    if not tables or len(tables) < len(given):
        return {name: as_dataset(one, f"the data of {str(name)!r}") for name, one in given.items()}
    bare = next((name for name, one in tables.items() if TARGET not in _columns_of(one)), None)
    if bare is not None:
        columns = _columns_of(tables[bare])
        raise DataError(
            f"the table of {bare!r} has no column {TARGET!r}, and this job needs a target.{nearest(TARGET, columns)}",
            where="islands",
            remedy=f"name the target: atoll.data.from_dataframes(frames, target=...), one of {', '.join(map(str, columns[:8]))}; or call it {TARGET!r}",
        )
    return islands_of_tables({name: _table_of(one, name) for name, one in tables.items()}, None, TARGET, "frames", 0)


def _divided(arrays: Mapping[Any, Any]) -> Islands:
    """Arrays of all clients, divided by their owners.

    Raises:
        DataError: nothing says which client has which rows.
    """
    if PARTY not in arrays:
        raise DataError(
            f"a dict of the arrays {', '.join(map(str, arrays))} is one data set, not divided among clients",
            where="islands",
            remedy=f"divide it: atoll.data.iid(atoll.data.Dataset(arrays), parties=10, seed=0), add an array {PARTY!r} of owners, or {_ONE_EACH}",
        )
    whole = as_dataset({name: one for name, one in arrays.items() if name != PARTY}, "the arrays")
    owned = whole.with_columns({PARTY: np.asarray(arrays[PARTY]).astype(np.str_)})
    return natural(owned, PARTY).with_test(whole.test)


def _is_table(one: Any) -> bool:
    """Whether data are named columns: a data frame, or a dict of one-dimensional arrays without ``x``."""
    if isinstance(one, Mapping):
        return are_arrays(one) and "x" not in one and all(np.ndim(values) == 1 for values in one.values())
    return hasattr(one, "iloc") and hasattr(one, "columns")


def _columns_of(one: Any) -> list[Any]:
    return list(one) if isinstance(one, Mapping) else list(one.columns)


def _table_of(one: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        return table_of_frame(one, name)
    return {str(column): _as_text(np.asarray(values)) for column, values in one.items()}


def _as_text(values: Any) -> Any:
    """Text that came as objects, with "" where a value is missing; anything else as it is."""
    if values.dtype.kind != "O":
        return values
    plain = ["" if value is None or value != value else value for value in values.tolist()]
    return np.array(plain, dtype=np.str_) if all(isinstance(value, str) for value in plain) else values


def are_arrays(given: Any) -> bool:
    """Tell whether data are a dict of arrays, or of lists of numbers or text, from which a data set can be made."""
    return isinstance(given, Mapping) and bool(given) and all(_is_array(one) for one in given.values())


def _is_array(one: Any) -> bool:
    if isinstance(one, list):
        return bool(one) and _is_even(one) and np.asarray(one).dtype.kind in "biufU"
    return isinstance(one, np.ndarray)


def _is_even(one: Any) -> bool:
    """Whether a list, and lists in it, have one shape; NumPy refuses others."""
    try:
        np.asarray(one)
    except ValueError:
        return False
    return True


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
        held = {str(name).removesuffix("_test"): values for name, values in given.items() if str(name) in _TESTS}
        rows = {name: values for name, values in given.items() if name not in _TESTS}
        made = Dataset(rows, **settings)
        return made.with_test(Dataset(held, task=made.task, classes=made.classes)) if held else made
    held = {str(name): type(values).__name__ for name, values in given.items()}
    shown = ", ".join(f"{name} ({kind})" for name, kind in list(held.items())[:5])
    raise DataError(
        f"a dict of {shown or 'nothing'}; this job trains on the rows of one data set",
        where=where,
        remedy="make one of it: atoll.data.Dataset({'x': features, 'y': labels}), or a dict of the two arrays; a program, or a kind of "
        "job of your own, gets the dict as it is",
    )
