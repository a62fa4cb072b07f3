"""Arrays that NumPy has no dtype for: bfloat16, packed bits, text of any length, nulls."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.core.errors import MessageError
from atoll.core.message import BFloat16, Bits, BytesArray, Masked, StringArray, decode, encode
from atoll.testing import strategies as some

SINGLE = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0, min_side=0)).map(lambda bits: bits.view(np.float32))


@given(SINGLE)
def test_bfloat16_is_the_nearest_even_neighbour(values):
    """Oracle: of the two bfloat16 around a float32, in exact float64 arithmetic, take the nearer."""
    rounded = BFloat16.from_float32(values).to_float32().ravel()
    for value, found in zip(values.ravel(), rounded, strict=True):
        if np.isnan(value):
            assert np.isnan(found)
            continue
        down = int(value.view(np.uint32)) >> 16  # towards zero
        up = down + 1
        low, high = (_as_float64(bits) for bits in (down, up))
        middle = (low + high) / 2
        if float(value) == middle:
            expected = down if down % 2 == 0 else up
        else:
            expected = down if abs(float(value)) < abs(middle) else up
        assert int(found.view(np.uint32)) >> 16 == expected


def _as_float64(bits):
    """The value of bfloat16 bits; for an infinity the next power of two, where rounding decides."""
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent, fraction = (bits >> 7) & 0xFF, bits & 0x7F
    if exponent == 0:
        return sign * fraction * 2.0**-133
    return sign * (128 + fraction) * 2.0 ** (exponent - 134)


def test_bfloat16_agrees_with_torch_on_every_upper_half():
    torch = pytest.importorskip("torch")
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for lower in (0x0000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | lower).view(np.float32)
        with np.errstate(invalid="ignore"):
            expected = torch.from_numpy(values).bfloat16().float().numpy()
        np.testing.assert_array_equal(BFloat16.from_float32(values).to_float32(), expected)


@given(hnp.arrays(np.uint16, hnp.array_shapes(min_dims=0, min_side=0)))
def test_bfloat16_survives_float32(bits):
    there = BFloat16(bits).to_float32()
    assert there.shape == bits.shape
    back = BFloat16.from_float32(there).bits
    number = ~np.isnan(there)
    assert np.array_equal(back[number], bits[number])
    assert np.isnan(BFloat16(back).to_float32()[~number]).all()


@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=0, min_side=0)))
def test_bits_unpack_to_what_was_packed(values):
    bits = Bits.pack(values)
    assert bits.packed.nbytes == (values.size + 7) // 8
    unpacked = bits.unpack()
    assert unpacked.dtype == np.bool_
    assert unpacked.shape == values.shape
    assert np.array_equal(unpacked, values)


def test_bits_begin_with_the_lowest():
    assert Bits.pack(np.array([1, 0, 0, 0, 0, 0, 0, 0, 0, 1], bool)).packed.tolist() == [1, 2]


@given(st.lists(some.texts()))
def test_string_arrays_hold_their_texts(values):
    array = StringArray.from_values(values)
    assert array.tolist() == values
    assert array.to_numpy().tolist() == values
    assert [array[i] for i in range(len(array))] == values
    assert len(array) == len(values)
    assert decode(encode(array)) == array


@given(st.lists(st.binary()))
def test_bytes_arrays_hold_their_bytes(values):
    array = BytesArray.from_values(values)
    assert array.tolist() == values
    assert decode(encode(array)) == array
    assert array.lengths().tolist() == [len(value) for value in values]


def test_text_arrays_have_shapes():
    array = StringArray.from_values(["a", "", "ccc", "dd"], (2, 2))
    assert array.to_numpy().tolist() == [["a", ""], ["ccc", "dd"]]
    assert array[-1] == "dd"
    with pytest.raises(IndexError, match="index 4 in StringArray of 4"):
        array[4]


@given(st.lists(st.none() | some.texts(5)), st.lists(st.none() | st.binary(max_size=5)))
def test_nulls_come_back_as_none(texts, raw):
    assert decode(encode(Masked.from_values(texts))).tolist() == texts
    assert decode(encode(Masked.from_values(raw))).tolist() == raw


SECRET = 123456789


@pytest.mark.parametrize(
    "values",
    [
        np.array([1, SECRET, 3]),
        np.array([1, SECRET, 3], np.float64),
        np.array(["a", str(SECRET), "c"]),
        StringArray.from_values(["a", str(SECRET), "c"]),
        BytesArray.from_values([b"a", str(SECRET).encode(), b"c"]),
        BFloat16.from_float32(np.array([1, SECRET, 3], np.float32)),
    ],
)
def test_what_a_null_covers_does_not_leave(values):
    masked = Masked(values, np.array([False, True, False]))
    plain = masked.tolist()
    assert plain[1] is None
    assert plain[0] == Masked(values, np.zeros(3, bool)).tolist()[0]
    message = encode(masked)
    for leak in (
        str(SECRET).encode(),
        str(SECRET).encode("utf-32-le"),
        np.int64(SECRET).tobytes(),
        np.float64(SECRET).tobytes(),
    ):
        assert leak not in message
    assert decode(message).tolist() == masked.tolist()
    if isinstance(values, np.ndarray):
        assert str(values[1]).startswith(str(SECRET))  # the caller's array is as it was


def test_masking_does_not_copy_what_is_clean():
    values = np.array([1, 0, 3])
    masked = Masked(values, np.array([False, True, False]))
    assert np.shares_memory(masked.values, values)
    assert masked.shape == (3,)


def test_these_values_cannot_be_written_through():
    bits = BFloat16(np.zeros(2, np.uint16))
    with pytest.raises(ValueError, match="read-only"):
        bits.bits[0] = 1
    with pytest.raises(AttributeError, match="cannot assign"):
        bits.bits = None


def test_these_values_copy_and_compare():
    for value in (
        BFloat16(np.zeros(2, np.uint16)),
        Bits.pack(np.ones(3, bool)),
        StringArray.from_values(["a"]),
    ):
        assert copy.deepcopy(value) == value
        assert value != 3
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)
    assert StringArray.from_values(["a"]) != BytesArray.from_values([b"a"])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: BFloat16(np.zeros(2, np.int16)), "array of uint16, found an array of int16"),
        (lambda: BFloat16.from_float32(np.zeros(2)), r"float32, found an array of float64.*astype\(np.float32\)"),
        (lambda: BFloat16.from_float32([1.0]), "float32, found .*list"),
        (lambda: Bits.pack(np.zeros(2)), "array of bool, found an array of float64"),
        (lambda: Bits(np.zeros(2, np.uint8), (3,)), r"\(2,\) packed bytes for a boolean array of shape \(3,\)"),
        (lambda: Bits(np.zeros(0, np.uint8), (-1, 0)), "packed bytes"),
        (lambda: Bits(np.array([8], np.uint8), (3,)), "bits are set past"),
        (lambda: StringArray.from_values(["a", 1]), "int at position 1, str expected.*convert it"),
        (lambda: StringArray.from_values(["a", None]), "NoneType at position 1.*Masked.from_values"),
        (lambda: StringArray.from_values(["\ud800"]), "text at position 0 is not Unicode.*BytesArray"),
        (lambda: StringArray.from_values(["a"], (2,)), r"offsets do not fit shape \(2,\)"),
        (lambda: BytesArray.from_values(["a"]), "str at position 0, bytes expected"),
        (lambda: BytesArray(np.zeros(0, np.int64), np.zeros(0, np.uint8)), "offsets do not fit"),
        (lambda: Masked([1, 2], np.zeros(2, bool)), "list cannot have a null mask"),
        (lambda: Masked(np.zeros(2), np.zeros(3, bool)), r"mask of shape \(3,\) for values of shape \(2,\)"),
        (lambda: Masked(np.zeros(2), np.zeros(2, np.int8)), "array of bool, found an array of int8"),
    ],
)
def test_bad_arrays_are_refused(call, match):
    with pytest.raises(MessageError, match=match):
        call()
