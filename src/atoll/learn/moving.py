"""Wrappers that move the model outside the base's own folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import STEPS
from atoll.core.errors import CompositionError
from atoll.core.facets import facet

from .algorithm import Movable, Phased, RoundInfo
from .wrapped import Wrapped

__all__ = ["Moving"]


@dataclass(frozen=True, kw_only=True)
class Moving(Wrapped, Movable):
    """Base class of wrappers that move the model themselves.

    The server's state has the base's ``extrapolates`` unchanged, its other entries under ``"base"``, and the wrapper's own entries. So wrappers nest.

    A base whose fold adds changes to the model of its last fold (``cumulative``) gets that model back, as ``"unmoved"``, whatever its clients
    received. Otherwise what the wrapper added would stay in its sums forever.
    """

    cumulative: ClassVar[bool] = False  # handled here, whatever wraps this one

    def __post_init__(self) -> None:
        super().__post_init__()
        if STEPS not in self.base.offers:
            raise CompositionError(
                f"{type(self.base).__name__} computes its statistics exactly, with nothing to extrapolate or to step along",
                where=type(self).__name__,
                remedy="use it alone, or an algorithm that takes steps",
            )

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the entries of the base's state that the wrapper moves."""
        return ("params",)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state inside the wrapper's.

        Raises:
            CompositionError: what the base sends to clients does not depend on what the wrapper moves.
        """
        inner = self.base.init(params)
        self._require_heard(inner)
        own = {"unmoved": inner["params"]} if facet(self.base, Movable).cumulative else {}
        return self.around({}, inner) | own

    def inner(self, state: Tree) -> Tree:
        """Return the base's state."""
        return {
            **state["base"],
            **{name: state[name] for name in facet(self.base, Movable).extrapolates if name in state},
        }

    def around(self, state: Tree, inner: Tree) -> Tree:
        """Return the wrapper's state with another state of the base in it."""
        shown = {name: inner[name] for name in facet(self.base, Movable).extrapolates if name in inner}
        return {**state, **shown, "base": {name: value for name, value in inner.items() if name not in shown}}

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the base's plan."""
        return self.base.plan(self.inner(state))

    def contacts(self, rounds: int) -> int | None:
        """Return the base's number of contacts."""
        return facet(self.base, Phased).contacts(rounds)

    def wanted(self, state: Tree, phase: str) -> bool:
        """Ask the base."""
        return facet(self.base, Phased).wanted(self.inner(state), phase)

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the base's broadcast."""
        return self.base.broadcast(self.inner(state), phase)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does, from the model that its last fold left if the base needs it."""
        inner = self.inner(state)
        if not facet(self.base, Movable).cumulative:
            return self.around(state, self.base.fold(inner, sums, info, phase))
        after = self.base.fold({**inner, "params": state["unmoved"]}, sums, info, phase)
        return {**self.around(state, after), "unmoved": after["params"]}

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Advance as the base does."""
        return self.around(state, facet(self.base, Phased).advance(self.inner(state), info))

    def moved(self, state: Tree) -> Tree:
        """Bring the state up to date as the base does."""
        return self.around(state, facet(self.base, Movable).moved(self.inner(state)))

    def _require_heard(self, inner: Tree) -> None:
        """Refuse a base whose broadcast does not show the move."""
        phases = self.base.plan(inner)
        moved = {**inner, **{name: T.map(_off, inner[name]) for name in self.moves if name in inner}}
        sent = [T.leaves(self.base.broadcast(state, phases[0])) for state in (inner, moved) if phases]
        if not phases or len(sent[0]) != len(sent[1]) or not all(map(np.array_equal, *sent)):
            return
        name, own = type(self.base).__name__, type(self).__name__
        within = f"put it inside, as {name}(base={own}(...))" if isinstance(self.base, Wrapped) else ""
        raise CompositionError(
            f"what {name} sends does not follow {', '.join(self.moves)}, so that its clients would never learn of a move",
            where=f"{own}.base",
            remedy=within or "use a setting of the method's own, such as its server_lr, or another algorithm",
        )


def _off(leaf: Any) -> Any:
    """Return a floating-point leaf with another value."""
    return leaf + 1 if np.asarray(leaf).dtype.kind == "f" else leaf
