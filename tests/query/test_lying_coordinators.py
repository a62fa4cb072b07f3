"""A coordinator that asks parties for different things, leaves one out or asks twice gets nothing more: all roles of a session compare what they were asked for before a row leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import AtollError, DataError, TaskError
from atoll.core.execution.session import LocalPeers
from atoll.core.federation.federation import Federation
from atoll.engines.recording import RecordingEngine
from atoll.query import Query, job
from atoll.query.strategies import shared_rows, shrinkwrap, sums
from atoll.query.strategies.strategy import known_strategies, strategy_of, takes_epsilon
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


def asking(request: Request, **settings: Any) -> Request:
    return said(request, strategy={**request["message"]["strategy"], **settings})


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


OTHER = "was asked for something else than s|nobody has paid for|names rows that are not here|are to hold the shares|does not say how epsilon is divided"
TO_ONE: dict[str, Callable[[Request], Request]] = {
    "another statement": lambda one: said(one, sql=one["message"]["sql"] + " LIMIT 9"),
    "another policy": stricter,
    "another order of owners": turned,
    "another site that answers for all": lambda one: said(one, first="s1"),
    "another length of texts": lambda one: {**one, "widths": {**one["widths"], "p.x": 9}},
}
TO_ALL: dict[str, tuple[Callable[[Request], Request], str]] = {
    "that an owner is not there": (lambda one: without(one, "s3"), "s3 takes part in the session alone|nobody has paid for"),
    "that a party has no rows": (lambda one: without(one, "s1"), "leaves out the rows of s1|are to hold the shares|nobody has paid for"),
    "that an owner has fewer rows": (lambda one: {**one, "sizes": {**one["sizes"], "s3": [1 for _ in one["sizes"]["s3"]]}}, "are asked for|nobody has paid for"),
}  # fmt: skip
TERMS: dict[str, list[Callable[[Request], Request]]] = {
    "conclave": [lambda one: asking(one, trusted="none"), lambda one: asking(one, trusted="s2")],
    "shrinkwrap": [
        lambda one: asking(one, epsilon=4.5),
        lambda one: asking(one, delta=0.002),
        lambda one: asking(one, analyst="eve"),
        lambda one: asking(one, edition="later"),
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


# ---------------------------------------------------------------- the strategy and its settings are those of the job

ONE, BOTH = "SELECT count(*) FROM p WHERE k < 9", "SELECT count(*) FROM p JOIN v ON p.id = v.id"
NEAR = "SELECT k FROM p WHERE kNN(POINT(1, 2), place, 2)"
NOISE = {"epsilon": 4.0, "delta": 0.001, "analyst": "anna"}
PLAIN = policy_of(p={"id": {**TRUSTED, "trusted": ["s1", "s2"]}}, v={"id": {**TRUSTED, "trusted": ["s1", "s2"]}})
SPATIAL = {**PLAIN, "policy": {"min_count": 1, "enclave": {"simulated": True}, "privacy": {"people": {name: {"epsilon": 99, "delta": 0.1} for name in ("anna", "eve")}}}, "tables": {**PLAIN["tables"], "p": {**PLAIN["tables"]["p"], "points": {"place": {"x": "k", "y": "age", "extent": 100, "precision": 0.1}}}}}  # fmt: skip
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "sums": (ONE, {}),
    "smcql": (BOTH, {}),
    "senate": (ONE, {}),
    "conclave": (BOTH, {}),
    "shrinkwrap": (BOTH, NOISE),
    "saqe": (ONE, NOISE),
    "hufu": (NEAR, {}),
    "opaque": (BOTH, {}),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "sums": {},
    "smcql": {"mode": "garbled", "slices": "none", "joins": "told"},
    "senate": {},
    "conclave": {"trusted": "none"},
    "shrinkwrap": {
        "epsilon": 4.5,
        "delta": 0.002,
        "analyst": "eve",
        "split": "eager",
        "answer": "noisy",
        "edition": "later",
    },
    "saqe": {
        "epsilon": 4.5,
        "delta": 0.002,
        "analyst": "eve",
        "sample": 0.5,
        "sampler": "distinct",
        "error": 0.1,
        "confidence": 0.9,
        "edition": "later",
        "noise": "shares",
        "sampled_by": "shares",
    },
    "hufu": {
        "comparison": "masked",
        "bound": "extent",
        "radii": 3,
        "epsilon": 1.0,
        "owners": "grid",
        "cell": 1.0,
        "level": 2,
        "error": 0.1,
        "confidence": 0.9,
    },
    "opaque": {"mode": "encryption", "attestation": "another"},
}
UNSIGNED = "is not the one that was signed|a task of the strategy .* is asked for"


def refuses(asked: Query, name: str, match: str = UNSIGNED, lie: Callable[[Any], Any] = lambda told: told, sites: int = 3, monkeypatch: Any = None, **given: Any) -> None:  # fmt: skip
    """Sites that have one job from whoever signed it refuse what a coordinator makes of it; no share leaves, and nothing is charged."""
    plain, engine = job.message_of, RecordingEngine()
    with monkeypatch.context() as patch, connected(dict(list(small(ROWS, VISITS).items())[:sites]), SPATIAL) as db:
        for silo in db.silos.values():
            silo.bind_jobs([asked])
        db.engine = engine
        patch.setattr(job, "message_of", lambda *words: lie(plain(*words)))
        with pytest.raises(AtollError, match=match):
            db.sql(given.pop("sql", asked.sql.removeprefix("EXPLAIN ")), strategy=name, **given)
        assert not list(Path(db._folder).rglob("query-noised*"))
    between = [one for link, messages in engine.heard.items() if "coordinator" not in link for one in messages]
    assert len({len(one) for one in between}) <= 1


def test_every_setting_of_every_strategy_is_among_the_lies() -> None:
    known = {name: set(strategy_of(name).options()) for name in known_strategies() if name != "auto"}  # type: ignore[union-attr]
    assert {name: set(own) for name, own in SETTINGS.items()} == known


@pytest.mark.parametrize(("name", "setting"), [(name, one) for name, own in SETTINGS.items() for one in own])
def test_a_setting_that_was_not_signed_is_refused(name: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the request alone says so, or the coordinator does all of it; the job as it was signed is answered."""
    sql, noise = ASKED[name]
    asked = Query(sql=sql, strategy=name, **noise)
    lie = {setting: SETTINGS[name][setting], **({"sample": 0.5} if setting == "sampled_by" else {})}
    refuses(asked, name, lie=lambda told: {**told, "strategy": {**told["strategy"], **lie}}, monkeypatch=monkeypatch, **noise)  # fmt: skip
    if setting in ("analyst", "comparison"):
        done = (name, {**noise, **lie}) if setting in noise else (f"{name}:{setting}={lie[setting]}", noise)
        refuses(asked, done[0], monkeypatch=monkeypatch, **done[1])


@pytest.mark.parametrize("name", ASKED)
def test_a_strategy_is_answered_as_it_was_signed(name: str) -> None:
    sql, noise = ASKED[name]
    with connected(dict(list(small(ROWS, VISITS).items())[:3]), SPATIAL) as db:
        for silo in db.silos.values():
            silo.bind_jobs([Query(sql=sql, strategy=name, **noise)])
        assert db.sql(sql, strategy=name, **noise).rows


SWAPS = [
    ("saqe", "sums", ONE), ("sums", "smcql", ONE), ("smcql", "conclave", BOTH), ("smcql", "shrinkwrap", BOTH), ("conclave", "smcql", BOTH),
    ("shrinkwrap", "smcql", BOTH), ("hufu", "smcql", NEAR), ("auto", "saqe", ONE), ("auto", "smcql", ONE), ("auto", "hufu:radii=3", NEAR),
    ("shrinkwrap:answer=noisy", "shrinkwrap", BOTH),
]  # fmt: skip


@pytest.mark.parametrize(("signed", "done", "sql"), SWAPS)
def test_another_strategy_than_the_signed_one_is_refused(signed: str, done: str, sql: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The coordinator says so, or says that it is the signed one and asks for the other one's tasks."""
    asked = Query(sql=sql, strategy=signed, **(NOISE if takes_epsilon(signed) else {}))
    given = NOISE if takes_epsilon(done) else {}
    refuses(asked, done, monkeypatch=monkeypatch, **given)
    if (signed, done) in (("saqe", "sums"), ("shrinkwrap", "smcql"), ("hufu", "smcql")):
        told = replace(strategy_of(signed)(), **(NOISE if takes_epsilon(signed) else {})).told()  # type: ignore[misc]
        refuses(asked, done, lie=lambda one: {**one, "strategy": told}, monkeypatch=monkeypatch, **given)


@pytest.mark.parametrize("least", [1, 2])
def test_a_site_gives_no_sum_of_its_own_without_masks(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator leaves the masks out, and would see each site's own number."""

    async def add(strategy: Any, fed: Any, what: Any, message: Any) -> Any:
        del strategy
        told = await fed.ask_all(fed.parties, what, message)
        raise DataError(" ".join([*map(str, told.values), *told.rejected.values()]), where="test")

    monkeypatch.setattr(sums.MaskedSums, "_add", add)
    with connected(small(ROWS, VISITS), {**POLICY, "policy": {"min_count": least}}) as db, pytest.raises(AtollError, match=r"would let the server see this site's own numbers") as caught:  # fmt: skip
        db.sql("SELECT count(*) FROM p")
    assert "{'words'" not in str(caught.value)


def test_a_plan_that_was_asked_for_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(Query(sql=f"EXPLAIN {ONE}"), "sums", monkeypatch=monkeypatch)


def test_replicas_are_compared_for_the_signed_statement_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest under a key of the coordinator's would let it try which rows a table has: a site makes one of what the statement reads, and of replicated tables."""
    engine = RecordingEngine()
    tables = {**POLICY["tables"], "v": {"mode": "replicated", "columns": "public"}}
    with connected(dict(list(small(ROWS[:1] * 4, VISITS[:1] * 4).items())[:2]), {**POLICY, "tables": tables}) as db:  # fmt: skip
        db.engine = engine
        text = "SELECT count(*) FROM p JOIN v ON p.id = v.id"
        assert db.check(db.sql(text))
        for silo in db.silos.values():
            silo.bind_jobs([Query(sql=ONE)])
        with pytest.raises(AtollError, match="the statement is not the one that was signed"):
            db.sql(text)


def test_a_helper_that_nobody_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sites and a job without a helper: a third party of the coordinator's would hold shares of all rows."""
    refuses(Query(sql=BOTH), "smcql", "the statement is one for sites alone", sites=2, monkeypatch=monkeypatch)


def test_the_parties_are_the_first_three_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Federation.session

    async def session(fed: Any, roles: Any) -> Any:
        parties = ["s0", "s1", "s3"]
        make = {name: (shared_rows.compute_shares, {"me": name}) if name in parties else (shared_rows.share_rows, {}) for name in roles}  # fmt: skip
        return await plain(fed, {name: (at, make[name][0].with_args(request=job.args["request"], parties=parties, **make[name][1])) for name, (at, job) in roles.items()})  # fmt: skip

    monkeypatch.setattr(Federation, "session", session)
    with connected(small(ROWS, VISITS), POLICY) as db, pytest.raises(AtollError, match="s0, s1, s3 are to hold the shares, and the statement is one for s0, s1, s2"):  # fmt: skip
        db.sql(JOINED, strategy="smcql")


@pytest.mark.parametrize("strategy", ["sums", "smcql"])
def test_a_site_counts_by_its_own_minimum_whatever_the_coordinator_says(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    plain = job.message_of
    strict = {**POLICY, "policy": {"min_count": 3}, "tables": {**POLICY["tables"], "p": {**POLICY["tables"]["p"], "columns": {"id": "protected", "k": "public"}}}}  # fmt: skip
    text = "SELECT k, count(*) AS n FROM p GROUP BY k"
    monkeypatch.setattr(job, "message_of", lambda *words: {**plain(*words), "policy": {**plain(*words)["policy"], "min_count": 1}})  # fmt: skip
    with connected(small([[(1, 2)], [(2, 2)], [(3, 9)]], [[], [], []]), strict) as db:
        assert db.sql(text, strategy=strategy).rows == []


def test_the_tables_of_a_site_are_bound_to_the_job_that_was_signed(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("id\n1\n")
    spec = {"path": str(tmp_path), "tables": {"v": {"columns": "public"}}}
    asked = Query(sql="SELECT count(*) FROM v")
    silo: Any = load_site_data(spec, "north", jobs=[asked]).population.shard(0)
    assert silo.signed == (asked,)
    silo.close()
