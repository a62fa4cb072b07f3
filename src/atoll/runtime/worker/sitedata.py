"""A site's data and how it is loaded: ``atoll site KIT --data SPEC``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import AtollError, DataError
from atoll.core.requests.cohort import Community, Population
from atoll.data import Dataset, DataTable, Islands
from atoll.data.federated import are_arrays, as_dataset, as_population
from atoll.runs.registries import HOME

from .cards import DataCard, card_of
from .databases import database_of, is_database, open_database
from .formats import load_arrays, load_as_is, load_tables
from .policies import MIN_COUNT, policy_of_site
from .population import LiveCommunity, LiveData, is_connection
from .words import SETTINGS, WAYS, settings_of, site_spec

if TYPE_CHECKING:
    from atoll.core.requests.policy import SitePolicy

__all__ = ["SETTINGS", "SiteData", "inside", "load_site_data", "site_data"]

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
        scales: whether the server learns how large the numbers of each column are, to a power of ten.
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


def load_site_data(
    spec: str | Mapping[str, Any],
    name: str,
    plays: str = "",
    *,
    reads: str = "dataset",
    one_form: bool = False,
    text: Sequence[str] = (),
    socket: str = "",
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
            return replace(site_data(_silo_of(given, name), name), policy=policy)
        made, categories = (_as_is(given, text), {}) if reads == "table" and _is_file(given) else _made(given)
        made = _in_one_form(made, given, name) if one_form else made
        found = site_data(_live(made, given), name, categories)
        if given.get("held_out") is not None and reads == "dataset":
            found = _hold_out(found, given["held_out"])
        return replace(
            found,
            policy=policy,
            scales=given.get("scales", True) is not False,
        )
    except AtollError as error:
        where = f"data of site {name!r}" if error.where is None else f"data of site {name!r}, {error.where}"
        raise type(error)(error.what, where=where, remedy=error.remedy) from error


def _silo_of(given: Mapping[str, Any], name: str) -> Any:
    """What queries ask: the tables of a folder or file, with what the site's file allows."""
    from atoll.runs.registries import imported

    said = given.get("policy")
    least = {"min_count": said["min_count"]} if isinstance(said, Mapping) and "min_count" in said else {"min_count": MIN_COUNT}  # fmt: skip
    rules = {"tables": given["tables"], "policy": least, **({"limits": given["limits"]} if given.get("limits") else {})}
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
    if isinstance(share, bool) or not isinstance(share, float | int):
        raise DataError(f"held_out={share!r}", remedy="give a share between 0 and 1, such as held_out: 0.2")
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


@contextlib.contextmanager
def inside(folder: Any) -> Iterator[None]:
    """Resolve the site's own paths and modules from the folder where the site was started."""
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    home = HOME.set("the folder where the site was started")
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        HOME.reset(home)
        sys.path.remove(str(folder))


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
