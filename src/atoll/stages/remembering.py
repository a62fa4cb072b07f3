"""Stages with memory: their base class, combinators around another stage, error feedback, and differences to a learned shift (DIANA)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.facets import facet
from atoll.core.requests.stage import Estimated, Fitting, Guarding, Stage, StageContext, WithMemory

from .rows import numpy_leaf
from .topk import TopK

__all__ = ["Around", "ErrorFeedback", "Remembering", "Shift", "one_of"]


@dataclass(frozen=True)
class Remembering(Stage, WithMemory):
    """A stage defined by ``fresh`` and ``remember_block``; the other methods follow from these two."""

    remembers: ClassVar[bool] = True

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a first reply, without memory."""
        return self.remember(value, self.fresh(value), context)[0]

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Encode first replies, without memory."""
        fresh = self.fresh(T.map(lambda leaf: leaf[0], block))
        many = T.map(lambda leaf: np.repeat(np.asarray(leaf)[None], len(context.keys), axis=0), fresh)
        return self.remember_block(block, many, context)[0]

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Encode a block of one."""
        sent, kept = self.remember_block(one_of(value), one_of(memory), context)
        return T.map(lambda leaf: leaf[0], sent), T.map(lambda leaf: leaf[0], kept)


def one_of(tree: Tree) -> Tree:
    """Turn one client's tree into a block of one."""

    def lead(leaf: Any) -> Any:
        return leaf[None] if getattr(leaf, "ndim", 0) else np.asarray(leaf)[None]

    return T.map(lead, tree)


# ---------------------------------------------------------------- the base class of combinators


@dataclass(frozen=True)
class Around(Remembering):
    """Base class of combinators: a stage with memory that passes values to an inner stage. One client is a block of one.

    Attributes:
        stage: the inner stage, a value stage without memory.
    """

    stage: Stage = field(default_factory=TopK)

    def __post_init__(self) -> None:
        stage = self.stage
        if (
            not isinstance(stage, Stage)
            or stage.on != "value"
            or facet(stage, WithMemory).remembers
            or facet(stage, Guarding).secret
            or facet(stage, Fitting).fits
        ):
            raise CompositionError(
                f"{type(self).__name__} around {type(self.stage).__name__}",
                where="uplink",
                remedy="use an inner stage that acts on values and has no memory, secrets or fitted parameters of its own, such as TopK or Sign",
            )
        for name in ("summable", "packs"):
            object.__setattr__(self, name, getattr(self.stage, name))

    def public(self, rng: Rng) -> Tree:
        """Return the inner stage's public parameters."""
        return self.stage.public(rng)

    def wire_bits(self, value: Tree) -> int | None:
        """Return the inner stage's bits."""
        return self.stage.wire_bits(value)


# ---------------------------------------------------------------- error feedback: a client sends later what compression dropped


@dataclass(frozen=True)
class ErrorFeedback(Around):
    """``p = x + e``; send ``C(p)``; keep ``e = p - C(p)``, the part that the server did not get.

    Seide et al. 2014; Stich, Cordonnier, Jaggi 2018; Karimireddy, Rebjock, Stich, Jaggi 2019, "Error Feedback Fixes SignSGD". With a contraction
    (``delta``), ``E ||e||^2 <= 4 (1 - delta)/delta^2 max ||x||^2``. If ``x`` vanishes at the optimum, gradient descent converges as without
    compression. If it does not, because clients disagree, ``e`` does not vanish either; ``Shift(C, a=1.0)`` is the form without that floor. The
    client sends the inner stage's encoding. Its memory is the residual, one for each kind of request and aggregate.

    Attributes:
        stage: the compressor ``C``.
    """

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def fresh(self, value: Tree) -> Tree:
        """Return a zero residual."""
        return {"residual": T.map(lambda leaf: np.zeros_like(numpy_leaf(leaf))[()], value)}

    def remember_block(self, block: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Send the value plus the residual; keep what was not sent."""
        due = T.add(T.map(numpy_leaf, block), memory["residual"])
        sent = self.stage.encode_block(due, context)
        return sent, {"residual": T.sub(due, self.stage.decode_block(sent, context.public))}

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Decode with the inner stage."""
        del memory
        return self.stage.decode_block(block, public)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Decode with the inner stage."""
        return self.stage.decode(total, public, n)

    def decode_one(self, sent: Tree, public: Tree, memory: Tree) -> Tree:
        """Decode with the inner stage."""
        del memory
        return self.stage.decode(sent, public, 1)


# ---------------------------------------------------------------- differences to a learned shift: DIANA


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
        return {"shift": T.map(lambda leaf: np.zeros_like(numpy_leaf(leaf))[()], self._pick_learned(value))}

    def _pick_learned(self, value: Tree) -> Tree:
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
        understood = self._pick_learned(self.stage.decode_block(sent, context.public))
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
