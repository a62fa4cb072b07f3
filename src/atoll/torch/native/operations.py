"""Elementwise operations of ATen and how they are written in C++."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

__all__ = ["APART", "ATTENTION", "CONVERSIONS", "C_TYPES", "POINTWISE", "VIEWS", "literal", "simple_operations"]

# Softmax, layer normalisation, variances, GELU and the gradient of an embedding as simple operations.
#
# PyTorch's own decompositions give the same, but the first of them loads its compiler and sympy, which takes longer than tracing a step.


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


# Attention as simple operations: PyTorch's fused kernels for a processor, taken apart forward and back.


def _weights(query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, factor: float) -> Tensor:
    """``q k' * factor + mask``, of shape ``(batch, heads, queries, keys)``."""
    made = _product(query, key.transpose(-2, -1)) * factor
    if is_causal:
        rows = torch.arange(made.shape[-2], device=made.device).unsqueeze(1)
        made = torch.where(rows >= torch.arange(made.shape[-1], device=made.device), made, -torch.inf)
    if attn_mask is not None:
        made = torch.where(attn_mask, made, -torch.inf) if attn_mask.dtype == torch.bool else made + attn_mask
    return made


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """``softmax(q k' * scale + mask) v``, and the logarithm of each row's sum of exponentials."""
    if dropout_p:
        return NotImplemented
    weights = _weights(query, key, is_causal, attn_mask, _factor(query, scale))
    top = weights.amax(-1, keepdim=True)
    raised = torch.exp(weights - top)
    total = raised.sum(-1, keepdim=True)
    return _product(raised / total, value), (top + torch.log(total)).squeeze(-1)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """The gradients of query, key and value (Dao et al. 2022, Appendix B.2): ``dS = P * (dO v' - rowsum(dO * O))``."""
    if dropout_p:
        return NotImplemented
    factor = _factor(query, scale)
    shares = torch.exp(_weights(query, key, is_causal, attn_mask, factor) - logsumexp.unsqueeze(-1))
    inner = (grad_out * out).sum(-1, keepdim=True)
    scores = shares * (_product(grad_out, value.transpose(-2, -1)) - inner) * factor
    turned = scores.transpose(-2, -1)
    return _product(scores, key), _product(turned, query), _product(shares.transpose(-2, -1), grad_out)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``a b`` of each head, of shape ``(batch, heads, ...)``; PyTorch's rule for ``@`` loads sympy."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).view(*a.shape[:-1], b.shape[-1])


def _factor(query: Tensor, scale: float | None) -> float:
    return float(query.shape[-1]) ** -0.5 if scale is None else scale


ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
}
"""Operation -> the same of simpler ones."""


prims: Any = torch.ops.prims

C_TYPES = {torch.float32: "float", torch.int64: "i64", torch.int32: "int32_t", torch.bool: "uint8_t"}
"""Entry types that a native program supports."""

VIEWS = {
    aten.alias.default,
    aten.as_strided.default,
    aten.detach.default,
    aten.expand.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
}
"""Operations that view the same memory in another way; ``view`` and related ones may need a copy first."""

CONVERSIONS = {prims.convert_element_type.default, aten._to_copy.default, aten.clone.default}
"""Operations that change the type at most."""

_BINARY = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "bitwise_and": "({0} & {1})",
    "bitwise_or": "({0} | {1})",
    "bitwise_xor": "({0} ^ {1})",
    "logical_and": "(bool({0}) && bool({1}))",
    "logical_or": "(bool({0}) || bool({1}))",
}
_UNARY = {
    "neg": "(-{0})",
    "abs": "({0} < 0 ? -{0} : {0})",
    "relu": "relu({0})",
    "logical_not": "(!{0})",
    "bitwise_not": "(~{0})",
    "sign": "(({0} > 0) - ({0} < 0))",
}
_FLOATING = {
    "exp": "f_exp({0})",
    "log": "f_log({0})",
    "sigmoid": "f_sigmoid({0})",
    "tanh": "f_tanh({0})",
    "sqrt": "f_sqrt({0})",
    "rsqrt": "(1.0f / f_sqrt({0}))",
    "reciprocal": "(1.0f / {0})",
    "erf": "f_erf({0})",
    "floor": "__builtin_floorf({0})",
    "expm1": "__builtin_expm1f({0})",
    "log1p": "__builtin_log1pf({0})",
    "sin": "__builtin_sinf({0})",
    "cos": "__builtin_cosf({0})",
}
_SHIFTS = {
    "__rshift__": "({0} >> {1})",
    "bitwise_right_shift": "({0} >> {1})",
    "__lshift__": "({0} << {1})",
    "bitwise_left_shift": "({0} << {1})",
}


def _table() -> dict[Any, str]:
    """Return every overload of the named operations that takes tensors and numbers."""
    made: dict[Any, str] = {}
    for names in (_BINARY, _UNARY, _FLOATING, _SHIFTS):
        for name, text in names.items():
            packet = getattr(aten, name)
            for overload in ("default", "Tensor", "Scalar", "Tensor_Scalar"):
                if overload in packet.overloads():
                    made[getattr(packet, overload)] = text
    made[aten.div.Tensor] = made[aten.div.Scalar] = made[prims.div.default] = "({0} / {1})"
    made[aten.where.self] = made[aten.where.ScalarOther] = made[aten.where.ScalarSelf] = "({0} ? {1} : {2})"
    made[aten.isnan.default] = "({0} != {0})"
    made[aten.clamp_min.default] = "larger({0}, {1})"
    made[aten.clamp_max.default] = "smaller({0}, {1})"
    return made


POINTWISE: dict[Any, str] = _table()
"""Operation -> expression with ``{0}``, ``{1}``, ... for its arguments, already converted to the type it works in."""


@functools.cache
def simple_operations() -> Mapping[Any, Any]:
    """Return decompositions into translatable operations; PyTorch's core set, and softmax and normalisations taken apart further.

    Made once for each process: collecting PyTorch's takes as long as tracing a small model's step.
    """
    from torch._decomp import core_aten_decompositions, get_decompositions

    further = [
        aten._log_softmax,
        aten._log_softmax_backward_data,
        aten._softmax,
        aten._softmax_backward_data,
        aten.gelu,
        aten.gelu_backward,
        aten.leaky_relu,
        aten.linalg_vector_norm,
        aten.native_group_norm,
        aten.native_group_norm_backward,
        aten.native_layer_norm,
        aten.native_layer_norm_backward,
        aten.var_mean,
    ]
    whole = {aten.grid_sampler_2d.default}  # has a rule of its own
    table = {**core_aten_decompositions(), **get_decompositions(further), **ATTENTION}
    table |= {op: _rather(how, table[op]) for op, how in APART.items()}
    return MappingProxyType({op: how for op, how in table.items() if op not in whole})


def _rather(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def how(*args: Any, **kwargs: Any) -> Any:
        made = ours(*args, **kwargs)
        return theirs(*args, **kwargs) if made is NotImplemented else made

    return how


def literal(value: float, dtype: torch.dtype) -> str:
    """Return a number in C++."""
    if dtype == torch.float32:
        if math.isnan(value):
            return "NOT_A_NUMBER"
        if math.isinf(value):
            return "INF" if value > 0 else "(-INF)"
        return f"{float(value)!r}f"
    return f"{C_TYPES[dtype]}({int(value)}LL)"
