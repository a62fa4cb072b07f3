"""A schema takes what it describes and names the first place that differs."""

import datetime as dt

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from atoll.core.errors import ConfigError, MessageError
from atoll.core.message import (
    ArraySpec,
    BFloat16,
    Bits,
    BytesArray,
    Each,
    Masked,
    ScalarSpec,
    Schema,
    StringArray,
    decode,
    encode,
    equal,
)
from atoll.testing import strategies as some

FORM = {
    "update": {"w": ArraySpec("float32", (None, 3), finite=True), "b": ArraySpec("float32", (3,))},
    "n": ScalarSpec(int),
    "loss": ScalarSpec(float, finite=True),
    "pair": (ScalarSpec(str), ScalarSpec(type(None))),
    "parts": Each({"id": ScalarSpec(int)}, least=1, most=2),
    "names": ArraySpec("strings", nullable=True),
}


def good():
    return {
        "update": {"w": np.zeros((5, 3), np.float32), "b": np.full(3, np.nan, np.float32)},
        "n": 3,
        "loss": 0.5,
        "pair": ("a", None),
        "parts": [{"id": 1}],
        "names": Masked.from_values(["a", None]),
    }


def test_a_schema_takes_what_it_describes():
    schema = Schema(FORM)
    schema.check(good())
    schema.check(decode(encode(good())))
    schema.check({**good(), "names": StringArray.from_values(["a"])})
    schema.check(dict(reversed(good().items())))


@pytest.mark.parametrize(
    ("path", "value", "where", "match"),
    [
        (("update", "w"), np.zeros((5, 4), np.float32), "update/w", r"shape \(5, 4\), expected shape \(any, 3\)"),
        (("update", "w"), np.zeros(3, np.float32), "update/w", r"shape \(3\)"),
        (("update", "w"), np.zeros((5, 3)), "update/w", "array of float64, expected an array of float32"),
        (("update", "w"), 1.0, "update/w", "a float, expected an array of float32"),
        (("update", "w"), [1.0], "update/w", "a list, expected an array"),
        (("update", "w"), np.full((1, 3), np.inf, np.float32), "update/w", "not finite"),
        (("update", "w"), Masked(np.zeros((5, 3), np.float32), np.ones((5, 3), bool)), "update/w", "a Masked array"),
        (("update", "b"), BFloat16(np.zeros(3, np.uint16)), "update/b", "array of bfloat16"),
        (("update",), [1], "update", "a list, expected a dict with keys"),
        (("n",), True, "n", "a bool, expected a int"),
        (("n",), 3.0, "n", "a float, expected a int"),
        (("n",), np.int64(3), "n", "an array of int64, expected a int"),
        (("n",), {1}, "n", "set cannot be sent"),
        (("loss",), float("nan"), "loss", "not finite"),
        (("pair",), ["a", None], "pair", "a list of 2, expected a tuple of 2"),
        (("pair",), ("a",), "pair", "a tuple of 1, expected a tuple of 2"),
        (("pair",), ("a", 0), "pair[1]", "a int, expected a NoneType"),
        (("parts",), ({"id": 1},), "parts", "a tuple, expected a list"),
        (("parts",), [], "parts", "a list of 0, expected one of 1 to 2 items"),
        (("parts",), [{"id": 1}] * 3, "parts", "a list of 3"),
        (("parts",), [{"id": 1}, {"id": "x"}], "parts[1]/id", "a str, expected a int"),
        (("names",), Masked(np.zeros(2), np.zeros(2, bool)), "names", "array of float64, expected an array of strings"),
    ],
)
def test_the_first_place_that_differs_is_named(path, value, where, match):
    tree = good()
    inner = tree
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(MessageError, match=match) as caught:
        Schema(FORM).check(tree)
    assert caught.value.where == where
    assert caught.value.remedy


def test_keys_too_few_and_too_many():
    tree = good()
    tree["los"] = tree.pop("loss")
    with pytest.raises(MessageError, match=r"unexpected key 'los'.*Did you mean 'loss'"):
        Schema(FORM).check(tree)
    del tree["los"]
    with pytest.raises(MessageError, match="no key 'loss'"):
        Schema(FORM).check(tree)
    with pytest.raises(MessageError, match="dict key of type int"):
        Schema(FORM).check({**good(), 1: 2})


@given(some.messages())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_example_fits_its_own_schema(tree):
    schema = Schema.of(tree)
    schema.check(tree)
    schema.check(decode(encode(tree)))
    assert Schema.of(decode(encode(tree))) == schema


@given(some.messages(4), some.messages(4))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_schema_from_an_example_tells_forms_apart(a, b):
    """A tree fits the schema of another exactly where their schemas are equal (up to nullable and order)."""
    try:
        Schema.of(a).check(b)
    except MessageError:
        assert not equal(a, b)
        assert Schema.of(a) != Schema.of(b)


@pytest.mark.parametrize(
    "bad",
    [
        np.float32("nan"),
        np.array([1, np.inf]),
        np.array([1, np.nan]).repeat(2)[::2],
        np.array([complex(0, np.inf)]),
        np.array(["NaT"], "M8[s]"),
        BFloat16(np.array([0x7F80], np.uint16)),
        complex(0, float("inf")),
        -float("inf"),
    ],
)
def test_values_that_are_not_finite(bad):
    Schema.of([bad]).check([bad])
    with pytest.raises(MessageError, match="not finite") as caught:
        Schema.of([bad], finite=True).check([bad])
    assert caught.value.where == "[0]"


def test_finite_takes_every_finite_thing():
    tree = [1, 2.0, "a", np.arange(3), Bits.pack(np.ones(3, bool)), BytesArray.from_values([b"a"]), None]
    tree += [np.zeros(0), np.float64(1), dt.date(2020, 1, 1), BFloat16(np.array([0x7F7F], np.uint16))]
    tree += [Masked(np.array([np.nan, 1.0]), np.array([True, False]))]  # a null is no value
    Schema.of(tree, finite=True).check(tree)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ArraySpec("flaot32"), "'flaot32' is not a dtype"),
        (lambda: ArraySpec("object"), "'object' is not a dtype that can be sent"),
        (lambda: ScalarSpec(list), "not the type of a scalar leaf"),
        (lambda: Schema({"a": [1.0]}), r"a float is not a spec \(in Schema: a\[0\]\)"),
        (lambda: Schema({1: ScalarSpec(int)}), "dict key of type int"),
        (lambda: Schema(Each({"a": 3})), "a int is not a spec"),
    ],
)
def test_a_schema_that_makes_no_sense(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_a_schema_of_what_cannot_be_sent():
    with pytest.raises(MessageError, match=r"set cannot be sent \(in a\[0\]\)"):
        Schema.of({"a": [{1}]})
