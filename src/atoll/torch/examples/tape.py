"""A record of every use of a parameter in a forward pass, so that one backward pass gives all that single examples' gradients need.

A parameter of a linear layer, a convolution or an embedding stays one tensor: the gradient of example ``i`` follows from the layer's input and from the derivative by
its output, both restricted to ``i``. A parameter that scales or shifts (of ``LayerNorm``, ``GroupNorm``) is copied for each example, and its copies' gradients are the
examples' own. Any other use of a parameter raises `UntapedError`, and the caller takes another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..tracing.recurrent import RECURRENT

if TYPE_CHECKING:
    from ..tracing.keyed import Keyed

__all__ = ["ARGUMENTS", "Tape", "UntapedError", "Use", "attend_heads", "plain"]

# ``nn.MultiheadAttention`` in layers that a tape knows.


Tensor = torch.Tensor
ARGUMENTS = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "add_zero_attn",
    "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v", "average_attn_weights", "is_causal",
)  # fmt: skip
"""Parameters of ``torch.nn.functional.multi_head_attention_forward``, in order."""


def plain(given: dict[str, Any]) -> bool:
    """Tell whether a call has a form that `attend_heads` computes: queries of shape ``(length, rows, width)``, no added keys."""
    added = ("bias_k", "bias_v", "static_k", "static_v")
    return (
        given["query"].dim() == 3 and all(given.get(name) is None for name in added) and not given.get("add_zero_attn")
    )


def attend_heads(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return ``softmax(q k' / sqrt(d) + mask) v`` of all heads through the output layer, and the weights.

    A projection of queries and keys that differ goes through the whole input layer twice, of which half is used, so that its parameters stay whole.
    """
    query, key, value = given["query"], given["key"], given["value"]
    heads, width = given["num_heads"], query.shape[-1]
    length, rows, _ = query.shape
    q, k, v = _project_inputs(given, query, key, value, width)

    def split(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], rows, heads, -1).permute(1, 2, 0, 3)

    q, k, v = split(q), split(k), split(v)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if mask is not None:
        mask = _make_addend(mask, scores.dtype)
        scores = scores + (mask if mask.dim() == 2 else mask.reshape(rows, heads, *mask.shape[1:]))
    if padding is not None:
        scores = scores + _make_addend(padding, scores.dtype)[:, None, None, :]
    weights = F.dropout(torch.softmax(scores, -1), given.get("dropout_p", 0.0), given.get("training", True))
    mixed = (weights @ v).permute(2, 0, 1, 3).reshape(length, rows, width)
    made = F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    if not given.get("need_weights", True):
        return made, None
    return made, weights.mean(1) if given.get("average_attn_weights", True) else weights


def _project_inputs(
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


def _make_addend(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to scores; a boolean one forbids where it is true."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


_LOOKS = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_cuda",
        "is_cpu",
        "layout",
        "is_sparse",
        "is_nested",
        "is_leaf",
    ]
)
"""Attributes of a parameter that are not its values."""
_SIZES = frozenset(["size", "dim", "numel", "is_floating_point", "is_complex", "__len__", "stride", "data_ptr"])


class UntapedError(RuntimeError):
    """The model uses a parameter in a way from which single examples' gradients do not follow."""


@dataclass
class Use:
    """One use of parameters by a layer.

    Attributes:
        kind: ``"matrix"``, ``"convolution"``, ``"table"`` or ``"copies"``.
        weight: the parameter's name; ``""`` if it is frozen.
        bias: the bias's name; ``""`` for none.
        given: the layer's input; of copies, what they scale or shift.
        made: the layer's output; of copies, the copies ``(rows, ...)``.
        axis: the axis of the examples, in input and output.
        settings: of a convolution ``(kernel, stride, padding, dilation, groups)``; of a table ``(rows, padding_idx)``.
    """

    kind: str
    weight: str
    bias: str
    given: Tensor
    made: Tensor
    axis: int = 0
    settings: tuple[Any, ...] = ()


@dataclass(eq=False)
class Tape(TorchFunctionMode):
    """While active, records every use of the parameters.

    Attributes:
        params: the parameters, by name.
        keyed: the mode for the model's random draws; it must be active outside.
        open: makes an output one that a derivative can be taken by.
        rows: number of examples; 0 for a trial that only looks at shapes, and copies nothing.
        axes: the axis of the examples of each use, in order; ``None`` to assume the first.
        uses: the record.
    """

    params: dict[str, Tensor]
    keyed: Keyed
    open: Callable[[Tensor], Tensor]
    rows: int
    axes: Sequence[int] | None = None
    uses: list[Use] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in self.params.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record calls with a parameter; everything else passes."""
        given = kwargs or {}
        if not any(self._has(arg) for arg in (*args, *given.values())) or _looks(func):
            return func(*args, **given)
        name = getattr(func, "__name__", "")
        if name in RECURRENT:
            with self:
                return RECURRENT[name](self.keyed, *args, **given)
        if name == "multi_head_attention_forward":
            named = {**dict(zip(ARGUMENTS, args, strict=False)), **given}
            if plain(named):
                with self:
                    return attend_heads(named)
        rule = _RULES.get(name)
        if rule is None:
            raise UntapedError(f"{name or func} of a parameter")
        return rule(self, func, *args, **given)

    def name(self, value: Any) -> str:
        """Return the name of a parameter; ``""`` for anything else."""
        return self._names.get(id(value), "") if isinstance(value, Tensor) else ""

    def note(self, kind: str, weight: Any, bias: Any, given: Tensor, made: Tensor, *settings: Any) -> Tensor:
        """Record a use and return the output that the model goes on with."""
        if self.name(given):
            raise UntapedError("a parameter as the input of a layer")
        made = made if made.requires_grad else self.open(made)
        self.uses.append(Use(kind, self.name(weight), self.name(bias), given, made, self._axis(), settings))
        return made

    def copies(self, value: Tensor, x: Tensor) -> Tensor:
        """Return a parameter's copies for the examples of ``x``, ``(rows, ...)``; of a frozen one, itself with an axis of one."""
        name, plain = self.name(value), value.unsqueeze(0)
        if not name:
            return plain
        made = self.open(plain.expand(self.rows, *value.shape)) if self.rows else plain
        self.uses.append(Use("copies", name, "", x, made, self._axis()))
        return made

    def beside(self, value: Tensor, x: Tensor) -> Tensor:
        """Return a parameter's copies in the shape in which the parameter itself would be combined with ``x``, entry by entry."""
        axis, lead = self._axis(), x.dim() - value.dim()
        if lead < 0 or (axis >= lead and value.shape[axis - lead] != 1):
            raise UntapedError("a parameter with an entry for each example")
        if axis < lead:
            places = self.place(lead)
            return self.copies(value, x).reshape(*places, *value.shape)
        inner = axis - lead
        return self.copies(value, x).squeeze(inner + 1).movedim(0, inner)

    def place(self, lead: int) -> list[int]:
        """Return the shape of the leading axes of a parameter's copies, beside an input with ``lead`` of them."""
        made = [1] * lead
        made[self._axis()] = -1
        return made

    def _axis(self) -> int:
        at = len(self.uses)
        if self.axes is None:
            return 0
        if at >= len(self.axes):
            raise UntapedError("another number of layers than in the trial")
        return self.axes[at]

    def _has(self, arg: Any) -> bool:
        if isinstance(arg, Tensor):
            return id(arg) in self._names
        return isinstance(arg, list | tuple) and any(isinstance(a, Tensor) and id(a) in self._names for a in arg)


def _looks(func: Any) -> bool:
    """Tell whether a function reads a tensor's form, not its values."""
    name = getattr(func, "__name__", "")
    return name in _SIZES or (name == "__get__" and getattr(func.__self__, "__name__", "") in _LOOKS)


def _linear(tape: Tape, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    return tape.note("matrix", weight, bias, input, func(input, weight, bias))


def _convolution(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight, dims = given["input"], given["weight"], given["weight"].dim() - 2
    if x.dim() != dims + 2 or dims > 2 or isinstance(given.get("padding", 0), str):
        raise UntapedError("a convolution of this form")
    stride, padding, dilation = (
        _each(given.get(n, d), dims) for n, d in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    settings = (tuple(weight.shape[2:]), stride, padding, dilation, int(given.get("groups", 1)))
    return tape.note("convolution", weight, given.get("bias"), x, func(*args, **kwargs), *settings)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    found = tuple(value) if isinstance(value, list | tuple) else (int(value),)
    return found * dims if len(found) == 1 else found


def _embedding(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        raise UntapedError("an embedding whose rows depend on other examples (max_norm, scale_grad_by_freq)")
    padding, rows = given.get("padding_idx"), given["weight"].shape[0]
    padding = None if padding is None else padding % rows
    return tape.note("table", given["weight"], None, given["input"], func(*args, **kwargs), rows, padding)


def _layer_norm(
    tape: Tape,
    func: Any,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return _affine(tape, func(input, normalized_shape, None, None, eps), weight, bias, len(normalized_shape))


def _rms_norm(
    tape: Tape,
    func: Any,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: Any = None,
) -> Tensor:
    return _affine(tape, func(input, normalized_shape, None, eps), weight, None, len(normalized_shape))


def _affine(tape: Tape, x: Tensor, weight: Tensor | None, bias: Tensor | None, trailing: int) -> Tensor:
    """Return ``x * weight + bias`` over the last axes."""
    lead = x.dim() - trailing

    def laid(value: Tensor) -> Tensor:
        places = tape.place(lead)
        return tape.copies(value, x).reshape(*places, *value.shape)

    made = x if weight is None else x * laid(weight)
    return made if bias is None else made + laid(bias)


def _group_norm(
    tape: Tape,
    func: Any,
    input: Tensor,  # noqa: A002
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    x: Tensor = func(input, num_groups, None, None, eps)
    ones = [1] * (input.dim() - 2)
    made = x if weight is None else x * tape.copies(weight, x).reshape(-1, len(weight), *ones)
    return made if bias is None else made + tape.copies(bias, x).reshape(-1, len(bias), *ones)


def _entry_by_entry(tape: Tape, func: Any, a: Any, b: Any, **kwargs: Any) -> Tensor:
    mine = [bool(tape.name(value)) for value in (a, b)]
    if not all(isinstance(value, Tensor) for value in (a, b)) or all(mine):
        raise UntapedError("a parameter combined with no input")
    return func(tape.beside(a, b), b, **kwargs) if mine[0] else func(a, tape.beside(b, a), **kwargs)  # type: ignore[no-any-return]


_RULES: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    **dict.fromkeys(("add", "sub", "mul", "__add__", "__radd__", "__sub__", "__mul__", "__rmul__"), _entry_by_entry),
}
