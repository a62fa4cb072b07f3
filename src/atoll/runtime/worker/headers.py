"""What can be checked of a site's data without loading it: the columns of its tables, the arrays of an archive. Sites check it before they connect."""

from __future__ import annotations

import csv
import gzip
import json
import logging
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError, DataError, MessageError, nearest
from atoll.core.redaction import private
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.core.rooms import room_tables
from atoll.runs.registries import imported

from ..consent import parse_consent
from .policies import policy_of_site, rules_of_queries
from .words import database_of, place_in_data, settings_of

__all__ = [
    "MOST_UNDECLARED",
    "columns_apart",
    "for_sites",
    "is_parquet",
    "look_at_headers",
    "refuse_classes",
    "require_columns",
    "require_few",
    "tables_in",
    "tell_columns",
    "told_of",
]


# ------------------------------------------------------------------ what can be checked of a site's data without loading it
#
# What can be checked of a site's data without loading it: the columns of its tables, the arrays of an archive. Sites check it before they connect.


_LOG = logging.getLogger("atoll.runtime")
_IN_YAML = "(a setting in a YAML file that you pass as --data; see docs/howto/jobs.md)"
_ARGUMENT = re.compile(r"\b(delimiter|decimal|encoding|categories|missing|missing_features)=")
_LOOKED_AT = 10_000
_TABLES = (".csv", ".csv.gz", ".parquet")


def look_at_headers(spec: Mapping[str, Any], name: str, helper: bool = False) -> None:
    """Refuse data whose settings, column names or arrays cannot be right, before any job starts; a job then checks the rows.

    Args:
        spec: the result of ``site_spec``.
        name: the site's name.
        helper: whether it may have no data.

    Raises:
        DataError: an unknown setting or column, no target, no array of features, or a file that may not be read.
        ConfigError: a YAML file that cannot be read, or a policy that names a column which is not there.
    """
    try:
        spec = settings_of(spec, name, helper)
        policy = policy_of_site(spec, name)
        parse_consent(spec.get("consent"), name)
        paths = [Path(part) for part in str(spec.get("path") or "").split(",") if part]
        if spec.get("tables") is not None:
            rules = {key: spec[key] for key in ("tables", "limits") if spec.get(key)}
            imported("atoll.query:QueryPolicy", "data").of({**rules, "policy": rules_of_queries(spec)}, f"{name}.yaml")
        elif len(paths) == 1:
            columns = _look(paths[0], spec)
            if policy is not None and columns:
                _require_extremes(policy.extremes, columns)
    except AtollError as error:
        raise type(error)(error.what, where=place_in_data(name, error.where), remedy=error.remedy) from error
    except OSError as error:
        raise DataError(
            f"data that cannot be read: {error.strerror or error}",
            where=f"data of site {name!r}, {error.filename or spec.get('path')}",
            remedy="let the user that runs `atoll site` read it, folders included",
        ) from error


def _require_extremes(extremes: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse a policy that lets the extremes of a column be told which no table has: misspelt, it would hide them without a word.

    Raises:
        ConfigError: names the column, and the nearest.
    """
    for name in extremes:
        if not set(name) & set("*?[") and name not in columns:
            raise ConfigError(
                f"extremes: no column {name!r}.{nearest(name, columns)}",
                where="policy",
                remedy=f"correct it, or leave it out; the columns are {', '.join(columns)}",
            )


def _look(path: Path, spec: Mapping[str, Any]) -> list[str]:
    """Look at the data; return the columns of its tables."""
    columns: list[str] = []
    if path.suffix == ".npz" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
        if not {"x", "x_train"} & set(held):
            raise DataError("no array 'x'", where=path.name, remedy=f"it holds {', '.join(held)}; name one x")
    elif path.suffix not in (".npz", ".npy"):
        tables = tables_in(path)
        binary = columns_apart([file for file in tables if is_parquet(file)])
        for file in tables:
            found = binary[file] if file in binary else _header(file, spec)
            plain = spec.get("target") is None and any(form <= set(found) for form in room_tables())
            require_columns(file.name, found, {**spec, "task": "unlabelled"} if plain else spec)
            columns += found
    return list(dict.fromkeys(columns))


def _header(path: Path, spec: Mapping[str, Any]) -> list[str]:
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with (gzip.open if packed else open)(path, "rt", encoding=spec.get("encoding") or "utf-8", newline="") as file:
            line: list[str] = next(csv.reader(file, delimiter=spec.get("delimiter") or ","), [])
            more = bool(line or file.read(1))
    except (OSError, EOFError, ValueError, LookupError, csv.Error, TypeError) as error:
        raise DataError(
            f"its header cannot be read: {private(error)}", where=path.name, remedy=_readable(error)
        ) from error
    header = [column.removeprefix("\ufeff").strip() for column in line]
    if not any(header):
        raise DataError(
            "the first line is empty" if more else "the file is empty",
            where=path.name,
            remedy="start with a line of column names" if more else "remove it, or fill it: column names, then rows",
        )
    _require_separated(path, header)
    return header


def _readable(error: Exception) -> str:
    """Return the remedy for an unreadable header."""
    if not isinstance(error, UnicodeDecodeError):
        return "give CSV text; correct delimiter: and encoding: where a YAML file sets them"
    from atoll.data.readers._words import likely_encoding  # a site starts without the readers

    return f"write it as UTF-8, or say its encoding, perhaps encoding: {likely_encoding(error)} {_IN_YAML}"


def _require_separated(path: Path, header: Sequence[str]) -> None:
    """Refuse a header that uses another separator."""
    other = next((sign for sign in ";\t|," if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        raise DataError(
            f"the header is one column, {private(header[0])}",
            where=path.name,
            remedy=f"say what separates the values: delimiter: {json.dumps(other)} {_IN_YAML}",
        )


def for_sites(error: DataError) -> DataError:
    """Adapt a reader's remedy to sites: the arguments of readers are settings of a YAML file there."""
    remedy = (error.remedy or "").replace("drop= or keep=", "drop=").replace("drop=", "--drop COLUMN")
    remedy = remedy.replace("task=", "--task ")
    settings = _ARGUMENT.sub(r"\1: ", remedy)
    if settings != remedy:
        settings = f"{settings} {_IN_YAML}"
    return DataError(error.what, where=error.where, remedy=settings or None)


def columns_apart(files: Sequence[Path]) -> dict[Path, list[str]]:
    """Return the columns of Parquet files, read in a separate process: the library is large, and daemons do without it.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataError: a file cannot be read.
    """
    if not files:
        return {}
    look = "import sys; from atoll.runtime.worker.headers import tell_columns; tell_columns(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-P", "-c", look, *map(str, files)], capture_output=True, check=False)
    try:
        told = M.decode(done.stdout)
    except MessageError:
        why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        raise DataError(
            f"its header cannot be read: {private(why)}", where=files[0].name, remedy="write it again, or give CSV"
        ) from None
    if told["error"] is not None:
        raise unpack_error(told["error"]) or RuntimeError("unknown")
    return dict(zip(files, told["columns"], strict=True))


def tell_columns(paths: Sequence[str]) -> None:
    """Write the columns of Parquet files, or the error, to stdout: the other end of `columns_apart`."""
    from atoll.data.readers.arrow import columns_of_parquet

    columns, error = list[list[str]](), None
    try:
        columns = [columns_of_parquet(path) for path in paths]
    except AtollError as found:
        error = pack_error(found)
    sys.stdout.buffer.write(M.encode({"columns": columns, "error": error}))


def is_parquet(path: Path) -> bool:
    """Tell whether a table is a Parquet file, by its name, whatever its case."""
    return path.name.lower().endswith(".parquet")


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(_TABLES) and not path.name.startswith(".")


def _below(path: Path) -> Path | None:
    """Return the first table found in a folder's subfolders, relative to the folder; of very many files it checks only the first."""
    folders = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    inside = islice(chain.from_iterable(sub.rglob("*") for sub in folders), _LOOKED_AT)
    found = next(filter(_is_table, inside), None)
    return None if found is None else found.relative_to(path)


def tables_in(path: Path) -> list[Path]:
    """Return a table, or all tables of a folder in the order of their names; warn about tables in subfolders, which are not read.

    Raises:
        DataError: it is not a table, or the folder holds none.
    """
    if path.is_file():
        if not path.name.lower().endswith(_TABLES):
            raise DataError(
                f"a file of kind {''.join(path.suffixes) or 'unknown'!r}",
                where=path.name,
                remedy="give a .csv, .csv.gz, .parquet, .npz, .npy or .yaml file",
            )
        return [path]
    if not path.is_dir():
        raise DataError(f"there is no file or folder {path.name!r}", where=str(path.parent), remedy="check the path")
    if (path / "x.npy").exists():
        raise DataError(
            "the folder holds arrays", where=path.name, remedy=f"give both files: {path / 'x.npy'},{path / 'y.npy'}"
        )
    files, below = sorted(file for file in path.iterdir() if _is_table(file)), _below(path)
    if not files:
        raise DataError(
            "the folder holds no CSV or Parquet file"
            + ("" if below is None else f" itself; a subfolder does: {str(below)!r}"),
            where=str(path),
            remedy="give a folder with tables, or a file",
        )
    if below is not None:
        _LOG.warning(
            "folder %r: tables in subfolders, such as %s, are not read; move them into the folder to use them",
            path.name,
            below,
        )
    return files


def require_columns(file: str, columns: Collection[str], options: Mapping[str, Any]) -> None:
    """Refuse options that name unknown columns, or neither a target nor a column of keys.

    Raises:
        DataError: the error names the column and the existing ones.
    """
    target = options.get("target")
    if target is None and options.get("task") != "unlabelled" and not options.get("id"):
        raise DataError(
            "the target column is not set",
            where=file,
            remedy=f"set it with --target (or target: in a YAML file); the columns are {', '.join(columns)}",
        )
    named = [target] if isinstance(target, str) else list(target or ())
    keys = options.get("id") or ()
    for column in [
        *named,
        *([keys] if isinstance(keys, str) else keys),
        *(o for key in ("features", "drop", "categories") for o in options.get(key) or ()),
    ]:
        if column not in columns:
            raise DataError(
                f"no column {column!r}.{nearest(str(column), columns)}",
                where=file,
                remedy=f"the columns are {', '.join(columns)}",
            )


# ------------------------------------------------------------------ what every job tells the server and the other sites of a site's data, said to the site's person before the first connection
#
# The names of classes are values of a column. A site that declares them has chosen what to tell. Of names that nobody has declared, a table may have
# only a few: a wrong ``--target`` would send a column of people's names.


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
        told += ", the server roughly where the numbers of each column lie"
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
