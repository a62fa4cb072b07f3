"""The laws of messages: they come back, at the size foretold, and bad bytes are refused as such."""

import datetime as dt
import enum
import hashlib
import itertools
import struct
import subprocess
import sys
import tracemalloc
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError, MessageError
from atoll.core.message import (
    DEFAULT_LIMITS,
    BFloat16,
    Bits,
    Decoder,
    Limits,
    Masked,
    Words,
    decode,
    encode,
    encode_blocks,
    encode_chunks,
    equal,
    fingerprint,
    frame_message,
    nbytes,
    split_frames,
)
from atoll.testing import strategies as some

TREE = {
    "update": {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False])},
    "meta": [1, (-(2**70), None, 2.5), "naïve", b"\x00\xff", "x" * 300],
    "nulls": Masked.from_values(["a", None, "ß"]),
    "half": BFloat16(np.array([0x3F80], np.uint16)),
    "seen": Bits.pack(np.array([True, False, True])),
    "when": dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    "days": np.array(["2024-01-01", "NaT"], "M8[D]"),
    "loss": np.float32(0.5),
}
HEADER = struct.Struct("<4sHHQQ")


def stream(message, size, limits=DEFAULT_LIMITS):
    decoder = Decoder(limits)
    for start in range(0, len(message), size):
        decoder.feed(message[start : start + size])
    return decoder.result()


def message_of(header, body=b"", body_size=None, header_size=None, magic=b"ATOL", version=1):
    """Build a message by hand, as a hostile sender would."""
    size = len(body) if body_size is None else body_size
    start = HEADER.pack(magic, version, 0, header_size if header_size is not None else len(header), size) + header
    return start + (bytes(-len(start) % 64) if body else b"") + body


def refused(message, match, limits=DEFAULT_LIMITS):
    """Both decoders refuse it with the same words."""
    with pytest.raises(MessageError, match=match) as whole:
        decode(message, limits=limits)
    with pytest.raises(MessageError, match=match):
        stream(message, 7, limits)
    assert whole.value.where
    assert whole.value.remedy
    return whole.value


# Laws -----------------------------------------------------------------------------------------------


@given(some.messages())
@settings(deadline=None, max_examples=2 * settings.default.max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_comes_back_at_the_size_foretold(tree):
    message = encode(tree)
    assert nbytes(tree) == len(message)
    back = decode(message)
    assert equal(back, tree)
    assert fingerprint(back) == fingerprint(tree)
    assert encode(back) == message  # one encoding a tree (in one dict order)


@given(some.messages(), st.integers(1, 500), st.integers(1, 500))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_chunks_are_the_whole(tree, chunk_size, feed_size):
    message = encode(tree)
    chunks = [bytes(chunk) for chunk in encode_chunks(tree, chunk_size)]
    assert b"".join(chunks) == message
    assert all(1 <= len(chunk) <= chunk_size for chunk in chunks)
    assert equal(stream(message, feed_size), tree)
    blocks = [b"".join(parts) for parts in encode_blocks(tree, chunk_size)]
    assert blocks == [message[start : start + chunk_size] for start in range(0, len(message), chunk_size)]


@given(some.messages(), some.messages())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_equal_is_the_same_fingerprint(a, b):
    assert equal(a, a)
    assert equal(a, b) == (fingerprint(a) == fingerprint(b))


def types_of(value):
    """The exact types of a tree, which `equal` alone would not prove (it uses the encoder)."""
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value), [types_of(item) for item in value])
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.dtype.newbyteorder("="), value.shape)
    if isinstance(value, Masked):
        return (Masked, types_of(value.values))
    return (type(value), getattr(value, "shape", None))


def same_value(a, b):
    """Equality that does not go through the encoder."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_value(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, Masked):
        return same_value(a.values, b.values) and np.array_equal(a.mask, b.mask)
    if isinstance(a, Words):  # bits above the word are meaningless
        return a.bits == b.bits and np.array_equal(a.reduced(), b.reduced())
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b) if a.dtype.kind in "biuSU" else np.array_equal(a, b, equal_nan=True)
    if isinstance(a, float | complex | np.generic):
        return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fcmM"))
    return a == b


@given(some.messages())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_types_and_values_survive_by_an_independent_measure(tree):
    back = decode(encode(tree))
    assert types_of(back) == types_of(tree)
    assert same_value(tree, back)


def test_dict_order_travels_but_does_not_matter():
    one, other = {"a": 1, "b": [2]}, {"b": [2], "a": 1}
    assert list(decode(encode(other))) == ["b", "a"]
    assert equal(one, other)
    assert fingerprint(one) == fingerprint(other)


def test_equal_is_strict_in_type_and_lenient_in_nan():
    values = [0, 0.0, -0.0, False, None, "", b"", [], (), {}, np.int64(0), np.int32(0), np.array(0)]
    for a, b in itertools.combinations(values, 2):
        assert not equal(a, b), (a, b)
    quiet = np.array([0x7FC00000, 0xFFC12345], np.uint32).view(np.float32)
    assert equal(quiet[:1], quiet[1:])
    assert fingerprint({"x": quiet[0]}) == fingerprint({"x": quiet[1]})
    assert equal(complex(1, float("nan")), complex(1, -float("nan")))
    assert not equal(complex(1, float("nan")), complex(2, float("nan")))
    bits = np.array([0x7FC0, 0xFFC1, 0x7F80], np.uint16)
    assert equal(BFloat16(bits[:1]), BFloat16(bits[1:2]))
    assert not equal(BFloat16(bits[:1]), BFloat16(bits[2:]))


def test_nan_bits_and_signed_zeros_pass_untouched():
    words = np.array([0x7FC00001, 0xFF800000, 0x80000000], np.uint32)
    back = decode(encode(words.view(np.float32)))
    assert back.view(np.uint32).tolist() == words.tolist()


def test_the_wire_form_is_fixed():
    """A change of format must change the version: bytes written out by hand from the layout in wire.py."""
    head = b"\x17\x02\x00\x00\x00"  # a dict of two
    head += b"\x01\x00\x00\x00n" + b"\x03\x01\x00\x00\x00\x05"  # "n": int of one byte, 5
    head += b"\x01\x00\x00\x00w" + b"\x0f\x0b\x01" + struct.pack("<Q", 3)  # "w": array, float32, (3,)
    body = struct.pack("<3f", 1, 2, 3) + bytes(52)
    assert encode({"n": 5, "w": np.array([1, 2, 3], np.float32)}) == message_of(head, body)


def test_the_fingerprint_is_fixed():
    """BLAKE2b-256 of the canonical bytes above, keys sorted; computed from bytes built by hand."""
    head = b"\x17\x02\x00\x00\x00" + b"\x01\x00\x00\x00a\x02" + b"\x01\x00\x00\x00b\x00"
    expected = hashlib.blake2b(message_of(head), digest_size=32).hexdigest()
    assert fingerprint({"b": None, "a": True}) == expected


# Zero copy ------------------------------------------------------------------------------------------


def test_chunks_are_views_of_the_arrays():
    array = np.random.default_rng(0).random(100_000)
    views = [c for c in encode_chunks({"w": array}, 1 << 18) if isinstance(c, memoryview)]
    assert sum(view.nbytes for view in views) >= array.nbytes - (1 << 16)  # a short end is gathered
    assert all(np.shares_memory(np.frombuffer(view, np.uint8), array) for view in views)


def test_decoded_arrays_are_read_only_views_of_the_buffer():
    buffer = np.frombuffer(bytearray(encode(TREE)), np.uint8)
    back = decode(buffer)
    for leaf in (back["update"]["w"], back["half"].bits, back["seen"].packed, back["days"], back["nulls"].values.data):
        assert np.shares_memory(leaf, buffer)
        assert not leaf.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        back["update"]["w"][0] = 1


def test_a_copy_is_aligned_writable_and_independent():
    padded = b"\0" + encode(TREE)
    back = decode(memoryview(padded)[1:], copy=True)
    array = back["update"]["w"]
    assert array.ctypes.data % 64 == 0
    array[0] = 7
    assert decode(padded[1:])["update"]["w"][0, 0] == 0


def test_streamed_arrays_are_aligned_read_only_views_of_one_buffer():
    back = stream(encode({"a": np.ones(5), "b": np.ones(7, np.int8)}), 11)
    assert all(array.ctypes.data % 64 == 0 and not array.flags.writeable for array in back.values())
    assert back["b"].ctypes.data - back["a"].ctypes.data == 64


def test_encoding_in_chunks_allocates_almost_nothing():
    tree = {"w": np.zeros(4_000_000), "t": np.asfortranarray(np.zeros((500, 500)))}
    tracemalloc.start()
    total = sum(memoryview(chunk).nbytes for chunk in encode_chunks(tree))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == nbytes(tree)
    assert peak < 2 * tree["t"].nbytes + (1 << 20)  # one copy of the Fortran array, in chunks


# What is refused on the way out ---------------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Custom:
    pass


class Broken(dt.tzinfo):
    def utcoffset(self, when):
        raise RuntimeError("no zone")


@pytest.mark.parametrize(
    ("leaf", "match"),
    [
        ({1, 2}, "set.*sorted list"),
        (Custom(), "Custom cannot be sent.*numbers, text"),
        (Colour.RED, "Colour.*value.value"),
        (Point(1, 2), r"Point.*_asdict\(\)"),
        (bytearray(b"x"), r"bytearray.*bytes\(value\)"),
        (range(3), r"range.*list\(value\)"),
        (len, "name of the function"),
        (dt.time(1), "isoformat"),
        (np.array([1, "a", None], object), "dtype object.*StringArray.from_values"),
        (np.zeros(2, [("a", "f4")]), "one array for each field"),
        (np.zeros(2, np.longdouble), "astype"),
        (np.ma.array([1, 2], mask=[0, 1]), r"Masked\(array.filled"),
        (np.void(b"x"), "void.*item"),
        (np.longdouble(1), "float128|float64"),
        (Masked(np.array([1, 2], object), np.zeros(2, bool)), "dtype object"),
        ("\ud800", "not Unicode"),
        (np.array(["\ud800"]), "not Unicode"),
        pytest.param(2**70_000, "70001 bits.*max_int_bits", id="int"),
        (dt.datetime(2020, 1, 1, tzinfo=Broken()), "time zone.*no zone"),
    ],
)
def test_a_leaf_that_cannot_be_sent_is_named(leaf, match):
    with pytest.raises(MessageError, match=match) as caught:
        encode({"update": {"layer1": [0, 1, 2, leaf]}})
    assert caught.value.where == "update/layer1[3]"


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 has at most 32 dimensions")
def test_more_dimensions_than_the_oldest_numpy_has_are_refused():
    assert decode(encode(np.zeros((1,) * 32))).ndim == 32
    with pytest.raises(MessageError, match="33 dimensions, above 32"):
        encode(np.zeros((1,) * 33))


@pytest.mark.parametrize("leaf", [{1, 2}, Custom(), np.array([None]), np.zeros(1, np.longdouble), "\ud800"])
def test_nbytes_refuses_with_the_same_place(leaf):
    with pytest.raises(MessageError, match=r"cannot be sent|not Unicode") as caught:
        nbytes(({"a": [leaf]},))
    assert caught.value.where == "[0]/a[0]"


@pytest.mark.parametrize("measure", [encode, nbytes, fingerprint])
@pytest.mark.parametrize("key", [1, None, b"a", ("a",), 1.5, Colour.RED])
def test_keys_that_are_not_str_are_refused(measure, key):
    with pytest.raises(MessageError, match=r"dict key of type .*convert the keys"):
        measure({"ok": {key: 1}})


@pytest.mark.parametrize("measure", [encode, nbytes])
def test_a_tree_that_contains_itself_is_refused(measure):
    loop = []
    loop.append(loop)
    with pytest.raises(MessageError, match=r"nested more than 64 deep.*contain itself"):
        measure(loop)


def test_the_root_has_a_name():
    with pytest.raises(MessageError, match=r"set cannot be sent \(in the root of the message\)"):
        encode({1})


@pytest.mark.parametrize(
    ("limits", "tree", "match"),
    [
        (Limits(max_bytes=1000), np.zeros(1000), "max_bytes=1000"),
        (Limits(max_header_bytes=50), list(range(20)), "max_header_bytes=50"),
        (Limits(max_depth=2), [[[1]]], "nested more than 2 deep"),
        (Limits(max_leaves=5), list(range(5)), "more than 5 leaves"),
        (Limits(max_int_bits=8), 256, "9 bits, above 8|2 bytes, above 8 bits"),
        (Limits(max_key_bytes=3), {"abcd": 1}, "key of 4 bytes, above 3"),
        (Limits(max_text_bytes=10), ["abcdef", "abcdef"], "more than 10 bytes"),
        (Limits(max_text_bytes=999), ["é" * 500], "more than 999 bytes"),
    ],
)
def test_every_limit_holds_both_ways(limits, tree, match):
    with pytest.raises(MessageError, match=match):
        encode(tree, limits=limits)
    refused(encode(tree), match, limits)


@given(some.messages(4))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_limits_let_out_they_let_in(tree):
    limits = Limits(max_bytes=1500, max_header_bytes=300, max_depth=2, max_leaves=6, max_int_bits=64, max_text_bytes=40)
    try:
        message = encode(tree, limits=limits)
    except MessageError:
        refused(encode(tree), ".", limits)
    else:
        assert equal(stream(message, 50, limits), tree)


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"max_depth": 201}, {"max_leaves": 1.5}, {"max_int_bits": True}])
def test_limits_that_make_no_sense(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Limits(**wrong)


@pytest.mark.parametrize("size", [0, -1])
def test_chunks_have_a_size(size):
    with pytest.raises(ConfigError, match="chunk_size"):
        encode_chunks(1, size)
    with pytest.raises(ConfigError, match="size is"):
        encode_blocks(1, size)


# What comes near a type ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        ["client-1", "client-22", "", "x"],
        ["client-1", "b", "c", "ü"],
        ["a", "b", "c", "d" * 5000, "e"],
        [-128, 127, 0, 1],
        [-127, 126, 0, 1],
        [1 << 70, -(1 << 15), 3, 255, 256],
        [True, 1, 2, 3],
        [np.str_("a"), "b", "c", "d"],
        [1, 2.0, 3, 4],
    ],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_of_names_and_of_numbers_are_measured_right(items, kind):
    assert nbytes({"a": kind(items), "b": [kind(items)]}) == len(encode({"a": kind(items), "b": [kind(items)]}))


def test_near_misses_become_what_they_stand_for():
    for value, plain in [
        (OrderedDict(a=1), {"a": 1}),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        ({np.str_("k"): 1}, {"k": 1}),
        (np.longlong(3), np.int64(3)),
        (np.array([3], np.longlong), np.array([3], np.int64)),
    ]:
        back = decode(encode(value))
        assert nbytes(value) == len(encode(value))
        assert equal(back, plain)
        assert types_of(back) == types_of(plain)


def test_a_memory_map_is_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "x.bin", np.int16, "w+", shape=(4,))
    mapped[:] = [1, 2, 3, 4]
    assert decode(encode(mapped)).tolist() == [1, 2, 3, 4]


def test_a_zone_is_kept_as_its_offset():
    class Summer(dt.tzinfo):
        def utcoffset(self, when):
            return dt.timedelta(hours=2)

    back = decode(encode(dt.datetime(2024, 7, 1, 12, tzinfo=Summer())))
    assert back == dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC)
    assert back.utcoffset() == dt.timedelta(hours=2)


def test_tensors_travel_without_an_import_of_torch():
    torch = pytest.importorskip("torch")
    dense = torch.arange(6.0).reshape(2, 3).requires_grad_()
    back = decode(encode([dense, torch.nn.Parameter(dense.detach().T), dense.detach().to(torch.complex64).conj()]))
    assert types_of(back[0]) == (np.ndarray, np.dtype("f4"), (2, 3))
    assert back[1].tolist() == dense.T.tolist()
    half = torch.tensor([1.0, 3.14159, float("inf")]).bfloat16()
    assert decode(encode(half)).to_float32().tolist() == half.float().tolist()
    assert nbytes({"w": dense}) == len(encode({"w": dense}))
    with pytest.raises(MessageError, match=r"NumPy cannot represent.*to_dense"):
        encode(torch.eye(2).to_sparse())
    with pytest.raises(MessageError, match=r"device meta.*tensor\.cpu"):
        encode(torch.empty(2, device="meta"))


# What is refused on the way in -----------------------------------------------------------------------

NAMED = b"\x17\x01\x00\x00\x00\x04\x00\x00\x00leaf"  # {"leaf": …}
Q = struct.Struct("<Q").pack
DIMS = b"\x0f\x0b"  # an array of float32


@pytest.mark.parametrize(
    ("node", "body", "match"),
    [
        (b"\xff", b"", "unknown tag 255"),
        (b"\x03\x00\x00\x00\x00", b"", "int not written"),
        (b"\x03\x02\x00\x00\x00\x05\x00", b"", "int not written"),
        (b"\x03\xff\xff\xff\xff\x05", b"", "4294967295 bytes, above"),
        (b"\x03\x04\x00\x00\x00\x05", b"", "header ends 3 bytes too soon"),
        (b"\x04\x00", b"", "header ends 7 bytes too soon"),
        (b"\x06\x02\x00\x00\x00\xc3\x28", b"", "not UTF-8"),
        (b"\x06\x03\x00\x00\x00\xed\xa0\x80", b"", "not UTF-8"),
        (b"\x06\x01\x01\x00\x00" + b"a" * 257, b"", "257 bytes of text or bytes in the header"),
        (b"\x08" + Q(10), bytes(64), "10 bytes of text or bytes in the body"),
        (b"\x09" + Q(2**63), bytes(64), "buffer of 9223372036854775808 bytes with 64 bytes"),
        (b"\x09" + Q(300), b"\1" * 320, "padding that is not zero"),
        (b"\x0a\x00\x00\x00\x00", b"", "day 0"),
        (b"\x0a\xff\xff\xff\xff", b"", "outside the calendar"),
        (b"\x0b" + Q(2**64 - 1) + b"\0", b"", "outside the calendar"),
        (b"\x0b" + Q(1) + b"\2", b"", "fold 2"),
        (b"\x0c" + Q(1) + Q(86_400_000_000), b"", "offset from UTC"),
        (b"\x0d" + struct.pack("<iii", 10**9, 0, 0), b"", "timedelta out of range"),
        (b"\x0d" + struct.pack("<iii", 0, -1, 0), b"", "timedelta out of range"),
        (b"\x0e\x01\x02", b"", "bool of value 2"),
        (b"\x0e\x22\x01\x00\x00\x00a", b"", "NumPy scalar of dtype"),
        (b"\x0f\x63\x00", b"", "unknown dtype code 99"),
        (b"\x0f\x00\x00", b"", "unknown dtype code 0"),
        (b"\x0f\x20\x63\x01\x00\x00\x00\x00", b"", "time unit code 99"),
        (b"\x0f\x20\x05\x00\x00\x00\x00\x00", b"", "with multiplier 0"),
        (b"\x0f\x20\x05\xff\xff\xff\xff\x00", b"", "with multiplier 4294967295"),
        (b"\x0f\x20\x00\x02\x00\x00\x00\x00", b"", "unit code 0 with multiplier 2"),
        (b"\x0f\x23\x00\x00\x00\x00\x00", b"", "width 0"),
        (b"\x0f\x23\xff\xff\xff\xff\x00", b"", "width 4294967295"),
        (DIMS + b"\x21", b"", "33 dimensions"),
        (DIMS + b"\x01" + Q(17), bytes(64), "buffer of 68 bytes with 64 bytes of body left"),
        (DIMS + b"\x01" + Q(2**64 - 1), bytes(64), "beyond what can be addressed"),  # -1 as uint64
        (DIMS + b"\x02" + Q(2**33) * 2, bytes(64), "beyond what can be addressed"),
        (DIMS + b"\x03" + Q(0) + Q(2**62) * 2, b"", "beyond what can be addressed"),
        (DIMS + b"\x02" + Q(2**32) * 2, bytes(64), "beyond what can be addressed"),  # 0 modulo 2**64
        (DIMS + b"\x01" + Q(3), b"\0" * 63 + b"\1", "padding that is not zero"),
        (DIMS + b"\x01" + Q(3), bytes(128), "64 bytes of body that no leaf uses"),
        (DIMS + b"\x00", b"", "buffer of 4 bytes with 0 bytes"),
        (b"\x0f\x01\x01" + Q(2), b"\1\2" + bytes(62), "values other than 0 and 1"),
        (b"\x0f\x23\x01\x00\x00\x00\x00", b"\x00\x00\x11\x00" + bytes(60), "code points"),
        (b"\x0f\x23\x01\x00\x00\x00\x00", b"\x00\xd8\x00\x00" + bytes(60), "code points"),
        (b"\x10\x01" + Q(1) + Q(2), Q(0) + Q(1) + bytes(48) + b"ab" + bytes(62), "offsets do not fit"),
        (b"\x10\x01" + Q(1) + Q(2), Q(1) + Q(2) + bytes(48) + b"ab" + bytes(62), "offsets do not fit"),
        (b"\x10\x01" + Q(2) + Q(2), Q(0) + Q(9) + Q(2) + bytes(40) + b"ab" + bytes(62), "offsets fall"),
        (b"\x10\x01" + Q(1) + Q(2), Q(0) + Q(2) + bytes(48) + b"\xc3(" + bytes(62), "not UTF-8"),
        (b"\x10\x01" + Q(1) + Q(1), Q(0) + Q(1) + bytes(48) + b"\xc3" + bytes(63), "not UTF-8"),
        (b"\x10\x01" + Q(2) + Q(2), Q(0) + Q(1) + Q(2) + bytes(40) + "é".encode() + bytes(62), "inside a character"),
        (b"\x11\x01" + Q(2**62) + Q(0), bytes(64), "beyond what can be addressed"),
        (b"\x11\x01" + Q(2**59) + Q(0), bytes(64), "buffer of 4611686018427387912 bytes"),
        (b"\x13\x01" + Q(3), b"\x08" + bytes(63), "bits are set past"),
        (b"\x13\x01" + Q(2**62), bytes(64), "buffer of 576460752303423488 bytes"),
        (b"\x14\x00", b"", "null mask on a node of tag 0"),
        (b"\x14\x13\x01" + Q(3), bytes(128), "null mask on a node of tag 19"),
        (b"\x14\x14\x0f\x0b\x00", b"", "null mask on a node of tag 20"),
        (b"\x14\x0f\x0b\x01" + Q(3), bytes(64), "buffer of 1 bytes with 0 bytes of body left"),
        (b"\x14\x0f\x0b\x01" + Q(3), b"\1" * 12 + bytes(52) + b"\1" + bytes(63), "values in null slots"),
        (b"\x14\x0f\x0b\x01" + Q(3), bytes(64) + b"\x08" + bytes(63), "bits are set past"),
        (b"\x15\xff\xff\xff\xff", b"", "4294967295 items in 0 bytes"),
        (b"\x17\xff\xff\xff\xff" + bytes(20), b"", "4294967295 items in 20 bytes"),
        (b"\x17\x02\x00\x00\x00" + b"\x01\x00\x00\x00a\x00" * 2, b"", "key that occurs twice"),
        (b"\x17\x01\x00\x00\x00" + b"\x01\x00\x00\x00\xff\x00", b"", "not UTF-8"),
        (b"\x17\x01\x00\x00\x00\xff\xff\xff\xff\x00", b"", "key of 4294967295 bytes"),
        (b"\x15\x01\x00\x00\x00" * 70 + b"\x00", b"", "nested more than 64 deep"),
        (b"\x00\x00", b"", "1 bytes of header after the tree"),
    ],
)
def test_hostile_nodes_are_refused_with_their_place(node, body, match):
    error = refused(message_of(NAMED + node, body), match)
    after_the_tree = ("after the tree", "no leaf uses")
    assert error.where.startswith("leaf") or any(text in error.what for text in after_the_tree)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (b"", "ends after 0 bytes, before the end of its prologue"),
        (b"ATOL", "ends after 4 bytes"),
        (message_of(b"\0", magic=b"PK\3\4"), "begins with b'PK"),
        (message_of(b"\0", version=2), "version 2"),
        (message_of(b"\0")[:6] + b"\1\0" + message_of(b"\0")[8:], "flags 1"),
        (message_of(b"\0", header_size=2**64 - 1), "max_header_bytes"),
        (message_of(b"\0", body_size=2**64 - 64), "max_bytes"),
        (message_of(b"\0", bytes(63)), "not a multiple of 64"),
        (message_of(b"\0", header_size=2), "ends after 25 of 26 bytes"),
        (message_of(b"\0") + b"\0", "1 bytes follow the 25 bytes"),
        (message_of(b"", header_size=0), "header ends 1 bytes too soon"),
    ],
)
def test_hostile_frames_are_refused(message, match):
    refused(message, match)


def test_padding_before_the_body_is_zero():
    message = bytearray(encode(np.zeros(3)))
    message[63] = 1
    refused(message, "padding that is not zero")


def test_a_hostile_key_does_not_reach_the_log_as_it_is():
    key = "\n\x1b[2J" + "a" * 500
    error = refused(message_of(b"\x17\1\0\0\0" + struct.pack("<I", len(key)) + key.encode() + b"\xff"), "unknown tag")
    assert error.where.isprintable()
    assert len(error.where) < 80


@pytest.mark.parametrize("wrong", ["text", 5, None, np.zeros((2, 2))[:, 0], [b"a"]])
def test_only_bytes_are_decoded(wrong):
    with pytest.raises(MessageError, match="contiguous bytes-like"):
        decode(wrong)
    with pytest.raises(MessageError, match="contiguous bytes-like"):
        Decoder().feed(wrong)


def test_a_file_of_several_messages_is_taken_apart_at_every_end():
    parts = [encode({"a": 1}), b"", encode([np.arange(5)])]
    content = b"".join(map(frame_message, parts))
    assert split_frames(content) == parts
    ends = {0, len(content), *(len(b"".join(map(frame_message, parts[:k]))) for k in (1, 2))}
    for size in range(len(content)):
        if size not in ends:
            with pytest.raises(MessageError, match=f"a file of {size} bytes ends within the message"):
                split_frames(content[:size])


def test_truncation_at_every_byte_is_said_clearly():
    message = encode(TREE)
    for size in range(len(message)):
        with pytest.raises(MessageError, match="ends after"):
            decode(message[:size])
        decoder = Decoder()
        decoder.feed(message[:size])
        assert not decoder.done
        with pytest.raises(MessageError, match=f"ends after {size} "):
            decoder.result()


def test_a_decoder_tells_how_far_it_is_and_stays_refused():
    message = encode(TREE)
    decoder = Decoder()
    decoder.feed(message[:10])
    assert (decoder.received, decoder.declared, decoder.done) == (10, None, False)
    decoder.feed(message[10:])
    assert (decoder.received, decoder.declared, decoder.done) == (len(message), len(message), True)
    with pytest.raises(MessageError, match="1 bytes follow"):
        decoder.feed(b"x")
    for call in (decoder.result, lambda: decoder.feed(b"")):
        with pytest.raises(MessageError, match="1 bytes follow"):
            call()


# Fuzz ------------------------------------------------------------------------------------------------


def survives(message):
    """Decoding returns a tree that can be sent again, or raises MessageError; nothing else."""
    try:
        tree = decode(message)
    except MessageError:
        refused(message, ".")
    else:
        assert encode(tree) == bytes(message)
        assert equal(stream(message, 64), tree)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=2 * settings.default.max_examples)
def test_random_bytes_are_survived(data):
    survives(data)


@given(st.binary(max_size=80), st.integers(0, 3))
@settings(deadline=None, max_examples=4 * settings.default.max_examples)
@example(b"\x15\x00\x00\x00\x00", 0)
def test_random_headers_are_survived(head, lines):
    survives(message_of(head, bytes(64 * lines)))


@given(some.messages(), st.data())
@settings(deadline=None, max_examples=3 * settings.default.max_examples, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_messages_are_survived(tree, data):
    message = bytearray(encode(tree))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message) - 1))
        kind = data.draw(st.sampled_from(["flip", "set", "delete", "insert", "splice"]))
        if kind == "flip":
            message[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "set":
            message[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == "delete" and len(message) > 1:
            del message[at]
        elif kind == "insert":
            message.insert(at, data.draw(st.integers(0, 255)))
        else:
            start = data.draw(st.integers(0, len(message) - 1))
            part = message[start : start + 16]
            message[at : at + len(part)] = part
    survives(message)


def test_every_byte_flip_of_a_message_is_survived():
    """Four ways each; one of them inside a run of equal bytes (a long text, padding), whose bytes are read alike."""
    message = bytearray(encode(TREE))
    for at in range(len(message)):
        before = message[at]
        inside = len(set(message[at - 1 : at + 2])) == 1 and 0 < at < len(message) - 1
        values = {before ^ 0x80} if inside else {before ^ 0x01, before ^ 0x80, 0x00, 0xFF} - {before}
        for message[at] in sorted(values):
            survives(message)
        message[at] = before


# Memory ----------------------------------------------------------------------------------------------


def peak_of(call):
    tracemalloc.start()
    try:
        with pytest.raises(MessageError, match=r"."):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "message",
    [
        message_of(b"", header_size=60 << 20),
        message_of(b"", header_size=2**40),
        message_of(b"\0", body_size=1 << 33),  # a body that no leaf uses
        message_of(b"\x09" + Q(1 << 40), body_size=1 << 40),
        message_of(b"\x15\xff\xff\xff\xff"),
        message_of(b"\x03\xff\xff\xff\xff"),
        message_of(b"\x06\xff\xff\xff\xff"),
        message_of(b"\x17\x01\x00\x00\x00\xff\xff\xff\x7f"),
        message_of(DIMS + b"\x01" + Q(2**60), body_size=64),
        message_of(b"\x0f\x23\xff\xff\xff\x1f\x01" + Q(1), body_size=64),
        message_of(b"\x13\x01" + Q(2**40), body_size=64),
        message_of(b"\x14\x13\x01" + Q(2**40), body_size=64),
        message_of(b"\x10\x01" + Q(2**32) + Q(2**32), body_size=64),
    ],
)
def test_a_hostile_declaration_allocates_nothing(message):
    assert peak_of(lambda: decode(message)) < 100_000
    assert peak_of(lambda: stream(message, 64)) < 100_000


def test_leaves_without_bytes_are_bounded():
    limits = Limits(max_leaves=1000)
    flood = message_of(b"\x15\x00\x00\x10\x00" + bytes(1 << 20))
    assert peak_of(lambda: decode(flood, limits=limits)) < 200_000


def test_a_stream_takes_its_declared_size_once():
    message = encode({"w": np.zeros(1_000_000)})
    tracemalloc.start()
    decoder = Decoder()
    for start in range(0, len(message), 1 << 16):
        decoder.feed(memoryview(message)[start : start + (1 << 16)])
    tree = decoder.result()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tree["w"].shape == (1_000_000,)
    assert peak < len(message) + 100_000


def test_no_memory_is_a_message_error(monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr("atoll.core.message.decoder.np.empty", exhausted)
    with pytest.raises(MessageError, match="no memory for a message of"):
        Decoder().feed(encode(TREE))


@pytest.mark.network
def test_the_package_brings_in_numpy_alone():
    code = "import sys, atoll.core.message; print([m for m in ('torch', 'hypothesis', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
