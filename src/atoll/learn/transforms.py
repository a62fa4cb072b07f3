"""Transforms of a search direction, at clients or at the server: momentum, adaptive steps, clipping, and pulls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from .checks import require_positive, require_share

__all__ = [
    "AdaGrad",
    "Adam",
    "ClipNorm",
    "Momentum",
    "Proximal",
    "RMSProp",
    "Transform",
    "WeightDecay",
    "Yogi",
    "apply_all",
    "init_all",
]


@dataclass(frozen=True)
class Transform:
    """Turns a direction into another one, with its own memory; the base returns it unchanged.

    A step is ``y <- y - lr * v``: a direction points uphill. Both functions are pure and run on NumPy and in traced PyTorch, so use only
    operators and ``atoll.core.algebra.tree`` in them.

    Attributes:
        remembers: whether the transform has a memory.
    """

    remembers: ClassVar[bool] = False

    def init(self, params: Tree) -> Tree:
        """Return the memory before the first step: a tree of arrays in the dtypes of the parameters; ``{}`` for none."""
        del params
        return {}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return one step's direction and the memory after it.

        Args:
            v: the direction so far.
            memory: the memory from ``init`` or the step before.
            y: the point at which the direction was computed.
            x: the point at which the round began.
        """
        del y, x
        return v, memory


def init_all(transforms: Sequence[Transform], params: Tree) -> list[Tree]:
    """Return the memories of a chain of transforms."""
    return [transform.init(params) for transform in transforms]


def apply_all(
    transforms: Sequence[Transform], v: Tree, memory: Sequence[Tree], y: Tree, x: Tree
) -> tuple[Tree, list[Tree]]:
    """Apply a chain of transforms, in order."""
    after: list[Tree] = []
    for transform, own in zip(transforms, memory, strict=True):
        v, left = transform.apply(v, own, y, x)
        after.append(left)
    return v, after


# ---------------------------------------------------------------- clipping of a direction by its norm


@dataclass(frozen=True)
class ClipNorm(Transform):
    """``v = g min(1, bound / ||g||)`` with the Euclidean norm over all leaves. Pascanu, Mikolov, Bengio, ICML 2013.

    It bounds the step of one mini-batch. It is not a privacy guarantee for an example, which needs the gradients of single examples.

    Attributes:
        bound: the largest norm.
    """

    bound: float = 10.0

    def __post_init__(self) -> None:
        require_positive("ClipNorm", bound=self.bound)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        length = T.norm(v)
        # bound / max(length, bound), without a division by zero
        factor = self.bound / (self.bound + (length - self.bound) * (length > self.bound))
        return T.map(lambda leaf: leaf * _as(factor, leaf), v), memory


def _as(factor: object, leaf: object) -> object:
    """Return the factor in the leaf's dtype: the norm has the widest dtype of all leaves."""
    dtype = getattr(leaf, "dtype", None)
    if hasattr(factor, "to"):
        return factor.to(dtype)
    return factor.astype(dtype) if hasattr(factor, "astype") else factor


# ---------------------------------------------------------------- momentum: Polyak's heavy ball and Nesterov's form


@dataclass(frozen=True)
class Momentum(Transform):
    """``m <- beta m + g``, and ``v = m``, or ``v = g + beta m`` in Nesterov's form.

    Polyak 1964; the Nesterov form as in Sutskever et al. 2013, rewritten at the look-ahead point. ``beta=0`` is the identity.

    Attributes:
        beta: share of the memory that remains per step, in [0, 1).
        nesterov: use Nesterov's look-ahead form.
        damped: ``m <- beta m + (1 - beta) g``, an exponential mean instead of a sum.
    """

    beta: float = 0.9
    nesterov: bool = False
    damped: bool = False
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("Momentum", beta=self.beta)

    def init(self, params: Tree) -> Tree:
        """Start with ``m = 0``."""
        return {"m": T.zeros_like(params)}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        fresh = T.scale(v, 1.0 - self.beta) if self.damped else v
        m = T.add(T.scale(memory["m"], self.beta), fresh)
        return (T.add(fresh, T.scale(m, self.beta)) if self.nesterov else m), {"m": m}


# ---------------------------------------------------------------- terms that pull a step towards a point


def _require(where: str, name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise ConfigError(f"{name}={value}", where=where, remedy="use 0 or more")


@dataclass(frozen=True)
class Proximal(Transform):
    """``v = g + mu (y - x)``: the gradient of ``F(y) + mu/2 ||y - x||^2``, with ``x`` the point at which the round began. ``mu=0`` is the identity.

    Attributes:
        mu: weight of the pull.
    """

    mu: float = 0.1

    def __post_init__(self) -> None:
        _require("Proximal", "mu", self.mu)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        return T.add(v, T.scale(T.sub(y, x), self.mu)), memory


@dataclass(frozen=True)
class WeightDecay(Transform):
    """``v = g + rate y``: the gradient of ``F(y) + rate/2 ||y||^2`` if it is the first transform, decoupled if it is the last.

    Attributes:
        rate: weight of the pull.
    """

    rate: float = 1e-4

    def __post_init__(self) -> None:
        _require("WeightDecay", "rate", self.rate)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del x
        return T.add(v, T.scale(y, self.rate)), memory


# ---------------------------------------------------------------- adaptive step sizes: AdaGrad, RMSProp, Adam and Yogi


def _divide_leaves(v: Tree, squares: Tree, eps: float) -> Tree:
    """Return ``v / (sqrt(squares) + eps)``, leaf by leaf."""
    return T.map(lambda a, root: a / (root + eps), v, T.sqrt(squares))


def _nothing(params: Tree) -> Tree:
    """Return one zero for each leaf, in its dtype: a plain float would widen the other leaves after it travels in a message."""
    return T.map(lambda leaf: leaf.sum(), T.zeros_like(params))


def _mean(old: Tree, new: Tree, beta: float) -> Tree:
    """Return ``beta old + (1 - beta) new``."""
    return T.add(T.scale(old, beta), T.scale(new, 1.0 - beta))


def _count_step(weights: Tree, beta: float) -> Tree:
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
        return _divide_leaves(v, s, self.eps), {"s": s}


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
        s, count = _mean(memory["s"], T.square(v), self.beta), _count_step(memory["count"], self.beta)
        corrected = T.map(lambda a, w: a / w, s, count) if self.debias else s
        return _divide_leaves(v, corrected, self.eps), {"s": s, "count": count}


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
        c1, c2 = _count_step(memory["count1"], self.beta1), _count_step(memory["count2"], self.beta2)
        after = {"m": m, "s": s, "count1": c1, "count2": c2}
        if self.debias:
            m, s = T.map(lambda a, w: a / w, m, c1), T.map(lambda a, w: a / w, s, c2)
        return _divide_leaves(m, s, self.eps), after

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
