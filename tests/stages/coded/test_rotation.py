"""Random rotation: orthogonal, undone on sums, flat, and the same as a matrix written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.rng import Rng
from atoll.core.requests.chain import Chain
from atoll.core.requests.stage import StageContext
from atoll.stages import Clip, GaussianNoise, Rotation
from atoll.stages.coded.rotation import bound_entry
from atoll.testing import check_stage


def rotated(vector, key=5):
    return Rotation().encode({"x": vector}, StageContext.of(Rng(0), key))["x"]


def test_it_keeps_what_it_declares():
    check_stage(Rotation(), tolerance=2e-5)


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_it_is_orthogonal_for_every_number_of_entries(size, key):
    """Rows of the identity become the matrix; its product with its transpose is the identity again."""
    identity = {"x": np.eye(size)}
    matrix = Rotation().encode_block(identity, StageContext(key, np.zeros(size, dtype=np.uint64)))["x"]
    assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-12
    back = Rotation().decode_block({"x": matrix}, key)["x"]
    assert np.abs(back - np.eye(size)).max() < 1e-12


@pytest.mark.parametrize("size", [2, 8, 12, 31])
def test_it_is_the_transform_written_out(size):
    """Oracle: Sylvester's matrices built by doubling, signs read off a vector of ones."""
    length = 1 << (size.bit_length() - 1)
    sylvester = np.ones((1, 1))
    while len(sylvester) < length:
        sylvester = np.kron([[1, 1], [1, -1]], sylvester)
    sylvester /= math.sqrt(length)
    matrix = Rotation().encode_block({"x": np.eye(size)}, StageContext(5, np.zeros(size, dtype=np.uint64)))["x"].T
    if length == size:
        signs = matrix[0] * math.sqrt(length)
        assert np.allclose(matrix, sylvester * signs)
    else:
        last = np.eye(size)
        last[size - length :, size - length :] = sylvester
        inner = last.T @ matrix  # D_2 H_1 D_1
        first = np.eye(size)
        first[:length, :length] = sylvester
        assert np.allclose(np.abs(inner), np.abs(first))
    assert np.allclose(np.abs(sylvester), 1 / math.sqrt(length))


def test_a_spike_is_spread_and_entries_stay_below_their_bound():
    size, worst = 1000, 0.0
    for key in range(300):
        spike = np.zeros(size)
        spike[key] = 1.0
        dense = np.sign(np.sin(np.arange(size) + key)) / math.sqrt(size)
        worst = max(worst, np.abs(rotated(spike, key)).max(), np.abs(rotated(dense, key)).max())
    assert worst < bound_entry(size, 1e-6)
    assert bound_entry(size, 1e-6) < 0.35
    assert bound_entry(1, 0.5) == 1.0


def test_a_bound_passes_through():
    """Noise behind a rotation counts with the clip before it."""
    chain = Chain([Clip(2.0), Rotation(), GaussianNoise(1.5)])
    assert [event.noise_multiplier for event in chain.events] == [1.5]
    assert Chain([Clip(2.0), Rotation()]).bound == 2.0


def test_another_seed_is_another_rotation():
    x = np.arange(64.0)
    assert not np.allclose(rotated(x, 1), rotated(x, 2))
    assert Rotation().public(Rng(1)) != Rotation().public(Rng(2))
