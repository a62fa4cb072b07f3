"""A site's data and how it is loaded: ``atoll site KIT --data SPEC``."""

from __future__ import annotations

import re
import shlex
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import AtollError, DataError, PolicyError
from atoll.core.redaction import private
from atoll.core.requests.cohort import Community, Population
from atoll.core.requests.policy import AllowAll
from atoll.data import Dataset, DataTable, Islands, concatenate
from atoll.data.federated import are_arrays, as_dataset, as_population
from atoll.data.missing import Missing
from atoll.data.readers._words import first_word, mostly_numbers
from atoll.data.readers.arrow import table_of_parquet
from atoll.data.readers.csv import table_of_csv
from atoll.data.readers.table import empty_as_numbers, from_table, holes

from .cards import DataCard, card_of, merge_cards, recoded
from .headers import for_sites, is_parquet, require_columns, require_few, tables_in
from .policies import MIN_COUNT, policy_of_site, rules_of_queries, usual_count
from .words import (
    SETTINGS,
    WAYS,
    database_of,
    inside,
    is_database,
    open_database,
    place_in_data,
    settings_of,
    site_spec,
)

if TYPE_CHECKING:
    from atoll.core.job import Job
    from atoll.core.requests.policy import Policy, SitePolicy

__all__ = [
    "SETTINGS",
    "LiveCommunity",
    "LiveData",
    "SiteData",
    "SitePopulation",
    "is_connection",
    "load_arrays",
    "load_as_is",
    "load_site_data",
    "load_tables",
    "site_data",
]


# ------------------------------------------------------------------ the population as a site sees it: everyone's names and sizes, and the rows of its own clients


class LiveData:
    """A live connection to a database. It belongs to the thread that opened it; another thread that uses it opens one of its own.

    Tasks run in one thread, roles of conversations in another.

    Args:
        first: the connection of this thread.
        open: opens another one.
    """

    def __init__(self, first: Any, open: Callable[[], Any]) -> None:  # noqa: A002 - what it does
        self._open = open
        self._own = threading.local()
        self._own.connection = first

    @property
    def here(self) -> Any:
        """The connection of the calling thread."""
        if not hasattr(self._own, "connection"):
            self._own.connection = self._open()
        return self._own.connection


def is_connection(made: Any) -> bool:
    """Tell whether an object is a connection to a database, as PEP 249 describes them."""
    return all(callable(getattr(made, name, None)) for name in ("cursor", "commit", "rollback", "close"))


class LiveCommunity(Community):
    """One client, whose data are a live connection."""

    def shard(self, i: int) -> Any:
        """The connection of the calling thread."""
        return super().shard(i).here


class _Here(dict[str, Any]):
    """Data of the parties without clients that live at this site."""

    def get(self, name: str, default: Any = None) -> Any:
        """Those of one.

        Raises:
            PolicyError: the party is at another site.
        """
        if name not in self:
            raise _elsewhere(name)
        found = super().get(name, default)
        return found.here if isinstance(found, LiveData) else found


class SitePopulation:
    """All clients of a job by position; only those of this site have data here.

    Args:
        names: of all clients, in the order of the roster.
        sizes: rows of each, ``(clients,)``.
        mine: positions of this site's clients, in the order of ``data``.
        data: their rows.
        others: data of the parties without clients that live here: nobody's, but at a helper.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: ArrayLike,
        mine: Sequence[int],
        data: Population,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = names
        self.sizes: NDArray[np.int64] = np.asarray(sizes, dtype=np.int64)
        self.data = data
        self.others = _Here(others or {})
        self._local = {int(position): i for i, position in enumerate(mine)}
        if hasattr(data, "gather"):
            self.gather = self._gather

    def __len__(self) -> int:
        return len(self.names)

    def shard(self, i: int) -> Any:
        """Return the data of a client of this site.

        Raises:
            PolicyError: the client is at another site.
        """
        return self.data.shard(self._here(i))

    def _gather(self, clients: ArrayLike, *columns: str) -> Any:
        """Return columns of several clients of this site; see `atoll.data.Islands.gather`."""
        places = [self._here(int(client)) for client in np.asarray(clients)]
        return self.data.gather(places, *columns)  # type: ignore[attr-defined]

    def _here(self, i: int) -> int:
        if int(i) not in self._local:
            raise _elsewhere(self.names[i])
        return self._local[int(i)]


def _elsewhere(name: str) -> PolicyError:
    return PolicyError(
        f"the data of {name!r} are not at this site",
        where="site",
        remedy="ask the site that has them; a task sees its own island only",
    )


# ------------------------------------------------------------------ file formats of a site's data: tables (CSV, Parquet) and arrays (.npz, .npy)


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


# ------------------------------------------------------------------ a site's data and how it is loaded: ``atoll site KIT --data SPEC``


_OF_TABLES = ("target", "task", "features", "drop", "categories", "missing", "missing_features")
_OF_TEXT = ("delimiter", "decimal", "encoding")


@dataclass(frozen=True)
class SiteData:
    """The data of one site.

    Attributes:
        site: the site's name.
        names: its clients' names: the site's name, or ``site/client``.
        population: their data by position.
        sizes: rows of each.
        card: what a server must know; ``None`` for data of your own kind.
        policy: what it requires; ``None`` is nothing, and no consent to what a policy must name.
        plays: the role of a helper, which has no clients.
        own: a helper's data.
        scales: whether the server learns where the numbers of each column lie, roughly; see `atoll.data.units`.
    """

    site: str
    names: tuple[str, ...]
    population: Population
    sizes: tuple[int, ...]
    card: DataCard | None
    policy: SitePolicy | None = None
    plays: str = ""
    own: Any = None
    scales: bool = True

    @property
    def rules(self) -> Policy:
        """What it requires: its policy, or what holds without one."""
        rows = bool(self.names) or self.own is not None
        return self.policy or AllowAll(usual_count(rows=rows), ())

    @property
    def held_out(self) -> tuple[int, ...] | None:
        """Rows of each client on which it measures and does not train; ``None`` for data of a kind of their own."""
        if not isinstance(self.population, Islands):
            return None
        held = self.population.held_out
        return (0,) * len(self.names) if held is None else tuple(held.sizes.tolist())


def load_site_data(
    spec: str | Mapping[str, Any],
    name: str,
    plays: str = "",
    *,
    reads: str = "dataset",
    one_form: bool = False,
    text: Sequence[str] = (),
    socket: str = "",
    jobs: Iterable[Job] = (),
    signer: str = "",
    job: str = "",
) -> SiteData:
    """Load a site's data: what its factory returns stays as it is, unless the job needs data of one form.

    Call it in the thread in which tasks run: a live connection belongs to the thread that opens it.

    Args:
        spec: the result of ``site_spec``, or the words it takes.
        name: the site's name; its one client has the same name, and several are named ``name/client``.
        plays: the role of a helper, which may have no data.
        reads: how tables are read; see ``Job.reads``.
        one_form: whether the job needs data of one form; see ``Job.one_form``. A factory's dict of arrays is then made a data set.
        text: columns that stay text; see ``Job.key_columns``.
        socket: of a PostgreSQL database, the folder of the daemon's socket.
        jobs: the job that was signed, and those that it runs inside: tables answer their statements alone.
        signer: who has signed it, and
        job: its id: both stand in the events of what tables answer.

    Raises:
        DataError: the data cannot be loaded or used; the error names file and column.
        ConfigError: settings that cannot be used.
    """
    given = site_spec(spec) if isinstance(spec, str) else dict(spec)
    try:
        given = {**settings_of(given, name, bool(plays)), "socket": socket}
        policy = policy_of_site(given, name)
        if plays:
            own = _live(_made(given)[0], given) if any(given.get(way) for way in WAYS) else None
            own = _in_one_form(own, given, name) if one_form and are_arrays(own) else own
            return SiteData(name, (), Community({}), (), None, policy, plays, own)
        if given.get("tables") is not None:
            return replace(site_data(_bound(_silo_of(given, name), jobs, signer, job), name), policy=policy)
        made, categories = (_as_is(given, text), {}) if reads == "table" and _is_file(given) else _made(given)
        made = _in_one_form(made, given, name) if one_form else made
        found = site_data(_live(_bound(made, jobs, signer, job), given), name, categories)
        if given.get("held_out") is not None and reads == "dataset":
            found = _hold_out(found, given["held_out"])
        return replace(
            found,
            policy=policy,
            scales=given.get("scales", True),
        )
    except AtollError as error:
        raise type(error)(error.what, where=place_in_data(name, error.where), remedy=error.remedy) from error


def _bound(made: Any, jobs: Iterable[Job], signer: str, job: str) -> Any:
    """Data that answer statements, bound to those of the job that was signed; other data as they are."""
    if hasattr(made, "bind_jobs"):
        made.bind_jobs(jobs, signer, job)
    return made


def _silo_of(given: Mapping[str, Any], name: str) -> Any:
    """What queries ask: the tables of a folder or file, with what the site's file allows."""
    from atoll.runs.registries import imported

    said = given.get("policy")
    least = {"min_count": said["min_count"]} if isinstance(said, Mapping) and "min_count" in said else {"min_count": MIN_COUNT}  # fmt: skip
    rules = {
        "tables": given["tables"],
        "policy": {**least, **rules_of_queries(given)},
        **({"limits": given["limits"]} if given.get("limits") else {}),
    }
    with inside(given.get("folder")):
        return imported("atoll.query:open_silo", "data")(_place_of(given), rules, name)


def _place_of(given: Mapping[str, Any]) -> Path | str:
    """Where the tables are: a folder or file, or a database of PostgreSQL by the socket that the daemon holds."""
    words = str(given.get("path") or given.get("database"))
    database = database_of(words) if is_database(words) else None
    return (
        Path(words).resolve()
        if database is None or database.engine != "PostgreSQL"
        else database.uri(str(given["socket"]))
    )


def _is_file(given: Mapping[str, Any]) -> bool:
    """Whether the data are a table in a file, or in a folder of files."""
    return bool(given.get("path")) and Path(str(given["path"]).split(",")[0]).suffix not in (".npz", ".npy")


def _as_is(given: Mapping[str, Any], text: Sequence[str]) -> DataTable:
    options = {key: given.get(key) for key in ("target", "features", "drop", *_OF_TEXT)}
    options["text"] = list(dict.fromkeys([*text, *_words_of_key(given.get("id"))]))
    return load_as_is([Path(part) for part in str(given["path"]).split(",")], options)


def _words_of_key(given: Any) -> list[str]:
    """The columns of keys that a site names: one word, or a list."""
    return [given] if isinstance(given, str) else list(given or ())


def _made(given: Mapping[str, Any]) -> tuple[Any, Mapping[str, Sequence[str]]]:
    """Return the data, and the declared values of text columns."""
    if given.get("source"):
        return _from_source(given), {}
    if given.get("factory") or given.get("database"):
        return _from_factory(given), {}
    paths = [Path(part) for part in str(given["path"]).split(",")]
    if paths[0].suffix in (".npz", ".npy"):
        return load_arrays(paths, given.get("task"), given.get("missing"), bool(given.get("missing_features"))), {}
    options = {key: given.get(key) for key in (*_OF_TABLES, *_OF_TEXT)}
    options["drop"] = [*(options["drop"] or ()), *_words_of_key(given.get("id"))]
    return load_tables(paths, options), given.get("categories") or {}


def _in_one_form(made: Any, given: Mapping[str, Any], name: str) -> Any:
    """Return the data for a job that needs data of one form."""
    signs = {"missing": given.get("missing"), "missing_features": bool(given.get("missing_features"))}
    return as_dataset(made, None, task=given.get("task"), name=str(given.get("factory") or name), **signs)


def _hold_out(found: SiteData, share: Any) -> SiteData:
    """Return the data with a share of each client's rows on which nobody trains; which rows these are does not depend on the job.

    Raises:
        DataError: it is no share, or the data are of a kind of their own.
    """
    if not isinstance(found.population, Islands):
        raise DataError(
            "held_out, but the data are not tables or data sets",
            remedy="leave held_out out, and hold rows out in the factory",
        )
    population = found.population.with_held_out(float(share))
    return replace(found, population=population, sizes=tuple(population.sizes.tolist()))


def _live(made: Any, given: Mapping[str, Any]) -> Any:
    """Return the data; a live connection so that each thread has its own."""
    return LiveData(made, lambda: _made(given)[0]) if is_connection(made) else made


def _from_source(given: Mapping[str, Any]) -> Any:
    from atoll.runs import parse_data

    known = ("source", "partition", "corruptions", "corruption_seed")
    settings = {key: given[key] for key in known if key in given}
    with inside(given.get("folder")):
        config = parse_data(settings)
        if config.partition is None and not config.corruptions:
            made = config.source.build("data.source")
            return made if isinstance(made, Dataset) else as_population(made)
        return config.islands()


def _from_factory(given: Mapping[str, Any]) -> Any:
    """Return what the site's own factory makes, of the connection to its database if there is one; or the connection."""
    from atoll.runs.registries import imported

    words, factory = given.get("database"), given.get("factory")
    first = [open_database(database_of(str(words)), str(given["socket"]))] if words else []
    if not factory:
        return first[0]
    with inside(given.get("folder")):
        return imported(str(factory), "data")(*first, **(given.get("arguments") or {}))


def site_data(made: Any, name: str, categories: Mapping[str, Sequence[str]] | None = None) -> SiteData:
    """Return a site's data from an object, as from a factory of its own.

    Args:
        made: a data set, several clients' data, or anything else.
        name: the site's name.
        categories: the declared values of text columns; by default the values by which the data were coded, so that sites whose own code reads text agree on it too.

    Raises:
        DataError: there are no clients.
    """
    if isinstance(made, Dataset):
        card = card_of(made, categories or made.about.categories)
        return SiteData(name, (name,), Islands.from_datasets({name: made}), (len(made),), card)
    if isinstance(made, LiveData):
        return SiteData(name, (name,), LiveCommunity({name: made}), (0,), None)
    several = all(hasattr(made, attribute) for attribute in ("names", "shard", "__len__"))
    if not several:
        return SiteData(name, (name,), Community({name: made}), (_count_rows(made),), None)
    if len(made) == 0:
        raise DataError("there are no clients", remedy="give at least one data set")
    known = getattr(made, "sizes", None)
    sizes = [len(made.shard(i)) for i in range(len(made))] if known is None else np.asarray(known).tolist()
    names = tuple(f"{name}/{client}" for client in made.names)
    known = card_of(made, categories or made.about.categories) if isinstance(made, Islands) else None
    return SiteData(name, names, made, tuple(sizes), known)


def _count_rows(made: Any) -> int:
    """Return the number of rows of data of a site's own kind, as far as it has rows: those of columns, or its length; 0 otherwise."""
    if isinstance(made, Mapping):
        lengths = {len(values) if isinstance(values, np.ndarray) and values.ndim else -1 for values in made.values()}
        return max(lengths.pop(), 0) if len(lengths) == 1 else 0
    return len(made) if hasattr(made, "__len__") else 0
