"""Error feedback: a client sends later what compression dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.requests.context import StageContext

from .around import Around
from .rows import numpy_leaf

if TYPE_CHECKING:
    pass

__all__ = ["ErrorFeedback"]


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
