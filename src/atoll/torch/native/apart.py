"""Softmax, layer normalisation, variances, GELU and the gradient of an embedding as simple operations.

PyTorch's own decompositions give the same, but the first of them loads its compiler and sympy, which takes longer than tracing a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["APART"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten
_WORKED_IN = (torch.float32, torch.float64)
_TANH, _CUBED = math.sqrt(2.0 / math.pi), 0.044715  # of the approximation
_HALF_ROOT, _DENSITY = math.sqrt(0.5), 1.0 / math.sqrt(2.0 * math.pi)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """``exp(x) / sum exp(x)``, with the largest entry taken off first."""
    if not _simple(x) or half_to_float:
        return NotImplemented
    raised = torch.exp(x - x.amax(dim, keepdim=True))
    return raised / raised.sum(dim, keepdim=True)


def _softmax_backward(grad_out: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """``p (g - sum(g p))`` with the shares ``p``."""
    if not _simple(out) or input_dtype != out.dtype:
        return NotImplemented
    given = grad_out * out
    return given - out * given.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """``x - log sum exp(x)``, with the largest entry taken off first."""
    if not _simple(x) or half_to_float:
        return NotImplemented
    lower = x - x.amax(dim, keepdim=True)
    return lower - torch.log(torch.exp(lower).sum(dim, keepdim=True))


def _log_softmax_backward(grad_out: Tensor, out: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """``g - p sum(g)`` with the shares ``p``."""
    if not _simple(out) or input_dtype != out.dtype:
        return NotImplemented
    return grad_out - torch.exp(out) * grad_out.sum(dim, keepdim=True)


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """``(x - m) r w + b`` with the mean ``m`` and ``r = 1 / sqrt(variance + eps)`` of each row, and ``m`` and ``r`` (Ba, Kiros and Hinton 2016)."""
    if not _simple(x):
        return NotImplemented
    axes = _last(x, normalized_shape)
    mean = x.mean(axes, keepdim=True)
    apart = x - mean
    rate = torch.rsqrt((apart * apart).mean(axes, keepdim=True) + eps)
    out = apart * rate
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rate


def _layer_norm_backward(
    grad_out: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rate: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """The gradients of the rows, weight and bias: ``dx = r (g - mean(g) - h mean(g h))`` with ``g = grad w`` and ``h = (x - m) r``."""
    if not _simple(x):
        return NotImplemented
    axes, others = _last(x, normalized_shape), list(range(x.dim() - len(normalized_shape)))
    scaled = (x - mean) * rate
    given = grad_out if weight is None else grad_out * weight
    inner = (given * scaled).mean(axes, keepdim=True)
    rows = rate * (given - given.mean(axes, keepdim=True) - scaled * inner) if output_mask[0] else None
    weights = _over(grad_out * scaled, others) if output_mask[1] and weight is not None else None
    return rows, weights, _over(grad_out, others) if output_mask[2] and bias is not None else None


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """The variance and the mean along some axes; ``correction`` (1 unless given) is taken off the number of entries."""
    if not _simple(x):
        return NotImplemented
    axes = list(dim) if dim else list(range(x.dim()))
    count = math.prod(x.shape[axis] for axis in axes)
    less = 1.0 if correction is None else float(correction)
    if count <= less:
        return NotImplemented
    mean = x.mean(axes, keepdim=True)
    apart = x - mean
    variance = (apart * apart).sum(axes, keepdim=keepdim) / (count - less)
    return variance, mean if keepdim else x.mean(axes)


def _gelu(x: Tensor, *, approximate: str = "none") -> Any:
    """``x F(x)`` with the normal distribution function ``F``, or with the approximation of it by ``tanh`` (Hendrycks and Gimpel 2016)."""
    return x * _below(x, approximate)[0] if _simple(x) else NotImplemented


def _gelu_backward(grad_out: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    """``grad (F(x) + x F'(x))``."""
    if not _simple(x):
        return NotImplemented
    share, slope = _below(x, approximate)
    return grad_out * (share + x * slope())


def _embedding_backward(
    grad_out: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """The sum of the rows' gradients for each entry of the table, but for the one that pads."""
    if not _simple(grad_out) or scale_grad_by_freq:
        return NotImplemented
    numbers = indices.to(torch.int64)
    rows = grad_out if padding_idx < 0 else torch.where((numbers == padding_idx).unsqueeze(-1), 0.0, grad_out)
    table = grad_out.new_zeros((num_weights, grad_out.shape[-1]))
    return torch.index_put(table, [numbers], rows, accumulate=True)


def _below(x: Tensor, approximate: str) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return ``F(x)`` and what computes ``F'(x)``."""
    if approximate == "tanh":
        bent = torch.tanh(_TANH * (x + _CUBED * x * x * x))
        return 0.5 * (1.0 + bent), lambda: 0.5 * _TANH * (1.0 - bent * bent) * (1.0 + 3.0 * _CUBED * x * x)
    return 0.5 * (1.0 + torch.erf(x * _HALF_ROOT)), lambda: torch.exp(-0.5 * x * x) * _DENSITY


def _simple(x: Tensor) -> bool:
    """Tell whether the formulas hold as they stand: lower precision is worked in a higher one, and an extreme of nothing does not exist."""
    return x.dtype in _WORKED_IN and x.dim() > 0 and x.numel() > 0


def _last(x: Tensor, shape: Sequence[int]) -> list[int]:
    return list(range(x.dim() - len(shape), x.dim()))


def _over(x: Tensor, axes: list[int]) -> Tensor:
    """Sum over axes; over none, return a copy, since a result must not be an input."""
    return x.sum(axes) if axes else x.clone()


APART: dict[Any, Callable[..., Any]] = {
    aten._softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.var_mean.correction: _var_mean,
    aten.gelu.default: _gelu,
    aten.gelu_backward.default: _gelu_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
}
"""Operation -> the same of simpler ones, or ``NotImplemented``: then PyTorch's decomposition holds."""
