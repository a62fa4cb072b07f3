"""Clients without rows in ADMM: a loss of zero with a known minimiser."""

from __future__ import annotations

from typing import Any

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

__all__ = ["or_rest", "present"]


def present(steps: Any) -> Any:
    """Return 1.0 for a client that took a step, 0.0 for one without rows."""
    return 1.0 * (steps > 0)


def or_rest(here: Any, found: Tree, rest: Tree) -> Tree:
    """Return ``found``, bit for bit, for a client that is ``present``, otherwise ``rest``.

    A client without rows takes no step. If its multiplier still followed ``rho (x - z)``, it would pull ``z`` to the client's constant ``x``.
    """
    return T.add(T.scale(found, here), T.scale(rest, 1.0 - here))
