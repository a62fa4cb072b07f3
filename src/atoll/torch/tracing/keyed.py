"""Dropout whose masks depend on a key, never on a generator's state, and recurrent layers in plain tensor operations.

A mask is a function of (client key, step, number of the call within the step, position in the tensor), computed with
tensor operations. So it is the same for one client at a time, in a block of any size and in a compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from atoll.core.algebra.rng import mix64
from atoll.core.errors import DataError

from .recurrent import RECURRENT, native_does

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Bounded",
    "ForeignRandomnessError",
    "Keyed",
    "UnboundedIndexError",
    "row_keys",
    "scramble_positions",
    "step_seeds",
    "uniform",
]

Tensor = torch.Tensor


_MASK = 0xFFFFFFFF
# Odd multipliers below 2^31, so that products of 32-bit numbers stay inside int64: those of C. Wellons' and T. Mueller's mixers.
_MUL_1 = 0x7FEB352D
_MUL_2 = 0x45D9F3B


class ForeignRandomnessError(RuntimeError):
    """The model draws random numbers that cannot be keyed by client."""


def step_seeds(keys: NDArray[np.uint64], steps: NDArray[np.int64], *, paired: bool = False) -> NDArray[np.int64]:
    """Return two 32-bit seeds for the draws of a client at a step.

    Args:
        keys: one key a client, ``(clients,)``.
        steps: numbers of the steps, ``(steps,)``.
        paired: one step for each key instead of all.

    Returns:
        Shape ``(clients, steps, 2)``; paired ``(steps, 2)``.
    """
    clients = mix64(np.asarray(keys, dtype=np.uint64))
    noise = mix64((clients if paired else clients[:, None]) ^ mix64(~steps.astype(np.uint64)))
    halves: NDArray[np.uint64] = np.stack([noise >> np.uint64(32), noise & np.uint64(_MASK)], axis=-1)
    return halves.astype(np.int64)


def uniform(seed: Tensor, call: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform whole numbers in ``[0, 2^32)``, a function of (seed, call, position).

    ``x = (position ^ a) * c + b + call * g``, then two rounds of xor-shift and multiplication, all mod 2^32. Few values
    are used twice, because a code generator may compute them again for each use.

    Args:
        seed: two 32-bit numbers ``a`` and ``b``, shape ``(2,)``.
        call: number of the draw within the step.
        shape: of the result.
    """
    position = torch.arange(math.prod(shape), device=seed.device, dtype=torch.int64).reshape(shape)
    return scramble_positions(position, seed[0], seed[1], call)


def scramble_positions(position: Tensor, a: Tensor, b: Tensor, call: int | Tensor) -> Tensor:
    """The numbers of `uniform` at given positions, under seeds that are broadcast against them.

    Args:
        position: whole numbers in ``[0, 2^32)``.
        a: 32-bit numbers, the first half of the seeds.
        b: the second half.
        call: number of the draw, or of the draw of each position.
    """
    x = ((position ^ a) * _MUL_1 + (b + (0x9E3779B9 * (call + 1) & _MASK))) & _MASK
    x = (((x >> 16) ^ x) * _MUL_2) & _MASK
    x = (((x >> 15) ^ x) * _MUL_1) & _MASK
    return (x >> 16) ^ x


def row_keys(seed: Tensor, rows: Tensor, view: int = 0) -> Tensor:
    """Return a random key for each row: a function of (client, step, row), and of the number of the view; neither padding nor the row's place matters.

    Args:
        seed: of the client and step, see `step_seeds`, shape ``(2,)``, or of each row's client, ``(rows, 2)``.
        rows: numbers of the rows within their client, below ``2^31``, ``(rows,)``.
        view: 0, 1, ... where a row has several keys in a step.

    Returns:
        int64, ``(rows,)``.
    """
    a, b = seed[..., 0], seed[..., 1]
    return (scramble_positions(2 * rows, a, b, view) << 32) | scramble_positions(2 * rows + 1, a, b, view)


class Keyed(TorchFunctionMode):
    """While active, dropout draws keyed masks and recurrent layers run as plain tensor operations if they draw masks or are traced.

    Args:
        seed: of this client and step, see `step_seeds`, shape ``(2,)``.
        strict: for traced code: refuse other random functions of PyTorch (they cannot be keyed) instead of letting
            them through, and its own kernels of recurrent layers, which have no batching rule.
        fused: for traced code of one client: a layer of LSTM or GRU cells is one operation, see `atoll.torch.tracing.recurrent`.
    """

    def __init__(self, seed: Tensor, *, strict: bool, fused: bool = False) -> None:
        super().__init__()
        self.seed = seed
        self.strict = strict
        self.fused = fused and seed.device.type == "cpu"
        self.calls = 0

    def keep(self, shape: tuple[int, ...], p: float) -> Tensor:
        """Return the next mask: true for a kept entry, with probability ``1 - p``."""
        drawn = uniform(self.seed, self.calls, shape)
        self.calls += 1
        return drawn >= int(p * (_MASK + 1))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace what must be keyed; everything else passes."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS and func in _KNOWN:
            return _DROPOUTS[name](self, *args, **kwargs)
        if name in RECURRENT and func in _KNOWN:
            if not self.strict and native_does(*args):
                return func(*args, **kwargs)
            return RECURRENT[name](self, *args, **kwargs)
        if name == "one_hot" and _classes(args, kwargs) > 0:
            # PyTorch's own function reads the values, which a traced program cannot do.
            x = args[0] if args else kwargs["tensor"]
            return (x.unsqueeze(-1) == torch.arange(_classes(args, kwargs), device=x.device)).to(torch.int64)
        if name == "scaled_dot_product_attention":
            return _attention(self, *args, **kwargs)
        if name == "multi_head_attention_forward" and self.strict and _attention_drops(args, kwargs):
            raise ForeignRandomnessError(
                "nn.MultiheadAttention with dropout draws masks that cannot be keyed by client"
            )
        if self.strict and name in _RANDOM:
            raise ForeignRandomnessError(f"the model calls torch's {name}, whose numbers cannot be keyed by client")
        return func(*args, **kwargs)


def _dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    return _drop(mode, input, p, training, tuple(input.shape))


def _channels(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    """Drop whole channels: one draw for each (row, channel)."""
    shape = tuple(input.shape[:2]) + (1,) * (input.dim() - 2)
    return _drop(mode, input, p, training, shape)


def _drop(mode: Keyed, input: Tensor, p: float, training: bool, shape: tuple[int, ...]) -> Tensor:  # noqa: A002
    if not training or p == 0.0:
        return input
    if p >= 1.0:
        return input * 0.0
    return torch.where(mode.keep(shape, p), input * (1.0 / (1.0 - p)), torch.zeros_like(input))


_ALPHA = -1.7580993408473766  # -scale * alpha of SELU (Klambauer et al. 2017, section 3)


def _alpha_dropout(mode: Keyed, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:  # noqa: A002
    return _alpha(mode, input, p, training, tuple(input.shape))


def _alpha_channels(
    mode: Keyed,
    input: Tensor,  # noqa: A002
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    return _alpha(mode, input, p, training, tuple(input.shape[:2]) + (1,) * (input.dim() - 2))


def _alpha(mode: Keyed, input: Tensor, p: float, training: bool, shape: tuple[int, ...]) -> Tensor:  # noqa: A002
    if not training or p == 0.0:
        return input
    if p >= 1.0:
        return input * 0.0
    a = ((1.0 - p) * (1.0 + p * _ALPHA**2)) ** -0.5
    kept = torch.where(mode.keep(shape, p), input, torch.full_like(input, _ALPHA))
    made: Tensor = a * kept - a * p * _ALPHA
    return made


def _attention(
    mode: Keyed,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return ``softmax(q k' * scale + mask) v`` with keyed dropout on the weights."""
    if dropout_p == 0.0:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        raise ForeignRandomnessError("grouped-query attention with dropout is not keyed by client")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query @ key.transpose(-2, -1)) * factor
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = torch.where(allowed, scores, torch.full_like(scores, -torch.inf))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, torch.full_like(scores, -torch.inf))
        else:
            scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    return _drop(mode, weights, dropout_p, True, tuple(weights.shape)) @ value


def _classes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return int(args[1] if len(args) > 1 else kwargs.get("num_classes", -1))


def _attention_drops(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Tell whether a call of ``multi_head_attention_forward`` drops weights: arguments 10 (dropout_p) and 13 (training)."""
    p = args[10] if len(args) > 10 else kwargs.get("dropout_p", 0.0)
    training = args[13] if len(args) > 13 else kwargs.get("training", True)
    return bool(training) and p > 0.0


def _train_last(drop: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Adapt to functions in ``torch``, which name their last argument ``train``."""

    def call(mode: Keyed, input: Tensor, p: float = 0.5, train: bool = True, **rest: Any) -> Tensor:  # noqa: A002
        return drop(mode, input, p, rest.get("training", train))

    return call


_DROPOUTS: dict[str, Callable[..., Tensor]] = {
    "dropout": _train_last(_dropout),
    "dropout_": _train_last(_dropout),
    "dropout1d": _train_last(_channels),
    "dropout2d": _train_last(_channels),
    "dropout3d": _train_last(_channels),
    "feature_dropout": _train_last(_channels),
    "alpha_dropout": _alpha_dropout,
    "feature_alpha_dropout": _alpha_channels,
}
_KNOWN: set[Any] = {
    found
    for space in (F, torch)
    for name in [*_DROPOUTS, *RECURRENT]
    if (found := getattr(space, name, None)) is not None
}
_RANDOM = frozenset(
    [
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "bernoulli",
        "bernoulli_",
        "multinomial",
        "normal",
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "cauchy_",
        "poisson",
        "binomial",
        "rrelu",
        "rrelu_",
        "gumbel_softmax",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
        "_sample_dirichlet",
        "_standard_gamma",
    ]
)


# Look-ups in tables whose rows are parameters: an index beyond the table never reaches another client's table.
#
# Under ``vmap`` PyTorch puts the tables of a block's clients one after another and adds the start of a client's table to
# its indices, without a check: index 25 in a table of 20 rows reads, and trains, row 5 of the next client. Alone it
# raises. So traced code moves every index into its table, and a look-up outside gives NaN. The client's result is then
# not finite and is left out, and its own training, alone, shows the index. Of PyTorch's other functions with indices only
# ``index_fill`` is flattened like this; it is not traced.


class UnboundedIndexError(RuntimeError):
    """The model calls a function that writes beyond a client's own rows in a block of clients."""


class Bounded(Keyed):
    """A `Keyed` mode that also keeps indices inside their tables while active.

    Args:
        seed: of this client and step.
        strict: for traced code: nothing may depend on values, so an index beyond its table makes the result NaN.
            Otherwise it raises.
        fused: see `Keyed`.

    Attributes:
        looked: whether there was a look-up.
    """

    def __init__(self, seed: Tensor, *, strict: bool, fused: bool = False) -> None:
        super().__init__(seed, strict=strict, fused=fused)
        self.looked = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Check indices, and make gradients of tables dense; everything else passes to `Keyed`."""
        if func in _SPARSE:
            args, kwargs = _densify_gradient(func, args, kwargs or {})
        if func in _LOOK_UPS:
            return self._look(func, args, kwargs or {})
        if self.strict and getattr(func, "__name__", "") in ("index_fill", "index_fill_"):
            raise UnboundedIndexError(
                "the model calls index_fill, which fills other clients' rows in a block of clients"
            )
        return super().__torch_function__(func, types, args, kwargs)

    def _look(self, func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self.looked = True
        names = _LOOK_UPS[func]
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        index, rows = given[_INDEX[func]], int(given["weight"].shape[0])
        inside = (index >= 0) & (index < rows)
        if not self.strict:
            if not bool(inside.all()):
                raise _refusal(int(index[~inside][0]), rows)
            return func(*args, **kwargs)
        given[_INDEX[func]] = torch.where(inside, index, 0)
        made = func(*[given.pop(name) for name in names], *args[len(names) :], **given)
        found: Tensor = made + torch.where(inside, 0.0, math.nan).to(made.dtype).unsqueeze(-1)
        return found


def _densify_gradient(
    func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a look-up without ``sparse=True``: its gradient has the same values, and algorithms add, clip and stack dense ones alone."""
    place = _SPARSE[func]
    if len(args) > place:
        return (*args[:place], False, *args[place + 1 :]), kwargs
    return args, {**kwargs, "sparse": False}


def _refusal(index: int, rows: int) -> DataError:
    wider = f", or give the embedding at least {index + 1} rows" if index >= rows else ""
    return DataError(
        f"index {index} in an embedding of {rows} rows (0..{rows - 1})",
        where="the model",
        remedy=f"number the ids from 0 to {rows - 1}{wider}",
    )


_LOOK_UPS: dict[Any, tuple[str, str]] = {F.embedding: ("input", "weight"), torch.embedding: ("weight", "indices")}
_INDEX = {F.embedding: "input", torch.embedding: "indices"}
_SPARSE = {F.embedding: 6, torch.embedding: 4, F.embedding_bag: 7, torch.embedding_bag: 5}
"""Look-ups -> the place of their argument ``sparse``."""
