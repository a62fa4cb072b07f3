"""The Python types that a message may have, and what similar types become."""

from __future__ import annotations

import datetime as dt
import sys
from enum import Enum
from typing import Any, Final

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.arrays import BFloat16, Bits
from atoll.core.message.dtypes import dtype_form
from atoll.core.message.faults import fault
from atoll.core.message.masked import Masked
from atoll.core.message.texts import BytesArray, StringArray
from atoll.core.message.words import Words

__all__ = ["EXACT", "NUMPY_SCALARS", "known", "offset_of"]

NUMPY_SCALARS: Final[frozenset[type]] = frozenset(
    np.dtype(name).type
    for name in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "M8", "m8"]
)
EXACT: Final[frozenset[type]] = NUMPY_SCALARS | {
    type(None), bool, int, float, complex, str, bytes, list, tuple, dict, np.ndarray,
    dt.datetime, dt.date, dt.timedelta, BFloat16, Bits, Words, Masked, StringArray, BytesArray,
}  # fmt: skip

_REMEDIES: dict[type, str] = {
    set: "send a sorted list",
    frozenset: "send a sorted list",
    bytearray: "send bytes(value)",
    memoryview: "send bytes(value), or np.frombuffer(value, np.uint8)",
    range: "send list(value), or np.arange",
    dt.time: "send value.isoformat()",
}
_DEFAULT_REMEDY = "send numbers, text, bytes, dates, NumPy arrays, and lists, tuples and dicts of them"


def known(value: object) -> Any:
    """Return ``value`` as one of the EXACT types.

    Subclasses of dict become dict (``OrderedDict``: a model's state), of ndarray (``memmap``) plain
    arrays, NumPy's own text scalars str and bytes, PyTorch tensors on the CPU NumPy arrays that share
    their memory. All other types that would come back as another type are refused.

    Raises:
        MessageError: the type cannot be sent.
    """
    kind = type(value)
    if kind in EXACT:
        return value
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, np.ndarray):
        if isinstance(
            value, np.ma.MaskedArray
        ):  # not looked up before, since the look-up makes NumPy load masked arrays
            raise _refused(kind, "send Masked(array.filled(0), np.ma.getmaskarray(array))")
        return np.asarray(value)
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "numpy"):
        return _from_torch(value)
    raise _refused(kind, _remedy(value))


def _numpy_scalar(value: np.generic) -> Any:
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if isinstance(value, np.void | np.object_):
        raise _refused(type(value), "send value.item()")
    # np.longlong and similar: another name for a known type.
    return np.asarray(value).astype(dtype_form(value.dtype).little)[()]


def _remedy(value: object) -> str:
    for kind, remedy in _REMEDIES.items():
        if isinstance(value, kind):
            return remedy
    if isinstance(value, Enum):
        return "send value.value"
    if isinstance(value, tuple):
        return "send value._asdict() or tuple(value)"
    if hasattr(value, "__dataclass_fields__"):
        return "send dataclasses.asdict(value)"
    if callable(value):
        return "send the name of the function and its arguments"
    return _DEFAULT_REMEDY


def _refused(kind: type, remedy: str) -> MessageError:
    return fault(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be sent", remedy)


def _from_torch(tensor: Any) -> Any:
    device = getattr(getattr(tensor, "device", None), "type", "cpu")
    if device != "cpu":
        raise fault(f"a tensor on device {device} cannot be sent", "send tensor.cpu()")
    try:
        if hasattr(tensor, "detach"):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":
            # The tensor exists, so its module is loaded; this never imports it.
            int16 = sys.modules["torch"].int16
            return BFloat16(np.asarray(tensor.contiguous().view(int16).numpy()).view(np.uint16))
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError, ValueError) as error:
        raise fault(
            f"NumPy cannot represent this tensor: {error}",
            "make it dense, of a NumPy dtype: tensor.to_dense().float()",
        ) from None


def offset_of(value: dt.datetime) -> dt.timedelta | None:
    """Return the offset from UTC of a datetime, None without a zone.

    Raises:
        MessageError: the zone object fails.
    """
    try:
        return value.utcoffset()
    except Exception as error:
        raise fault(
            f"the time zone of a datetime fails: {type(error).__name__}: {error}",
            "send value.astimezone(datetime.timezone.utc)",
        ) from None
