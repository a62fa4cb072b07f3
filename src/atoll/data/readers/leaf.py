"""The JSON format of the LEAF benchmark: data that are divided by user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError
from atoll.core.redaction import private

from .._checks import Array
from ..dataset import Dataset
from ..islands import Islands
from ..join import concatenate
from ..missing import Missing, known_labels

__all__ = ["read_leaf"]

_Users = dict[str, dict[str, Array]]


@checked_call
def read_leaf(
    train: str | Path,
    test: str | Path | None = None,
    *,
    task: str | None = None,
    classes: int | None = None,
    missing: Missing = None,
    name: str = "leaf",
    citation: str = "Caldas et al.: LEAF: a benchmark for federated settings, 2018",
) -> Islands:
    """Read a LEAF file, or a folder of them, as a population of its users.

    A file is an object with ``users`` (names), ``num_samples`` (rows of each) and ``user_data`` (name -> ``x``,
    ``y``). Text labels are coded by their sorted distinct values over all users. A label ``null`` or ``""`` is missing.

    Args:
        train: file or folder.
        test: file or folder with the same users' test rows; together they become the server's test set.
        task: see `About`; inferred from the labels when omitted.
        classes: number of classes.
        missing: labels that mean "no label", such as -1; see `Dataset`.
        name: short name.
        citation: the source of the data.

    Raises:
        DataError: keys are missing, a user appears twice, or sizes disagree with ``num_samples``; names file and user.
    """
    users = _read(Path(train))
    test_users = _read(Path(test)) if test is not None else {}
    labels = _labels(missing, users, test_users)
    if classes is None and labels:
        classes = len(labels)
    parts = {user: _dataset(columns, task, classes, labels, missing, name, citation) for user, columns in users.items()}
    rows = [_dataset(columns, task, classes, labels, missing, name, citation) for columns in test_users.values()]
    return Islands.from_datasets(parts, test=concatenate(rows) if rows else None, scheme="natural (LEAF users)")


def _read(path: Path) -> _Users:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise DataError(
            f"no LEAF files at {path.name!r}", where=str(path.parent), remedy="give a .json file or a folder of them"
        )
    users: _Users = {}
    for file in files:
        for user, columns in _read_file(file).items():
            if user in users:
                raise DataError(f"user {user!r} appears twice", where=file.name, remedy="merge the user's rows")
            users[user] = columns
    return users


def _read_file(file: Path) -> _Users:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"not JSON: {private(error)}", where=file.name, remedy="fetch the file again") from error
    absent = [
        key for key in ("users", "num_samples", "user_data") if not isinstance(content, dict) or key not in content
    ]
    if absent:
        raise DataError(f"no {', '.join(absent)}", where=file.name, remedy="give users, num_samples and user_data")
    if len(content["users"]) != len(content["num_samples"]):
        raise DataError(
            f"{len(content['users'])} users with {len(content['num_samples'])} num_samples",
            where=file.name,
            remedy="give one number per user",
        )
    pairs = zip(content["users"], content["num_samples"], strict=True)
    return {str(user): _user(content["user_data"], user, int(n), file.name) for user, n in pairs}


def _user(data: Any, user: Any, rows: int, file: str) -> dict[str, Array]:
    where = f"user {user!r} of {file}"
    own = data.get(user)
    if not isinstance(own, dict) or "x" not in own or "y" not in own:
        raise DataError("no x and y in user_data", where=where, remedy="give both for every user")
    if len(own["x"]) != rows or len(own["y"]) != rows:
        raise DataError(
            f"{len(own['x'])} x and {len(own['y'])} y, but num_samples says {rows}",
            where=where,
            remedy="correct num_samples or the rows",
        )
    try:
        x, y = np.array(own["x"]), _with_holes(own["y"])
    except ValueError as error:
        raise DataError(f"rows of different shapes: {private(error)}", where=where, remedy="pad them to one") from error
    return {"x": x.astype(np.float32) if x.dtype.kind in "biuf" else x, "y": y}


def _with_holes(labels: list[Any]) -> Array:
    """Return labels as text or numbers, with "" or NaN for ``null``."""
    if None not in labels:
        return np.array(labels)
    text = any(isinstance(label, str) for label in labels)
    return np.array([("" if text else np.nan) if label is None else label for label in labels])


def _labels(missing: Missing, *groups: _Users) -> tuple[str, ...]:
    """Return the sorted distinct labels if they are text."""
    texts = [c["y"] for group in groups for c in group.values() if c["y"].dtype.kind == "U"]
    if not texts:
        return ()
    every = np.concatenate(texts)
    return tuple(map(str, np.unique(every[known_labels(every, missing) & (every != "")])))


def _dataset(
    columns: dict[str, Array],
    task: str | None,
    classes: int | None,
    labels: tuple[str, ...],
    missing: Missing,
    name: str,
    citation: str,
) -> Dataset:
    if labels:
        y = columns["y"].astype(np.str_)
        there = known_labels(y, missing) & (y != "") & (y != "nan")
        columns = columns | {"y": np.where(there, np.searchsorted(np.array(labels), y), 0)}
        columns |= {} if there.all() else {"labelled": there}
    missing = None if labels else missing
    return Dataset(columns, task=task, classes=classes, labels=labels, missing=missing, name=name, citation=citation)
