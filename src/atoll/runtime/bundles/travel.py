"""What may travel: names of modules and plain arguments, but no live objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atoll.core.errors import ConfigError

from ..identity import Credentials
from ..jobs.spec import JobConfig
from .bundle import make_bundle
from .manifest import SOURCE
from .modules import require_reachable
from .names import LIMITS, BundleLimits

__all__ = ["pack_job", "require_travels"]

_NAMED = ("loss", "program")
"""Settings outside parts that may be ``module:name``."""


def require_travels(job: JobConfig) -> None:
    """Refuse a job that other machines could not rebuild from its text and its source folder.

    Raises:
        ConfigError: a lambda, a closure, a live object, something defined in the script itself, or a module that does
            not travel; the error names the setting.
    """
    tree = job.plain()
    _require_plain(tree, "")
    names = [
        (path, name) for path, name in _parts({k: v for k, v in tree.items() if k != "arguments"}, "") if ":" in name
    ]
    names += [(key, tree[key]) for key in _NAMED if isinstance(tree.get(key), str) and ":" in tree[key]]
    for path, name in names:
        require_reachable(name, f"{job.name}: {path}", job.source_folder)


def pack_job(
    job: JobConfig,
    credentials: Credentials,
    limits: BundleLimits = LIMITS,
    *,
    nonce: str | None = None,
    now: float | None = None,
) -> bytes:
    """Sign a job: its whole configuration, defaults and helpers included, and its source folder. See ``make_bundle`` for nonce and time.

    Raises:
        ConfigError: it cannot travel.
        BundleError: something in the source folder cannot travel.
        IdentityError: the credentials cannot sign.
    """
    require_travels(job)
    home = job.complete().model_copy(update={"source": None if job.source is None else SOURCE})
    return make_bundle(home.to_yaml().encode(), job.source_folder, credentials, limits, nonce=nonce, now=now)


def _require_plain(value: Any, path: str) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _require_plain(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _require_plain(inner, f"{path}[{number}]")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ConfigError(
            f"a live {type(value).__name__} cannot travel",
            where=path,
            remedy="give numbers, words, lists and mappings; make the object in your own function and name that as module:name",
        )


def _parts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the names of all parts in a tree."""
    if isinstance(value, Mapping):
        if path and isinstance(value.get("name"), str):
            yield path, value["name"]
        for key, inner in value.items():
            yield from _parts(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _parts(inner, f"{path}[{number}]")
