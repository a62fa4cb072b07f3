"""The words of ``atoll site KIT --data ...`` as a mapping that a process in another folder can load."""

from __future__ import annotations

import codecs
import contextlib
import getpass
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from atoll.core.errors import AtollError, DataError, nearest
from atoll.core.extras import need

__all__ = [
    "PORT",
    "SETTINGS",
    "WAYS",
    "SiteDatabase",
    "check_settings",
    "database_of",
    "from_yaml",
    "inside",
    "is_database",
    "open_database",
    "paths_of",
    "place_in_data",
    "settings_of",
    "site_spec",
]


# ------------------------------------------------------------------ a site's database
#
# A site's database: which one its settings name, what a job's process sees of it, and how a live connection to it is opened there.
# Every connection is for reading. SQLite and DuckDB are files, which a sandbox binds read-only. PostgreSQL is reached over a Unix socket that
# the site's daemon holds (`atoll.runtime.site.database`): it leads to one database as one role, so a job needs neither a network nor a password.


_FILES = {".sqlite": "SQLite", ".sqlite3": "SQLite", ".db": "SQLite", ".duckdb": "DuckDB"}
_SCHEMES = ("postgresql", "postgres")
_HERE = ("localhost", "127.0.0.1", "::1")
_FOLDER = "/var/run/postgresql"
PORT = 5432
"""PostgreSQL's port; over a Unix socket, a part of its name."""
_WAL = 2
"""Of bytes 18 and 19 of an SQLite file: it has a write-ahead log (sqlite.org/fileformat2.html, section 1.3.3)."""


@dataclass(frozen=True)
class SiteDatabase:
    """A database of a site.

    Attributes:
        engine: "SQLite", "DuckDB" or "PostgreSQL".
        path: the file of SQLite and DuckDB; of PostgreSQL the folder of its Unix socket, if it is reached by one.
        name: of a PostgreSQL database.
        user: the role that reads it.
        host: the name of this machine where there is a port and no folder.
        port: see ``host``; with a folder, the number in the socket's name.
    """

    engine: str
    path: Path | None = None
    name: str = ""
    user: str = ""
    host: str = ""
    port: int = PORT

    def __str__(self) -> str:
        if self.engine != "PostgreSQL":
            return f"{self.engine} database {'' if self.path is None else self.path.name!r}"
        at = self.path or f"{self.host}:{self.port}"
        return f"PostgreSQL database {self.name!r} at {at}, as {self.user!r}"

    @property
    def logs(self) -> bool:
        """Whether it is an SQLite file with a write-ahead log, whose files come and go beside it."""
        if self.engine != "SQLite" or self.path is None:
            return False
        with self.path.open("rb") as file:
            return _WAL in file.read(20)[18:20]

    def uri(self, socket: str) -> str:
        """How libpq names a PostgreSQL database that is reached by the daemon's socket.

        Raises:
            DataError: there is no socket.
        """
        if not socket:
            raise DataError("only the site's daemon leads there", where=str(self), remedy="start it with `atoll site`; in a simulation, pass a connection of your own")  # fmt: skip
        return f"postgresql://{quote(self.user, '')}@/{quote(self.name, '')}?host={quote(socket, '')}&port={PORT}&sslmode=disable&gssencmode=disable"

    def list_shown(self) -> tuple[Path, ...]:
        """What a sandbox shows of it, read-only: the file with what lies beside it of the same database.

        A writer may replace an SQLite file's write-ahead log at any time, and a reader must find the new one: then it is the file's folder.
        """
        if self.path is None or self.engine == "PostgreSQL":
            return ()
        if self.path.is_file() and self.logs:
            return (self.path.parent,)
        beside = [self.path.with_name(self.path.name + more) for more in (".wal", "-journal")]
        return (self.path, *(file for file in beside if file.exists()))


def is_database(words: str) -> bool:
    """Tell whether the words of ``--data`` name a database and no other data."""
    return words.partition("://")[0] in _SCHEMES or Path(words).suffix in _FILES


def database_of(words: str, base: Path | None = None) -> SiteDatabase:
    """Return the database that a setting names.

    Args:
        words: a file of SQLite or DuckDB, or ``postgresql://user@/name?host=FOLDER``, as libpq writes it.
        base: where relative paths start.

    Raises:
        DataError: no such file, an unknown kind, a password, or a server on another machine.
    """
    if words.partition("://")[0] in _SCHEMES:
        return _postgresql(words)
    path = (Path.cwd() if base is None else base) / words
    if path.suffix not in _FILES:
        raise DataError(
            f"{words!r} is no database that Atoll knows",
            where="database",
            remedy=f"name a file that ends in {', '.join(_FILES)}, or postgresql://user@/name?host=/var/run/postgresql",
        )
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}", where="database", remedy="correct the path")
    return SiteDatabase(_FILES[path.suffix], path.resolve())


def _postgresql(words: str) -> SiteDatabase:
    parts, more = urlsplit(words), dict(parse_qsl(urlsplit(words).query))
    shown = words.replace(f":{parts.password}@", ":…@")
    if parts.password is not None or "password" in more:
        raise DataError(
            f"{shown!r} holds a password, and jobs may read a site's settings",
            where="database",
            remedy="keep it in ~/.pgpass, or in PGPASSWORD of `atoll site`: only the site's daemon reads them",
        )
    try:
        port = int(more.pop("port", 0)) or parts.port or PORT
    except ValueError as error:
        raise DataError(f"{shown!r} has no port: {error}", where="database", remedy="use a number") from error
    host = more.pop("host", "") or unquote(parts.hostname or "") or _FOLDER
    user, name = unquote(parts.username or "") or getpass.getuser(), unquote(parts.path.strip("/"))
    if more or not name:
        what = f"{', '.join(map(repr, more))} in {shown!r}" if more else f"no database is named in {shown!r}"
        raise DataError(what, where="database", remedy="write postgresql://user@/name?host=/var/run/postgresql")
    if not host.startswith("/") and host not in _HERE:
        raise DataError(
            f"{host!r} is another machine, and what a site's daemon sends there would not be encrypted",
            where="database",
            remedy="let a Unix socket or a port of this machine lead there, such as ssh -L 5433:localhost:5432, and name that",
        )
    if host.startswith("/"):
        return SiteDatabase("PostgreSQL", Path(host), name, user, "", port)
    return SiteDatabase("PostgreSQL", None, name, user, host, port)


def open_database(database: SiteDatabase, socket: str = "") -> Any:
    """Open a connection for reading, as the engine's own library gives it (PEP 249); it belongs to the calling thread.

    Args:
        database: the database.
        socket: of PostgreSQL, the folder of the daemon's socket.

    Raises:
        MissingExtraError: its library is not installed.
        DataError: it cannot be opened.
    """
    try:
        return {"SQLite": _open_sqlite, "DuckDB": _open_duckdb, "PostgreSQL": _open_postgresql}[database.engine](
            database, socket
        )
    except AtollError:
        raise
    except Exception as error:  # each library has errors of its own
        beside = "let the user of `atoll site` write to its folder, where SQLite keeps the write-ahead log, or set journal_mode=delete"
        said = " ".join(str(error).split()).rpartition("FATAL: ")[2].strip()[:500]
        raise DataError(
            f"it cannot be opened for reading: {said}",
            where=str(database),
            remedy=beside if database.logs else _OPENING[database.engine],
        ) from error


_OPENING = {
    "SQLite": "give a database of SQLite that the user of `atoll site` may read",
    "DuckDB": "give a database of DuckDB that the user of `atoll site` may read, and let its writer close it: it has no readers while a process writes it",
    "PostgreSQL": "correct its name, role or address, and try it with psql as the user of `atoll site`",
}
"""What to do about a database that does not open, by its engine."""


def _open_sqlite(database: SiteDatabase, socket: str) -> Any:
    import sqlite3

    del socket
    made = sqlite3.connect(f"file:{quote(str(database.path))}?mode=ro", uri=True)
    made.execute("select count(*) from sqlite_master").fetchone()  # it opens the file now, not at the first query
    return made


def _open_duckdb(database: SiteDatabase, socket: str) -> Any:
    del socket
    config = {"temp_directory": tempfile.gettempdir(), "autoinstall_known_extensions": "false"}
    return need("duckdb", "duckdb", "reading a DuckDB file").connect(str(database.path), read_only=True, config=config)


def _open_postgresql(database: SiteDatabase, socket: str) -> Any:
    psycopg = need("psycopg", "postgres", "reading PostgreSQL")
    # Each query sees the data as they are then, and no transaction stays open between two rounds.
    return psycopg.connect(database.uri(socket), autocommit=True)


# ------------------------------------------------------------------ the words of ``atoll site KIT --data ...`` as a mapping that a process in another folder can load


SETTINGS = ("path", "target", "task", "features", "drop", "categories", "missing", "missing_features", "id", "delimiter", "decimal", "encoding",
            "source", "partition", "corruptions", "corruption_seed", "factory", "arguments", "database", "folder", "policy", "consent", "scales", "held_out", "tables", "limits")  # fmt: skip
"""Keys of a mapping that describes a site's data; ``policy`` is what the site requires, ``consent`` who may run what there, and
``scales`` whether it tells where the numbers of its columns lie, and ``held_out`` the share of each client's rows that trainings measure on.
``tables`` and ``limits`` say what queries may do with tables, see `atoll.query.policy`."""

WAYS = ("path", "source", "factory", "database")
"""Those of them that say where the data are; a factory may get the connection to a database."""


def site_spec(
    data: str,
    *,
    target: str | None = None,
    task: str | None = None,
    features: Sequence[str] = (),
    drop: Sequence[str] = (),
    missing: Sequence[str] = (),
    missing_features: bool = False,
    id: Sequence[str] = (),  # noqa: A002 - the setting's name
    base: str | Path | None = None,
) -> dict[str, Any]:
    """Turn the words of a command line into a plain mapping that another process, in another folder, can load.

    Args:
        data: a file, a folder, two files ``x.npy,y.npy``, a database, or ``module:factory``.
        target: target column of a table.
        task: see `atoll.data.About`.
        features: feature columns of a table; by default all others.
        drop: columns to leave out.
        missing: values of the target that mean "no label".
        missing_features: whether features may be missing.
        id: columns of keys, which stay text and are no features.
        base: where relative paths start; the working folder by default.

    Raises:
        DataError: there is no such file or folder.
    """
    base = Path.cwd() if base is None else Path(base)
    options = {
        "target": target, "task": task, "features": list(features), "drop": list(drop), "missing": list(missing),
        "missing_features": missing_features, "id": list(id),
    }  # fmt: skip
    said = {name: value for name, value in options.items() if value}
    if _is_factory(data, base):
        return {"factory": data, "folder": str(base), **said}
    if is_database(data):
        words = data if "://" in data else str((base / data).resolve())
        database_of(words)
        return {"database": words, "folder": str(base), **said}
    paths = [base / part.strip() for part in data.split(",")]
    for path in paths:
        if not path.exists():
            raise DataError(
                f"there is no file or folder {str(path)!r}",
                where="--data",
                remedy="give a CSV file or a folder of them, an .npz, two .npy files, a Parquet file, a YAML file, a database, or module:factory",
            )
    return {"path": ",".join(str(path.resolve()) for path in paths), **said}


def _is_factory(data: str, base: Path) -> bool:
    module, colon, name = data.partition(":")
    words = [*module.split("."), *name.split(".")]
    return bool(colon) and all(word.isidentifier() for word in words) and not (base / data).exists()


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_sign(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1


def _is_share(value: Any) -> bool:
    """Tell whether a value is a share of rows: a number between 0 and 1."""
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1


def _is_encoding(value: Any) -> bool:
    with contextlib.suppress(LookupError, ValueError):
        return isinstance(value, str) and bool(codecs.lookup(value))
    return False


def _are_categories(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(words, list | tuple) and len({*map(str, words)}) == len(words) for words in value.values()
    )


_FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    # YAML 1.2 reads `no` and `yes` as words, and a word would count as true.
    "scales": (lambda value: isinstance(value, bool), "write true or false"),
    "missing_features": (lambda value: isinstance(value, bool), "write true or false"),
    "features": (_is_list, "write a list of columns, [a, b]"),
    "drop": (_is_list, "write a list of columns, [a, b]"),
    "id": (lambda value: _is_text(value) or _is_list(value), "write a column, or a list of columns, [a, b]"),
    "target": (lambda value: _is_text(value) or _is_list(value), "write a column, or a list of columns, [a, b]"),
    "categories": (_are_categories, "write the values of each column as a list without repetition, {sex: [f, m]}"),
    "delimiter": (_is_sign, "give one character"),
    "decimal": (_is_sign, "give one character"),
    "encoding": (_is_encoding, "give an encoding that Python knows, such as utf-8 or latin-1"),
    "held_out": (_is_share, "give a share between 0 and 1, such as held_out: 0.2"),
    "arguments": (lambda value: isinstance(value, Mapping), "write NAME: VALUE below it"),
    "limits": (lambda value: isinstance(value, Mapping), "write NAME: VALUE below it"),
    "tables": (lambda value: isinstance(value, Mapping), "write NAME: VALUE below it"),
    # A section of which nothing is left says nothing, and nothing would mean: everything is allowed.
    "policy": (lambda value: value is not None, "write {} to require nothing"),
    "consent": (lambda value: value is not None, "write {} to let every admin run anything"),
}
"""Which values a setting may have, and what to write otherwise."""


def place_in_data(name: str, where: str | None) -> str:
    """The place of an error in a site's data, once: what checks settings names the site itself."""
    site = f"data of site {name!r}"
    return where if where is not None and where.startswith(site) else ", ".join(filter(None, (site, where)))


def check_settings(given: Mapping[str, Any], name: str, helper: bool = False) -> None:
    """Refuse unknown settings, values of another kind, and data that is given in no way or in two ways; a helper need not give any.

    Raises:
        DataError: it names the setting.
    """
    for key in given:
        if key not in SETTINGS:
            raise DataError(
                f"{key!r} is not a setting of a site's data.{nearest(str(key), SETTINGS)}",
                where=f"data of site {name!r}",
                remedy=f"use {', '.join(SETTINGS)}",
            )
        if key in _FORMS and not _FORMS[key][0](given[key]):
            raise DataError(
                f"{key}={given[key]!r}",
                where=f"data of site {name!r}",
                remedy=f"{_FORMS[key][1]}, or leave {key} out",
            )
    if "task" in given:
        from atoll.data._checks import TASKS  # a site's front starts without it

        if given["task"] not in TASKS:
            raise DataError(
                f"unknown task {given['task']!r}.{nearest(str(given['task']), TASKS)}",
                where=f"data of site {name!r}",
                remedy=f"use one of {', '.join(TASKS)}",
            )
    ways = [key for key in WAYS if given.get(key)]
    if len(ways) != 1 and ways != ["factory", "database"] and not (helper and not ways):
        raise DataError(
            f"{' and '.join(ways) if ways else 'none of path, source, factory and database'} given",
            where=f"data of site {name!r}",
            remedy="give one of path, source, factory and database, or a database and the factory that gets the connection",
        )


def settings_of(given: Mapping[str, Any], name: str, helper: bool = False) -> dict[str, Any]:
    """Return the settings themselves: those of the YAML file that the words name, or the words.

    Raises:
        DataError: unknown settings, or data that is given in no way or in two ways.
        ConfigError: a file that cannot be read.
    """
    check_settings(given, name, helper)
    first = Path(str(given.get("path") or "").split(",")[0])
    if not is_yaml(first):
        return dict(given)
    tree = from_yaml(first, given)
    check_settings(tree, name, helper)
    return tree


def paths_of(given: Mapping[str, Any], name: str, helper: bool = False) -> tuple[Path, ...]:
    """Return the files and folders that loading a site's data reads: the data, the YAML file, and the folder of modules and relative paths where there may be any.

    Args:
        given: the result of `site_spec`.
        name: the site's name.
        helper: whether it may have no data.
    """
    if not given:
        return ()
    try:
        settings = settings_of(given, name, helper)
    except AtollError:  # the job's process says what is wrong
        settings = dict(given)
    named = [part for each in (given, settings) for part in str(each.get("path") or "").split(",") if part]
    if any(settings.get(key) for key in ("source", "factory", "policy")) and settings.get("folder"):
        named.append(str(settings["folder"]))
    if settings.get("database"):
        with contextlib.suppress(AtollError):  # again
            named += map(str, database_of(str(settings["database"])).list_shown())
    return tuple(Path(path) for path in dict.fromkeys(named))


def is_yaml(path: Path) -> bool:
    """Tell whether a file holds settings and not data."""
    return path.suffix in (".yaml", ".yml")


def from_yaml(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a YAML file, overridden by those of the command line; paths are relative to the file. A column that either leaves out is left out.

    Raises:
        DataError: not a mapping, or it names another YAML file.
        ConfigError: it cannot be read.
    """
    from atoll.runs import yaml

    tree = yaml.read(path)
    if not isinstance(tree, dict):
        raise DataError("not a mapping of settings", where=path.name, remedy="start with source: or path:")
    said = tree.get("drop")
    tree = {**tree, **{key: value for key, value in given.items() if key != "path"}}
    if given.get("drop") and isinstance(said, list):  # what the file keeps out stays out
        tree["drop"] = [*said, *(column for column in given["drop"] if column not in said)]
    if "path" in tree:
        parts = [str((path.parent / part.strip()).resolve()) for part in str(tree["path"]).split(",")]
        if any(is_yaml(Path(part)) for part in parts):
            raise DataError("its path is another YAML file", where=path.name, remedy="give the data's own path")
        tree["path"] = ",".join(parts)
    if tree.get("database") and "://" not in str(tree["database"]):
        tree["database"] = str((path.parent / str(tree["database"])).resolve())
    tree.setdefault("folder", str(path.parent.resolve()))
    return tree


@contextlib.contextmanager
def inside(folder: Any) -> Iterator[None]:
    """Resolve the site's own paths and modules from the folder where the site was started."""
    if folder is None:
        yield
        return
    from atoll.runs.registries import HOME  # a site's front starts without it

    sys.path.insert(0, str(folder))
    home = HOME.set("the folder where the site was started")
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        HOME.reset(home)
        sys.path.remove(str(folder))
