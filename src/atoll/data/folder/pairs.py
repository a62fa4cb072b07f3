"""Data sets of two tables: vertical federated learning, and crowd labels with the true labels."""

from __future__ import annotations

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError

from ..dataset import Dataset
from ..readers.csv import table_of_csv
from ..readers.table import from_table
from ._place import Folder, locate

__all__ = ["crowd_labels", "fate_vertical"]

_VERTICAL = {"breast": ("y", "binary"), "default_credit": ("y", "binary"), "motor": ("motor_speed", "regression")}
_CROWDS = ("bluebirds", "dog", "ducks", "emotion_numeric", "snow_rte", "snow_temp", "weather_sentiment")


@checked_call
def fate_vertical(name: str, *, folder: Folder = None) -> tuple[Dataset, Dataset]:
    """Load one of FATE's vertical examples as (guest, host): the guest has the target, both have a column ``id``.

    The rows are not aligned: match the ids first. Files: ``fate_vfl/<name>_hetero_{guest,host}.csv.gz``.

    Args:
        name: "breast" (569 rows, 10 + 20 features), "default_credit" (30,000, 13 + 10) or "motor" (800, 4 + 7).
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: another name, or missing or malformed files.
    """
    if name not in _VERTICAL:
        raise DataError(f"no vertical example {name!r}", remedy=f"choose one of {', '.join(_VERTICAL)}")
    target, task = _VERTICAL[name]
    citation = "FATE examples (Apache-2.0), from UCI and Kaggle; features standardised there"
    guest = locate(folder, "fate_vfl", f"{name}_hetero_guest.csv.gz")
    host = locate(folder, "fate_vfl", f"{name}_hetero_host.csv.gz")
    parts = []
    for part, path, of, kind in (("guest", guest, target, task), ("host", host, None, None)):
        table = table_of_csv(path)
        key = next((column for column in ("id", "idx") if column in table), None)
        if key is None:
            raise DataError("no column id", where=path.name, remedy="give each row its id, as FATE's files do")
        columns = {"id" if column == key else column: values for column, values in table.items()}
        made = from_table(
            columns, target=of, task=kind, keep=["id"], name=f"{name} ({part})", citation=citation, row_offset=2
        )
        parts.append(made)
    return parts[0], parts[1]


@checked_call
def crowd_labels(name: str, *, folder: Folder = None) -> tuple[Dataset, Dataset]:
    """Load crowd labels as (labels, truth): columns ``task``, ``worker``, ``label``, and ``task``, ``truth``.

    Files: ``crowd_truth/<name>_labels.csv.gz`` and ``crowd_truth/<name>_truth.csv.gz``.

    Args:
        name: "bluebirds", "dog", "ducks", "emotion_numeric", "snow_rte", "snow_temp" or "weather_sentiment".
        folder: data folder; the environment variable ``ATOLL_DATA`` by default.

    Raises:
        DataError: another name, or missing or malformed files.
    """
    if name not in _CROWDS:
        raise DataError(f"no crowd labels {name!r}", remedy=f"choose one of {', '.join(_CROWDS)}")
    parts = []
    for part, columns in (("labels", ("task", "worker", "label")), ("truth", ("task", "truth"))):
        path = locate(folder, "crowd_truth", f"{name}_{part}.csv.gz")
        table = table_of_csv(path)
        absent = [column for column in columns if column not in table]
        if absent:
            raise DataError(f"no column {', '.join(absent)}", where=path.name, remedy=f"give {', '.join(columns)}")
        chosen = {column: np.asarray(table[column]) for column in columns}
        parts.append(Dataset(chosen, name=f"{name} ({part})", citation="see the crowd data's own publication"))
    return parts[0], parts[1]
