"""The registry of reproductions."""

from __future__ import annotations

import importlib
from typing import Any

from atoll.core.errors import AtollError, CheckpointError, ConfigError, nearest
from atoll.core.rooms import reproductions
from atoll.data.folder import require

from .entry import Entry, Lab, NotKept

__all__ = ["entries", "find_entry", "names", "reproduce"]


def names() -> list[str]:
    """Return every entry's name, without loading any."""
    return sorted(reproductions())


def find_entry(name: str) -> Entry:
    """Return an entry by name; no other is loaded.

    Raises:
        ConfigError: there is none, or its module cannot be loaded.
        AtollError: the module's own error.
    """
    known = names()
    if name not in known:
        raise ConfigError(
            f"no reproduction {name!r}.{nearest(name, known)}",
            where="atoll reproduce",
            remedy=f"choose one of {', '.join(known)}",
        )
    module = reproductions()[name]
    try:
        made: Entry = importlib.import_module(module).ENTRY
    except AtollError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the reproduction {name!r} cannot be loaded: {type(error).__name__}: {error}",
            where=module,
            remedy="repair that module; the other reproductions work without it",
        ) from error
    return made


def entries() -> dict[str, Entry | AtollError]:
    """Return every entry by name, or why it cannot be loaded."""
    found: dict[str, Entry | AtollError] = {}
    for name in names():
        try:
            found[name] = find_entry(name)
        except AtollError as error:
            found[name] = error
    return found


def reproduce(name: str, lab: Lab, *, quick: bool = False) -> dict[str, Any]:
    """Run an entry.

    Args:
        name: the entry's name.
        lab: runs and keeps its trainings.
        quick: use less data and less than a minute; judge only these runs.

    Returns:
        ``{"name": ..., "claims": [{"claim", "paper", "ours", "holds", "note", "part"}, ...], "seconds": ...}``; the
        seconds are those of the trainings when they ran, even if they were read back.

    Raises:
        DataError: data that it needs are missing; nothing has run.
        CheckpointError: nothing may be trained, and the kept trainings are not enough.
    """
    entry = find_entry(name)
    if not lab.kept:
        require(*(entry.quick_data if quick and entry.quick_data is not None else entry.data))
    try:
        claims = entry.run(lab, quick)
    except NotKept as training:
        raise CheckpointError(
            f"the training {str(training)!r} is not kept", where=str(lab.folder), remedy="run without --kept"
        ) from None
    return {"name": name, "claims": [claim.plain() for claim in claims], "seconds": round(lab.seconds, 3)}
