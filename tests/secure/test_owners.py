"""What owners compute together is what one who has all numbers computes; and what they send is uniform."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError, LetterError
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task
from atoll.secure.owners import FIELD, OwnerCircle, find_first_above, join_scattered, margin_of, slots_of

SENT: dict[tuple[str, str], list[Any]] = {}
TOTALS: list[Any] = []


class Watched(OwnerCircle):
    """A circle that keeps what its lead adds up."""

    async def _total(self, masked: Any, dtype: Any) -> Any:
        found = await super()._total(masked, dtype)
        if found is not None:
            TOTALS.append(found)
        return found


class Recorded:
    """Peers that keep what a role sends."""

    def __init__(self, peers: Any, me: str) -> None:
        self._peers, self._me, self.names = peers, me, peers.names
        self.recv = peers.recv

    async def send(self, role: str, message: Any) -> None:
        SENT.setdefault((self._me, role), []).append(message)
        await self._peers.send(role, message)

    async def broadcast(self, message: Any) -> None:
        for role in self.names:
            await self.send(role, message)


@task
async def talk(island: Any, peers: Any, *, names: Any, me: str, comparison: str, thresholds: Any) -> Any:
    own = island.data
    about = str(own.get("about", "the same")).encode().ljust(16)
    circle = await Watched.begin(island.secret, Recorded(peers, me), list(names), me, about)
    counts = np.array(own["counts"])
    total, said = await circle.add(counts - 3), await circle.any(counts >= 2)
    reached = [(await circle.reach(counts, int(k), comparison)).tolist() for k in thresholds]
    part, _ = await circle.scatter(own["rows"])
    return {"total": total, "said": said, "reached": reached, "part": part, "rounds": circle.rounds}


def hold(own: list[dict[str, Any]], comparison: str, thresholds: list[int], names: list[str] | None = None) -> dict[str, Any]:  # fmt: skip
    SENT.clear()
    TOTALS.clear()
    data = {f"o{k}": one for k, one in enumerate(own)}
    every = names or list(data)

    async def program(fed: Any) -> Any:
        args = {"names": every, "comparison": comparison, "thresholds": thresholds}
        return await fed.session({name: (name, talk.with_args(me=name, **args)) for name in data})

    return dict(atoll.simulate(program, data, engine="inline", progress=False))


owners = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.lists(st.binary(max_size=20), max_size=6)),
    min_size=2, max_size=5,
)  # fmt: skip


@settings(max_examples=6)
@given(owners, st.lists(st.integers(1, 30), min_size=1, max_size=3), st.sampled_from(["exact", "masked"]))
def test_owners_find_what_one_who_has_all_finds(drawn: Any, thresholds: list[int], comparison: str) -> None:
    comparison = "exact" if len(drawn) == 2 else comparison
    found = hold([{"counts": counts, "rows": rows} for counts, rows in drawn], comparison, thresholds)
    counts = np.array([counts for counts, _ in drawn])
    for one in found.values():
        assert one["total"].tolist() == (counts - 3).sum(0).tolist()
        assert one["said"].tolist() == (counts >= 2).any(0).tolist()
        assert one["reached"] == [(counts.sum(0) >= k).tolist() for k in thresholds]
    assert len({one["rounds"] for one in found.values()}) == 1
    rows = join_scattered([one["part"] for one in found.values()])
    assert sorted(rows) == sorted(row for _, rows in drawn for row in rows)


@pytest.mark.parametrize(("n", "comparison"), [(4, "exact"), (4, "masked"), (2, "exact")])
def test_what_an_owner_sends_is_uniform_whatever_it_has(n: int, comparison: str) -> None:
    """Equal counts, as many as `size`: each bit of each word that leaves is 0 and 1 equally often (five deviations), but for verdicts, seeds and the factor."""
    size = 4096 if n > 2 else 200
    own = [{"counts": [min(k, 3)] * size, "rows": []} for k in range(n)]
    found = hold(own, comparison, [5])
    assert all(sum(one["reached"][0]) == (size if n == 4 else 0) for one in found.values())
    seen = 0
    for (source, target), messages in SENT.items():
        for message in messages:
            for leaf in message.values() if isinstance(message, dict) else [message]:
                if (
                    leaf.dtype == np.bool_
                    or leaf.size < size
                    or (source == "o0" and leaf.dtype in (np.int64, np.uint64))
                ):
                    continue  # what all learn: the lead tells sums and verdicts
                bits = {"uint64": 60, "uint8": 1 if leaf.shape == (size,) else 8}.get(
                    leaf.dtype.name, (n * 5).bit_length()
                )
                ones = (leaf.reshape(-1)[:, None] >> np.arange(bits).astype(leaf.dtype) & leaf.dtype.type(1)).mean(
                    axis=0
                )
                assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(size), (source, target, leaf.dtype, ones)
                seen += 1
    assert seen >= (6 if n == 4 else 2)
    asked = TOTALS[1]  # whether one has 2 or more: two of four owners do, and the sum does not tell how many
    assert len(set(asked.tolist())) == (size if n == 4 else 1)
    if comparison == "masked":  # what the first learns is a random multiple of 6 - 5
        to_first = [SENT[f"o{k}", "o0"] for k in (1, 2, 3)]
        last = [next(one for one in reversed(messages) if one.shape == (size,)) for messages in to_first]
        found_there = FIELD.signed(functools.reduce(FIELD.add, last))
        assert (found_there > 0).all()
        assert len(set(found_there.tolist())) == size


def test_rows_are_in_places_that_do_not_follow_from_owners() -> None:
    """The first owner's rows are first as often as not: the mean of their places, five deviations."""
    own = [{"counts": [0], "rows": [b"%d" % k] * 60} for k in range(3)]
    rows = join_scattered([one["part"] for one in hold(own, "exact", [1]).values()])
    places = np.flatnonzero([row == b"0" for row in rows])
    assert len(rows) == 180
    assert abs(places.mean() - 89.5) < 5 * 180 / np.sqrt(12 * 60)


def test_owners_that_are_asked_different_things_say_so() -> None:
    own: list[dict[str, Any]] = [{"counts": [1], "rows": []} for _ in range(3)]
    own[2]["about"] = "another"
    with pytest.raises(LetterError, match=r"o0 was asked for something else than o2"):
        hold(own, "exact", [1])
    with pytest.raises(ConfigError, match="in a session of o0, o1, o2"):
        hold([{"counts": [1], "rows": []} for _ in range(3)], "exact", [1], ["o0", "o1"])
    with pytest.raises(ConfigError, match="two owners compare masked"):
        hold([{"counts": [1], "rows": []} for _ in range(2)], "masked", [1])
    with pytest.raises(LetterError, match=r"a row of \d+ bytes among rows of 7"):
        join_scattered([np.array([[9, 0]], np.uint64), np.array([[90, 0]], np.uint64)])


def test_places_are_enough_that_few_rows_meet() -> None:
    assert [slots_of(k) for k in (1, 4, 16, 64, 1000)] == [64, 64, 256, 1024, 4096]


def test_the_first_count_above_a_level_is_private_and_seldom_below() -> None:
    """Of neighbours, no outcome is more than e^epsilon times as likely (with five deviations of 3,000 draws); and the margin keeps wrong places below 1 %."""
    epsilon, draws = 1.0, 3000
    secret = Secret(7)
    level = 10
    found = []
    for counts in ([4, 8, 10, 13, 20], [5, 9, 11, 14, 21]):
        places = [find_first_above(secret, counts, level, epsilon) for _ in range(draws)]
        found.append(np.array([sum(place == k for place in places) for k in (0, 1, 2, 3, 4, None)]) / draws)
    slack = 5 * np.sqrt(np.maximum(*found) / draws) + 1 / draws
    assert (found[0] <= np.exp(epsilon) * found[1] + slack).all()
    assert (found[1] <= np.exp(epsilon) * found[0] + slack).all()
    assert found[0].max() < 0.9  # there is noise
    margin = margin_of(19, epsilon)
    assert margin == 25
    below = [find_first_above(secret, [level] * 19, level + margin, epsilon) for _ in range(draws)]
    assert sum(place is not None for place in below) < 0.01 * draws + 5 * np.sqrt(0.01 * draws)
