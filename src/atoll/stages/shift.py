"""Differences to a learned shift: DIANA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Estimated

from .around import Around
from .remembering import one_of
from .rows import numpy_leaf

if TYPE_CHECKING:
    pass

__all__ = ["Shift"]


@dataclass(frozen=True)
class Shift(Around):
    """Send ``D = C(x - h)``, decode ``h + D``, and let both sides learn ``h <- h + a D``.

    Mishchenko, Gorbunov, Takáč, Richtárik 2019, "Distributed Learning with Compressed Gradient Differences" (DIANA), algorithm 1. With an unbiased
    ``C`` (``omega``) and ``a <= 1/(1 + omega)`` the shift of client ``k`` converges to its gradient at the optimum, so that the compressed
    difference, and with it the error, vanishes. With a contraction (``TopK``, ``Sign``) and ``a = 1`` it is EF21, which has the same limit: Richtárik,
    Sokolov and Fatkhullin 2021, "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback", algorithm 2.

    Decoding needs the shift: in a simulation, the client's memory before it encoded. A real server keeps one vector for each client and updates
    it with what the client sends. A reply that is lost or rejected must leave both copies unchanged. So the server must see single replies, and
    a secure reducer refuses this stage.

    Attributes:
        stage: the compressor ``C``.
        a: step of the shift, in (0, 1]; ``None`` is ``1/(1 + omega)``, for compressors that know their omega.
        learns: for a value that is a dict of trees of one structure: all are sent as differences to one shift, which learns from this one (ADIANA).
    """

    a: float | None = None
    learns: str | None = None
    linear: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a is not None and not (0.0 < self.a <= 1.0 and math.isfinite(self.a)):
            raise ConfigError(f"a={self.a}", where="Shift", remedy="use a step above 0 and at most 1, or None")
        if self.a is None:
            self._step({"w": np.zeros(2)})  # refuse a compressor that does not know its omega
        object.__setattr__(self, "summable", False)
        object.__setattr__(self, "unbiased", self.stage.unbiased)

    def fresh(self, value: Tree) -> Tree:
        """Return a zero shift."""
        return {"shift": T.map(lambda leaf: np.zeros_like(numpy_leaf(leaf))[()], self._learned(value))}

    def _learned(self, value: Tree) -> Tree:
        if self.learns is None:
            return value
        if not isinstance(value, dict) or self.learns not in value:
            raise CompositionError(
                f"the shift is to learn from {self.learns!r}, but the value has no such part",
                where="uplink",
                remedy="leave learns= out, or use the algorithm that needs it",
            )
        return value[self.learns]

    def _around(self, block: Tree, shift: Tree, sign: float) -> Tree:
        """``block + sign * shift``, for each part if there are several."""
        moved = T.scale(shift, sign)
        return T.add(block, moved) if self.learns is None else {k: T.add(part, moved) for k, part in block.items()}

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Send the difference, and update the shift."""
        value = T.map(numpy_leaf, block)
        step = self.a if self.a is not None else self._step(T.map(lambda leaf: leaf[0], value))
        sent = self.stage.encode_block(self._around(value, memory["shift"], -1.0), context)
        understood = self._learned(self.stage.decode_block(sent, context.public))
        return sent, {"shift": T.add(memory["shift"], T.scale(understood, step))}

    def _step(self, value: Tree) -> float:
        omega = facet(self.stage, Estimated).omega(value)
        if omega is None:
            raise CompositionError(
                f"{type(self.stage).__name__} does not know its omega, and Shift needs its step",
                where="uplink",
                remedy="give a=",
            )
        return 1.0 / (1.0 + omega)

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Add the difference to the shift; without memory the shift is zero."""
        found = self.stage.decode_block(block, public)
        return found if memory is None else self._around(found, memory["shift"], 1.0)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Decode a first reply."""
        return self.stage.decode(total, public, n)

    def decode_one(self, sent: Tree, public: Tree, memory: Tree) -> Tree:
        """Decode a block of one."""
        found = self.decode_block(one_of(sent), public, None if memory is None else one_of(memory))
        return T.map(lambda leaf: leaf[0], found)
