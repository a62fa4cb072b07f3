"""LSTM, GRU and plain recurrent layers as loops over plain tensor operations.

PyTorch's fused recurrent kernels have no batching rule for ``vmap`` and draw their own dropout masks. These loops
compute the same result (equations of ``torch.nn.LSTM``, ``GRU``, ``RNN``), accept the same flat arguments, and take
keyed masks between layers. A client that trains alone, on a layer that draws no masks, uses PyTorch's kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .cells import gru_layer, lstm_layer

__all__ = ["RECURRENT", "native_does"]

Tensor = torch.Tensor
Cell = Callable[[Tensor, tuple[Tensor, ...], Tensor, Tensor | None], tuple[Tensor, ...]]


def _lstm_cell(gates_x: Tensor, state: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None) -> tuple[Tensor, ...]:
    h, c = state
    i, f, g, o = (gates_x + F.linear(h, w_hh, b_hh)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_cell(gates_x: Tensor, state: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None) -> tuple[Tensor, ...]:
    (h,) = state
    rx, zx, nx = gates_x.chunk(3, -1)
    rh, zh, nh = F.linear(h, w_hh, b_hh).chunk(3, -1)
    r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
    n = torch.tanh(nx + r * nh)
    return ((1.0 - z) * n + z * h,)


_WHOLE: dict[Cell, Callable[..., tuple[Tensor, tuple[Tensor, ...]]]] = {_lstm_cell: lstm_layer, _gru_cell: gru_layer}
"""Cells whose layers are one operation where a mode says so."""


def _plain_cell(nonlinearity: Callable[[Tensor], Tensor]) -> Cell:
    def cell(gates_x: Tensor, state: tuple[Tensor, ...], w_hh: Tensor, b_hh: Tensor | None) -> tuple[Tensor, ...]:
        return (nonlinearity(gates_x + F.linear(state[0], w_hh, b_hh)),)

    return cell


def _direction(
    cell: Cell, x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor], reverse: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one direction of one layer over ``x`` of shape ``(time, batch, features)``."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = (weights[2], weights[3]) if len(weights) > 2 else (None, None)
    gates = F.linear(x, w_ih, b_ih)
    outputs: list[Tensor] = []
    order = range(x.shape[0])
    for t in reversed(order) if reverse else order:
        state = cell(gates[t], state, w_hh, b_hh)
        outputs.append(state[0])
    if reverse:
        outputs.reverse()
    return torch.stack(outputs), state


def _run(
    mode: Any,
    cell: Cell,
    per_layer: int,
    input: Tensor,  # noqa: A002
    state: tuple[Tensor, ...],
    params: list[Tensor],
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    directions = 2 if bidirectional else 1
    if state[0].shape[-1] != params[1].shape[-1]:
        raise NotImplementedError("an LSTM with a projection (proj_size) has no plain form here")
    x = input.transpose(0, 1) if batch_first else input
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        outputs: list[Tensor] = []
        for d in range(directions):
            at = layer * directions + d
            weights = list(params[at * per_layer : (at + 1) * per_layer])
            begin, whole = tuple(s[at] for s in state), _WHOLE.get(cell)
            if whole is not None and mode.fused and x.dtype == torch.float32:
                out, end = whole(x.flip(0) if d else x, begin, weights)
                out = out.flip(0) if d else out
            else:
                out, end = _direction(cell, x, begin, weights, reverse=d == 1)
            outputs.append(out)
            ends.append(end)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if train and dropout > 0.0 and layer < layers - 1:
            # Drawn with the batch first, so that a padded batch keeps the masks of its real rows.
            kept = mode.keep((x.shape[1], x.shape[0], x.shape[2]), dropout).transpose(0, 1)
            x = torch.where(kept, x * (1.0 / (1.0 - dropout)), torch.zeros_like(x))
    y = x.transpose(0, 1) if batch_first else x
    return (y, *[torch.stack([end[i] for end in ends]) for i in range(len(state))])


def _entry(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    def call(mode: Any, input: Tensor, hx: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:  # noqa: A002
        if isinstance(params, torch.Tensor):
            raise NotImplementedError("packed sequences have no plain form here")
        has_biases, layers, dropout, train, bidirectional, batch_first = rest
        state = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        per_layer = 4 if has_biases else 2
        return _run(
            mode, cell, per_layer, input, state, list(params), layers, dropout, train, bidirectional, batch_first
        )

    return call


def native_does(*args: Any) -> bool:
    """Tell whether PyTorch's own function draws no masks for these arguments: then its kernels, which are faster than a loop, can be used.

    A bidirectional LSTM of 32 on 10 rows of 25 words takes 4.1 ms of processor time for each step with them, forward
    and back, and 23 ms as a loop; a GRU 23.5 and 32.5 ms, a plain layer 9 and 11.5 ms (PyTorch 2 on one thread).
    Gradients differ by less than 1e-6 of the largest.
    """
    if len(args) != 9 or isinstance(args[2], torch.Tensor):  # a packed sequence
        return False
    if args[0].device.type != "cpu":  # CUDA's kernel has no second derivatives
        return False
    layers, dropout, train = args[4:7]
    return not train or dropout == 0.0 or layers == 1


RECURRENT: dict[str, Callable[..., Any]] = {
    "lstm": _entry(_lstm_cell),
    "gru": _entry(_gru_cell),
    "rnn_tanh": _entry(_plain_cell(torch.tanh)),
    "rnn_relu": _entry(_plain_cell(torch.relu)),
}
"""Name of PyTorch's function -> its plain form, called with the active mode first."""
