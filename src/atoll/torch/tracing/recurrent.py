"""LSTM, GRU and plain recurrent layers as loops over plain tensor operations.

PyTorch's fused recurrent kernels have no batching rule for ``vmap`` and draw their own dropout masks. These loops
compute the same result (equations of ``torch.nn.LSTM``, ``GRU``, ``RNN``), accept the same flat arguments, and take
keyed masks between layers. A client that trains alone, on a layer that draws no masks, uses PyTorch's kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["RECURRENT", "gru_layer", "lstm_layer", "native_does", "operations"]

# LSTM and GRU layers as single operations, forward and back, which native code translates as a whole.
#
# A traced layer is otherwise some ten operations for each entry of the sequence. These operations take time-first tensors of one client:
# ``x`` is ``(time, batch, inputs)`` and states are ``(batch, hidden)``. What the backward pass needs is kept in ``saved``, one flat tensor. The implementations below are
# loops over PyTorch's operations: a reference, and what runs where there is no native code.


Tensor = torch.Tensor
_OPERATIONS = {
    "lstm": "(Tensor x, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, Tensor bias) -> (Tensor, Tensor, Tensor)",
    "lstm_backward": "(Tensor dy, Tensor dc, Tensor y, Tensor saved, Tensor x, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "gru": "(Tensor x, Tensor h, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh) -> (Tensor, Tensor)",
    "gru_backward": "(Tensor dy, Tensor y, Tensor saved, Tensor x, Tensor h, Tensor w_ih, Tensor w_hh) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
}

_KEPT: list[Any] = []
"""The library of operations, which end with it."""


@functools.cache
def operations() -> Any:
    """Return the operations, defined at the first call."""
    library: Any = torch.library.Library("atoll", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in _OPERATIONS.items():
        library.define(f"{name}{schema}")
        library.impl(name, globals()[f"_{name}"], "CPU")
    _KEPT.append(library)
    return torch.ops.atoll


def _lstm(x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``y``, the last ``c``, and all gates ``(time, batch, 4 hidden)`` followed by all ``c``."""
    outputs, gates, cells = [], [], []
    for row in x:
        i, f, g, o = (F.linear(row, w_ih, bias) + F.linear(h, w_hh)).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        outputs.append(h)
        gates.append(torch.cat([i, f, g, o], -1))
        cells.append(c)
    return torch.stack(outputs), c.clone(), torch.cat([torch.stack(gates).flatten(), torch.stack(cells).flatten()])


def _lstm_backward(
    dy: Tensor, dc: Tensor, y: Tensor, saved: Tensor, x: Tensor, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of ``x, h, c, w_ih, w_hh, bias``."""
    time, batch, hidden = y.shape
    gates = saved[: 4 * y.numel()].view(time, batch, 4 * hidden)
    cells = saved[4 * y.numel() :].view(time, batch, hidden)
    dh, slopes = torch.zeros_like(h), []
    for t in reversed(range(time)):
        i, f, g, o = gates[t].chunk(4, -1)
        before, end = cells[t - 1] if t else c, torch.tanh(cells[t])
        dh = dh + dy[t]
        dc = dc + dh * o * (1 - end * end)
        slope = [dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * end * o * (1 - o)]
        slopes.append(torch.cat(slope, -1))
        dh, dc = slopes[-1] @ w_hh, dc * f
    slopes.reverse()
    made = torch.stack(slopes)
    flat = made.flatten(0, 1)
    prior = torch.cat([h.unsqueeze(0), y[:-1]]).flatten(0, 1)
    return made @ w_ih, dh, dc, flat.t() @ x.flatten(0, 1), flat.t() @ prior, flat.sum(0)


def _gru(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``y``, and ``r, z, n`` and the hidden part of ``n`` before it is gated, ``(time, batch, 4 hidden)``."""
    outputs, kept = [], []
    for row in x:
        rx, zx, nx = F.linear(row, w_ih, b_ih).chunk(3, -1)
        rh, zh, nh = F.linear(h, w_hh, b_hh).chunk(3, -1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        n = torch.tanh(nx + r * nh)
        h = (1 - z) * n + z * h
        outputs.append(h)
        kept.append(torch.cat([r, z, n, nh], -1))
    return torch.stack(outputs), torch.stack(kept).flatten()


def _gru_backward(
    dy: Tensor, y: Tensor, saved: Tensor, x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of ``x, h, w_ih, w_hh, b_ih, b_hh``."""
    time, batch, hidden = y.shape
    kept = saved.view(time, batch, 4 * hidden)
    dh, inputs, hiddens = torch.zeros_like(h), [], []
    for t in reversed(range(time)):
        r, z, n, nh = kept[t].chunk(4, -1)
        before = y[t - 1] if t else h
        dh = dh + dy[t]
        dn = dh * (1 - z) * (1 - n * n)
        dr, dz = dn * nh * r * (1 - r), dh * (before - n) * z * (1 - z)
        inputs.append(torch.cat([dr, dz, dn], -1))
        hiddens.append(torch.cat([dr, dz, dn * r], -1))
        dh = dh * z + hiddens[-1] @ w_hh
    inputs.reverse()
    hiddens.reverse()
    made, inner = torch.stack(inputs), torch.stack(hiddens).flatten(0, 1)
    flat, prior = made.flatten(0, 1), torch.cat([h.unsqueeze(0), y[:-1]]).flatten(0, 1)
    return made @ w_ih, dh, flat.t() @ x.flatten(0, 1), inner.t() @ prior, flat.sum(0), inner.sum(0)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> Any:
        return operations().lstm(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        y, _, saved = output
        ctx.mark_non_differentiable(saved)
        ctx.save_for_backward(y, saved, *inputs[:5])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy, dc, _ = grads
        y, saved, x, h, c, w_ih, w_hh = ctx.saved_tensors
        return operations().lstm_backward(dy, dc, y, saved, x, h, c, w_ih, w_hh)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(*args: Any) -> Any:
        return operations().gru(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        y, saved = output
        ctx.mark_non_differentiable(saved)
        ctx.save_for_backward(y, saved, *inputs[:4])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        y, saved, x, h, w_ih, w_hh = ctx.saved_tensors
        return operations().gru_backward(grads[0], y, saved, x, h, w_ih, w_hh)


def lstm_layer(x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return ``y`` and the last state of one direction of an LSTM layer; the equations are those of ``torch.nn.LSTM``."""
    w_ih, w_hh, *biases = weights
    bias = biases[0] + biases[1] if biases else torch.zeros(w_ih.shape[0], dtype=x.dtype)
    y, c, _ = _LSTM.apply(x, *state, w_ih, w_hh, bias)  # type: ignore[no-untyped-call]
    return y, (y[-1], c)


def gru_layer(x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return ``y`` and the last state of one direction of a GRU layer; the equations are those of ``torch.nn.GRU``."""
    w_ih, w_hh, *biases = weights
    if not biases:
        biases = [torch.zeros(w_ih.shape[0], dtype=x.dtype)] * 2
    y, _ = _GRU.apply(x, state[0], w_ih, w_hh, *biases)  # type: ignore[no-untyped-call]
    return y, (y[-1],)


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
        if is_packed(input, hx, params, *rest):
            raise NotImplementedError("packed sequences have no plain form here")
        has_biases, layers, dropout, train, bidirectional, batch_first = rest
        state = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
        per_layer = 4 if has_biases else 2
        return _run(
            mode, cell, per_layer, input, state, list(params), layers, dropout, train, bidirectional, batch_first
        )

    return call


def is_packed(*args: Any) -> bool:
    """Tell whether these are the arguments for a packed sequence, ``(data, batch_sizes, state, weights, ...)``, and not for a padded one."""
    return len(args) > 3 and isinstance(args[3], list | tuple)


def native_does(*args: Any) -> bool:
    """Tell whether PyTorch's own function draws no masks for these arguments: then its kernels, which are faster than a loop, can be used.

    Packed sequences have no other form. The masks between their layers come from PyTorch's generator, which follows the client's key, too.

    A bidirectional LSTM of 32 on 10 rows of 25 words takes 4.1 ms of processor time for each step with them, forward
    and back, and 23 ms as a loop; a GRU 23.5 and 32.5 ms, a plain layer 9 and 11.5 ms (PyTorch 2 on one thread).
    Gradients differ by less than 1e-6 of the largest.
    """
    if is_packed(*args):
        return True
    if len(args) != 9:
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
