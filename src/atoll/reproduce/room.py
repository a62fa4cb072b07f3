"""What the room of reproductions provides: one entry per module."""

from __future__ import annotations

import importlib
import pkgutil

__all__ = ["reproductions"]

_OTHERS = {"entry", "page", "registry", "room", "tally"}


def reproductions() -> dict[str, str]:
    """Return every entry's name (its module's, with dashes) -> the module, without loading any."""
    package = importlib.import_module("atoll.reproduce")
    found = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)
    return {name.replace("_", "-"): f"atoll.reproduce.{name}" for name in found if name not in _OTHERS}
