"""Adaptive step sizes: AdaGrad, RMSProp, Adam and Yogi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from ..checks import require_positive, require_share
from .base import Transform

__all__ = ["AdaGrad", "Adam", "RMSProp", "Yogi"]


def _divided(v: Tree, squares: Tree, eps: float) -> Tree:
    """Return ``v / (sqrt(squares) + eps)``, leaf by leaf."""
    return T.map(lambda a, root: a / (root + eps), v, T.sqrt(squares))


def _nothing(params: Tree) -> Tree:
    """Return one zero for each leaf, in its dtype: a plain float would widen the other leaves after it travels in a message."""
    return T.map(lambda leaf: leaf.sum(), T.zeros_like(params))


def _mean(old: Tree, new: Tree, beta: float) -> Tree:
    """Return ``beta old + (1 - beta) new``."""
    return T.add(T.scale(old, beta), T.scale(new, 1.0 - beta))


def _counted(weights: Tree, beta: float) -> Tree:
    """Return ``1 - beta^t`` one step later, by the same recursion as the mean that it corrects, so that nothing cancels."""
    return T.map(lambda w: w * beta + (1.0 - beta), weights)


@dataclass(frozen=True)
class AdaGrad(Transform):
    """``s <- s + g^2``, ``v = g / (sqrt(s) + eps)``. Duchi, Hazan, Singer, JMLR 2011.

    Attributes:
        eps: added to the root.
    """

    eps: float = 1e-8
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_positive("AdaGrad", eps=self.eps)

    def init(self, params: Tree) -> Tree:
        """Start with ``s = 0``."""
        return {"s": T.zeros_like(params)}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        s = T.add(memory["s"], T.square(v))
        return _divided(v, s, self.eps), {"s": s}


@dataclass(frozen=True)
class RMSProp(Transform):
    """``s <- beta s + (1 - beta) g^2``, ``v = g / (sqrt(s / (1 - beta^t)) + eps)``. Tieleman, Hinton 2012.

    Attributes:
        beta: share of the mean square that remains per step.
        eps: added to the root.
        debias: divide by ``1 - beta^t``; Tieleman and Hinton do not.
    """

    beta: float = 0.99
    eps: float = 1e-8
    debias: bool = True
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("RMSProp", beta=self.beta)
        require_positive("RMSProp", eps=self.eps)

    def init(self, params: Tree) -> Tree:
        """Start with ``s = 0``."""
        return {"s": T.zeros_like(params), "count": _nothing(params)}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        s, count = _mean(memory["s"], T.square(v), self.beta), _counted(memory["count"], self.beta)
        corrected = T.map(lambda a, w: a / w, s, count) if self.debias else s
        return _divided(v, corrected, self.eps), {"s": s, "count": count}


@dataclass(frozen=True)
class Adam(Transform):
    """``m <- b1 m + (1 - b1) g``, ``s <- b2 s + (1 - b2) g^2``, ``v = mhat / (sqrt(shat) + eps)``. Kingma, Ba, ICLR 2015.

    With ``mhat = m / (1 - b1^t)`` and ``shat = s / (1 - b2^t)``, or ``m`` and ``s`` themselves without ``debias`` (Reddi et al. 2021).

    Attributes:
        beta1: share of the mean that remains per step.
        beta2: share of the mean square that remains per step.
        eps: added to the root.
        debias: correct the bias from the start at zero.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    debias: bool = True
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share(type(self).__name__, beta1=self.beta1, beta2=self.beta2)
        require_positive(type(self).__name__, eps=self.eps)

    def init(self, params: Tree) -> Tree:
        """Start with ``m = s = 0``."""
        zeros, nothing = T.zeros_like(params), _nothing(params)
        return {"m": zeros, "s": zeros, "count1": nothing, "count2": nothing}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        m, s = _mean(memory["m"], v, self.beta1), self.squares(memory["s"], T.square(v))
        c1, c2 = _counted(memory["count1"], self.beta1), _counted(memory["count2"], self.beta2)
        after = {"m": m, "s": s, "count1": c1, "count2": c2}
        if self.debias:
            m, s = T.map(lambda a, w: a / w, m, c1), T.map(lambda a, w: a / w, s, c2)
        return _divided(m, s, self.eps), after

    def squares(self, s: Tree, g2: Tree) -> Tree:
        """Return the next mean square."""
        return _mean(s, g2, self.beta2)


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam whose mean square moves by a bounded amount: ``s <- s - (1 - b2) g^2 sign(s - g^2)``. Zaheer et al., NeurIPS 2018.

    It has no bias correction, because this update does not shrink a start at zero.
    """

    debias: bool = False

    def squares(self, s: Tree, g2: Tree) -> Tree:
        """Return the next mean square."""
        return T.sub(s, T.scale(T.mul(g2, T.sign(T.sub(s, g2))), 1.0 - self.beta2))
