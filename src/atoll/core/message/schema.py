"""The expected form of a whole message."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ConfigError, MessageError, nearest
from .arrays import EXACT, NUMPY_SCALARS, BFloat16, Bits, BytesArray, Masked, StringArray, find_exact
from .size import text_key, too_deep
from .wire import DEFAULT_LIMITS, dtype_form, enter, fault, finish, shown_key
from .words import Words

__all__ = ["ARRAYS", "ArraySpec", "Each", "ScalarSpec", "Schema", "array_spec", "describe", "wrong"]


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
            raise wrong(f"shape {_format_shape(value.shape)}", f"shape {_format_shape(self.shape)}")
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


def _format_shape(shape: tuple[int | None, ...] | None) -> str:
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


# ---------------------------------------------------------------------- schemas


class Schema:
    """The expected form of a message.

    Args:
        form: a tree (dict, list, tuple) whose leaves are ArraySpec, ScalarSpec or Each.

    Raises:
        ConfigError: ``form`` has anything else.
    """

    __slots__ = ("form",)

    def __init__(self, form: Any) -> None:
        try:
            self.form = _walk(form, _check_spec)
        except MessageError as error:
            where = finish(error).where
            raise ConfigError(error.what, where=f"Schema: {where}", remedy=error.remedy) from None

    @classmethod
    def of(cls, example: Any, *, finite: bool = False) -> Schema:
        """Return the schema of trees with the containers, types, dtypes and shapes of ``example``.

        Args:
            example: a message tree; its values do not matter.
            finite: refuse NaN, infinities and NaT.

        Raises:
            MessageError: ``example`` has a value that cannot be sent.
        """
        try:
            return cls(_walk(example, lambda leaf: _spec_of(leaf, finite=finite)))
        except MessageError as error:
            raise finish(error) from None

    def check(self, tree: Any) -> None:
        """Check a tree: containers, keys (in any order), types, dtypes, shapes, finite values.

        Raises:
            MessageError: names the first place, in the schema's order, that differs.
        """
        try:
            _check(self.form, tree)
        except MessageError as error:
            raise finish(error) from None

    def __eq__(self, other: object) -> bool:
        return self.form == other.form if isinstance(other, Schema) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Schema({self.form!r})"


def _spec_of(leaf: Any, *, finite: bool) -> ArraySpec | ScalarSpec:
    leaf = find_exact(leaf)
    if type(leaf) in ARRAYS:
        return array_spec(leaf, finite=finite)
    return ScalarSpec(type(leaf), finite)


def _walk(tree: Any, visit: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return ``tree`` with ``visit`` applied to its leaves; errors name the path of their leaf."""
    if depth > DEFAULT_LIMITS.max_depth:
        raise too_deep(DEFAULT_LIMITS.max_depth)
    if not isinstance(tree, dict) and type(tree) not in (list, tuple):
        return visit(tree)
    step: Any = ""
    try:
        if isinstance(tree, dict):
            items = {}
            for step, value in tree.items():
                items[text_key(step)] = _walk(value, visit, depth + 1)
            return items
        values = []
        for step, value in enumerate(tree):  # noqa: B007 - for the error
            values.append(_walk(value, visit, depth + 1))
        return tuple(values) if isinstance(tree, tuple) else values
    except MessageError as error:
        enter(error, step if type(tree) in (list, tuple) else shown_key(step))
        raise


def _check_spec(leaf: Any) -> Any:
    if isinstance(leaf, Each):
        return Each(_walk(leaf.form, _check_spec), leaf.least, leaf.most)
    if isinstance(leaf, ArraySpec | ScalarSpec):
        return leaf
    raise fault(f"a {type(leaf).__name__} is not a spec", "use ArraySpec, ScalarSpec or Each, or Schema.of(example)")


def _check(form: Any, value: Any) -> None:
    if isinstance(form, ArraySpec | ScalarSpec):
        form.check(find_exact(value))
    elif isinstance(form, Each):
        _check_each(form, value)
    elif isinstance(form, dict):
        _check_mapping(form, value)
    else:
        _check_sequence(form, value)


def _check_each(form: Each, value: Any) -> None:
    if type(value) is not list:
        raise wrong(describe(value), "a list")
    if len(value) < form.least or (form.most is not None and len(value) > form.most):
        most = "more" if form.most is None else form.most
        raise wrong(f"a list of {len(value)}", f"one of {form.least} to {most} items")
    for place, item in enumerate(value):
        _inside(place, form.form, item)


def _check_sequence(form: Any, value: Any) -> None:
    if type(value) is not type(form) or len(value) != len(form):
        found = f"a {type(value).__name__}"
        found += f" of {len(value)}" if isinstance(value, list | tuple) else ""
        raise wrong(found, f"a {type(form).__name__} of {len(form)}")
    for place, (part, item) in enumerate(zip(form, value, strict=True)):
        _inside(place, part, item)


def _check_mapping(form: dict[str, Any], value: Any) -> None:
    if not isinstance(value, dict):
        raise wrong(describe(value), f"a dict with keys {sorted(form)}")
    for key in value:
        if text_key(key) not in form:
            hint = nearest(key, form)
            raise wrong(f"an unexpected key {key!r}", f"only {sorted(form)}.{hint}")
    for key, part in form.items():
        if key not in value:
            raise wrong(f"no key {key!r}", f"keys {sorted(form)}")
        _inside(key, part, value[key])


def _inside(step: str | int, form: Any, value: Any) -> None:
    try:
        _check(form, value)
    except MessageError as error:
        enter(error, step)
        raise
