"""Look-ups in tables whose rows are parameters: an index beyond the table never reaches another client's table.

Under ``vmap`` PyTorch puts the tables of a block's clients one after another and adds the start of a client's table to
its indices, without a check: index 25 in a table of 20 rows reads, and trains, row 5 of the next client. Alone it
raises. So traced code moves every index into its table, and a look-up outside gives NaN. The client's result is then
not finite and is left out, and its own training, alone, shows the index. Of PyTorch's other functions with indices only
``index_fill`` is flattened like this; it is not traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from atoll.core.errors import DataError

from .keyed import Keyed

__all__ = ["Bounded", "UnboundedIndexError"]

Tensor = torch.Tensor


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
        """Check indices; everything else passes to `Keyed`."""
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


def _refusal(index: int, rows: int) -> DataError:
    wider = f", or give the embedding at least {index + 1} rows" if index >= rows else ""
    return DataError(
        f"index {index} in an embedding of {rows} rows (0..{rows - 1})",
        where="the model",
        remedy=f"number the ids from 0 to {rows - 1}{wider}",
    )


_LOOK_UPS: dict[Any, tuple[str, str]] = {F.embedding: ("input", "weight"), torch.embedding: ("weight", "indices")}
_INDEX = {F.embedding: "input", torch.embedding: "indices"}
