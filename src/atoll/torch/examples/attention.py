"""``nn.MultiheadAttention`` in layers that a tape knows."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["ARGUMENTS", "attended", "plain"]

Tensor = torch.Tensor
ARGUMENTS = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn",
    "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v", "average_attn_weights", "is_causal",
)  # fmt: skip
"""Parameters of ``torch.nn.functional.multi_head_attention_forward``, in order."""


def plain(given: dict[str, Any]) -> bool:
    """Tell whether a call has a form that `attended` computes: queries of shape ``(length, rows, width)``, no added keys."""
    added = ("bias_k", "bias_v", "static_k", "static_v")
    return (
        given["query"].dim() == 3 and all(given.get(name) is None for name in added) and not given.get("add_zero_attn")
    )


def attended(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return ``softmax(q k' / sqrt(d) + mask) v`` of all heads through the output layer, and the weights.

    A projection of queries and keys that differ goes through the whole input layer twice, of which half is used, so that its parameters stay whole.
    """
    query, key, value = given["query"], given["key"], given["value"]
    heads, width = given["num_heads"], query.shape[-1]
    length, rows, _ = query.shape
    q, k, v = _projected(given, query, key, value, width)

    def split(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], rows, heads, -1).permute(1, 2, 0, 3)

    q, k, v = split(q), split(k), split(v)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None:
        mask = _added(mask, scores.dtype)
        scores = scores + (mask if mask.dim() == 2 else mask.reshape(rows, heads, *mask.shape[1:]))
    if padding is not None:
        scores = scores + _added(padding, scores.dtype)[:, None, None, :]
    weights = F.dropout(torch.softmax(scores, -1), given.get("dropout_p", 0.0), given.get("training", True))
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, rows, width)
    made = F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    if not given.get("need_weights", True):
        return made, None
    return made, weights.mean(1) if given.get("average_attn_weights", True) else weights


def _projected(
    given: dict[str, Any], query: Tensor, key: Tensor, value: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    weight: Any = given.get("in_proj_weight")
    bias: Any = given.get("in_proj_bias")
    if given.get("use_separate_proj_weight"):
        raise NotImplementedError("keys or values of another width")
    whole = F.linear(query, weight, bias)
    if key is query and value is query:
        q, k, v = whole.chunk(3, -1)
        return q, k, v
    other = F.linear(key, weight, bias)
    third = other if value is key else F.linear(value, weight, bias)
    return whole[..., :width], other[..., width : 2 * width], third[..., 2 * width :]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores; a boolean one forbids where it is true."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
