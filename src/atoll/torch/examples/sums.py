"""Sums of clipped gradients of single examples: by norms that need no gradients, or by the gradients themselves."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.func import grad_and_value, vmap

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from ..tracing.keyed import Bounded
from .rules import Gradients, Slopes, parts_of
from .tape import Tape

if TYPE_CHECKING:
    from atoll.learn.local.examples import Clipping

    from ..network import FunctionalModule

__all__ = ["Examples", "by_norms", "differentiate_pass", "gradient_of", "gradients_of", "one_by_one", "sum_gradients"]

# A gradient as a function, for tracing.
#
# ``torch.func.grad_and_value`` first loads PyTorch's compiler (to switch off a part that is already off), which takes a
# second. This module uses the same building blocks directly, and falls back to that function if a version of PyTorch
# lacks them.


try:
    from torch._functorch import eager_transforms as _pieces

    _nesting: Any = _pieces.grad_increment_nesting
    _wrap: Any = _pieces._wrap_all_tensors
    _open: Any = _pieces._create_differentiable
    _close: Any = _pieces._undo_create_differentiable
except (ImportError, AttributeError):  # pragma: no cover - another version
    _nesting = None


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


def differentiate_pass(
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

        return close(values), [close(leaf) for leaf in found], _close_tensors(rest, close)


def _close_tensors(rest: Any, close: Callable[[Any], Any]) -> Any:
    """Return a list of records with every tensor closed."""
    for record in rest:
        for name, value in vars(record).items():
            if isinstance(value, Tensor):
                setattr(record, name, close(value))
    return rest


_MADE = 1 << 24
"""Numbers in the gradients that are made at once."""


@dataclass(frozen=True)
class Examples:
    """A mini-batch whose examples are taken one by one.

    Attributes:
        network: the model and its loss.
        frozen: its buffers and frozen parameters.
        columns: one row for each example.
        weights: 1 for an example, 0 for padding; ``None`` if nothing is padded.
        broadcast: what the server sent.
        seed: of the model's random draws in this step, ``(2,)``.
    """

    network: FunctionalModule
    frozen: Mapping[str, Tensor]
    columns: Mapping[str, Tensor]
    weights: Tensor | None
    broadcast: Tree
    seed: Tensor

    def __len__(self) -> int:
        return len(self.columns["y"])

    def part(self, some: slice) -> Examples:
        """Return some of them."""
        columns = {name: column[some] for name, column in self.columns.items()}
        return replace(self, columns=columns, weights=None if self.weights is None else self.weights[some])


def by_norms(
    examples: Examples, params: dict[str, Tensor], clipping: Clipping, axes: Sequence[int] | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the sum of clipped gradients and the examples' losses, from one forward and one backward pass for all.

    Args:
        examples: the mini-batch.
        params: the parameters.
        clipping: the bounds.
        axes: the axis of the examples of each layer's use; see `Tape`.

    Raises:
        UntapedError: the model uses a parameter in another way.
    """

    def pass_forward(open: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor], Any]:  # noqa: A002
        mode = Bounded(examples.seed, strict=True)
        tape = Tape(params, mode, open, len(examples), axes)
        with mode, tape:
            losses = examples.network.example_losses(
                params, examples.frozen, examples.columns, examples.broadcast, mode
            )
        examples.network.looks_up = examples.network.looks_up or mode.looked
        return losses, [use.made for use in tape.uses], tape.uses

    losses, slopes, uses = differentiate_pass(pass_forward)
    parts = parts_of(uses, slopes, params)
    factors = _factors({name: part.norms for name, part in parts.items()}, list(params), clipping, examples.weights)
    total = {
        name: parts[name].sum_weighted(factors[name]) if name in parts else torch.zeros_like(value)
        for name, value in params.items()
    }
    return total, losses


def one_by_one(
    examples: Examples, params: dict[str, Tensor], clipping: Clipping, *, loops: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the same by making every example's gradient: for any model.

    Args:
        examples: the mini-batch.
        params: the parameters.
        clipping: the bounds.
        loops: take one after another, for a model that cannot be vectorised over its rows.
    """
    size = sum(value.numel() for value in params.values())
    step = max(1, _MADE // max(size, 1))
    total: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    for begin in range(0, len(examples), step):
        some = examples.part(slice(begin, begin + step))
        made, lost = sum_gradients(some, params, clipping, gradients_of(some, params, begin, loops=loops))
        total = {name: total[name] + leaf for name, leaf in made.items()} if total else made
        losses.append(lost)
    if not losses:
        return {name: torch.zeros_like(value) for name, value in params.items()}, torch.zeros(
            0, dtype=examples.network.dtype
        )
    return total, torch.cat(losses)


def sum_gradients(
    examples: Examples, params: dict[str, Tensor], clipping: Clipping, made: tuple[dict[str, Tensor], Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the clipped sum of gradients ``(rows, ...)``, and the losses that were made with them."""
    gradients, losses = made
    flat = {name: leaf.reshape(leaf.shape[0], -1) for name, leaf in gradients.items()}
    parts = {
        name: Gradients(tuple(params[name].shape), torch.linalg.vector_norm(leaf, dim=1), Slopes(leaf))
        for name, leaf in flat.items()
    }
    factors = _factors({name: part.norms for name, part in parts.items()}, list(params), clipping, examples.weights)
    return {name: part.sum_weighted(factors[name]) for name, part in parts.items()}, losses


def gradients_of(
    examples: Examples, params: dict[str, Tensor], begin: int = 0, *, loops: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the gradients ``(rows, ...)`` and the losses of all examples, each alone in a mini-batch of one.

    Args:
        examples: the examples.
        params: the parameters.
        begin: number of the first one in its mini-batch, for its random draws.
        loops: take one after another.
    """
    numbers = torch.arange(begin, begin + len(examples), device=examples.seed.device)

    def one(row: dict[str, Tensor], number: Tensor) -> tuple[Tree, Tensor]:
        alone = {name: value.unsqueeze(0) for name, value in row.items()}
        seed = torch.stack([(examples.seed[0] ^ (number * 0x3C6EF372)) & 0xFFFFFFFF, examples.seed[1]])

        def loss_at(at: Tree) -> Tensor:
            mode = Bounded(seed, strict=True)
            with mode:
                loss = examples.network.batch_loss(at, examples.frozen, alone, None, examples.broadcast, mode)
            examples.network.looks_up = examples.network.looks_up or mode.looked
            return loss

        return gradient_of(loss_at, params)

    columns = dict(examples.columns)
    if not loops:
        gradients, losses = vmap(one)(columns, numbers)
        return gradients, losses
    each = [one({n: c[i] for n, c in columns.items()}, numbers[i]) for i in range(len(examples))]
    return {name: torch.stack([g[name] for g, _ in each]) for name in params}, torch.stack([loss for _, loss in each])


def _factors(
    norms: Mapping[str, Tensor], names: Sequence[str], clipping: Clipping, weights: Tensor | None
) -> dict[str, Tensor]:
    """Return each example's factor for each parameter: ``limit / max(norm, limit)`` of its group, 0 for padding and for what is not finite."""
    groups = [[norms[name] for name in group if name in norms] for group in clipping.groups(names)]
    limit, found = clipping.limit(len(groups)), dict[str, Tensor]()
    lengths = [_length(group) if group else None for group in groups]
    known = [length for length in lengths if length is not None]
    if not known:
        return found
    finite = (known[0] if len(known) == 1 else torch.stack(known).sum(0)) < math.inf
    for group, length in zip(clipping.groups(names), lengths, strict=True):
        if length is not None:
            factor = torch.where(finite, (clipping.share * limit) / length.clamp(min=limit), 0.0)
            found.update(dict.fromkeys(group, factor if weights is None else factor * weights))
    return found


def _length(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of a group from those of its parameters, ``(rows,)``."""
    return functools.reduce(torch.add, [norm * norm for norm in norms]).sqrt()
