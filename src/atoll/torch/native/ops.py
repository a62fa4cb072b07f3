"""Elementwise operations of ATen and how they are written in C++."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from .apart import APART
from .attention import ATTENTION

__all__ = ["CONVERSIONS", "C_TYPES", "POINTWISE", "VIEWS", "literal", "simple_operations"]

aten: Any = torch.ops.aten
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
