"""Norms of single examples' gradients, and their weighted sums, from the record of a forward and a backward pass.

For a linear layer with inputs ``a_t`` and derivatives ``e_t`` by its outputs (``t`` counts the positions of one example, such as words), an example's gradient is
``G = sum_t e_t a_t^T``. Its squared norm is ``sum_{t,s} (a_t . a_s)(e_t . e_s)``, which needs no ``G``: Goodfellow 2015 for one position, Li, Tramer, Liang, Hashimoto 2021 and
Bu, Wang, Zha, Karypis 2022 for several. With ``T`` positions it costs ``T^2 (d + p)``, and ``G`` itself costs ``T d p``: the cheaper one is taken, layer by layer. A
weighted sum ``sum_i c_i G_i`` is one product of matrices in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from .tape import Use

__all__ = ["Gradients", "Slopes", "parts_of"]

Tensor = torch.Tensor


class Slopes:
    """The derivatives of the sum of losses by a layer's outputs, which its weight and its bias share.

    Args:
        values: ``(rows, p)``, or ``(rows, positions, p)``.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self._scaled: tuple[Tensor, Tensor] | None = None

    def scale(self, factors: Tensor) -> Tensor:
        """Return the slopes times each example's factor; 0 where the factor is, even if a slope is not finite."""
        if self._scaled is None or self._scaled[0] is not factors:
            spread = factors.reshape(-1, *[1] * (self.values.dim() - 1))
            self._scaled = (factors, torch.where(spread > 0, self.values * spread, 0.0))
        return self._scaled[1]


@dataclass
class Gradients:
    """The gradients of one parameter, for all examples.

    Attributes:
        shape: the parameter's shape.
        norms: norm of each example's gradient, ``(rows,)``.
        slopes: derivatives by outputs, or the gradients themselves ``(rows, size)`` if there are neither inputs nor a table.
        inputs: ``(rows, d)`` or ``(rows, positions, d)``.
        table: ``(indices, table's rows)`` instead of inputs, indices ``(rows, positions)``.
    """

    shape: tuple[int, ...]
    norms: Tensor
    slopes: Slopes
    inputs: Tensor | None = None
    table: tuple[Tensor, int] | None = None

    def sum_weighted(self, factors: Tensor) -> Tensor:
        """Return ``sum_i factors_i G_i``; an example with factor 0 adds nothing, even if its gradient is not finite."""
        scaled = self.slopes.scale(factors)
        if self.table is not None:
            indices, rows = self.table
            flat = scaled.reshape(-1, scaled.shape[-1])
            made: Tensor = torch.ops.aten.embedding_dense_backward(flat, indices.reshape(-1), rows, -1, False)
            return made
        if self.inputs is None:
            return scaled.sum(0).reshape(self.shape)
        kept = factors.reshape(-1, *[1] * (self.inputs.dim() - 1)) > 0
        given = torch.where(kept, self.inputs, 0.0)
        if scaled.dim() == 3:
            scaled, given = scaled.reshape(-1, scaled.shape[-1]), given.reshape(-1, given.shape[-1])
        made = scaled.t() @ given
        return made if made.shape == self.shape else made.reshape(self.shape)


@dataclass
class _Found:
    """Inputs and slopes of each parameter's uses, or gradients that are made already.

    Attributes:
        matrices: name -> ``(rows, positions, d)`` and ``(rows, positions, p)``, without positions for layers on plain rows.
        tables: name -> indices ``(rows, positions)`` and slopes.
        wholes: name -> gradients ``(rows, ...)``.
    """

    matrices: dict[str, list[tuple[Tensor, Slopes]]] = field(default_factory=dict)
    tables: dict[str, list[tuple[Tensor, Slopes]]] = field(default_factory=dict)
    wholes: dict[str, list[Slopes]] = field(default_factory=dict)

    def add(self, use: Use, slope: Tensor, params: dict[str, Tensor]) -> None:
        """Add one use, with the derivative by its output."""
        if use.kind == "copies":
            self.wholes.setdefault(use.weight, []).append(Slopes(slope.reshape(slope.shape[0], -1)))
            return
        if use.kind == "table":
            indices, made = _rows_first(use.given, use.axis, 0), _rows_first(slope, use.axis, 1)
            slopes = Slopes(_without(made, indices, use.settings[1]))
            self.tables.setdefault(use.weight, []).append((indices, slopes))
            return
        inputs, made = _unfold_patches(use, slope) if use.kind == "convolution" else _laid(use, slope)
        slopes = Slopes(made)
        if use.bias:
            self.wholes.setdefault(use.bias, []).append(slopes if made.dim() == 2 else Slopes(made.sum(1)))
        if use.weight and use.kind == "convolution" and use.settings[4] > 1:
            whole = _group_gradients(inputs, made, use.settings[4], params[use.weight])
            self.wholes.setdefault(use.weight, []).append(Slopes(whole.flatten(1)))
        elif use.weight:
            self.matrices.setdefault(use.weight, []).append((inputs, slopes))

    def part(self, name: str, value: Tensor) -> Gradients | None:
        """Return a parameter's gradients; ``None`` if it was not used. Uses of different kinds, such as of a table that is a last layer too, are made and added."""
        kinds = [name in kind for kind in (self.matrices, self.tables, self.wholes)]
        if kinds == [True, False, False]:
            return _matrix(value, *_join_uses(self.matrices[name]))
        if kinds == [False, True, False]:
            return _table(value, *_join_uses(self.tables[name]))
        if kinds == [False, False, True] and len(self.wholes[name]) == 1:
            return _whole(value, self.wholes[name][0])
        made = [slopes.values for slopes in self.wholes.get(name, ())]
        made += [_product(*_join_uses(self.matrices[name]))] if name in self.matrices else []
        made += [_scatter_slopes(*_join_uses(self.tables[name]), value)] if name in self.tables else []
        return _whole(value, Slopes(sum(made[1:], start=made[0]))) if made else None


def parts_of(uses: Sequence[Use], slopes: Sequence[Tensor | None], params: dict[str, Tensor]) -> dict[str, Gradients]:
    """Return the gradients of every parameter that was used.

    Args:
        uses: the record.
        slopes: the derivative of the sum of all examples' losses by each use's output; ``None`` for 0.
        params: the parameters.
    """
    found = _Found()
    for use, slope in zip(uses, slopes, strict=True):
        if slope is not None:
            found.add(use, slope, params)
    made = {name: found.part(name, value) for name, value in params.items()}
    return {name: part for name, part in made.items() if part is not None}


def _join_uses(pairs: list[tuple[Tensor, Slopes]]) -> tuple[Tensor, Slopes]:
    """Return the inputs and slopes of several uses of one parameter, as further positions of one use."""
    if len(pairs) == 1:
        return pairs[0]
    inputs = torch.cat([_positions(a, e) for a, e in pairs], 1)
    return inputs, Slopes(torch.cat([_positions(e.values, e) for _, e in pairs], 1))


def _positions(tensor: Tensor, slopes: Slopes) -> Tensor:
    """Return a tensor with an axis of positions."""
    return tensor.unsqueeze(1) if slopes.values.dim() == 2 else tensor


def _rows_first(tensor: Tensor, axis: int, trailing: int) -> Tensor:
    """Return ``(rows, positions, ...)``."""
    moved = tensor.movedim(axis, 0)
    return moved.reshape(moved.shape[0], -1, *moved.shape[moved.dim() - trailing :])


def _laid(use: Use, slope: Tensor) -> tuple[Tensor, Tensor]:
    if use.axis == 0 and slope.dim() == 2:
        return use.given, slope
    return _rows_first(use.given, use.axis, 1), _rows_first(slope, use.axis, 1)


def _unfold_patches(use: Use, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return a convolution's patches ``(rows, positions, d)`` and slopes ``(rows, positions, p)``."""
    kernel, stride, padding, dilation, _ = use.settings
    x = use.given
    if len(kernel) == 1:  # as an image of height 1
        x, kernel, stride, padding, dilation = (
            x.unsqueeze(2), (1, *kernel), (1, *stride), (0, *padding), (1, *dilation)
        )  # fmt: skip
    patches = F.unfold(x, kernel, dilation, padding, stride)
    return patches.transpose(1, 2), slope.flatten(2).transpose(1, 2)


def _group_gradients(patches: Tensor, slopes: Tensor, groups: int, weight: Tensor) -> Tensor:
    """Return each example's gradient of a convolution whose channels are in groups."""
    rows, positions = slopes.shape[:2]
    a = patches.reshape(rows, positions, groups, -1)
    e = slopes.reshape(rows, positions, groups, -1)
    return torch.einsum("ntgp,ntgd->ngpd", e, a).reshape(rows, *weight.shape)


def _norm(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    return (tensor * tensor).sum(axes).sqrt()


def _matrix(value: Tensor, inputs: Tensor, slopes: Slopes) -> Gradients:
    e, shape = slopes.values, tuple(value.shape)
    if e.dim() == 2:
        return Gradients(shape, _norm(inputs, (1,)) * _norm(e, (1,)), slopes, inputs)
    positions, d, p = inputs.shape[1], inputs.shape[2], e.shape[2]
    if positions * (d + p) > d * p:
        return _whole(value, Slopes(_product(inputs, slopes)))
    squares = ((inputs @ inputs.transpose(1, 2)) * (e @ e.transpose(1, 2))).sum((1, 2))
    return Gradients(shape, squares.clamp(min=0.0).sqrt(), slopes, inputs)


def _table(value: Tensor, indices: Tensor, slopes: Slopes) -> Gradients:
    e = slopes.values
    if indices.shape[1] == 1:
        norms = _norm(e, (1, 2))
    else:
        same = (indices[:, :, None] == indices[:, None, :]).to(e.dtype)
        norms = (same * (e @ e.transpose(1, 2))).sum((1, 2)).clamp(min=0.0).sqrt()
    return Gradients(tuple(value.shape), norms, slopes, table=(indices, value.shape[0]))


def _without(slopes: Tensor, indices: Tensor, padding: int | None) -> Tensor:
    """Return the slopes without those of a table's row of padding, which is not trained."""
    return slopes if padding is None else torch.where((indices == padding).unsqueeze(-1), 0.0, slopes)


def _whole(value: Tensor, whole: Slopes) -> Gradients:
    return Gradients(tuple(value.shape), _norm(whole.values, (1,)), whole)


def _product(inputs: Tensor, slopes: Slopes) -> Tensor:
    """Return each example's gradient of a matrix, ``(rows, p d)``."""
    return (_positions(slopes.values, slopes).transpose(1, 2) @ _positions(inputs, slopes)).flatten(1)


def _scatter_slopes(indices: Tensor, slopes: Slopes, value: Tensor) -> Tensor:
    """Return each example's gradient of a table, ``(rows, size)``."""
    e = slopes.values
    hot = (indices.unsqueeze(-1) == torch.arange(value.shape[0], device=value.device)).to(e.dtype)
    return (hot.transpose(1, 2) @ e).flatten(1)
