"""What every job tells the server and the other sites of a site's data, said to the site's person before the first connection.

The names of classes are values of a column. A site that declares them has chosen what to tell. Of names that nobody has declared, a table may have
only a few: a wrong ``--target`` would send a column of people's names.
"""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import DataError

from .databases import database_of
from .headers import is_parquet, tables_in
from .words import settings_of

__all__ = ["MOST_UNDECLARED", "refuse_classes", "require_few", "told_of"]

MOST_UNDECLARED = 20
"""Classes that a table may name without a declaration."""
_SHOWN = 50
_MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
)  # as `atoll.data.readers.table` has them


def told_of(spec: Mapping[str, Any], name: str) -> list[str]:
    """Return lines for the site's person: what the server and all other sites learn of this data with every job.

    Args:
        spec: the result of ``site_spec``; `look_at_headers` has accepted it.
        name: the site's name.

    Raises:
        DataError: a table's target has more names of classes than one may tell without declaring them.
    """
    given = settings_of(spec, name)
    told = "the server and all other sites learn the number of rows, the names of the columns"
    if given.get("scales", True) is not False:
        told += ", the server the power of ten of each column"
    if given.get("database") and not given.get("factory"):
        return [f"a job's tasks query the {database_of(str(given['database']))}; the server learns their replies"]
    if not given.get("path"):
        where = given.get("source") or given.get("factory")
        return [f"{told}, the names of the classes and the values of text columns, as {where!r} gives them"]
    paths = [Path(part) for part in str(given["path"]).split(",")]
    if paths[0].suffix in (".npz", ".npy"):
        labels = _labels(paths[0])
        return [f"{told} and {_classes(labels, 'the data')}" if labels else told]
    target = given.get("target")
    declared = (given.get("categories") or {}).get(target) if isinstance(target, str) else None
    if declared is not None:
        return [f"{told} and {_classes([str(word) for word in declared], repr(target))}"]
    if not isinstance(target, str) or given.get("task") in ("regression", "unlabelled", "multilabel"):
        return [told]
    names = _names(tables_in(paths[0]), target, given)
    if names is None:
        return [told]
    require_few(len(names), target, f"data of site {name!r}")
    return [f"{told} and {_classes(sorted(names), repr(target))}"]


def require_few(count: int, target: str, where: str) -> None:
    """Refuse more undeclared names of classes than a table may have.

    Raises:
        DataError: it says how to declare them.
    """
    if count > MOST_UNDECLARED:
        raise refuse_classes(f"the target {target!r} has more than {MOST_UNDECLARED} classes", target, where)


def refuse_classes(what: str, target: str, where: str) -> DataError:
    """Return the error for a target whose values would become public."""
    name = target if target.isidentifier() else json.dumps(target)
    return DataError(
        f"{what}, and the server and all other sites would learn the name of each",
        where=where,
        remedy=f"choose another target; say task: regression if it is an amount; or list the classes in a YAML file, "
        f"categories: {{{name}: [...]}}, the same at every site",
    )


def _classes(names: Sequence[str], of: str) -> str:
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"the names of the {len(names)} classes of {of}: {shown}"


def _labels(path: Path) -> list[str]:
    if path.suffix != ".npz":
        return []
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return [str(label) for label in archive["labels"]] if "labels" in archive.files else []
    except (ValueError, OSError) as error:
        raise DataError(
            "the names of the classes cannot be read", where=path.name, remedy="write an array of texts, labels"
        ) from error


def _names(files: Sequence[Path], target: str, given: Mapping[str, Any]) -> set[str] | None:
    """Return the names of the classes in some tables, one too many at most; ``None`` if they are amounts."""
    names: set[str] = set()
    for file in files:
        words = _of_parquet(file, target) if is_parquet(file) else _of_csv(file, target, given)
        for word in filter(_existing(given), words):
            names.add(word)
            if len(names) > MOST_UNDECLARED and not all(map(_is_number, names)):
                return names
    numbers = [float(name) for name in names if _is_number(name)]
    if len(numbers) < len(names):
        return names
    whole = all(number == int(number) for number in numbers if abs(number) < 1e15)
    return names if whole and len(names) <= MOST_UNDECLARED else None


def _existing(given: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return whether a word of the target is a label, and not one of the declared signs for none."""
    from atoll.data.missing import declared

    none = {value if isinstance(value, str) else f"{value:g}" for value in declared(given.get("missing"))}
    return lambda word: word not in none


def _is_number(word: str) -> bool:
    try:
        return float(word) == float(word)
    except ValueError:
        return False


def _of_csv(path: Path, target: str, given: Mapping[str, Any]) -> Iterator[str]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with (gzip.open if packed else open)(path, "rt", encoding=given.get("encoding") or "utf-8", newline="") as file:
            lines = csv.reader(file, delimiter=given.get("delimiter") or ",")
            header = [column.removeprefix("\ufeff").strip() for column in next(lines, [])]
            at = header.index(target)
            for line in lines:
                word = line[at].strip() if at < len(line) else ""
                if word not in _MISSING:
                    yield word
    except (OSError, EOFError, ValueError, LookupError, csv.Error) as error:
        raise DataError(
            f"the target {target!r} cannot be read", where=path.name, remedy="give CSV text in one encoding"
        ) from error


def _of_parquet(path: Path, target: str) -> list[str]:
    """Return the distinct values of a column, read in a separate process: the library is large, and daemons do without it."""
    look = (
        "import json, sys; from atoll.data.readers.arrow import distinct_of_parquet; "
        "print(json.dumps(distinct_of_parquet(sys.argv[1], sys.argv[2], int(sys.argv[3]))))"
    )
    words = [str(path), target, str(MOST_UNDECLARED + 1)]
    done = subprocess.run([sys.executable, "-P", "-c", look, *words], capture_output=True, check=False)
    try:
        return [str(word) for word in json.loads(done.stdout)]
    except ValueError:
        raise DataError(
            f"the target {target!r} cannot be read", where=path.name, remedy="write the file again, or give CSV"
        ) from None
