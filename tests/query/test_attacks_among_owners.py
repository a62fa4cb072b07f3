"""Owners who compute alone, by garbled circuits or among cheats: a coordinator that asks them different things, leaves one out or replays a request gets no row; one that dies ends it with a name; no message tells of a cell."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.core.errors import AtollError, TaskError
from atoll.core.execution.session import LocalPeers
from atoll.core.federation.federation import Federation
from atoll.engines.recording import RecordingEngine
from tests.query.test_garbled import GARBLED, OPEN, bills
from tests.support.silos import connected

TEXT = "SELECT ward, count(*) FROM bills GROUP BY ward"
RARE = 7_654_321
CANARY = "canary that sings"
MADE = {
    GARBLED: bills([(RARE, CANARY, 3.5)], [(RARE + 1, "B", 4)]),
    "senate": bills([(RARE, CANARY, 3.5)], [(RARE + 1, "B", 4)], [(3, "A", 2)]),
}


def lied_to(strategy: str, change: Any, liar: str, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement whose request is changed for one owner, or for all, ends with an error, and only digests went between owners."""
    plain, engine = Federation.session, RecordingEngine()

    async def session(fed: Any, roles: Any) -> Any:
        told = {name: (at, job.with_args(request=change(job.args["request"])) if liar in ("", name) else job) for name, (at, job) in roles.items()}  # fmt: skip
        return await plain(fed, told)

    with connected(MADE[strategy], OPEN) as db, monkeypatch.context() as patch:
        patch.setattr(Federation, "session", session)
        db.engine = engine
        with pytest.raises(AtollError, match=match):
            db.sql(TEXT, strategy=strategy)
    between = [one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages]
    assert len({len(one) for one in between}) <= 1, "more than digests"


def without_last(request: Any) -> Any:
    return {**request, "sizes": dict(list(request["sizes"].items())[:-1])}


LIES: dict[str, tuple[Any, str, str]] = {
    "another statement": (lambda one: {**one, "message": {**one["message"], "sql": TEXT.replace("ward, ", "")}}, "s1", "was asked for something else than"),
    "another order of owners": (lambda one: {**one, "sizes": dict(reversed(one["sizes"].items()))}, "s1", "was asked for something else than|are to hold the shares"),
    "fewer rows of an owner": (lambda one: {**one, "sizes": {**one["sizes"], "s1": [2]}}, "", "filled up, and .* are asked for"),
    "an owner left out": (without_last, "", "takes part in the session alone|are to hold the shares"),
}  # fmt: skip


@pytest.mark.parametrize("strategy", MADE)
@pytest.mark.parametrize("lie", LIES)
def test_owners_that_are_asked_for_different_things_share_nothing(strategy: str, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    lied_to(strategy, LIES[lie][0], LIES[lie][1], LIES[lie][2], monkeypatch)


def test_owners_that_are_told_different_parts_of_a_plan_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lied_to("senate", lambda one: {**one, "division": [2, 0]}, "s1", "was asked for something else than", monkeypatch)


@pytest.mark.parametrize("strategy", MADE)
def test_a_request_of_another_statement_is_no_request_of_this_one(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What s1 was asked for before is replayed to it."""
    plain, seen = Federation.session, list[Any]()

    async def session(fed: Any, roles: Any) -> Any:
        seen.append(roles["s1"][1])
        return await plain(fed, {**roles, "s1": (roles["s1"][0], seen[0])})

    monkeypatch.setattr(Federation, "session", session)
    with connected(MADE[strategy], OPEN) as db:
        assert db.check(db.sql(TEXT, strategy=strategy))
        with pytest.raises(AtollError, match="was asked for something else than"):
            db.sql(TEXT.replace("count(*)", "max(who)"), strategy=strategy)


@pytest.mark.parametrize("strategy", MADE)
def test_an_owner_that_dies_in_the_middle_is_named_and_leaves_no_row(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    before, sent = LocalPeers.send, list[str]()

    async def dies(peers: Any, role: str, value: Any, channel: str = "") -> None:
        if peers.me == "s1":
            sent.append(role)
            if len(sent) > 3:
                raise TaskError("s1 is gone", where="test")
        await before(peers, role, value, channel)

    with connected(MADE[strategy], OPEN) as db:
        with monkeypatch.context() as patch:
            patch.setattr(LocalPeers, "send", dies)
            with pytest.raises(AtollError, match="s1"):
                db.sql(TEXT, strategy=strategy)
        assert db.check(db.sql(TEXT, strategy=strategy))


@pytest.mark.parametrize("strategy", MADE)
def test_no_message_has_a_cell(strategy: str) -> None:
    """The answer too reaches the coordinator in parts, none of which says anything alone."""
    engine = RecordingEngine()
    with connected(MADE[strategy], OPEN) as db:
        db.engine = engine
        found = db.sql("SELECT ward, max(who) FROM bills GROUP BY ward", strategy=strategy)
        assert (CANARY, RARE) in found.rows
    said = b"".join(bytes(one) for messages in engine.heard.values() for one in messages)
    for canary in (CANARY[:8].encode(), CANARY[:8].encode()[::-1], RARE.to_bytes(8, "little"), RARE.to_bytes(4, "little"), str(RARE).encode()):  # fmt: skip
        assert canary not in said
