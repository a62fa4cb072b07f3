"""Streams: named parts of a model, and how each of them learns and travels.

Names of parameters that begin with a stream's ``part`` belong to it, as in ``"predictor."``; all others are averaged, by the algorithm that a method goes
around. The rules:

=============  ==========================  ==========================================  =======================================================
stream         learns                      travels                                     losses read it as
=============  ==========================  ==========================================  =======================================================
`Local`        by its gradient, here       down once, as initial values; never up      part of the model
`Frozen`       not at all                  down; never up                              part of the model
`Trailing`       ``m <- k m + (1 - k) w``    never: a copy that a client keeps           ``broadcast[name]``, parameters for ``model(x, params)``
=============  ==========================  ==========================================  =======================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.validation import Checked

__all__ = ["Frozen", "Local", "Stream", "Streams", "Trailing"]


@dataclass(frozen=True)
class Stream(Checked):
    """A part of the model with a rule.

    Attributes:
        part: how the names of its parameters begin; ``""`` is the whole model.
    """

    part: str = ""

    def of(self, params: Tree) -> Tree:
        """Return its parameters.

        Raises:
            ConfigError: the model has none.
        """
        found = {name: leaf for name, leaf in params.items() if name.startswith(self.part)}
        if not found:
            raise ConfigError(
                f"the model has no parameter whose name begins with {self.part!r}",
                where=type(self).__name__,
                remedy=f"use the beginning of one of {', '.join(list(params)[:6])}",
            )
        return found


@dataclass(frozen=True)
class Local(Stream):
    """A part that each client trains for itself, with the method's learning rate, and keeps as private state."""


@dataclass(frozen=True)
class Frozen(Stream):
    """A part that no local step changes."""


@dataclass(frozen=True)
class Trailing(Stream):
    """A copy of a part that follows it: ``m <- keep m + (1 - keep) w`` after every local step.

    Attributes:
        name: how losses find it, ``broadcast[name]``.
        keep: share that remains, in [0, 1]; 1 never moves.
        memory: ``"client"``: private state that starts as a copy of the first model; ``"round"``: starts as a copy of every round's model.
    """

    name: str = "teacher"
    keep: float = 0.999
    memory: str = "client"

    def __post_init__(self) -> None:
        if not 0.0 <= self.keep <= 1.0:
            raise ConfigError(f"keep={self.keep}", where="Trailing", remedy="use a share from 0 to 1, such as 0.999")
        if self.memory not in ("client", "round"):
            raise ConfigError(f"memory={self.memory!r}", where="Trailing", remedy="use 'client' or 'round'")

    def move_copy(self, copy: Tree, params: Tree) -> Tree:
        """Return the copy after one step that ended at these parameters."""
        return T.map(lambda m, w: m * self.keep + w * (1.0 - self.keep), copy, self.of(params))


class Streams:
    """The streams of a method, sorted by rule.

    Args:
        streams: as declared.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.local = [stream for stream in streams if isinstance(stream, Local)]
        self.frozen = [stream for stream in streams if isinstance(stream, Frozen)]
        self.moving = [stream for stream in streams if isinstance(stream, Trailing)]
        self.private = bool(self.local) or any(stream.memory == "client" for stream in self.moving)

    def __bool__(self) -> bool:
        return bool(self.local or self.frozen or self.moving)

    def shared(self, params: Tree) -> Tree:
        """Return the parameters that are averaged."""
        stays = [stream.part for stream in (*self.local, *self.frozen)]
        for stream in (*self.local, *self.frozen):
            stream.of(params)  # refuses a part that the model does not have
        return {n: leaf for n, leaf in params.items() if not any(n.startswith(part) for part in stays)}

    def own(self, params: Tree) -> Tree:
        """Return the parameters that each client trains for itself."""
        return _pick_named(params, self.local)

    def copies(self, params: Tree, memory: str) -> Tree:
        """Return fresh copies, by name, for the streams with this memory."""
        return {stream.name: stream.of(params) for stream in self.moving if stream.memory == memory}


class Joined:
    """The gradient of the averaged part alone, as the algorithm inside sees it; it remembers the slope of the rest.

    Args:
        grad: the gradient of the whole model.
        whole: the model; the averaged part is replaced by what the algorithm asks for.
    """

    def __init__(self, grad: Any, whole: Tree) -> None:
        self._grad = grad
        self._whole = whole
        self.slope: Tree = None

    def _at(self, params: Tree) -> Tree:
        return {**self._whole, **params}

    def __call__(self, params: Tree) -> Tree:
        """Return the gradient of the averaged part."""
        full = self._grad(self._at(params))
        self.slope = full if self.slope is None else self.slope
        return {name: full[name] for name in params}

    def on(self, loss: Any = None, **given: Tree) -> Joined:
        """Return the same for another loss."""
        return Joined(self._grad.on(loss, **given), self._whole)

    def loss(self, params: Tree) -> Any:
        """Return the loss."""
        return self._grad.loss(self._at(params))

    def read(self, loss: Any, params: Tree) -> Any:
        """Return what a loss returns."""
        return self._grad.read(loss, self._at(params))

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """Return the Hessian of the averaged part times a vector."""
        zero = {name: leaf * 0.0 for name, leaf in self._whole.items()}
        made = self._grad.hvp(self._at(params), {**zero, **vector})
        return {name: made[name] for name in params}


def _pick_named(params: Tree, streams: Iterable[Stream]) -> Tree:
    parts = [stream.part for stream in streams]
    return {n: leaf for n, leaf in params.items() if any(n.startswith(part) for part in parts)}
