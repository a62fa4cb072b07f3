"""Addresses: names of the form ``module:name``, which stay when modules move.

Tasks, stages, metrics and parts of configurations are named by where they were first defined. Messages, random keys, ledgers, policies,
checkpoints and configurations hold these declared names, so a name must never change, and must never mean another thing. What moves gets a
line in `MOVED`; all else is named by where it lies.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["MOVED", "declared_name", "load_object"]

MOVED: dict[str, str] = {
    "atoll.learn.divergence:sizes_of": "atoll.learn.surveys.divergence:sizes_of",
}
"""Maps a declared name to where it lies today.

``module:name`` -> ``module:name`` for one object, which keeps its declared name in its new place. ``module`` -> ``module`` finds the other names of a
module that moved whole; it renames nothing, since several modules may have been merged into one.
"""
_DECLARED = {place: name for name, place in MOVED.items() if ":" in name}


def declared_name(found: Any) -> str:
    """Return the name of a class or function, ``module:name``, wherever it lies today.

    A class of another distribution that moved says its name itself: ``declared: ClassVar = "module:name"``. A task says it by ``@task(name=...)``.
    """
    place = f"{found.__module__}:{found.__qualname__}"
    own: str = getattr(found, "__dict__", {}).get("declared", place)  # a subclass is another thing
    return _DECLARED.get(place, own)


def load_object(name: str) -> Any:
    """Return the object of a declared name, ``module:name``, or ``module`` for a module.

    Modules that left this package for a distribution of their own are found too: the distribution lists each as an entry point of the group
    ``atoll.addresses``, its old name and where it lies today.

    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    module, _, path = MOVED.get(name, name).partition(":")
    found: Any = _import_module(MOVED.get(module, module))
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        from importlib.metadata import entry_points  # nothing else here needs it, and it loads parsers of mail

        moved = entry_points(group="atoll.addresses", name=name)
        if not moved or not f"{name}.".startswith(f"{error.name}."):  # the module is there, and imports what is not
            raise
        return importlib.import_module(next(iter(moved)).value)
