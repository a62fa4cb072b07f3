"""``opaque``: the enclave's answer is DuckDB's on the union, what its host sees follows from sizes, no row is sent before the quote is right, and everything says that the enclave is simulated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.core.errors import AtollError, CompositionError, ConfigError, DataError, PolicyError
from atoll.core.federation.federation import Federation
from atoll.engines.recording import RecordingEngine
from atoll.query import Query, QueryPolicy
from atoll.query.secure.enclave import EnclaveTable
from atoll.query.strategies.opaque import MODES
from atoll.secure.attestation import SignedAttestation, root_of, seal_blocks
from atoll.simulation import simulate
from tests.query.test_shares_law import EXAMPLES, FIXED, POLICY, sites, sources, statements
from tests.support.silos import TableSource, connected, pooled, same_rows
from tests.support.tpch import POLICY as TPCH
from tests.support.tpch import QUERIES, make_sources

ENCLAVE: dict[str, Any] = {"min_count": 1, "enclave": {"simulated": True}}
ALLOWED = {**POLICY, "policy": ENCLAVE}


def require_equal(drawn: Any, texts: list[str], mode: str) -> None:
    made = sources(drawn)
    with connected(made, ALLOWED) as db, pooled(made, replicated=("n",)) as oracle:
        for text in texts:
            try:
                found = db.sql(text, strategy=f"opaque:mode={mode}")
            except PolicyError:
                assert "OVER" in text  # ranks and sums of windows show by what rows are ordered
                continue
            same_rows(found.rows, oracle.execute(text).fetchall(), what=text)


@pytest.mark.parametrize(("mode", "texts"), [(MODES[0], EXAMPLES[:2]), (MODES[1], EXAMPLES), (MODES[2], EXAMPLES[::2])])
def test_a_statement_of_each_kind_equals_duckdb(mode: str, texts: list[str]) -> None:
    require_equal(FIXED, texts, mode)


@pytest.mark.parametrize("mode", MODES[1:])
@settings(max_examples=2, deadline=None)
@given(sites, st.lists(statements(), min_size=2, max_size=2))
def test_drawn_statements_equal_duckdb_on_the_union(mode: str, drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(sites, st.lists(statements(), min_size=4, max_size=4))
def test_many_drawn_statements_equal_duckdb_on_the_union(mode: str, drawn: Any, texts: list[str]) -> None:
    require_equal(drawn, texts, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[:2])
def test_all_of_tpch_equals_duckdb(mode: str) -> None:
    made = make_sources()
    with connected(made, {**TPCH, "policy": ENCLAVE}) as db, pooled(made, replicated=("region", "nation")) as oracle:
        for number, text in QUERIES.items():
            found = db.sql(text, strategy=f"opaque:mode={mode}")
            same_rows(found.rows, oracle.execute(text).fetchall(), ordered="ORDER BY" in text, what=str(number))


# ---------------------------------------------------------------- what the host sees

T, U = {"id": "BIGINT", "k": "BIGINT", "x": "BIGINT"}, {"id": "BIGINT", "y": "BIGINT"}
COLUMNS = {"policy": ENCLAVE, "tables": {"t": {"columns": "protected"}, "u": {"columns": {"id": {"level": "protected", "at_most": 9}, "y": "protected"}}}}  # fmt: skip
SHAPES = [
    "SELECT k, count(*), sum(x), max(x), count(DISTINCT x) FROM t GROUP BY k",
    "SELECT t.id, y FROM t JOIN u ON t.id = u.id AND t.x < u.y",
    "SELECT t.id, y FROM t LEFT JOIN u ON t.id = u.id WHERE t.id NOT IN (SELECT id FROM u WHERE y > 4)",
    "SELECT id, rank() OVER (PARTITION BY k ORDER BY id), x FROM t ORDER BY x, id LIMIT 3",
]
small = st.integers(0, 4)
rows_of_t = st.lists(st.tuples(small, small, small), min_size=5, max_size=5)
rows_of_u = st.lists(st.tuples(small, small), min_size=4, max_size=4)


def watch(text: str, mode: str, t: Any, u: Any) -> dict[str, Any]:
    """The accesses and sizes that the host of the enclave sees."""
    made = {f"s{j}": TableSource({"t": (T, t[j::2]), "u": (U, u[j::2])}) for j in range(2)}
    with connected(made, COLUMNS) as db:
        return dict(simulate(Query(sql=text, strategy=f"opaque:mode={mode}"), db.silos, progress=False).outcome.answer.noted)  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("text", SHAPES)
@settings(max_examples=2, deadline=None)
@given(rows_of_t, rows_of_u, rows_of_t, rows_of_u)
def test_filled_up_tables_are_walked_alike_whatever_their_values(text: str, t: Any, u: Any, v: Any, w: Any) -> None:
    one, other = watch(text, "oblivious-pad", t, u), watch(text, "oblivious-pad", v, w)
    assert one == other
    assert one["sizes"] == []
    assert one["accesses"][0] > 0


@pytest.mark.parametrize("text", SHAPES[:3])
@settings(max_examples=2, deadline=None)
@given(rows_of_t, rows_of_u, st.permutations(range(5)), st.integers(1, 9))
def test_equal_sizes_have_equal_traces(text: str, t: Any, u: Any, order: Any, by: int) -> None:
    """Other rows with other values: in another order, keys moved, so that each table on the way has as many rows."""
    moved = [(t[k][0] + 7, t[k][1] * by, t[k][2]) for k in order]
    one, other = watch(text, "oblivious", t, u), watch(text, "oblivious", moved, [(a + 7, y) for a, y in reversed(u)])
    assume(one["sizes"] == other["sizes"])  # equal ids compare alike
    assert one["accesses"] == other["accesses"]
    assert one["sizes"]


def test_a_sort_that_walks_as_values_lead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def sort(table: EnclaveTable, keys: Any, *, last: bool = True) -> EnclaveTable:
        order = np.lexsort([*reversed(keys), ~table.valid] if last else list(reversed(keys)) or [np.zeros(len(table))])
        table.trace.note("read", order)
        return EnclaveTable({name: x[order] for name, x in table.columns.items()}, table.valid[order], table.trace)

    monkeypatch.setattr(EnclaveTable, "sort_rows", sort)
    rows = [(k, k, k) for k in range(5)]
    seen = [watch(SHAPES[0], "oblivious-pad", one, [(1, 1)] * 4)["accesses"] for one in (rows, rows[::-1])]
    assert seen[0] != seen[1]


def test_a_network_sorts_rows_stably_and_those_that_do_not_count_last() -> None:
    rng = np.random.default_rng(0)
    from atoll.query.secure.enclave import AccessTrace

    for n in (1, 2, 3, 7, 8, 33, 100):
        key, valid = rng.integers(0, 6, n).astype(np.uint64), rng.random(n) < 0.7
        table = EnclaveTable({"key": key, "at": np.arange(n, dtype=np.uint64)}, valid, AccessTrace()).sort_rows([key])
        assert table.columns["at"].tolist() == np.lexsort([np.arange(n), key, ~valid]).tolist()


# ---------------------------------------------------------------- quotes and blocks

SECRET = "Canary of 37 letters, which none reads"


def people() -> dict[str, TableSource]:
    columns = {"id": "BIGINT", "name": "VARCHAR"}
    return {f"s{j}": TableSource({"p": (columns, [(3 * k + j, SECRET) for k in range(3)])}) for j in range(3)}


NAMES: dict[str, Any] = {"policy": ENCLAVE, "tables": {"p": {"columns": "protected"}}}
ASKED = "SELECT name, count(*) AS n FROM p WHERE id > 1 GROUP BY name"


@pytest.mark.parametrize("mode", MODES)
def test_rows_leave_sealed_and_only_the_answer_is_open(mode: str) -> None:
    engine = RecordingEngine()
    with connected(people(), NAMES) as db:
        db.engine = engine
        assert db.sql(ASKED.replace("SELECT name,", "SELECT max(id),"), strategy=f"opaque:mode={mode}").rows == [(8, 7)]
    heard = {link: b"".join(bytes(one) for one in messages) for link, messages in engine.heard.items()}
    assert any("enclave" in link for link in heard)
    assert not [link for link, said in heard.items() if SECRET[:16].encode() in said or SECRET[:8].encode()[::-1] in said]  # fmt: skip


def ask(change: Callable[[str, dict[str, Any]], dict[str, Any]] | None, monkeypatch: pytest.MonkeyPatch, match: str, mode: str = "oblivious", policy: Any = None) -> None:  # fmt: skip
    """A statement that fails with a named error, and no row has left in the open or sealed to somebody else."""
    plain = Federation.session

    async def session(fed: Any, roles: Any) -> Any:
        told = {name: (at, job.with_args(request=change(name, dict(job.args["request"])))) for name, (at, job) in roles.items()} if change else roles  # fmt: skip
        return await plain(fed, told)

    with connected(people(), policy or NAMES) as db, monkeypatch.context() as patch:
        patch.setattr(Federation, "session", session)
        with pytest.raises(AtollError, match=match):
            db.sql(ASKED, strategy=f"opaque:mode={mode}")


def said(request: dict[str, Any], **message: Any) -> dict[str, Any]:
    return {**request, "message": {**request["message"], **message}}


LIES: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "another statement": lambda name, one: said(one, sql=one["message"]["sql"] + " LIMIT 9") if name == "enclave" else one,
    "another mode": lambda name, one: said(one, mode="oblivious-pad") if name == "enclave" else one,
    "another site that answers for all": lambda name, one: said(one, first="s2") if name == "s1" else one,
    "another order of owners": lambda name, one: {**one, "sizes": dict(reversed(one["sizes"].items()))} if name == "s1" else one,
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_enclave_that_is_asked_for_something_else_measures_something_else(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    ask(LIES[lie], monkeypatch, "runs other code, or computes something else than this site is asked for|are asked for")


def test_owners_and_sizes_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = lambda name, one: {**one, "sizes": {**one["sizes"], "s1": [1]}}  # noqa: E731
    without = lambda name, one: {**one, "sizes": {"s0": one["sizes"]["s0"], "s1": one["sizes"]["s1"]}}  # noqa: E731
    ask(fewer, monkeypatch, "are asked for: its rows have changed|are asked for")
    ask(without, monkeypatch, "s2 takes part in the session alone")


def test_an_old_quote_and_another_root_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, old = SignedAttestation.quote, hashlib.sha256(b"yesterday").digest()
    with monkeypatch.context() as patch:
        patch.setattr(SignedAttestation, "quote", lambda made, challenge: plain(made, old))
        ask(None, patch, "answers another challenge: it is an old one")
    pinned = {**NAMES, "policy": {"min_count": 1, "enclave": {"simulated": True, "root": root_of(bytes(32))}}}
    ask(None, monkeypatch, "not signed by the root .* that the policy pins", policy=pinned)


def test_an_enclave_of_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = SignedAttestation.quote, hashlib.sha256(b"other code").hexdigest()
    monkeypatch.setattr(SignedAttestation, "quote", lambda made, challenge: plain(replace(made, measurement=other), challenge))  # fmt: skip
    ask(None, monkeypatch, "runs other code")


def test_a_block_that_the_host_swaps_is_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    letters: list[dict[str, Any]] = []

    def seal(secret: Any, key: bytes, about: bytes, owner: str, tables: Any) -> dict[str, Any]:
        made = seal_blocks(secret, key, about, owner, tables)
        letters.append(made)
        return letters[0]  # what another owner has sent

    monkeypatch.setattr("atoll.secure.attestation.seal_blocks", seal)
    ask(None, monkeypatch, r"block 0 of table 0 of s\d does not open")


# ---------------------------------------------------------------- what sites allow, and what is said


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ({}, "not every site lets rows go to one enclave"),
        ({"enclave": {}}, "the enclave is simulated.* not every site allows it"),
        ({"enclave": {"simulated": False}}, "the enclave is simulated"),
        ({"min_count": 2, "enclave": {"simulated": True}}, "min_count is 2"),
    ],
)
def test_each_site_must_write_that_a_simulated_enclave_may_have_its_rows(rules: dict[str, Any], match: str) -> None:
    with connected(people(), {**NAMES, "policy": {"min_count": 1, **rules}}) as db, pytest.raises(PolicyError, match=match):  # fmt: skip
        db.sql(ASKED, strategy="opaque")


def test_one_site_that_forbids_it_is_enough() -> None:
    from atoll.query import Silo, SqlConnection

    strict = {**NAMES, "policy": {"min_count": 1}}
    made = {name: Silo(source, QueryPolicy.of(strict if name == "s1" else NAMES), name) for name, source in people().items()}  # fmt: skip
    with SqlConnection(made) as db, pytest.raises(PolicyError, match="not every site lets rows go to one enclave"):
        db.sql(ASKED, strategy="opaque")


def test_nobody_gets_it_without_asking_and_everything_says_that_it_is_simulated() -> None:
    with connected(people(), NAMES) as db:
        assert db.sql(f"EXPLAIN {ASKED}").rejected["opaque"] == "its enclave is simulated: ask for opaque by its name"
        for mode in MODES:
            for text in (f"EXPLAIN {ASKED}", ASKED):
                found = db.sql(text, strategy=f"opaque:mode={mode}")
                assert [one for one in found.plan if one["place"] == "enclave (simulated)"]
                assert [one for one in found.leakage if "could read all rows" in one["assuming"]]
        assert abs(found.predicted / found.bytes - 1) < 0.1
        assert db.sql(ASKED, strategy="opaque:mode=oblivious").rows == [(SECRET, 7)]
    with connected(people(), NAMES) as db, pytest.raises(ConfigError, match="mode='pad'"):
        db.sql(ASKED, strategy="opaque:mode=pad")


@pytest.mark.parametrize("enclave", [{"simulated": 1}, {"root": "abc"}, {"root": 7}, {"hardware": True}, True])
def test_a_policy_of_enclaves_is_read_strictly(enclave: Any) -> None:
    with pytest.raises(ConfigError, match=r"simulated: 1|root: |hardware|where settings by name are expected"):
        QueryPolicy.of({"policy": {"enclave": enclave}, "tables": {}})


def test_what_the_enclave_has_no_operator_for_is_refused() -> None:
    with connected(people(), NAMES) as db, pytest.raises(CompositionError, match="it asks for a matching"):
        db.sql("SELECT a.id FROM Matching(p AS a, p AS b, a.id - b.id)", strategy="opaque")


@pytest.mark.parametrize("mode", ["encryption", "oblivious", "oblivious-pad"])
def test_what_policies_say_of_a_key_is_checked_in_each_mode(mode: str) -> None:
    policy = {"policy": {"min_count": 1, "enclave": {"simulated": True}}, "tables": {"t": {"columns": {"id": {"level": "protected", "key": True}}}, "u": {"columns": "protected"}}}  # fmt: skip
    for keys, twice in ((([1], [2], [3]), False), (([1], [2], [1]), True)):
        made = {f"s{k}": TableSource({"t": ({"id": "BIGINT"}, [(one,) for one in own]), "u": ({"id": "BIGINT"}, [(k,)])}) for k, own in enumerate(keys)}  # fmt: skip
        with connected(made, policy) as db:
            text = "SELECT count(*) FROM t JOIN u ON t.id = u.id"
            if twice:
                with pytest.raises(DataError, match="declare to be in few rows"):
                    db.sql(text, strategy=f"opaque:mode={mode}")
            else:
                assert db.sql(text, strategy=f"opaque:mode={mode}").rows == [(2,)]
