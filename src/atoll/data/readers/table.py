"""From a table of named columns to features and a target."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private

from .._checks import Array, resolve_task
from ..codings import require_one_spelling
from ..dataset import Dataset
from ..missing import Missing, known_labels, name_number, require_single_precision
from ._words import MISSING, first_word, is_number, require_categories, require_no_moments

__all__ = [
    "empty_as_numbers",
    "existing",
    "from_table",
    "holes",
    "inferred",
    "names_of_classes",
    "require_declared",
    "require_no_key",
    "require_no_keys",
    "without_holes",
    "targets_of",
]

_MOST_CLASSES = 100
_FEW_ROWS = 20
_NAMES = frozenset(["id", "ids", "uid", "pid", "mrn", "ssn", "oid", "uuid", "guid", "identifier", "unnamed"])
"""Words of a column's name that say that it names rows."""
_ENDS = frozenset(["key", "index", "no", "nr", "num", "number", "nummer"])
"""Last words that may also be of amounts."""
_PEOPLE = "patient|subject|participant|person|member|customer|client|user"
_BEARERS = f"{_PEOPLE}|pat|case|fall|account|record|study|visit|encounter|admission|stay|sample|specimen|insurance|file|chart|registration"
_GLUED = re.compile(rf"({_BEARERS})(en)?s?(id|key|no|nr|num|number|nummer)|{_PEOPLE}")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NEARLY, _PERHAPS, _SURELY = 0.75, 0.95, 0.25
"""Shares of different values from which a column is a key: of texts and numbers of rows; with a name that may say so, and with one that does."""


def from_table(
    table: Mapping[str, Array],
    *,
    target: str | Sequence[str] | None,
    task: str | None = None,
    features: Sequence[str] | None = None,
    keep: Iterable[str] = (),
    drop: Iterable[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    missing: Missing = None,
    missing_features: bool = False,
    name: str = "table",
    citation: str = "",
    row_offset: int = 0,
) -> Dataset:
    """Make a data set from a table's columns.

    Numeric columns become features unchanged; text columns become codes: the position of the value in
    ``categories[column]``, or among the sorted distinct values. **Parties that code their own tables must agree on
    the categories**, or the same code means different things. Unless ``features`` lists it, a column that numbers or names its rows raises an error:
    ``0, 1, 2, ...``, whole numbers that hardly repeat under a name such as ``patient_id`` or ``MRN``, and text that hardly repeats. Text that is not a category raises an error: numbers with
    a decimal comma, an unreadable number among others, and dates.

    The task follows from the target as everywhere (see `Dataset`): fractions are a regression, whole numbers and text
    a classification, -1 and +1 together a binary one, and several targets a regression. Whole numbers may also be
    amounts: with more than 100 distinct ones, or more than half as many as rows (from 21 rows on; scikit-learn's
    ``type_of_target`` warns at the same share), you must give the task.

    Args:
        table: maps a column's name to its values, text or numbers, ``(rows,)``.
        target: name of the target column, several for a multi-target regression, or ``None``.
        task: see `About`; inferred from the target when omitted. In a classification the sorted distinct target
            values are the classes, even if they are numbers; ``categories[target]`` sets another order, or values
            that do not occur here.
        features: which columns become features; default: all but the target and ``keep``.
        keep: columns to keep unchanged, such as a client's key.
        drop: columns to leave out.
        categories: maps a column to its values in code order.
        missing: values of the target that mean "no label", such as -1, besides empty cells, NaN and the other words for a missing value. Rows without
            a label stay: the column ``labelled`` says which have one.
        missing_features: whether features may be missing; they become NaN, also in a column of text. By default, a missing feature raises an error.
        name: short name.
        citation: the source of the data.
        row_offset: added to row numbers in errors (2 for a file with a header line).

    Raises:
        DataError: columns are unknown, features are missing, values are outside the categories, text is not a category, the
            target may be classes or amounts, or it has a class -1 that is not declared; names rows and columns.
    """
    targets = targets_of(target, f"table {name!r}")
    keep, drop = list(keep), list(drop)
    _check_known(table, [*targets, *keep, *drop, *(features or ()), *(categories or ())], name)
    if features is None:
        features = [c for c in table if c not in {*targets, *keep, *drop}]
        require_no_keys(table, [c for c in features if c not in (categories or {})], name)
    for column in features:
        if column not in (categories or {}) and table[column].dtype.kind == "M":
            require_no_moments(table[column], column, f"table {name!r}")
        _require_finite(table[column], column, f"table {name!r}", row_offset)
    if not missing_features:
        _check_complete({column: table[column] for column in features}, name, row_offset)
    fixed = categories or {}
    columns: dict[str, Array] = {}
    words: dict[str, tuple[str, ...]] = {}
    if features:
        words = {c: _words_of(table[c], fixed.get(c)) for c in features if c in fixed or table[c].dtype.kind == "U"}
        coded = [_numeric(table[c], c, fixed.get(c), name, row_offset) for c in features]
        for column, values in zip(features, coded, strict=True):
            require_single_precision(values, column, f"table {name!r}")
        columns["x"] = np.stack(coded, axis=1).astype(np.float32)
    labels: tuple[str, ...] = ()
    if targets:
        whole, there = existing(table, targets, missing)
        columns["y"], labels, task = _target(whole, there, targets, task, fixed, name, row_offset)
        columns |= {} if there.all() else {"labelled": there}
    columns |= {column: table[column] for column in keep}
    return Dataset(
        columns, task=task, name=name, citation=citation, labels=labels, features=tuple(features),
        missing_features=missing_features, categories={c: known for c, known in words.items() if known},
    )  # fmt: skip


def targets_of(target: str | Sequence[str] | None, where: str) -> list[str]:
    """The target columns as a list.

    Raises:
        DataError: they are no names. A frame may call its columns 0, 1, ...: taken for no target, 0 would leave the rows without labels.
    """
    names = (
        []
        if target is None
        else [target]
        if isinstance(target, str) or not isinstance(target, Iterable)
        else list(target)
    )
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise DataError(f"target={target!r} is no name of a column", where=where, remedy=f"give a text: a column that is called {wrong!r} in a frame is {str(wrong)!r} here")  # fmt: skip
    return names


def require_no_keys(table: Mapping[str, Array], features: Iterable[str], name: str) -> None:
    """Refuse columns that number the rows or name them: a model would learn the rows by heart.

    Args:
        table: maps a column's name to its values.
        features: the columns that nobody chose.
        name: the table, for errors.

    Raises:
        DataError: names the first.
    """
    for column in features:
        require_no_key(table[column], column, f"table {name!r}", f"leave it out with drop=[{column!r}]; or keep it apart with keep=[{column!r}]; or list the features=")  # fmt: skip


def require_no_key(values: Array, column: str, where: str, remedy: str) -> None:
    """Refuse a column that numbers the rows or names them as a feature that nobody has asked for.

    Args:
        values: its values, ``(rows,)``.
        column: its name.
        where: the place, for errors.
        remedy: what to do.

    Raises:
        DataError: there are enough rows, and all values are days such as 20261126; or nearly each has another value: text, ``0, 1, 2, ...``, or whole numbers or text under a name such as ``patient_id``
            or ``MRN``, of which a quarter of different values suffices.
    """
    there = values[~holes(values)]
    whole = there.dtype.kind == "f" and (np.abs(there) < 2**53).all() and np.array_equal(there, np.rint(there))
    if whole:
        there = there.astype(np.int64)  # whole numbers of which some are missing
    if len(there) >= _FEW_ROWS and there.dtype.kind in "iuU":
        kind = _key(column, there)
        if kind:
            raise DataError(f"column {column!r} {kind}, and would become a feature", where=where, remedy=remedy)


def _key(column: str, values: Array) -> str:
    """What a column is, if it is no feature. A few repeated values, as of a patient who came twice, do not make it one."""
    different = len(np.unique(values))
    every = "every" if different == len(values) else "nearly every"
    nearly = different > _NEARLY * len(values)
    if _are_days(values):
        return f"has dates as numbers, such as {private(str(values[0]))}, which are no amounts"
    if values.dtype.kind == "U" and nearly:
        return f"has another text in {every} row"
    steps = np.diff(values) if values.dtype.kind in "iu" else np.zeros(0)
    if nearly and len(steps) and values[0] in (0, 1) and np.isin(steps, (0, 1)).all():
        return "numbers the rows"
    named = _names_rows(column)
    share = {"surely": _SURELY, "perhaps": _PERHAPS}.get(named, 2.0)
    if different >= max(share * len(values), min(_FEW_ROWS, _NEARLY * len(values))):
        return f"looks like a key: it has another value in {every if nearly else 'most'} {'row' if nearly else 'rows'}"
    return ""


def _are_days(values: Array) -> bool:
    """Whether whole numbers are days such as 20261126: all of them, and not one day alone."""
    if values.dtype.kind not in "iu" or values.min() < 19000101 or values.max() > 21001231:
        return False
    month, day = values // 100 % 100, values % 100
    return bool(((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all() and len(np.unique(values)) > 2)


def _names_rows(column: str) -> str:
    """Whether a column's name says that it names rows, such as ``PatientID``, ``MRN``, ``case_no`` or ``Fallnummer``: surely, or perhaps."""
    words = [word.lower() for word in _WORD.findall(column)]
    if not _NAMES.isdisjoint(words) or _GLUED.fullmatch("".join(words)):
        return "surely"
    return "perhaps" if words and words[-1] in _ENDS else ""


def _check_known(table: Mapping[str, Array], asked: Iterable[str], name: str) -> None:
    for column in asked:
        if column not in table:
            raise DataError(
                f"no column {column!r}.{nearest(column, table)}",
                where=f"table {name!r}",
                remedy=f"its columns are {', '.join(table)}",
            )


def _check_complete(table: Mapping[str, Array], name: str, offset: int) -> None:
    found = [(int(row), column) for column, values in table.items() for row in np.flatnonzero(holes(values))]
    if found:
        found.sort()
        shown = ", ".join(f"row {row + offset} column {column!r}" for row, column in found[:5])
        raise DataError(
            f"{len(found)} missing value(s): {shown}{', ...' if len(found) > 5 else ''}",
            where=f"table {name!r}",
            remedy="fill them or leave these rows out first, or leave the columns out with drop=; "
            "for jobs that can use them, declare them: missing_features=True",
        )


def _require_finite(values: Array, column: str, where: str, offset: int) -> None:
    """Refuse infinite features, by the name that the column has in its file.

    Raises:
        DataError: names the first row.
    """
    infinite = np.isinf(values) if values.dtype.kind == "f" else np.zeros(0, bool)
    if infinite.any():
        raise DataError(
            f"column {column!r} has {values[np.argmax(infinite)]} at row {int(np.argmax(infinite)) + offset} ({int(infinite.sum())} such values)",
            where=where,
            remedy="correct it, leave these rows out, or leave the column out with drop=",
        )


def existing(
    table: Mapping[str, Array], targets: Sequence[str], missing: Missing
) -> tuple[dict[str, Array], NDArray[np.bool_]]:
    """Return the target columns with a value that exists in place of missing ones, and which entries are there.

    Args:
        table: maps a column's name to its values.
        targets: the target columns.
        missing: values that mean "no label".

    Returns:
        The columns; and booleans, ``(rows,)``, or ``(rows, targets)`` if rows lack only some of several targets.
    """
    found = {column: ~holes(table[column]) & known_labels(table[column], missing) for column in targets}
    whole = {column: _filled(table[column], there) for column, there in found.items()}
    masks = np.stack(list(found.values()), axis=1)
    return whole, masks[:, 0] if (masks == masks[:, :1]).all() else masks


def _filled(values: Array, there: NDArray[np.bool_]) -> Array:
    """The column with its first existing value in place of missing ones; whole numbers that holes made fractions are whole again."""
    if there.all():
        return values
    if not there.any():
        return np.zeros(len(values), np.int64)
    made: Array = np.where(there, values, values[np.argmax(there)])
    if made.dtype.kind == "U" and (~there & ~holes(values)).any() and all(map(is_number, made)):
        made = made.astype(np.float64)  # text only because of the word that means "no label"
        return made.astype(np.int64) if np.array_equal(made, np.rint(made)) else made
    whole = made.dtype.kind == "f" and holes(values).any() and np.array_equal(made, np.rint(made))
    return made.astype(np.int64) if whole else made


def require_declared(columns: Mapping[str, Array], column: str) -> None:
    """Refuse classes with a -1 among them: it may be a class, or say that there is no label.

    Args:
        columns: the known values of the target, by the place that errors name.
        column: the target.

    Raises:
        DataError: there is a -1, and other values than -1 and +1; names the place.
    """
    found = {
        where: {name_number(v) if isinstance(v, float) else str(v) for v in values.tolist()}
        for where, values in columns.items()
    }
    marked = [where for where, words in found.items() if "-1" in words]
    if marked and not set().union(*found.values()) <= {"-1", "1", "+1"}:
        raise DataError(
            f"column {column!r} has -1 among its classes: a class, or no label?",
            where=marked[0],
            remedy=f"if it says that there is no label, declare it: missing=-1; else list the classes: categories={{{column!r}: [...]}}",
        )


def holes(values: Array) -> NDArray[np.bool_]:
    """Return which values are missing."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind == "U":
        return np.isin(values, MISSING)
    if values.dtype.kind == "M":
        return np.asarray(np.isnat(values))
    return np.zeros(len(values), np.bool_)


def empty_as_numbers(table: Mapping[str, Array], besides: Iterable[str]) -> dict[str, Array]:
    """Return the columns, with NaN for those in which everything is missing: nothing says that they are text.

    Args:
        table: maps a column's name to its values.
        besides: columns that stay as they are.
    """
    return {
        name: np.full(len(values), np.nan)
        if name not in besides and values.dtype.kind == "U" and holes(values).all()
        else values
        for name, values in table.items()
    }


def without_holes(values: Array) -> Array:
    """Return a column with a value that exists in place of each missing one, so that rows keep their numbers."""
    hole = holes(values)
    return values if hole.all() else _filled(values, ~hole)


def _numeric(values: Array, column: str, fixed: Sequence[str] | None, name: str, offset: int) -> Array:
    """Return a column as numbers; text is coded, and NaN where it is missing."""
    if values.dtype.kind in "biuf" and fixed is None:
        return values
    if values.dtype.kind in "fU" and (hole := holes(values)).any():
        made = np.full(len(values), np.nan)
        if not hole.all():
            made = _numeric(without_holes(values), column, fixed, name, offset).astype(np.float64)
            made[hole] = np.nan
        return made
    if values.dtype.kind == "M":
        require_no_moments(values, column, f"table {name!r}")
    if values.dtype.kind not in "biufU":
        raise DataError(
            f"column {column!r} has dtype {values.dtype}",
            where=f"table {name!r}",
            remedy="convert it to numbers or text, or leave it out with drop= or keep=",
        )
    if fixed is None:
        require_categories(values, column, f"table {name!r}", offset)
    return _coded(values.astype(str), column, fixed, name, offset)[0]


def _words_of(values: Array, fixed: Sequence[str] | None) -> tuple[str, ...]:
    """The values of a coded column, in the order of their codes; nothing of a column in which everything is missing."""
    if fixed is not None:
        return tuple(dict.fromkeys(map(str, fixed)))
    return tuple(map(str, np.unique(values[~holes(values)]).tolist()))


def _coded(
    values: Array, column: str, fixed: Sequence[str] | None, name: str, offset: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if fixed is None:
        known, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), tuple(map(str, known))
    position = {str(value): code for code, value in enumerate(fixed)}
    amounts = _place_amounts(position)  # 1 and 1.0 are one value, as one file may have it and another
    codes = np.array([position.get(str(value), amounts.get(_amount(value), -1)) for value in values], np.int64)
    if (codes < 0).any():
        row = int(np.flatnonzero(codes < 0)[0])
        raise DataError(
            f"{private(values[row])} at row {row + offset} is not a category of column {column!r}",
            where=f"table {name!r}",
            remedy=f"add it to categories[{column!r}], or correct the value",
        )
    return codes, tuple(position)


def _amount(value: object) -> float | None:
    return float(str(value)) if is_number(str(value)) else None


def _place_amounts(position: Mapping[str, int]) -> dict[float | None, int]:
    """The code of each number, for numbers that one value alone writes."""
    found: dict[float | None, list[int]] = {}
    for value, code in position.items():
        found.setdefault(_amount(value), []).append(code)
    return {amount: codes[0] for amount, codes in found.items() if amount is not None and len(codes) == 1}


def _target(
    table: Mapping[str, Array],
    there: NDArray[np.bool_],
    targets: list[str],
    task: str | None,
    fixed: Mapping[str, Sequence[str]],
    name: str,
    offset: int,
) -> tuple[Array, tuple[str, ...], str]:
    if len(targets) > 1:
        y = np.stack([_numeric(table[c], c, fixed.get(c), name, offset) for c in targets], axis=1)
        return (
            (y.astype(np.int64), tuple(targets), task)
            if task == "multilabel"
            else (y.astype(np.float32), (), "regression")
        )
    column, values = targets[0], table[targets[0]]
    words, listed = values.dtype.kind == "U", fixed.get(column)
    if not there.any():
        return _nothing_known(len(values), task, listed)
    task = task or ("classification" if words or listed is not None else inferred(values[there], column, name))
    if task == "classification" and listed is None:
        require_declared({f"table {name!r}": np.unique(values[there])}, column)
    if task == "regression":
        if words and listed is None:
            row, word = first_word(values)
            raise DataError(
                f"column {column!r}, the target of a regression, has text such as {private(word)} at row {row + offset}",
                where=f"table {name!r}",
                remedy="give numbers (decimal=',' reads 1,5), or set task='classification'",
            )
        return _numeric(values, column, listed, name, offset).astype(np.float32), (), task
    if task == "binary" and values.dtype.kind in "biuf":
        return values.astype(np.int64), (), task
    if words and listed is None:
        require_one_spelling(np.unique(values[there]), column, f"table {name!r}", label=True)
    if words or listed is not None:
        codes, labels = _coded(values if words else _shown(values), column, listed, name, offset)
        return codes, labels, task
    known, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), tuple(_shown(known).tolist()), task


def names_of_classes(values: Array) -> list[str]:
    """The names of the classes of a numeric target, in the order of their codes."""
    return [str(name) for name in _shown(np.unique(values))]


def _nothing_known(rows: int, task: str | None, listed: Sequence[str] | None) -> tuple[Array, tuple[str, ...], str]:
    """The target of rows without any label: its classes are those that the caller lists, or unknown."""
    if task == "regression":
        return np.zeros(rows, np.float32), (), task
    return np.zeros(rows, np.int64), tuple(map(str, listed or ())), "classification" if listed else "unlabelled"


def _shown(numbers: Array) -> Array:
    """Numbers as class names: 1 for 1.0."""
    return np.array([name_number(v) if numbers.dtype.kind == "f" else str(v) for v in numbers], dtype=np.str_)


def inferred(values: Array, column: str, name: str) -> str:
    """The task of a numeric target if it is not given, by the rule of `Dataset`; but 0.0 and 1.0 in a table are classes, which a missing value made fractions."""
    if values.dtype.kind == "f" and len(values) and np.isin(values, (0.0, 1.0)).all():
        return "classification"
    task = resolve_task(values, None, name)
    if task == "classification":
        distinct = len(np.unique(values))
        if distinct > _MOST_CLASSES or (len(values) > _FEW_ROWS and 2 * distinct > len(values)):
            raise DataError(
                f"column {column!r} has {distinct:,} distinct whole numbers in {len(values):,} rows: classes or amounts?",
                where=f"table {name!r}",
                remedy="set task='regression' or task='classification'",
            )
    return task
