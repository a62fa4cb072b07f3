"""What a party heard: in the order of its receipts, also across a crash."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.message import encode
from atoll.core.persistence.named_results import NamedResults
from atoll.vertical import SecureBoost, Vertical, VerticalResult
from atoll.vertical.transcript import HeardPeers, write_transcript
from tests.support.vertical_toys import as_parties, draw


class Peers:
    """A session with one other role, whose messages are there already."""

    names = ("shop",)

    def __init__(self, *messages, state=None):
        self.messages, self.state = list(messages), state

    def channel(self, name):
        return self

    async def recv(self, role):
        return self.messages.pop(0)

    async def gather(self, roles=None, *, skip_lost=False):
        return {role: self.messages.pop(0) for role in self.names}

    async def restore(self, initial):
        return initial if self.state is None else self.state

    async def checkpoint(self, state):
        self.state = state


def framed(*messages):
    return b"".join(len(encode(one)).to_bytes(8, "little") + encode(one) for one in messages)


def test_messages_of_all_channels_are_kept_in_the_order_of_receipt_also_across_a_crash():
    async def before(heard):
        assert await heard.restore({"round": 0}) == {"round": 0}
        await heard.recv("shop")
        await heard.channel("walks").recv("shop")
        await heard.checkpoint({"round": 1})

    async def after(heard):
        assert await heard.restore({"round": 0}) == {"round": 1}
        await heard.gather()

    first = Peers("a", np.arange(3))
    asyncio.run(before(HeardPeers(first)))
    second = HeardPeers(Peers({"x": 1.5}, state=first.state))
    asyncio.run(after(second))
    assert second.packed()["shop"].tobytes() == framed("a", np.arange(3), {"x": 1.5})


def test_without_transcript_nothing_is_kept_and_the_model_is_the_same(tmp_path):
    parties, _ = as_parties(draw(400, 300))
    results = {}
    for kept in (False, True):
        job = Vertical(model=SecureBoost(trees=2, depth=2, bins=8, security="none"), transcript=kept)
        results[kept] = atoll.simulate(
            job, parties, engine="inline", results=tmp_path / str(kept), progress=False
        ).outcome
    for name, values in results[False].predictions.items():
        np.testing.assert_array_equal(results[True].predictions[name], values)
    names = {one.name for one in NamedResults(tmp_path / "False").all()}
    assert names == {"vertical-model", "vertical-outcome"}
    with pytest.raises(ConfigError, match="no result named 'vertical-heard"):
        write_transcript(dict.fromkeys(parties, tmp_path / "False"), list(parties), tmp_path / "out")
    files = write_transcript(dict.fromkeys(parties, tmp_path / "True"), list(parties), tmp_path / "out")
    assert sorted(one.name for one in files) == ["guest--host-1.bin", "host-1--guest.bin"]
    assert sum(one.stat().st_size for one in files) < results[True].cost["bytes"] * 1.5


def test_a_result_is_read_from_what_stayed_at_the_parties(tmp_path):
    parties, _ = as_parties(draw(400, 300))
    job = Vertical(model=SecureBoost(trees=2, depth=2, bins=8, security="none"))
    whole = atoll.simulate(job, parties, engine="inline", results=tmp_path, progress=False).outcome
    found = VerticalResult.read(job, dict.fromkeys(parties, tmp_path))
    assert (found.task, found.rows, found.scores) == (whole.task, whole.rows, whole.scores)
    for name, values in whole.predictions.items():
        np.testing.assert_array_equal(found.predictions[name], values)
    np.testing.assert_array_equal(found.predict(parties), whole.predict(parties))
