"""Hypothesis strategies for the values that Atoll sends: use them in property tests of your own parts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.core.message import BFloat16, Bits, BytesArray, Masked, StringArray, Words

__all__ = ["arrays", "containers", "keys", "leaves", "messages", "packed_arrays", "scalars", "texts"]

_SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
_DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(endianness="=", sizes=(64, 128)),
    hnp.datetime64_dtypes(endianness="="),
    hnp.timedelta64_dtypes(endianness="="),
    hnp.byte_string_dtypes(min_len=1, max_len=5),
    hnp.unicode_string_dtypes(endianness="=", min_len=1, max_len=5),
)
# Fixed-width text (other dtypes ignore this): characters that UTF-8 can hold.
_TEXT = {"alphabet": st.characters(codec="utf-8", exclude_characters="\0")}
_OFFSETS = st.timedeltas(dt.timedelta(hours=-23, minutes=-59), dt.timedelta(hours=23, minutes=59))


def texts(max_size: int = 20) -> st.SearchStrategy[str]:
    """Return Unicode texts, without the lone surrogates that UTF-8 cannot hold."""
    return st.text(st.characters(codec="utf-8"), max_size=max_size)


def keys() -> st.SearchStrategy[str]:
    """Return dict keys."""
    return texts(8)


def scalars() -> st.SearchStrategy[Any]:
    """Return every kind of leaf that is not an array, with non-finite floats and large integers."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**300), 2**300),
        st.floats(),
        st.complex_numbers(),
        texts(),
        texts(10).map(lambda text: text * 60),
        st.binary(max_size=20),
        st.binary(min_size=200, max_size=400),
        st.dates(),
        st.datetimes(),
        st.datetimes(timezones=_OFFSETS.map(dt.timezone)),
        st.timedeltas(),
        hnp.from_dtype(np.dtype("float32")),
        hnp.from_dtype(np.dtype("int64")),
        hnp.from_dtype(np.dtype("datetime64[ms]")),
    )


@st.composite
def arrays(draw: st.DrawFn, dtype: Any = None, shape: Any = None) -> np.ndarray[Any, Any]:
    """Return NumPy arrays: C and Fortran order, strided, both byte orders.

    Args:
        draw: given by Hypothesis.
        dtype: a dtype or a strategy of them; by default, every dtype that a message can hold.
        shape: a shape or a strategy of them; by default, up to three dimensions of 0 to 4.
    """
    kinds = _DTYPES if dtype is None else dtype
    array = draw(hnp.arrays(kinds, _SHAPES if shape is None else shape, elements=_TEXT))
    layout = draw(st.sampled_from(["C", "C", "F", "strided", "swapped"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided" and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if layout == "swapped":
        return array.astype(array.dtype.newbyteorder())
    return array


def packed_arrays() -> st.SearchStrategy[BFloat16 | Bits | Words]:
    """Return bfloat16 arrays of any bits, packed bit arrays and words of every length."""
    return st.one_of(
        hnp.arrays(np.uint16, _SHAPES).map(BFloat16),
        hnp.arrays(np.bool_, _SHAPES).map(Bits.pack),
        st.builds(Words.of, hnp.arrays(np.uint64, _SHAPES), st.integers(1, 64)),
    )


@st.composite
def _draw_masked(draw: st.DrawFn) -> Masked:
    values = draw(
        st.one_of(
            arrays(),
            hnp.arrays(np.uint16, _SHAPES).map(BFloat16),
            st.lists(texts(8), max_size=5).map(StringArray.from_values),
            st.lists(st.binary(max_size=8), max_size=5).map(BytesArray.from_values),
        )
    )
    return Masked(values, draw(hnp.arrays(np.bool_, values.shape)))


def leaves() -> st.SearchStrategy[Any]:
    """Return every kind of leaf that a message can hold."""
    return st.one_of(
        scalars(),
        arrays(),
        packed_arrays(),
        _draw_masked(),
        st.lists(texts(8), max_size=5).map(StringArray.from_values),
        st.lists(st.binary(max_size=8), max_size=6).map(
            lambda values: BytesArray.from_values(values[: len(values) // 2 * 2], (2, len(values) // 2))
        ),
    )


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return lists, tuples and dicts of ``children``."""
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(keys(), children, max_size=4),
    )


def messages(max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Return whole message trees."""
    return st.recursive(leaves(), containers, max_leaves=max_leaves)
