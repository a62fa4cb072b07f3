"""File formats of a site's data: tables (CSV, Parquet) and arrays (.npz, .npy)."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from atoll.core.errors import DataError
from atoll.core.redaction import private
from atoll.data import Dataset, DataTable, concatenate
from atoll.data.missing import Missing
from atoll.data.readers._words import first_word, mostly_numbers
from atoll.data.readers.arrow import table_of_parquet
from atoll.data.readers.csv import table_of_csv
from atoll.data.readers.table import empty_as_numbers, from_table, holes

from .agreement import merge_cards, recoded
from .cards import card_of
from .headers import for_sites, is_parquet, require_columns, tables_in
from .shown import require_few

__all__ = ["load_arrays", "load_as_is", "load_tables"]

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_TESTS = (("test_x", "test_y"), ("x_test", "y_test"))


def load_tables(paths: Sequence[Path], options: Mapping[str, Any]) -> Dataset:
    """Read a table, or all tables of a folder in the order of their names.

    Args:
        paths: one file or folder.
        options: ``target``, ``task``, ``features``, ``drop``, ``categories``, ``missing`` and ``missing_features``, of CSV files also ``delimiter``, ``decimal`` and
            ``encoding``; see `atoll.data.read_csv`.

    Raises:
        DataError: no table, no target, an unknown column, a text feature without declared values, or files that disagree.
    """
    if len(paths) > 1:
        raise DataError(
            f"{len(paths)} paths are given",
            where=paths[0].name,
            remedy="give one file, one folder, or two .npy files",
        )
    files = tables_in(paths[0])
    try:
        parts = {f"file {path.name!r}": _table(path, options) for path in files}
    except DataError as error:
        raise for_sites(error) from error
    cards = {name: card_of(part, options.get("categories")) for name, part in parts.items()}
    agreed = merge_cards(cards)
    return concatenate([recoded(part, cards[name], agreed) for name, part in parts.items()])


def load_as_is(paths: Sequence[Path], options: Mapping[str, Any]) -> DataTable:
    """Read a table, or all tables of a folder one below the other, with missing values and text.

    Args:
        paths: one file or folder.
        options: ``features`` and ``target``, which say together what may be looked at, ``drop``, ``text``, the columns that stay text, and of CSV files ``delimiter``, ``decimal`` and ``encoding``.

    Raises:
        DataError: no table, an unknown column, or files with other columns.
    """
    said = {name: options[name] for name in ("delimiter", "decimal", "encoding") if options.get(name) is not None}
    target = options.get("target")
    goals = [target] if isinstance(target, str) else list(target or ())
    text = list(options.get("text") or ())
    chosen = list(dict.fromkeys([*text, *options["features"], *goals])) if options.get("features") else []
    drop = list(options.get("drop") or ())
    parts = [DataTable.read(file, columns=chosen, drop=drop, text=text, **said) for file in tables_in(paths[0])]
    return parts[0] if len(parts) == 1 else DataTable.stacked(parts, name=paths[0].name)


def _table(path: Path, options: Mapping[str, Any]) -> Dataset:
    said = {name: options[name] for name in ("delimiter", "decimal", "encoding") if options.get(name) is not None}
    table = table_of_parquet(path) if is_parquet(path) else table_of_csv(path, **said)
    target, task = options.get("target"), options.get("task")
    drop, chosen = list(options.get("drop") or ()), list(options.get("features") or ())
    categories = dict(options.get("categories") or {})
    require_columns(path.name, table, options)
    goals = [target] if isinstance(target, str) else list(target or ())
    absent = bool(options.get("missing_features"))
    if absent:
        table = empty_as_numbers(table, goals)
    for column in chosen or [c for c in table if c not in {*goals, *drop}]:
        if table[column].dtype.kind == "U" and column not in categories:
            _refuse_text(path, column, table[column])
    made = from_table(
        table, target=target, task=task, features=chosen or None, drop=drop, categories=categories, missing=options.get("missing"),
        missing_features=absent, name=path.name, row_offset=0 if is_parquet(path) else 2,
    )  # fmt: skip
    if made.about.labels and made.task == "classification" and target not in categories:
        require_few(len(made.about.labels), str(target), path.name)
    return made


def _refuse_text(path: Path, column: str, values: Any) -> NoReturn:
    """Refuse a column of text without declared values; the error names a word among numbers, with its row."""
    known = values[~holes(values)]
    leave = f"leave the column out (--drop {shlex.quote(column)})"
    if known.size and mostly_numbers(known):
        word = first_word(known)[1]
        row = int(np.flatnonzero(values == word)[0]) + (1 if is_parquet(path) else 2)
        counted = "" if is_parquet(path) else " (the header is row 1)"
        raise DataError(
            f"column {column!r} holds numbers, and {private(word)} at row {row}{counted}",
            where=path.name,
            remedy=f"correct the value, {_decimal(word)}or {leave}",
        )
    name = column if column.isidentifier() else repr(column)
    raise DataError(
        f"column {column!r} holds text, and its codes would be this file's own",
        where=path.name,
        remedy=f"{_decimal(str(values[0]))}{leave}, or declare its values, the same everywhere, in a YAML file: categories: {{{name}: [...]}}",
    )


def _decimal(word: str) -> str:
    """Return the remedy for a decimal comma, if a word may have one."""
    return "say decimal: ',' in a YAML file, " if re.fullmatch(r"[+-]?\d+,\d+", word) else ""


def load_arrays(
    paths: Sequence[Path], task: str | None = None, missing: Missing = None, missing_features: bool = False
) -> Dataset:
    """Read arrays: an archive with ``x`` and ``y`` (or ``x_train`` and ``y_train``), or two files.

    Labels that are NaN or in ``missing`` do not exist, nor do those that the array ``labelled`` denies. An archive may also hold ``features`` and ``labels``, names of the features and of the classes, ``test_x`` and ``test_y``, and
    ``missing_features``, which declares that features may be missing.

    Raises:
        DataError: an array is missing or cannot be used.
    """
    name = paths[0].name
    arrays = _archive(paths[0]) if paths[0].suffix == ".npz" else _files(paths)
    about = {key: [str(v) for v in arrays.get(key, ())] for key in ("features", "labels")}
    x_name, y_name = next((pair for pair in _PAIRS if pair[0] in arrays), (None, None))
    if x_name is None or y_name is None:
        raise DataError("no array 'x'", where=name, remedy=f"it holds {', '.join(arrays) or 'nothing'}; name one x")
    if y_name not in arrays and task not in (None, "unlabelled"):
        raise DataError(f"no array {y_name!r}", where=name, remedy="give the targets a name, y")
    absent = missing_features or bool(np.any(arrays.get("missing_features", False)))
    signs = {"missing": missing, "missing_features": absent}
    made = _dataset(arrays, x_name, y_name, task, name, about, signs)
    held = next((pair for pair in _TESTS if pair[0] in arrays), None)
    return made if held is None else made.with_test(_dataset(arrays, *held, made.task, name, about, signs))


def _dataset(
    arrays: Mapping[str, Any],
    x: str,
    y: str,
    task: str | None,
    name: str,
    about: Mapping[str, Sequence[str]],
    signs: Mapping[str, Any],
) -> Dataset:
    columns = {"x": arrays[x], **({"y": arrays[y]} if y in arrays else {})}
    if "y" in columns and "labelled" in arrays and (x, y) in _PAIRS:
        columns["labelled"] = arrays["labelled"]
    if "y" in columns and columns["y"].ndim == 2 and columns["y"].shape[1] == 1:
        columns["y"] = columns["y"].reshape(-1)
    return Dataset(columns, task=task, name=name, features=about["features"], labels=about["labels"], **signs)


def _archive(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(
            f"not a readable archive of plain arrays: {private(error)}",
            where=path.name,
            remedy="write it with numpy.savez and without objects",
        ) from error


def _files(paths: Sequence[Path]) -> dict[str, Any]:
    if len(paths) != 2:
        raise DataError(
            f"{len(paths)} .npy file(s)", where=paths[0].name, remedy="give two, features then targets: x.npy,y.npy"
        )
    found = {}
    for key, path in zip(("x", "y"), paths, strict=True):
        try:
            found[key] = np.load(path, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DataError(
                f"not a readable array: {private(error)}",
                where=path.name,
                remedy="write it with numpy.save, without objects",
            ) from error
    return found
