"""The words of ``atoll site KIT --data ...`` as a mapping that a process in another folder can load."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, DataError, nearest

from .databases import database_of, is_database

__all__ = ["SETTINGS", "WAYS", "check_settings", "from_yaml", "paths_of", "settings_of", "site_spec"]

SETTINGS = ("path", "target", "task", "features", "drop", "categories", "missing", "missing_features", "id", "delimiter", "decimal", "encoding",
            "source", "partition", "corruptions", "corruption_seed", "factory", "arguments", "database", "folder", "policy", "consent", "scales", "held_out", "tables", "limits")  # fmt: skip
"""Keys of a mapping that describes a site's data; ``policy`` is what the site requires, ``consent`` who may run what there, and
``scales`` whether it tells how large the numbers of its columns are, and ``held_out`` the share of each client's rows that trainings measure on.
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


def check_settings(given: Mapping[str, Any], name: str, helper: bool = False) -> None:
    """Refuse unknown settings, and data that is given in no way or in two ways; a helper need not give any.

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
    """Return the settings of a YAML file, overridden by those of the command line; paths are relative to the file.

    Raises:
        DataError: not a mapping, or it names another YAML file.
        ConfigError: it cannot be read.
    """
    from atoll.runs import yaml

    tree = yaml.read(path)
    if not isinstance(tree, dict):
        raise DataError("not a mapping of settings", where=path.name, remedy="start with source: or path:")
    tree = {**tree, **{key: value for key, value in given.items() if key != "path"}}
    if "path" in tree:
        parts = [str((path.parent / part.strip()).resolve()) for part in str(tree["path"]).split(",")]
        if any(is_yaml(Path(part)) for part in parts):
            raise DataError("its path is another YAML file", where=path.name, remedy="give the data's own path")
        tree["path"] = ",".join(parts)
    if tree.get("database") and "://" not in str(tree["database"]):
        tree["database"] = str((path.parent / str(tree["database"])).resolve())
    tree.setdefault("folder", str(path.parent.resolve()))
    return tree
