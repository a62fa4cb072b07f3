"""A coordinator that asks parties for different things, leaves one out or asks twice gets nothing more: all roles of a session compare what they were asked for before a row leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import AtollError, TaskError
from atoll.core.execution.session import LocalPeers
from atoll.core.federation.federation import Federation
from atoll.engines.recording import RecordingEngine
from atoll.query import Query, job
from atoll.query.strategies import shrinkwrap
from atoll.runtime.worker.sitedata import load_site_data
from tests.query.test_shrinkwrap import JOINED, policy_of, small
from tests.support.silos import connected

TRUSTED = {"level": "protected", "at_most": 40, "trusted": ["s1", "s2", "helper"]}
POLICY = policy_of(p={"id": TRUSTED}, v={"id": TRUSTED})
STRATEGIES = {
    "smcql": "smcql",
    "conclave": "conclave",
    "shrinkwrap": "shrinkwrap:epsilon=4,delta=0.001,analyst=anna,split=uniform",
}
ROWS = [[(10 * j + i, 2) for i in range(2)] for j in range(4)]
VISITS = [[(10 * j + i, 3) for i in range(2)] for j in range(4)]
Request = dict[str, Any]


def said(request: Request, **message: Any) -> Request:
    return {**request, "message": {**request["message"], **message}}


def stricter(request: Request) -> Request:
    """A column that the statement does not read is private."""
    tables = request["message"]["policy"]["tables"]
    columns = {**tables["p"]["columns"], "seen": tables["p"]["columns"]["pay"]}
    return said(request, policy={**request["message"]["policy"], "tables": {**tables, "p": {**tables["p"], "columns": columns}}})  # fmt: skip


def without(request: Request, site: str) -> Request:
    return {**request, "sizes": {name: own for name, own in request["sizes"].items() if name != site}}


def turned(request: Request) -> Request:
    """The same owners in another order: rows would be numbered otherwise."""
    return {**request, "sizes": dict(reversed(request["sizes"].items()))}


OTHER = "was asked for something else than s|nobody has paid for|names rows that are not here|does not say how epsilon is divided"
TO_ONE: dict[str, Callable[[Request], Request]] = {
    "another statement": lambda one: said(one, sql=one["message"]["sql"] + " LIMIT 9"),
    "another policy": stricter,
    "another order of owners": turned,
    "another site that answers for all": lambda one: said(one, first="s1"),
    "another length of texts": lambda one: {**one, "widths": {**one["widths"], "p.x": 9}},
}
TO_ALL: dict[str, tuple[Callable[[Request], Request], str]] = {
    "that an owner is not there": (lambda one: without(one, "s3"), "s3 takes part in the session alone|nobody has paid for"),
    "that a party has no rows": (lambda one: without(one, "s1"), "leaves out the rows of s1|nobody has paid for"),
    "that an owner has fewer rows": (lambda one: {**one, "sizes": {**one["sizes"], "s3": [1 for _ in one["sizes"]["s3"]]}}, "are asked for|nobody has paid for"),
}  # fmt: skip
TERMS: dict[str, list[Callable[[Request], Request]]] = {
    "conclave": [lambda one: said(one, trusted="none"), lambda one: said(one, trusted="s2")],
    "shrinkwrap": [
        lambda one: {**one, "cut": {**one["cut"], "epsilon": 4.5}},
        lambda one: {**one, "cut": {**one["cut"], "delta": 0.002}},
        lambda one: {**one, "cut": {**one["cut"], "parts": [2, *one["cut"]["parts"][1:]]}},
        lambda one: {**one, "cut": {**one["cut"], "analyst": "eve"}},
    ],
}


def refused(monkeypatch: pytest.MonkeyPatch, strategy: str, change: Callable[[Request], Request], match: str, liar: str = "", sites: int = 4) -> None:  # fmt: skip
    """A coordinator that changes the request of one role, or of all, gets an error, and no share of a row has left."""
    plain, engine = Federation.session, RecordingEngine()

    async def session(fed: Any, roles: Any) -> Any:
        told = {name: (at, job.with_args(request=change(job.args["request"])) if liar in ("", name) else job) for name, (at, job) in roles.items()}  # fmt: skip
        return await plain(fed, told)

    made = dict(list(small(ROWS, VISITS).items())[:sites])
    with monkeypatch.context() as patch, connected(made, POLICY) as db:
        patch.setattr(Federation, "session", session)
        db.engine = engine
        with pytest.raises(AtollError, match=match):
            db.sql(JOINED, strategy=STRATEGIES[strategy])
    between = [one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages]
    assert len({len(one) for one in between}) <= 1, "more than digests"


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lie", TO_ONE)
def test_a_site_that_is_asked_for_something_else_shares_nothing(lie: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    refused(monkeypatch, strategy, TO_ONE[lie], OTHER, "s2")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("lie", TO_ALL)
def test_owners_and_their_sizes_are_those_that_were_measured(lie: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    refused(monkeypatch, strategy, *TO_ALL[lie])


@pytest.mark.parametrize(("strategy", "place"), [(name, k) for name, found in TERMS.items() for k in range(len(found))])
def test_a_helper_that_is_told_other_terms_is_found_out(strategy: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A helper has no rows and no record of charges: only the sites' digests show what it was told."""
    refused(monkeypatch, strategy, TERMS[strategy][place], "was asked for something else than", "helper", sites=2)


def test_sites_that_are_charged_for_different_terms_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site has been paid for both, so its own record has nothing against either."""
    change, plain = TERMS["shrinkwrap"][0], Federation.ask_all

    async def ask_all(fed: Any, parties: Any, task: Any, message: Any) -> Any:
        if task is shrinkwrap.charge_sizes:
            await plain(fed, parties, task, change(message))
        return await plain(fed, parties, task, message)

    monkeypatch.setattr(Federation, "ask_all", ask_all)
    refused(monkeypatch, "shrinkwrap", change, "was asked for something else than", "s2")


def test_a_statement_is_not_opened_for_a_second_set_of_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of both answers would be that of one owner's rows; the same again is the same."""
    plain, opened = Federation.session, []

    async def session(fed: Any, roles: Any) -> Any:
        opened.extend([await plain(fed, roles) for _ in range(2)])
        fewer = {name: (at, job.with_args(request=without(job.args["request"], "s3"))) for name, (at, job) in roles.items() if name != "s3"}  # fmt: skip
        return await plain(fed, fewer)

    monkeypatch.setattr(Federation, "session", session)
    with connected(small(ROWS, VISITS), POLICY) as db, pytest.raises(AtollError, match="has bound itself to something else in 'owners of the statement"):  # fmt: skip
        db.sql(JOINED, strategy="smcql")
    assert len(opened) == 2


@pytest.mark.parametrize(("owner", "message"), [("s1", 6), ("s3", 1)], ids=["party", "owner"])
def test_an_owner_that_dies_gives_a_named_error_and_is_charged_once(owner: str, message: int, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """It is gone after some messages of the session: no part of the answer is there, and the repeated statement costs nothing."""
    before, budget = LocalPeers.send, {**POLICY, "policy": {"min_count": 1, "privacy": {"people": {"anna": {"epsilon": 5, "delta": 0.01}}}}}  # fmt: skip
    sent: list[str] = []

    async def dies(peers: Any, role: str, value: Any, channel: str = "") -> None:
        if peers.me == owner:
            sent.append(role)
            if len(sent) > message + 3:  # three digests
                raise TaskError(f"{owner} is gone", where="test")
        await before(peers, role, value, channel)

    with connected(small(ROWS, VISITS), budget) as db:
        with monkeypatch.context() as patch:
            patch.setattr(LocalPeers, "send", dies)
            with pytest.raises(AtollError, match=f"{owner} is gone"):
                db.sql(JOINED, strategy=STRATEGIES["shrinkwrap"])
        found = db.sql(JOINED, strategy=STRATEGIES["shrinkwrap"])
        assert db.check(found)
        with pytest.raises(AtollError, match="4 is spent"):
            db.sql(JOINED, strategy=STRATEGIES["shrinkwrap"].replace("0.001", "0.002"))


@pytest.mark.parametrize("strategy", ["sums", "smcql", "shrinkwrap:epsilon=4,delta=0.001,analyst=anna"])
def test_a_site_answers_no_statement_but_the_signed_one(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites have the job from whoever signed it; the coordinator asks for other rows, of the same tables and within all policies."""
    signed = "SELECT count(*) FROM p JOIN v ON p.id = v.id WHERE p.k < 9 AND v.cost > 2" if strategy != "sums" else "SELECT count(*) FROM p WHERE k < ?"  # fmt: skip
    params = [9] if strategy == "sums" else []
    plain, engine = job.message_of, RecordingEngine()

    def altered(*given: Any) -> Any:
        made = plain(*given)
        return {**made, "sql": made["sql"].replace("9", "3")}

    with connected(small(ROWS, VISITS), POLICY) as db:
        for silo in db.silos.values():
            silo.bind_jobs([Query(sql=signed, params=params, strategy=strategy)])
        assert db.check(db.sql(signed, params, strategy=strategy), params)
        db.engine = engine
        with pytest.raises(AtollError, match="the statement is not the one that was signed"):
            db.sql(signed.replace("9", "3").replace("?", "3"), strategy=strategy)
        monkeypatch.setattr(job, "message_of", altered)
        with pytest.raises(AtollError, match="the statement is not the one that was signed"):
            db.sql(signed, params, strategy=strategy)
    if strategy != "sums":  # whose keys for masks travel first
        assert not [link for link in engine.heard if "coordinator" not in link]


def test_the_tables_of_a_site_are_bound_to_the_job_that_was_signed(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("id\n1\n")
    spec = {"path": str(tmp_path), "tables": {"v": {"columns": "public"}}}
    asked = Query(sql="SELECT count(*) FROM v")
    silo: Any = load_site_data(spec, "north", jobs=[asked]).population.shard(0)
    assert silo.signed == (asked,)
    silo.close()
