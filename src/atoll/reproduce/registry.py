"""Which reproductions there are."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from atoll.core.errors import CheckpointError, ConfigError, nearest

from .entry import Entry, Lab, NotKept

__all__ = ["entries", "entry", "reproduce"]

_OTHERS = {"entry", "page", "registry"}


def entries() -> dict[str, Entry]:
    """Every entry by name: each module of this package that defines ``ENTRY``."""
    package = importlib.import_module("atoll.reproduce")
    names = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _OTHERS]
    modules = [importlib.import_module(f"atoll.reproduce.{name}") for name in sorted(names)]
    found = [module.ENTRY for module in modules if hasattr(module, "ENTRY")]
    return {made.name: made for made in found}


def entry(name: str) -> Entry:
    """An entry by name.

    Raises:
        ConfigError: there is none.
    """
    known = entries()
    if name not in known:
        raise ConfigError(
            f"no reproduction {name!r}.{nearest(name, known)}",
            where="atoll reproduce",
            remedy=f"choose one of {', '.join(known)}",
        )
    return known[name]


def reproduce(name: str, lab: Lab, *, quick: bool = False) -> dict[str, Any]:
    """Run an entry.

    Args:
        name: of the entry.
        lab: runs and keeps its trainings.
        quick: on less data and in less than a minute; judged only on what it ran.

    Returns:
        ``{"name": ..., "claims": [{"claim", "paper", "ours", "holds", "note", "part"}, ...], "seconds": ...}``; the seconds are those
        that the trainings took when they ran, also if they were read back.

    Raises:
        CheckpointError: nothing may be trained, and it cannot judge what was kept alone.
    """
    try:
        claims = entry(name).run(lab, quick)
    except NotKept as training:
        raise CheckpointError(
            f"the training {str(training)!r} is not kept", where=str(lab.folder), remedy="run without --kept"
        ) from None
    return {"name": name, "claims": [claim.plain() for claim in claims], "seconds": round(lab.seconds, 3)}
