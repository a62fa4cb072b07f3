"""A gradient as a function, for tracing.

``torch.func.grad_and_value`` first loads PyTorch's compiler (to switch off a part that is already off), which takes a
second. This module uses the same building blocks directly, and falls back to that function if a version of PyTorch
lacks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import grad_and_value

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

try:
    from torch._functorch import eager_transforms as _pieces

    _nesting: Any = _pieces.grad_increment_nesting
    _wrap: Any = _pieces._wrap_all_tensors
    _open: Any = _pieces._create_differentiable
    _close: Any = _pieces._undo_create_differentiable
except (ImportError, AttributeError):  # pragma: no cover - another version
    _nesting = None

__all__ = ["differentiated", "gradient_of"]

Tensor = torch.Tensor


def gradient_of(fn: Callable[[Tree], Tensor], at: Tree, *, again: bool = False) -> tuple[Tree, Tensor]:
    """Return the gradient of ``fn``, a function with a scalar value, and the value; calls may be nested and run under ``vmap``.

    Args:
        fn: the function.
        at: where.
        again: whether the gradient will be differentiated. If so, PyTorch computes some gradients, such as that of ``GroupNorm``, in many small operations.
    """
    if _nesting is None:
        made: tuple[Tree, Tensor] = grad_and_value(fn)(at)
        return made
    with _nesting() as level, torch.enable_grad():
        params: Any = T.map(lambda leaf: _open(_wrap(leaf, level), level), at)
        value = fn(params)
        inputs = T.leaves(params)
        found: Any = [None] * len(inputs)
        if value.requires_grad:
            found = torch.autograd.grad([value], inputs, create_graph=again, allow_unused=True)
        filled = iter([torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)])
        gradient = T.map(lambda _: _close(next(filled), level), params)
        return gradient, _close(value, level)


def differentiated(
    passed: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, list[Tensor], Any]],
) -> tuple[Tensor, list[Tensor | None], Any]:
    """Return values, and the derivatives of their sum by tensors inside the computation; under ``vmap`` too.

    Args:
        passed: is called with a function that makes a tensor one to differentiate by, ``inside = open(tensor)``; returns the values, the tensors to differentiate by, and
            anything else with tensors.

    Returns:
        The values, the derivatives (``None`` for a tensor that they do not depend on), and the rest.

    Raises:
        NotImplementedError: this version of PyTorch lacks the building blocks.
    """
    if _nesting is None:  # pragma: no cover - another version
        raise NotImplementedError("this version of PyTorch differentiates by inputs only")
    with _nesting() as level, torch.enable_grad():
        values, inside, rest = passed(lambda tensor: _open(tensor, level))
        found: Any = [None] * len(inside)
        if inside and values.requires_grad:
            found = torch.autograd.grad([values.sum()], inside, allow_unused=True)

        def close(leaf: Any) -> Any:
            return _close(leaf, level) if isinstance(leaf, Tensor) else leaf

        return close(values), [close(leaf) for leaf in found], _closed(rest, close)


def _closed(rest: Any, close: Callable[[Any], Any]) -> Any:
    """Return a list of records with every tensor closed."""
    for record in rest:
        for name, value in vars(record).items():
            if isinstance(value, Tensor):
                setattr(record, name, close(value))
    return rest
