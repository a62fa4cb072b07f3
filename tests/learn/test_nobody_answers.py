"""Devices that never answer end a training with a reason, whatever its pace; a deadline that nobody can meet is refused before anybody is asked."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import ConfigError, QuorumError
from atoll.devices import exponential
from atoll.pacing import FedAsync, FedBuff, PartialBarrier, Synchronous, Tiered
from atoll.selection import FedCS, Uniform
from tests.support.async_toys import train

CRASHING = exponential(minimum=0.05, model_bytes=10e6, seed=1, crash=1.0)
FINE = exponential(minimum=0.05, model_bytes=10e6, seed=1)


@pytest.mark.parametrize("pacing", [FedAsync(), FedBuff(buffer=2), PartialBarrier(replies=2)], ids=repr)
@pytest.mark.parametrize("selection", [Uniform(2), Uniform(5)], ids=repr)
def test_everyone_crashes(monkeypatch, pacing, selection):
    monkeypatch.setattr("atoll.learn.pacing.asynchronous.MOST_ASKS", 40)
    with pytest.raises(QuorumError, match=r"41 requests in a row had no reply.*crash less often"):
        train(pacing, seconds=CRASHING, selection=selection, rounds=2)


def test_requests_are_counted_since_the_last_reply(monkeypatch):
    """Nine of ten devices crash at each request: many go by in a round, never so many one after the other."""
    monkeypatch.setattr("atoll.learn.pacing.asynchronous.MOST_ASKS", 60)
    flaky = exponential(minimum=0.05, model_bytes=10e6, seed=1, crash=0.9)
    row = train(FedBuff(buffer=5), seconds=flaky, selection=Uniform(5), rounds=1).metrics[-1]
    assert row["replied"] == 5
    assert row["crashed"] > 15


@pytest.mark.parametrize(
    "how", [{"pacing": Tiered(deadline=0.1)}, {"pacing": Synchronous(), "selection": FedCS(5, deadline=0.1)}], ids=repr
)
def test_a_deadline_that_nobody_can_meet(how):
    with pytest.raises(
        ConfigError, match=r"no client can answer within deadline=0\.1 s; the fastest, client-\d, takes"
    ):
        train(how["pacing"], seconds=FINE, **{name: part for name, part in how.items() if name != "pacing"})


def test_a_tiers_round_without_replies_has_failed():
    rows = train(Tiered(tiers=2, deadline=2.0), seconds=FINE, rounds=6).metrics
    failed = [row.get("failed") for row in rows]
    assert [bool(words) for words in failed] == [row["replied"] == 0 for row in rows]
    assert {words for words in failed if words} <= {f"no client of tier {m} answered in time" for m in (1, 2)}
    assert any(failed)
    assert np.isfinite([row["t_end"] for row in rows]).all()
