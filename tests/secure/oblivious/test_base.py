"""Base transfers: one seed of each pair, by points of a group of prime order."""

from __future__ import annotations

import numpy as np
import pytest
import rbcl

from atoll.core.errors import LetterError
from atoll.secure.oblivious import receive_seeds, send_seeds
from atoll.secure.oblivious.base import _seed
from tests.support.two_parties import converse

CHOICES = np.array([0, 1, 1, 0, 1, 0, 0, 1], dtype=bool)


def both(first=None, second=None):
    async def sends(secret, wire, peer):
        return await send_seeds(secret, wire, peer, len(CHOICES))

    async def receives(secret, wire, peer):
        return await receive_seeds(secret, wire, peer, CHOICES)

    return converse(first or sends, second or receives)


def test_the_receiver_has_the_seed_of_its_choice_and_no_other():
    pairs, mine, _ = both()
    rows = np.arange(len(CHOICES))
    np.testing.assert_array_equal(pairs[rows, CHOICES.astype(int)], mine)
    every = {seed.tobytes() for seed in pairs.reshape(-1, 32)}
    assert len(every) == 2 * len(CHOICES)
    assert pairs.shape == (8, 2, 32)


def test_a_choice_does_not_show_in_the_points():
    """Both kinds of points are new at each run, and elements of the group."""
    points = set()
    for _ in range(3):
        *_, ends = both()
        (raw,) = ends[1].sent
        sent = raw[-32 * len(CHOICES) :]
        points |= {sent[32 * i : 32 * (i + 1)] for i in range(len(CHOICES))}
    assert len(points) == 3 * len(CHOICES)
    assert all(rbcl.crypto_core_ristretto255_is_valid_point(point) for point in points)


NEUTRAL, STRANGE = np.zeros(32, np.uint8), np.full(32, 255, np.uint8)


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (NEUTRAL, "neutral one"),
        (STRANGE, "no point of ristretto255"),
        (np.zeros(31, np.uint8), r"uint8\(31,\) in place of 1 points"),
        (np.zeros(32, np.int64), "int64"),
        (b"\1" * 32, "bytes in place of"),
        (None, "NoneType"),
    ],
)
def test_a_strange_first_frame_names_its_party(frame, named):
    async def strange(_, wire, peer):
        await wire.send(peer, frame)

    with pytest.raises(LetterError, match=f"party 'first' sent .*{named}"):
        both(first=strange)


@pytest.mark.parametrize("bad", [NEUTRAL, STRANGE])
def test_one_strange_point_among_many_is_found(bad):
    async def strange(_, wire, peer):
        good = np.frombuffer(rbcl.crypto_core_ristretto255_random(), dtype=np.uint8)
        await wire.send(peer, np.concatenate([*[good] * 5, bad, good, good]))

    with pytest.raises(LetterError, match=r"party 'second' sent .* point 5"):
        both(second=strange)


def test_more_points_than_choices_are_refused():
    async def strange(_, wire, peer):
        await wire.send(peer, np.zeros(32 * 9, np.uint8))

    with pytest.raises(LetterError, match=r"party 'second' sent uint8\(288,\) in place of 8 points"):
        both(second=strange)


def test_a_seed_depends_on_all_that_was_said():
    said = [0, b"\1" * 32, b"\2" * 32, b"\3" * 32]
    seeds = {_seed(*said)} | {_seed(*said[:i], 1 if i == 0 else b"\4" * 32, *said[i + 1 :]) for i in range(4)}
    assert len(seeds) == 5
