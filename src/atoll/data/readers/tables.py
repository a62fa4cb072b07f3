"""A table for each client: data frames or CSV files, coded alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.calls import checked_call
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from .._checks import Array
from ..codings import require_one_coding
from ..dataset import Dataset, order_columns, require_columns
from ..islands import Islands
from ..missing import Missing, known_labels
from ._words import is_number, read_truths, require_categories, require_plain_numbers
from .arrow import table_of_parquet
from .csv import table_of_csv
from .libraries import table_of_frame
from .table import (
    empty_as_numbers,
    existing,
    from_table,
    holes,
    inferred,
    names_of_classes,
    require_declared,
    require_no_keys,
    targets_of,
    without_holes,
)

__all__ = ["from_csv_files", "from_csv_folder", "from_dataframes", "islands_of_tables", "name_files"]

Tables = Mapping[str, Mapping[str, Array]]


@checked_call
def from_dataframes(
    frames: Mapping[str, Any], *, target: str | Sequence[str] | None, test: Any = None, **options: Any
) -> Islands:
    """Make a client of each ``pandas.DataFrame``: ``from_dataframes({"north": df1, "south": df2}, target="died")``.

    Columns are matched by name, in any order. If you say ``features=``, tables may have other columns besides. If the tables' orders differ, the features are
    in alphabetical order. Text columns and classes get common codes: the sorted distinct values of all tables. Between organisations, where no one sees all tables, the
    sites agree on codes instead.

    Args:
        frames: client's name -> its table.
        target: target column, or columns.
        test: the server's test rows, as a table with the same columns; or the rows that clients hold out: a share such as 0.2, or a table for each by its name
            (`Islands.with_held_out`).
        options: ``task``, ``features``, ``keep``, ``drop``, ``categories``, ``missing``, ``missing_features`` and ``citation``, see `read_csv`.

    Raises:
        DataError: as in `from_pandas`; names the client. Or the tables differ in their columns, or there is no table.
    """
    if not isinstance(frames, Mapping):
        raise DataError(
            f"frames is a {type(frames).__name__}",
            where="from_dataframes",
            remedy="give a dict: client's name -> its pandas.DataFrame",
        )
    tables = {str(name): table_of_frame(frame, str(name)) for name, frame in frames.items()}
    if isinstance(test, float | Mapping):
        held = test if isinstance(test, float) else {str(n): table_of_frame(f, str(n)) for n, f in test.items()}
        return _hold_out(tables, held, target, "frames", 0, **options)
    only = None if test is None else table_of_frame(test, "test")
    return islands_of_tables(tables, only, target, "frames", 0, **options)


def _hold_out(
    tables: Tables,
    test: float | Tables,
    target: str | Sequence[str] | None,
    scheme: str,
    row_offset: int,
    places: Mapping[str, str] | None = None,
    **options: Any,
) -> Islands:
    """Make clients and the rows that they hold out, a share or tables of their own, which get common codes."""
    if isinstance(test, float):
        return islands_of_tables(tables, None, target, scheme, row_offset, places, **options).with_held_out(test)
    if set(test) != set(tables):
        odd = sorted(set(test) ^ set(tables))[0]
        raise DataError(
            f"test has tables of {', '.join(test) or 'nobody'}, and the clients are {', '.join(tables)}",
            where=scheme,
            remedy=f"give both a table {odd!r}, or neither",
        )
    names = list(tables)
    apart = [f"{name}, held out" for name in names]
    both = {**tables, **{own: test[name] for own, name in zip(apart, names, strict=True)}}
    whole = islands_of_tables(both, None, target, scheme, row_offset, places, **options)
    held = whole.subset(apart)
    return whole.subset(names).with_held_out(
        {name: held.shard(own).dataset() for name, own in zip(names, apart, strict=True)}
    )


@checked_call
def from_csv_files(
    files: Sequence[str | Path],
    *,
    target: str | Sequence[str] | None,
    test: str | Path | float | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    **options: Any,
) -> Islands:
    """Make a client of each CSV or Parquet file, named after the file: ``from_csv_files(["north.csv", "south.csv"], target="died")``.

    Text columns and classes get common codes, as in `from_dataframes`. For the names of files with equal names, see `name_files`.

    Args:
        files: the files.
        target: target column, or columns.
        test: the file with the server's test rows; or the share of its rows that each client holds out (`Islands.with_held_out`).
        delimiter: the separator of the values of CSV files.
        decimal: their decimal sign, "." or ",".
        encoding: the encoding of their text.
        options: ``task``, ``features``, ``keep``, ``drop``, ``categories``, ``missing``, ``missing_features`` and ``citation``, see `read_csv`.

    Raises:
        DataError: a file does not exist, or is given twice; else as in `read_csv`.
    """
    form = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    named = name_files([Path(path) for path in files])
    tables = {name: _table_of_file(path, form) for name, path in named.items()}
    places = {name: str(path) for name, path in named.items()}
    first = 1 if all(path.suffix in _PARQUET for path in named.values()) else 2
    if isinstance(test, float):
        return _hold_out(tables, test, target, "files", first, places, **options)
    if test is not None and not Path(test).is_file():
        raise DataError(f"{test}: there is no such file", where="files", remedy="give files that exist")
    held = None if test is None else _table_of_file(Path(test), form)
    return islands_of_tables(
        tables, held, target, "files", first, places if test is None else {**places, "test": str(test)}, **options
    )


_PARQUET = (".parquet", ".pq")


def _table_of_file(path: Path, form: Mapping[str, str]) -> dict[str, Array]:
    return table_of_parquet(path) if path.suffix in _PARQUET else table_of_csv(path, **form)


_TABLES = ("*.csv", "*.csv.gz", "*.parquet", "*.pq")


def name_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Name the file of each site: after the file without its ending; with the folders before it where two are equal: ``north/data``, ``south/data``.

    Args:
        paths: one a site: a file, or a folder with one CSV or Parquet file, whose site has the folder's name.

    Raises:
        DataError: there is no such file, a folder holds none or several, or a file is given twice.
    """
    files = [_only_table(path) if path.is_dir() else path for path in paths]
    for path in files:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file", where="files", remedy="give one file a site that exists")
    resolved = [path.resolve() for path in files]
    if len(set(resolved)) < len(resolved):
        twice = next(path for path in resolved if resolved.count(path) > 1)
        raise DataError("a file is given twice", where=str(twice), remedy="give each site's file once")
    places = [path.resolve() if path.is_dir() else _without_ending(path.resolve()) for path in paths]
    short = [path.name.split(".")[0] for path in paths]
    most = max(len(place.parts) for place in places)
    choices = (short, *(["/".join(place.parts[-k:]) for place in places] for k in range(1, most + 1)))
    # The whole path, with its ending, tells all files apart.
    names = next((some for some in choices if len(set(some)) == len(some)), [str(path) for path in resolved])
    return dict(zip(names, files, strict=True))


def _without_ending(path: Path) -> Path:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.with_suffix("")


def _only_table(folder: Path) -> Path:
    found = sorted(path for pattern in _TABLES for path in folder.glob(pattern))
    if len(found) != 1:
        raise DataError(
            f"{folder}: the folder holds {len(found)} CSV or Parquet files",
            where="files",
            remedy="give the file of each site, or a folder with one",
        )
    return found[0]


@checked_call
def from_csv_folder(
    folder: str | Path,
    *,
    target: str | Sequence[str] | None,
    test: str | float | Mapping[str, str] | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    encoding: str = "utf-8",
    **options: Any,
) -> Islands:
    """Make a client of each CSV file in a folder, named after the file: ``from_csv_folder("hospitals", target="died", test="held_out.csv")``.

    Text columns and classes get common codes, as in `from_dataframes`. Files end in ``.csv`` or ``.csv.gz``.

    Args:
        folder: the folder.
        target: target column, or columns.
        test: name of the file in the folder with the server's test rows; or the rows that clients hold out (`Islands.with_held_out`): a share such as 0.2, or the
            name of a file in the folder for each client: ``{"north": "north_held_out.csv", …}``.
        delimiter: the separator of the values.
        decimal: the decimal sign, "." or ",".
        encoding: the encoding of the text.
        options: ``task``, ``features``, ``keep``, ``drop``, ``categories``, ``missing``, ``missing_features`` and ``citation``, see `read_csv`.

    Raises:
        DataError: there is no such folder or file, or no CSV file in it; else as in `read_csv`.
    """
    place = Path(folder)
    found = sorted(place.glob("*.csv")) + sorted(place.glob("*.csv.gz"))
    files = {path.name: path for path in found if path.is_file()}
    given = [] if test is None or isinstance(test, float) else [test] if isinstance(test, str) else list(test.values())
    for name in given:
        if name not in files:
            raise DataError(
                f"test={name!r}: there is no such CSV file.{nearest(name, files)}",
                where=str(place),
                remedy=f"use one of {', '.join(files)}" if files else "give the folder with the files",
            )

    def read(name: str) -> dict[str, Array]:
        return table_of_csv(files[name], delimiter=delimiter, decimal=decimal, encoding=encoding)

    clients = {name.removesuffix(".gz").removesuffix(".csv"): name for name in files if name not in given}
    if not clients:
        raise DataError(
            "there is no CSV file" if place.is_dir() else "there is no such folder",
            where=str(place),
            remedy="give a folder with one file NAME.csv for each client",
        )
    tables, places = (
        {name: read(file) for name, file in clients.items()},
        {n: str(files[f]) for n, f in clients.items()},
    )
    if isinstance(test, float | Mapping):
        held = test if isinstance(test, float) else {client: read(name) for client, name in test.items()}
        places |= {} if isinstance(test, float) else {f"{c}, held out": str(files[name]) for c, name in test.items()}
        return _hold_out(tables, held, target, "files", 2, places, **options)
    only = None if test is None else read(test)
    return islands_of_tables(
        tables, only, target, "files", 2, places if test is None else {**places, "test": str(files[test])}, **options
    )


def islands_of_tables(
    tables: Tables,
    test: Mapping[str, Array] | None,
    target: str | Sequence[str] | None,
    scheme: str,
    row_offset: int,
    places: Mapping[str, str] | None = None,
    *,
    task: str | None = None,
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: Missing = None,
    **options: Any,
) -> Islands:
    """Make a client of each table, with the codes of all of them; see `from_dataframes`."""
    everyone: dict[str, Mapping[str, Array]] = {**tables, **({} if test is None else {"test": test})}
    if len(everyone) < len(tables) + (test is not None) or not tables:
        raise DataError(
            "a client is named 'test'" if tables else "there are no tables",
            where=scheme,
            remedy="give every client a table and a name other than 'test'",
        )
    targets = targets_of(target, scheme)
    spots = {name: f"table {name!r}" for name in everyone} | dict(places or {})
    settings = {**options, "categories": categories, "missing": missing}
    everyone = dict(_align_tables(everyone, targets, settings, spots, row_offset))
    options = {**options, "drop": ()}
    if options.get("missing_features"):
        everyone = {name: empty_as_numbers(table, targets) for name, table in everyone.items()}
    labels, listed = _labels(everyone, targets, missing), categories or {}
    features = [one for one in _used(next(iter(everyone.values())), targets, options) if one not in targets]
    fixed = {
        **_texts(everyone, features, listed, row_offset, scheme),
        # The numbers of a regression have no codes, and `from_table` refuses text there.
        **({} if task == "regression" else _texts(labels, targets, listed, row_offset, scheme, label=True)),
        **listed,
    }
    _require_no_keys(everyone, features, listed, options)
    task = _task(labels, targets, task, fixed)
    if labels and task in (None, "classification") and len(targets) == 1:
        if targets[0] not in listed:
            require_declared(
                {f"table {name!r}": np.unique(known[targets[0]]) for name, known in labels.items()}, targets[0]
            )
        if targets[0] not in fixed:
            _require_one_coding(labels, targets[0], scheme)
            fixed[targets[0]] = names_of_classes(np.concatenate([columns[targets[0]] for columns in labels.values()]))

    def made(name: str) -> Dataset:
        known = {column: words for column, words in fixed.items() if column in everyone[name]}
        return from_table(
            everyone[name], target=target, task=task, categories=known, missing=missing, name=name,
            row_offset=row_offset, **options,
        )  # fmt: skip

    parts = {name: made(name) for name in tables}
    if options.get("features") is None:
        parts = _mark_reordered(parts, tables, features)
    return Islands.from_datasets(parts, test=None if test is None else made("test"), scheme=scheme)


def _mark_reordered(parts: dict[str, Dataset], tables: Tables, features: Sequence[str]) -> dict[str, Dataset]:
    """Mark the data if a table had its features in another order."""
    chosen = {*features}
    if all([column for column in table if column in chosen] == [*features] for table in tables.values()):
        return parts
    return {
        name: Dataset._of(part._base, part._rows, len(part), replace(part.about, reordered=True), part.test)
        for name, part in parts.items()
    }


def _require_one_coding(labels: Mapping[str, Mapping[str, Array]], target: str, where: str) -> None:
    names = {name: names_of_classes(known[target]) for name, known in labels.items()}
    require_one_coding(names, target, where, label=True)


def _require_no_keys(
    tables: Tables, features: Sequence[str], listed: Mapping[str, Sequence[str]], options: Mapping[str, Any]
) -> None:
    """Refuse keys where nobody chose the features: `from_table` takes a column with common codes for a chosen one."""
    if options.get("features") is None:
        for name, table in tables.items():
            require_no_keys(table, [column for column in features if column not in listed], name)


def _labels(tables: Tables, targets: Sequence[str], missing: Missing) -> dict[str, dict[str, Array]]:
    """The labels that exist in each table which has some, by column."""
    found = {}
    for name, table in tables.items():
        if targets and all(column in table for column in targets):
            whole, there = existing(table, targets, missing)
            if there.any():
                rows = there.reshape(len(there), -1).any(axis=1)
                found[name] = {column: values[rows] for column, values in whole.items()}
    return found


def _used(table: Mapping[str, Array], targets: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The columns that become features or targets, as `from_table` chooses them."""
    features = options.get("features")
    out = {*options.get("keep", ()), *options.get("drop", ())}
    chosen = [column for column in table if column not in out] if features is None else list(features)
    return [column for column in table if column in {*chosen, *targets}]


def _align_tables(
    tables: Tables, targets: Sequence[str], options: Mapping[str, Any], places: Mapping[str, str], offset: int
) -> dict[str, dict[str, Array]]:
    """Return the tables with the same columns in one order, matched by name, without those that are left out.

    Columns beside those that the job names are left out. The order is that of all tables if it is the same, else alphabetical.

    Raises:
        DataError: a table lacks a column or has another; names the table, the column and the nearest name. Or a column is text here and numbers there, or a feature and the target.
    """
    drop, keep, features = (list(options.get(name) or ()) for name in ("drop", "keep", "features"))
    both = next((name for name in features if name in targets), None)
    if both is not None:
        raise DataError(
            f"the column {both!r} is a feature and the target",
            where=next(iter(places.values())),
            remedy="leave it out of the features: a model that sees the label learns nothing else",
        )
    every = dict.fromkeys(column for table in tables.values() for column in table)
    for column in drop:
        require_columns(every, [column], next(iter(places.values())))
    if options.get("features") is not None:
        wanted = [*features, *targets, *keep]
        for name, table in tables.items():
            require_columns(table, wanted, places[name])
        used = set(wanted)
        kept = {name: {c: table[c] for c in table if c in used} for name, table in tables.items()}
    else:
        kept = {name: {c: values for c, values in table.items() if c not in drop} for name, table in tables.items()}
        sets = [frozenset(table) for table in kept.values()]
        usual = list(kept.values())[sets.index(max(sets, key=sets.count))]
        for name, table in kept.items():
            require_columns(table, [*targets, *keep], places[name])
        for name, table in kept.items():
            require_columns(table, usual, places[name], exactly=True)
    clients = [tuple(table) for name, table in kept.items() if name != "test"]
    order = order_columns(clients)
    aligned = {name: {column: table[column] for column in order} for name, table in kept.items()}
    listed = {*keep, *(options.get("categories") or {})}
    for column in (column for column in order if column not in {*listed, *targets}):
        _unite_truths(column, aligned)
    for column in (column for column in order if column not in listed):
        known = {name: table[column][~holes(table[column])] for name, table in aligned.items()}
        if column in targets:
            known = {name: values[known_labels(values, options.get("missing"))] for name, values in known.items()}
        _require_one_kind(column, known, places, {name: table[column] for name, table in aligned.items()}, offset)
    return aligned


def _unite_truths(column: str, tables: dict[str, dict[str, Array]]) -> None:
    """Make the words true and false numbers in all tables, if some table writes them otherwise: as another word, a truth value, or 0 and 1."""
    found = {name: read_truths(table[column]) for name, table in tables.items()}
    words = {word for name, table in tables.items() if found[name] is not None for word in np.unique(table[column][~holes(table[column])]).tolist()}  # fmt: skip
    others = [table[column][~holes(table[column])] for name, table in tables.items() if found[name] is None]
    others = [values for values in others if len(values)]
    plain = all(values.dtype.kind in "biuf" and np.isin(values, (0, 1)).all() for values in others)
    if words and plain and (others or len({word.lower() for word in words}) < len(words)):
        for name, truths in found.items():
            tables[name][column] = tables[name][column] if truths is None else truths


def _require_one_kind(
    column: str, known: Mapping[str, Array], places: Mapping[str, str], whole: Mapping[str, Array], offset: int
) -> None:
    """Refuse a column that holds words in one table and numbers in another; nothing says of which kind an empty column is.

    Args:
        column: its name.
        known: its values that exist, by table.
        places: the tables' places, for errors.
        whole: all its values, by table.
        offset: added to row numbers in errors.

    Raises:
        DataError: names both tables, and a value.
    """
    full = {name: values for name, values in known.items() if len(values)}
    texts = {name: np.unique(values).tolist() for name, values in full.items() if values.dtype.kind == "U"}
    words = next((name for name, found in texts.items() if not any(map(is_number, found))), None)
    numbers = next((name for name, values in full.items() if values.dtype.kind in "iuf"), None)
    if words is not None and numbers is not None:
        require_plain_numbers(without_holes(whole[words]), column, places[words], offset)
        raise DataError(
            f"column {column!r} holds text, such as {private(texts[words][0])}, and numbers in {places[numbers]}",
            where=places[words],
            remedy=f"write the column the same way everywhere, leave it out with drop=, or list its values: categories={{{column!r}: [...]}}",
        )


def _texts(
    tables: Tables,
    used: Iterable[str],
    given: Mapping[str, Sequence[str]],
    row_offset: int,
    where: str,
    label: bool = False,
) -> dict[str, list[str]]:
    """The categories of each text column: all values that some table has, sorted."""
    found: dict[str, list[str]] = {}
    for column in used:
        parts = {name: table[column] for name, table in tables.items() if table[column].dtype.kind == "U"}
        if not parts or column in given:
            continue
        for name, values in parts.items():
            require_categories(without_holes(values), column, f"table {name!r}", row_offset)
        texts = {name: table[column].astype(np.str_) for name, table in tables.items()}
        each = {name: np.unique(values[~holes(values)]).tolist() for name, values in texts.items()}
        require_one_coding(each, column, where, rows={name: len(texts[name]) for name in texts}, label=label)
        found[column] = sorted({value for values in each.values() for value in values})
    return found


def _task(tables: Tables, targets: Sequence[str], task: str | None, fixed: Mapping[str, Sequence[str]]) -> str | None:
    """The task that the targets of all tables together imply."""
    if task is not None or len(targets) != 1 or targets[0] in fixed:
        return task
    values = [table.get(targets[0]) for table in tables.values()]
    known = [column for column in values if column is not None]
    return inferred(np.concatenate(known), targets[0], "all") if known else None
