"""The numbers of a record that a tracker can plot."""

from __future__ import annotations

from typing import Any

__all__ = ["flat", "scalars"]

_NOT_METRICS = frozenset({"round", "slot"})


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of one round by name."""
    return {
        name: float(value)
        for name, value in row.items()
        if name not in _NOT_METRICS and isinstance(value, int | float) and not isinstance(value, bool)
    }


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Nested settings as a flat dict with keys ``a.b.c``."""
    if isinstance(tree, dict) and tree:
        found: dict[str, Any] = {}
        for key, value in tree.items():
            found |= flat(value, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(tree, list) and tree:
        found = {}
        for i, value in enumerate(tree):
            found |= flat(value, f"{path}.{i}")
        return found
    return {path: tree}
