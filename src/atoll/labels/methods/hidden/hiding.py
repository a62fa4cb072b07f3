"""Losses that do not see some labels, which the loss inside then takes for rows without one."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Labelled
from atoll.learn.local.own_loss import LossSignature, OwnLoss

__all__ = ["Hiding", "HidingLoss", "asking", "require_labelled"]


def asking(*names: str) -> inspect.Signature:
    """Return the signature of a loss that asks for inputs by name."""
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)])


@dataclass(frozen=True)
class HidingLoss(OwnLoss):
    """Base class: a loss that hides labels from the loss ``inner``.

    Attributes:
        inner: a method's loss, which asks for ``labelled``.
        reads: inputs that `hidden` needs.
    """

    inner: Any
    reads: ClassVar[tuple[str, ...]] = ()

    @property
    def form(self) -> str:  # type: ignore[override]
        """The inner loss's form."""
        return str(self.inner.form)

    @property
    def task(self) -> str:  # type: ignore[override]
        """The inner loss's task."""
        return str(self.inner.task)

    @property
    def __signature__(self) -> inspect.Signature:
        """Everything that the inner loss asks for, and what the choice needs."""
        return asking(*LossSignature.of(self.inner).names, *self.reads)

    @abstractmethod
    def hidden(self, given: dict[str, Any]) -> Any:
        """Return which labels to hide, booleans ``(B,)``."""

    def __call__(self, **given: Any) -> Any:
        """Return the inner loss without the hidden labels."""
        hidden = self.hidden(given)
        names = LossSignature.of(self.inner).names
        return self.inner(**{n: given[n] & ~hidden if n == "labelled" else given[n] for n in names})


class Hiding:
    """The gradient as the algorithm inside sees it: the losses that it names are those that hide labels.

    Args:
        grad: the gradient, of losses that hide labels.
        hide: loss of the algorithm inside -> the one that hides labels.
    """

    def __init__(self, grad: Any, hide: Callable[[Any], Any]) -> None:
        self._grad = grad
        self._hide = hide

    def __call__(self, params: Tree) -> Tree:
        """Return the gradient."""
        return self._grad(params)

    def on(self, loss: Any = None, **given: Tree) -> Hiding:
        """Return the same for another loss."""
        return Hiding(self._grad.on(None if loss is None else self._hide(loss), **given), self._hide)

    def loss(self, params: Tree) -> Any:
        """Return the loss."""
        return self._grad.loss(params)

    def read(self, loss: Any, params: Tree) -> Any:
        """Return what a loss returns."""
        return self._grad.read(self._hide(loss), params)

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        """Return the Hessian times a vector."""
        return self._grad.hvp(params, vector)


def require_labelled(algorithm: Algorithm, where: str) -> None:
    """Refuse an algorithm whose losses cannot leave out a label.

    Raises:
        ConfigError: it has no loss of its own, or one that does not ask for ``labelled``.
    """
    losses, name = facet(algorithm, Labelled).losses, type(algorithm).__name__
    blind = [loss for loss in losses if "labelled" not in LossSignature.of(loss).names]
    if losses and not blind:
        return
    what = f"the loss of {name} does not ask for `labelled`" if losses else f"{name} has no loss of its own"
    raise ConfigError(
        f"{what}, so it cannot leave out a label",
        where=where,
        remedy=f"use {where}(base=Supervised()), or another method of atoll.labels",
    )
