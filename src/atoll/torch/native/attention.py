"""Attention as simple operations: PyTorch's fused kernels for a processor, taken apart forward and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["ATTENTION"]

Tensor = torch.Tensor
aten: Any = torch.ops.aten


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
