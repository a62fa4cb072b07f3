"""Clients without rows in ADMM: a loss of zero, whose minimiser is known."""

from __future__ import annotations

from typing import Any

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

__all__ = ["or_rest", "present"]


def present(steps: Any) -> Any:
    """1.0 for a client that took a step, 0.0 for one that has no rows."""
    return 1.0 * (steps > 0)


def or_rest(here: Any, found: Tree, rest: Tree) -> Tree:
    """``found`` of a client that is ``present``, to the bit, else ``rest``.

    Without rows nobody steps, and a multiplier that followed ``rho (x - z)`` all the same would pull ``z`` to where ``x`` stood still.
    """
    return T.add(T.scale(found, here), T.scale(rest, 1.0 - here))
