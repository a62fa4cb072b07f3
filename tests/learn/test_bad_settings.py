"""Every setting of every algorithm refuses, when it is made, what is not of its kind: broken counts, text, and what is no number."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from atoll.algorithms import DIANA, FedAC, FedAQ, FedAvg, FedProx, Upcycled
from atoll.core.errors import ConfigError
from atoll.learn.catalogue import example, kinds

WRONG = {"int": (1.5, "3", True), "float": (math.nan, "0.1", None, True), "bool": (1, "no"), "str": (3, None)}
CASES = [
    (name, field.name, value)
    for name, kind in kinds().items()
    for field in fields(kind)
    if field.init
    for word in (str(field.type).removesuffix(" | None"),)
    for value in WRONG.get(word, ())
    if value is not None or not str(field.type).endswith("None")
]


def test_the_table_covers_the_catalogue():
    assert len(CASES) > 800
    assert len({name for name, *_ in CASES}) > 55


@pytest.mark.parametrize("name", sorted(kinds()))
def test_a_setting_of_another_kind(name):
    made = example(kinds()[name])
    for field, value in [case[1:] for case in CASES if case[0] == name]:
        with pytest.raises(ConfigError, match=field):
            replace(made, **{field: value})


@pytest.mark.parametrize("base", [None, FedAvg, "FedAvg", 3])
def test_a_wrapper_needs_an_algorithm(base):
    with pytest.raises(ConfigError, match=r"base=.* give it an algorithm"):
        Upcycled(base=base, coefficient=0.5)


@pytest.mark.parametrize("kind", [FedAC, FedAQ])
@pytest.mark.parametrize("bad", [0, -1.0, math.inf])
def test_a_smoothness_that_is_none(kind, bad):
    with pytest.raises(ConfigError, match="smoothness"):
        replace(example(kind), smoothness=bad)


def test_numbers_may_be_whole_and_of_numpy():
    assert FedProx(mu=1, lr=np.float32(0.5), epochs=np.int64(2)).mu == 1
    assert DIANA(lr=1).lr == 1
