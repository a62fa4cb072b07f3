"""The expected form of one leaf, or of each item of a list."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError, MessageError
from atoll.core.message.arrays import BFloat16, Bits
from atoll.core.message.dtypes import dtype_form
from atoll.core.message.faults import fault
from atoll.core.message.leaves import EXACT, NUMPY_SCALARS
from atoll.core.message.masked import Masked
from atoll.core.message.texts import BytesArray, StringArray
from atoll.core.message.words import Words

__all__ = ["ARRAYS", "ArraySpec", "Each", "ScalarSpec", "array_spec", "describe", "wrong"]

_SPECIAL: dict[str, type] = {
    "bfloat16": BFloat16,
    "bits": Bits,
    "strings": StringArray,
    "bytestrings": BytesArray,
}
_NAMES = {kind: name for name, kind in _SPECIAL.items()}
_WORDS = {f"words{bits}" for bits in range(1, 65)}
ARRAYS = NUMPY_SCALARS | {np.ndarray, Masked, Words, *_NAMES}
_SCALARS = EXACT - ARRAYS - {list, tuple, dict}
_BLOCK = 1 << 20
_REMEDY = "send what the task's schema describes"


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array leaf, or a NumPy scalar (shape ``()``).

    Attributes:
        dtype: a NumPy dtype name such as ``"float32"``, ``"datetime64[ns]"`` or ``"U5"``, or ``"bfloat16"``,
            ``"bits"``, ``"words13"`` (Words of 13 bits), ``"strings"`` (StringArray), ``"bytestrings"`` (BytesArray).
        shape: the shape, None for a dimension of any size; None as a whole for any shape.
        finite: refuse NaN, infinities and NaT.
        nullable: whether a Masked array of this dtype is accepted too.

    Raises:
        ConfigError: no dtype has this name.
    """

    dtype: str
    shape: tuple[int | None, ...] | None = None
    finite: bool = False
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.dtype in _SPECIAL or self.dtype in _WORDS:
            return
        try:
            name = _plain_name(dtype_form(np.dtype(self.dtype)).little)
        except (TypeError, MessageError):
            raise ConfigError(
                f"{self.dtype!r} is not a dtype that can be sent",
                where="ArraySpec",
                remedy=f"give a NumPy dtype or one of {', '.join(_SPECIAL)}",
            ) from None
        object.__setattr__(self, "dtype", name)

    def check(self, value: Any) -> None:
        """Check one leaf.

        Raises:
            MessageError: the type, dtype or shape differs, or a value is not finite.
        """
        if isinstance(value, Masked) and self.nullable:
            value = value.values
        if type(value) not in ARRAYS or isinstance(value, Masked):
            raise wrong(describe(value), f"an array of {self.dtype}")
        if (found := dtype_name(value)) != self.dtype:
            raise wrong(f"an array of {found}", f"an array of {self.dtype}")
        if not self._fits(value.shape):
            raise wrong(f"shape {_shown(value.shape)}", f"shape {_shown(self.shape)}")
        if self.finite and not _all_finite(value):
            raise _not_finite()

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self.shape is None:
            return True
        same = len(shape) == len(self.shape)
        return same and all(b is None or a == b for a, b in zip(shape, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A leaf that is not an array.

    Attributes:
        type: its exact type: ``int`` does not accept ``True``.
        finite: refuse NaN and infinities.

    Raises:
        ConfigError: a type that is not one of a message's scalars.
    """

    type: type
    finite: bool = False

    def __post_init__(self) -> None:
        if self.type not in _SCALARS:
            raise ConfigError(
                f"{self.type!r} is not the type of a scalar leaf",
                where="ScalarSpec",
                remedy=f"give one of {', '.join(sorted(kind.__name__ for kind in _SCALARS))}",
            )

    def check(self, value: Any) -> None:
        """Check one leaf.

        Raises:
            MessageError: the type differs, or the value is not finite.
        """
        if type(value) is not self.type:
            raise wrong(describe(value), f"a {self.type.__name__}")
        if self.finite and isinstance(value, float | complex):
            parts = (value.real, value.imag)
            if not all(math.isfinite(part) for part in parts):
                raise _not_finite()


@dataclass(frozen=True, slots=True)
class Each:
    """A list of any length (from ``least`` to ``most``) whose items all have one form.

    Attributes:
        form: the tree of specs of each item.
        least: minimum number of items.
        most: maximum number of items, None for no limit.
    """

    form: Any
    least: int = 0
    most: int | None = None


def array_spec(value: Any, *, finite: bool) -> ArraySpec:
    """Return the spec of an array leaf (of a type in `ARRAYS`)."""
    values = value.values if isinstance(value, Masked) else value
    return ArraySpec(dtype_name(values), values.shape, finite, isinstance(value, Masked))


def dtype_name(value: Any) -> str:
    """Return an ArraySpec's name for the dtype of an array leaf."""
    if isinstance(value, Words) and value.is_words:
        return f"words{value.bits}"
    special = _NAMES.get(type(value))
    return special if special is not None else _plain_name(value.dtype)


def _plain_name(dtype: np.dtype[Any]) -> str:
    return dtype.str.lstrip("<>|=") if dtype.kind in "SU" else str(dtype.name)


def describe(value: Any) -> str:
    """Return an error's description of a leaf."""
    if isinstance(value, Masked):
        return f"a Masked array of {dtype_name(value.values)}"
    if type(value) in ARRAYS:
        return f"an array of {dtype_name(value)}"
    return f"a {type(value).__name__}"


def wrong(found: str, expected: str) -> MessageError:
    """Return the error for a node that differs from its spec."""
    return fault(f"found {found}, expected {expected}", _REMEDY)


def _not_finite() -> MessageError:
    return fault(
        "a value that is not finite (NaN, infinity or NaT)",
        "reject this update, or lower the learning rate or clip at the sender",
    )


def _shown(shape: tuple[int | None, ...] | None) -> str:
    return "(" + ", ".join("any" if size is None else str(size) for size in shape or ()) + ")"


def _all_finite(value: Any) -> bool:
    if isinstance(value, BFloat16):  # all ones in the exponent: infinite or NaN
        return not bool((value.bits & np.uint16(0x7F80) == 0x7F80).any())
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "fcmM":
        return True
    array = np.asarray(value)
    if not array.flags.c_contiguous:
        return bool(np.isfinite(array).all())
    flat = array.reshape(-1)
    blocks = range(0, flat.size, _BLOCK)  # stops at the first bad block, and needs little memory
    return all(bool(np.isfinite(flat[start : start + _BLOCK]).all()) for start in blocks)
